"""Services that start at once: forked from a process that has imported everything before.

Imports are most of what a start of the service costs, and tests start hundreds. Each process of
tests has one such parent, which ends with it. A service is what a start by hand makes of it: its
own environment (also in /proc), standard streams, signals and umask.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from service.runtime.forking import Forked
from storage import failpoints

_MODULES = (
    *("service.cli.main", "service.supervisor.supervisor"),
    *("service.supervisor.run_api", "service.supervisor.run_pipeline"),
)
# Room for the environment of a service where /proc shows that of its parent.
_ROOM = "TIDEMARK_TEST_ROOM"
_ROOM_BYTES = 16 << 10
_MESSAGE_BYTES = 128 << 10
_POLL_S = 0.01
# CPU seconds of the services that have ended, with their children.
_spent_s = [0.0]


class WarmProcess:
    """A service, with the part of subprocess.Popen that tests need."""

    def __init__(self, parent: WarmParent, pid: int) -> None:
        self._parent = parent
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        if self.returncode is None:
            self.returncode = self._parent.exit_code(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; return the exit code. subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("tidemark", timeout or 0)
            time.sleep(_POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal if it runs; until it has been waited for, its pid cannot be reused."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL if it runs."""
        self.send_signal(signal.SIGKILL)


class WarmParent:
    """The process that services are forked from; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # Named as a start by hand, which tests search the list of processes for.
            command = [sys.executable, "-m", "tests.harness.warm", str(theirs.fileno())]
            self._process = subprocess.Popen(
                [*command, "service.cli.main", "serve"],
                env={**os.environ, _ROOM: "x" * _ROOM_BYTES},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd=Path(__file__).parent.parent.parent,
            )

    def start(self, environment: Mapping[str, str], stderr: int) -> WarmProcess:
        """Start `tidemark serve`; stderr: a descriptor."""
        request = json.dumps({"environment": dict(environment)}).encode()
        assert len(request) < _MESSAGE_BYTES
        with self._lock:
            socket.send_fds(self._channel, [request], [stderr])
            return WarmProcess(self, self._answer())

    def exit_code(self, pid: int) -> int | None:
        """Return the exit code of a service, once; None while it runs."""
        with self._lock:
            self._channel.send(json.dumps({"pid": pid}).encode())
            code, cpu_s = self._answer()
            _spent_s[0] += cpu_s
            return code

    def _answer(self) -> Any:
        received = self._channel.recv(_MESSAGE_BYTES)
        if not received:
            raise AssertionError("the process that services are forked from has ended")
        return json.loads(received)


def spent_s() -> float:
    """Return the CPU seconds of the services of this process that have ended."""
    return _spent_s[0]


@functools.cache
def warm_parent() -> WarmParent:
    """Return the one of this process."""
    return WarmParent()


def can_be_warm(environment: Mapping[str, str]) -> bool:
    """Return whether a service of this environment can be forked.

    Not if something that is read when Python starts differs from this process's environment.
    """
    own = {name for name in {*environment, *os.environ} if not name.startswith("TIDEMARK_")}
    return all(environment.get(name) == os.environ.get(name) for name in own - {"TMPDIR"})


def _main() -> NoReturn:
    channel = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in _MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    services: dict[int, Forked] = {}
    while True:
        message, descriptors, *_ = socket.recv_fds(channel, _MESSAGE_BYTES, 1)
        if not message:
            os._exit(0)
        request = json.loads(message)
        if "pid" in request:
            before = _children_s()
            code = services[request["pid"]].poll()
            answer: Any = (code, _children_s() - before)
        else:
            environment, (stderr,) = request["environment"], descriptors
            service = Forked(functools.partial(_serve, environment, stderr), environment, (stderr,))
            services[service.pid], answer = service, service.pid
            os.close(stderr)
        channel.send(json.dumps(answer).encode())


def _children_s() -> float:
    """Return the CPU seconds of children that have ended, with theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _serve(environment: Mapping[str, str], stderr: int) -> int:
    """Be `tidemark serve`, as if started with this environment; return the exit code."""
    from service.cli.main import main

    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(stderr, 2)
    os.close(stderr)
    os.umask(0o022)
    _show(environment)
    tempfile.tempdir = None
    failpoints.set_failpoints(
        environment.get(failpoints.VARIABLE, ""),
        environment.get(failpoints.FOLDER_VARIABLE, ""),
    )
    sys.argv = ["tidemark", "serve"]
    try:
        main()
    except SystemExit as error:
        code = error.code or 0
        return code if isinstance(code, int) else 1
    return 0


def _show(environment: Mapping[str, str]) -> None:
    """Write the environment where /proc/<pid>/environ reads it; nothing else points there now."""
    # proc(5): env_start and env_end are fields 50 and 51; behind the name comes the third.
    fields = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()
    start, end = int(fields[47]), int(fields[48])
    content = b"".join(os.fsencode(f"{k}={v}") + b"\0" for k, v in environment.items())
    assert 0 < len(content) < end - start, "a larger environment than there is room for"
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, content, len(content))


if __name__ == "__main__":
    _main()
