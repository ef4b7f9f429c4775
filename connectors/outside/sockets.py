"""Sockets to servers: opened to the very addresses that the guard has checked, in time, abortable.

Invariants: a name is resolved once for a connection, and one of its checked addresses is opened.
Each wait ends by the deadline. After `abort`, which any thread may call, every wait has ended and
no connection opens again.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import httpcore

from connectors import netguard
from connectors.outside.deadline import Deadline

CONNECT_S = 30.0
# A peer that is gone without a word is found by the system's own probes.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)


def open_socket(
    host: str,
    port: int,
    deadline: Deadline,
    on_made: Callable[[socket.socket], None] = lambda _: None,
) -> socket.socket:
    """Return a connection to the first address of a host that answers.

    on_made: gets each socket before it connects, so that another thread can end that. SourceError
    host.forbidden; TemporaryError host.unknown; OSError: none answers in time.
    """
    failure: OSError = OSError("the name has no address")
    for address in netguard.check_host(host, port):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            for option in _KEEPALIVE:
                made.setsockopt(*option)
            on_made(made)
            made.settimeout(deadline.remaining_s(CONNECT_S))
            made.connect((address, port))
        except OSError as error:
            made.close()
            failure = error
            continue
        return made
    raise failure


def shut(opened: socket.socket) -> None:
    """End a connection that another thread may wait for."""
    with contextlib.suppress(OSError):
        # Of the class, because an SSLSocket's own method takes its state from its reader.
        socket.socket.shutdown(opened, socket.SHUT_RDWR)


class Connections(httpcore.NetworkBackend):
    """The sockets of one HTTP client. deadline, idle_s: of the current exchange."""

    def __init__(self) -> None:
        self.deadline = Deadline(None)
        self.idle_s: float | None = None
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._is_aborted = False

    def abort(self) -> None:
        """End all connections, and refuse new ones."""
        with self._lock:
            self._is_aborted = True
            opened = list(self._open)
        for one in opened:
            shut(one)

    def watch(self, made: socket.socket) -> None:
        """Let `abort` end a connection. OSError: it has been called."""
        with self._lock:
            self.check()
            self._open.add(made)

    def check(self) -> None:
        """OSError: `abort` has been called, so that an end of what is read is no end of it."""
        if self._is_aborted:
            raise OSError("the connection was closed from this side")

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """See httpcore.NetworkBackend; the timeout is that of the exchange."""
        opened = open_socket(host, port, self.deadline, self.watch)
        try:
            # What is not connected yet cannot be shut.
            self.check()
        except OSError:
            opened.close()
            raise
        return _Stream(opened, self)


class _Stream(httpcore.NetworkStream):
    """See httpcore.NetworkStream; the timeouts are those of the exchange."""

    def __init__(self, opened: socket.socket, owner: Connections) -> None:
        self._socket = opened
        self._owner = owner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self._set_timeout()
        found = self._socket.recv(max_bytes)
        if not found:
            self._owner.check()
        return found

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if buffer:
            self._set_timeout()
            self._socket.sendall(buffer)

    def close(self) -> None:
        self._socket.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        self._set_timeout()
        try:
            secured = ssl_context.wrap_socket(self._socket, server_hostname=server_hostname)
            self._owner.watch(secured)
        except OSError:
            self.close()
            raise
        return _Stream(secured, self._owner)

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            return _is_readable(self._socket)
        return self._socket if info == "socket" else None

    def _set_timeout(self) -> None:
        owner = self._owner
        self._socket.settimeout(owner.deadline.remaining_s(owner.idle_s))


def _is_readable(opened: socket.socket) -> bool:
    """Return whether an idle connection has something: its end, mostly."""
    if opened.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(opened.fileno(), select.POLLIN)
    return bool(poll.poll(0))
