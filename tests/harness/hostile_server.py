"""A server of bytes on loopback: it reads requests of HTTP and answers whatever a test says."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Reply = bytes | Iterable[bytes]


@dataclass(frozen=True)
class Asked:
    """A request. target: path and query, as they were sent."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class HostileServer:
    """Answers each connection's one request by `reply`, and closes it."""

    host: str = "127.0.0.1"
    reply: Callable[[Asked], Reply] = lambda _: b""
    asked: list[Asked] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        """Where it is asked."""
        return f"http://{self.host}:{self.port}"

    @contextmanager
    def running(self) -> Iterator[HostileServer]:
        """Run it."""
        with socket.create_server((self.host, 0), backlog=64) as listening:
            self.port = listening.getsockname()[1]
            thread = threading.Thread(target=self._accept, args=(listening,), daemon=True)
            thread.start()
            yield self
            # Wakes the thread, which `close` alone does not.
            listening.shutdown(socket.SHUT_RDWR)

    def _accept(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, ValueError):
            client.settimeout(60)
            asked = _read(client)
            self.asked.append(asked)
            reply = self.reply(asked)
            for part in [reply] if isinstance(reply, bytes) else reply:
                client.sendall(part)


def _read(client: socket.socket) -> Asked:
    text = b""
    while b"\r\n\r\n" not in text:
        part = client.recv(65536)
        if not part:
            raise OSError("no request")
        text += part
    head, _, body = text.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", "0")):
        body += client.recv(65536)
    method, target, _ = first.split(" ", 2)
    return Asked(method, target, headers, body)


def answer(
    status: int | str = 200,
    body: bytes = b"",
    kind: str = "application/json",
    more: Iterable[tuple[str, str | bytes]] = (),
) -> bytes:
    """Return an answer whose length is right. more: headers, as they are."""
    head = (
        f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n".encode()
    )
    for name, value in more:
        head += name.encode() + b": " + (value if isinstance(value, bytes) else value.encode())
        head += b"\r\n"
    return head + b"Connection: close\r\n\r\n" + body


def slowly(text: bytes, pause_s: float = 0.02) -> Iterator[bytes]:
    """Yield how an answer begins, and then one byte after the other for a minute."""
    until = time.monotonic() + 60
    yield text
    while time.monotonic() < until:
        yield b"x"
        time.sleep(pause_s)
