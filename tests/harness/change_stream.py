"""Readers of a view's changes for tests: server-sent events and WebSockets, folded into rows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

import websockets

Event = tuple[str, dict[str, Any], str]


class Refused(Exception):
    """The service returned a problem."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        super().__init__(f"{status} {problem}")
        self.status = status
        self.problem = problem


@dataclass
class Fold:
    """A reader's state: rows of whole epochs, and where to resume."""

    rows: Counter[str] = field(default_factory=Counter)
    token: str = ""
    epoch: int = -1
    position: int = -1
    epochs: int = 0
    _pending: list[tuple[str, int]] = field(default_factory=list)

    def take(self, name: str, body: dict[str, Any]) -> None:
        """Apply an event; rows count once their progress marker has arrived."""
        if name in ("snapshot", "changes"):
            weights = body.get("weights", [1] * len(body["rows"]))
            assert len(weights) == len(body["rows"])
            shown = (json.dumps(row, sort_keys=True) for row in body["rows"])
            self._pending += zip(shown, weights, strict=True)
        elif name == "progress":
            assert body["epoch"] > self.epoch or not self._pending, "an epoch was told twice"
            for row, weight in self._pending:
                self.rows[row] += weight
            self.rows = Counter({row: n for row, n in self.rows.items() if n})
            assert all(n > 0 for n in self.rows.values())
            self._pending = []
            self.epoch, self.token = body["epoch"], body["resume"]
            self.position = lsn(body["positions"]["source"])
            self.epochs += 1

    def lose(self) -> None:
        """Handle a lost connection: events without a closing progress marker are sent again."""
        self._pending = []


def lsn(text: str) -> int:
    """A WAL position as a number."""
    high, low = text.split("/")
    return (int(high, 16) << 32) + int(low, 16)


async def events(
    url: str,
    view: str,
    *,
    token: str = "",
    buffer: int = 0,
    query: str = "",
    header: bool = False,
    path: str = "changes",
) -> AsyncIterator[Event]:
    """(event, body, id) by server-sent events, until the stream ends. buffer: of the socket. path:
    of the view's `changes`, or its `stream`."""
    place = urlsplit(url)
    sock = socket.socket()
    if buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (place.hostname, place.port))
    limit = buffer or 1 << 24
    reader, writer = await asyncio.open_connection(sock=sock, limit=limit)
    resume = f"&resume={token}" if token and not header else ""
    head = f"GET /views/{quote(view)}/{path}?{query}{resume} HTTP/1.1\r\nHost: localhost\r\n"
    if token and header:
        head += f"Last-Event-ID: {token}\r\n"
    writer.write(f"{head}\r\n".encode())
    try:
        answer = await reader.readuntil(b"\r\n\r\n")
        status = int(answer.split()[1])
        if status != 200:
            size = int(answer.lower().split(b"content-length: ")[1].split()[0])
            raise Refused(status, json.loads(await reader.readexactly(size)))
        async for event in _parsed(reader):
            yield event
    finally:
        writer.close()


async def _parsed(reader: asyncio.StreamReader) -> AsyncIterator[Event]:
    rest = b""
    while True:
        size = int((await reader.readuntil(b"\r\n")).strip(), 16)
        if not size:
            return
        rest += await reader.readexactly(size)
        await reader.readexactly(2)
        *whole, rest = rest.split(b"\n\n")
        for block in whole:
            fields = dict(line.split(b": ", 1) for line in block.split(b"\n"))
            body = json.loads(fields[b"data"])
            yield fields[b"event"].decode(), body, fields.get(b"id", b"").decode()


async def socket_events(url: str, view: str, *, token: str = "") -> AsyncIterator[Event]:
    """The same by WebSocket; ends with ConnectionClosed, whatever the code is."""
    place = f"{url.replace('http', 'ws')}/views/{quote(view)}/changes/ws?resume={token}"
    async with websockets.connect(place, max_size=None) as connection:
        while True:
            # Going through the connection would end without a word at 1000 and 1001.
            told = json.loads(await connection.recv())
            yield told["event"], told["data"], told["data"].get("resume", "")


async def until(
    fold: Fold, stream: AsyncIterator[Event], position: int, timeout_s: float = 60
) -> None:
    """Fold events until all of the source up to a position is in them."""
    async with asyncio.timeout(timeout_s), contextlib.aclosing(stream) as open_stream:
        async for name, body, _ in open_stream:
            assert name != "error", body
            fold.take(name, body)
            if fold.position >= position:
                return
    raise AssertionError("the stream has ended")
