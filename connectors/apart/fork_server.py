"""The process that forks children: it has imported what they need, and does nothing else.

It is started without anything of the service's memory, environment or files. Invariant: it ends
with the connection to the service, and the kernel ends its children with it. It has one thread, so
a fork is safe.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from connectors.apart import child_program
from storage.parent_process import die_with_parent
from storage.process_title import set_title

# Without children it ends after this time; the next use starts another one.
IDLE_S = 60.0
REQUEST_BYTES = 4096
# A child's connection for calls, its connection for events, where its exit status goes, and what
# it writes to standard error.
DESCRIPTORS = 4
# The kernel ends a child rather than the service if the machine has no memory left.
_EXPENDABLE = "1000"
_PAGE_BYTES = resource.getpagesize()


def main(arguments: list[str]) -> int:
    """Serve the connection with this number. arguments: it, the title, and modules to import."""
    number, title, *modules = arguments
    set_title(title)
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    _Server(socket.socket(fileno=int(number))).serve()
    return 0


class _Server:
    """Forks children, sends their exit statuses, and kills those that are to end."""

    def __init__(self, service: socket.socket) -> None:
        self._service = service
        self._pid = os.getpid()
        # By the service's number of a child: its pid, and where its status goes.
        self._children: dict[int, tuple[int, int]] = {}
        self._wakes, woken = os.pipe()
        for end in (self._wakes, woken):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._poll = select.poll()
        self._poll.register(service, select.POLLIN)
        self._poll.register(self._wakes, select.POLLIN)

    def serve(self) -> None:
        """Return once the service has ended, or nothing was asked for a while."""
        idle_since = time.monotonic()
        while self._children or time.monotonic() - idle_since < IDLE_S:
            ready = {number for number, _ in self._poll.poll(IDLE_S * 1000)}
            if self._wakes in ready:
                os.read(self._wakes, REQUEST_BYTES)
            self._reap()
            if self._service.fileno() in ready and not self._answer():
                return
            if self._children:
                idle_since = time.monotonic()

    def _answer(self) -> bool:
        """Do what the service asks for; False if it has gone."""
        found = socket.recv_fds(self._service, REQUEST_BYTES, DESCRIPTORS)
        data, descriptors = found[0], found[1]
        if not data:
            return False
        request: dict[str, Any] = json.loads(data)
        number = request["child"]
        if request["is_end"]:
            if number in self._children:
                os.kill(self._children[number][0], signal.SIGKILL)
            return True
        calls, events, status, errors = descriptors
        try:
            pid = os.fork()
        except OSError:
            # Its connections close without an answer, so the service tries again later.
            for one in descriptors:
                os.close(one)
            return True
        if pid == 0:
            set_title(request["title"])
            _be_child(self._pid, (calls, events, errors), request["memory_bytes"])
        self._children[number] = pid, status
        for one in (calls, events, errors):
            os.close(one)
        return True

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            for number, (own, end) in list(self._children.items()):
                if own == pid:
                    with suppress(OSError):  # the service has given up this child
                        os.write(end, str(os.waitstatus_to_exitcode(status)).encode())
                    os.close(end)
                    del self._children[number]


def _be_child(server: int, descriptors: tuple[int, int, int], memory_bytes: int) -> NoReturn:
    """Run a child until it ends; nothing of the server continues."""
    code = 1
    calls, events, errors = descriptors
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(errors, 2)
        first = 3
        for kept in sorted((calls, events)):
            os.closerange(first, kept)
            first = kept + 1
        os.closerange(first, os.sysconf("SC_OPEN_MAX"))
        die_with_parent(server)
        _limit_memory(memory_bytes)
        child_program.run(socket.socket(fileno=calls), socket.socket(fileno=events))
        code = 0
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        os._exit(code)


def _limit_memory(memory_bytes: int) -> None:
    """Let this process have so much memory beyond what it has now."""
    present = int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE_BYTES
    limit = present + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # a container may forbid it
        Path("/proc/self/oom_score_adj").write_text(_EXPENDABLE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
