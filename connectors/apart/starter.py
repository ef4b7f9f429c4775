"""Starts children by fork servers of this process: one for each set of modules.

A fork server takes most of a second to start, a child a few milliseconds. Invariant: neither gets
anything of this process but what is sent to it; both end with it, also after kill -9.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from dataflow.errors import TemporaryError

# Of the environment, children get what chooses libraries, texts, times and folders; no secret.
_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONUTF8")
_KEPT += ("SSL_CERT_FILE", "SSL_CERT_DIR", "NUMBA_CACHE_DIR", "NUMBA_CPU_NAME", "XDG_CACHE_HOME")
# One thread, so that forking is safe; few arenas, which count as memory of a child.
_SET = {
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(4 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(16 << 20),
}
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from connectors.apart.fork_server import main
sys.exit(main(sys.argv[2:]))
"""
# What is sent at once to a child, and what the kernel buffers of it.
_BUFFER_BYTES = 1 << 20
_TITLE_CHARACTERS = 200


@dataclass(frozen=True)
class Kind:
    """What children need. what: of their titles and errors, such as "kafka". modules: imported
    before they are forked.
    """

    what: str
    modules: tuple[str, ...]


@dataclass
class Started:
    """A child: connections for its calls and events, the pipe that has its exit status in the end,
    and the file that has what it wrote to standard error.
    """

    calls: socket.socket
    events: socket.socket
    status: int
    errors: int
    number: int
    server: _Server

    def kill(self) -> None:
        """Kill it, if it runs; its number names no other child."""
        self.server.kill(self.number)


class _Server:
    """A fork server and the connection to it; thread-safe."""

    def __init__(self, kind: Kind) -> None:
        self._lock = threading.Lock()
        self._last = 0
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [*_command(), str(number), kind.what, *kind.modules],
                env=_environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[number],
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        """Return whether it has not ended, as it does when it is idle."""
        return self._process.poll() is None

    def start(self, title: str, memory_bytes: int) -> Started:
        """Have a child forked. OSError: the server has ended."""
        calls, its_calls = socket.socketpair()
        events, its_events = socket.socketpair()
        status, its_status = os.pipe()
        errors = os.memfd_create("errors")
        for one in (calls, its_calls):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        with self._lock:
            self._last += 1
            number = self._last
        request = {"child": number, "is_end": False, "memory_bytes": memory_bytes}
        request["title"] = title[:_TITLE_CHARACTERS]
        with its_calls, its_events, os.fdopen(its_status, "wb", 0) as end:
            passed = [its_calls.fileno(), its_events.fileno(), end.fileno(), errors]
            found = Started(calls, events, status, errors, number, self)
            try:
                self._send(request, passed)
            except OSError:
                close(found)
                raise
        return found

    def kill(self, number: int) -> None:
        """Kill a child of this server, if it runs."""
        with suppress(OSError):  # without the server, there is no child either
            self._send({"child": number, "is_end": True}, [])

    def _send(self, request: Mapping[str, object], descriptors: Sequence[int]) -> None:
        with self._lock:
            socket.send_fds(self._connection, [json.dumps(request).encode()], descriptors)


# Those of the process that has forked this one are kept: their descriptors are others' now.
_servers: dict[tuple[int, Kind], _Server] = {}
_lock = threading.Lock()


def warm(kind: Kind) -> None:
    """Start the fork server of a kind without waiting, for the first child."""
    _server_of(kind)


def start(kind: Kind, title: str, memory_bytes: int) -> Started:
    """Start a child with so much memory. title: what `ps` shows.

    TemporaryError process.not_started.
    """
    for _ in range(2):
        # A server that nothing was asked of for a while may be ending just now.
        with suppress(OSError):
            return _server_of(kind).start(title, memory_bytes)
    raise not_started("the process that starts it has ended")


def not_started(detail: str) -> TemporaryError:
    """Return the error for a child that cannot be started."""
    return TemporaryError(
        "process.not_started",
        "a connector's process cannot be started",
        detail=detail,
        hint="check the memory and the processes of the machine; it is tried again",
    )


def close(child: Started) -> None:
    """Close all that this process holds of a child, which ends by that."""
    child.calls.close()
    child.events.close()
    for number in (child.status, child.errors):
        with suppress(OSError):
            os.close(number)


def _server_of(kind: Kind) -> _Server:
    with _lock:
        key = os.getpid(), kind
        found = _servers.get(key)
        if found is None or not found.is_running:
            try:
                found = _servers[key] = _Server(kind)
            except OSError as error:
                raise not_started(str(error)) from None
        return found


def _command() -> list[str]:
    return [sys.executable, "-c", _PROGRAM, json.dumps(sys.path)]


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    return {name: own[name] for name in _KEPT if name in own} | _SET
