"""A pooler of transactions before a PostgreSQL server: as PgBouncer with pool_mode = transaction,
and the smallest pool, of one session. It speaks the simple query protocol only.

Source: PostgreSQL's manual, "Message Flow"; PgBouncer's, "pool_mode".
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType

_ENCRYPTION = (80877103, 80877104)
_CANCEL = 80877102
_ROLLBACK = b"Q" + struct.pack(">I", 13) + b"ROLLBACK\0"


class TransactionPooler:
    """`with TransactionPooler(port) as pooler:` listens at pooler.port. Startup parameters of all
    clients but the first are ignored, and each client is told a number of its own."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._server: socket.socket | None = None
        self._greeting = b""
        self._lock = threading.Lock()
        self._clients = 0

    def __enter__(self) -> TransactionPooler:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._listener.close()
        if self._server is not None:
            self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            startup = _startup(client)
            if startup is None:
                return
            with self._lock:
                self._clients += 1
                if self._server is None:
                    self._server = socket.create_connection(("127.0.0.1", self._server_port))
                    self._server.sendall(startup)
                    self._greeting = _until_ready(self._server)[0]
                own = struct.pack(">cIII", b"K", 12, 1_000_000 + self._clients, 0)
                client.sendall(_with_key(self._greeting, own))
            while (message := _message(client)) is not None and message[:1] != b"X":
                with self._lock:
                    self._transaction(client, message)

    def _transaction(self, client: socket.socket, message: bytes | None) -> None:
        """Pass on a client's messages until its transaction has ended, or the client has."""
        assert self._server is not None
        status = b""
        while status != b"I":
            if message is None or message[:1] == b"X":
                self._server.sendall(_ROLLBACK)
                _until_ready(self._server)
                return
            self._server.sendall(message)
            answer, status = _until_ready(self._server)
            client.sendall(answer)
            if status != b"I":
                message = _message(client)


def _startup(client: socket.socket) -> bytes | None:
    """The startup packet, after declined requests of encryption; None for a cancellation."""
    while True:
        head = _exactly(client, 8)
        size, code = struct.unpack(">II", head)
        if code == _CANCEL:
            return None
        if code not in _ENCRYPTION:
            return head + _exactly(client, size - 8)
        client.sendall(b"N")


def _exactly(peer: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = peer.recv(size - len(found))
        if not part:
            raise ConnectionError
        found += part
    return found


def _message(peer: socket.socket) -> bytes | None:
    """The next message with its tag; None at the end."""
    tag = peer.recv(1)
    if not tag:
        return None
    size = _exactly(peer, 4)
    return tag + size + _exactly(peer, struct.unpack(">I", size)[0] - 4)


def _until_ready(server: socket.socket) -> tuple[bytes, bytes]:
    """All messages up to "ready for query", and its status."""
    found = b""
    while True:
        message = _message(server)
        if message is None:
            raise ConnectionError
        found += message
        if message[:1] == b"Z":
            return found, message[5:6]


def _with_key(greeting: bytes, own: bytes) -> bytes:
    """A greeting with another key of the session."""
    found, at = b"", 0
    while at < len(greeting):
        end = at + 1 + struct.unpack_from(">I", greeting, at + 1)[0]
        found += own if greeting[at : at + 1] == b"K" else greeting[at:end]
        at = end
    return found
