"""A server on loopback that sends a byte now and then and never ends, or rows while it has some."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Any

BYTE_S = 0.5
# Of any protocol: a client of HTTP reads headers, others a length that is never reached.
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


class Trickle:
    """rows: answered as JSON to each HTTP request; None: nothing but a byte now and then."""

    def __init__(self, start: bytes = b"") -> None:
        self.rows: list[dict[str, Any]] | None = None
        # Connections that are being sent bytes.
        self.slow = 0
        self._start = start
        self._ended = threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]

    @contextmanager
    def running(self) -> Iterator[Trickle]:
        threading.Thread(target=self._accept, daemon=True).start()
        try:
            yield self
        finally:
            self._ended.set()
            with contextlib.suppress(OSError):
                self._server.shutdown(socket.SHUT_RDWR)
            self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self._ended.is_set():
                client, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            while self.rows is not None and client.recv(1 << 16):
                if self.rows is None:
                    break
                body = json.dumps(self.rows).encode()
                length = f"content-length: {len(body)}\r\n\r\n".encode()
                client.sendall(HEAD + length + body)
            self.slow += 1
            client.sendall(self._start)
            for byte in cycle(b"x-slow: y\r\n"):
                if self._ended.wait(BYTE_S):
                    return
                client.sendall(bytes([byte]))
