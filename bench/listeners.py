"""Readers that record when events arrive: a view's changes, or a trigger's NOTIFY.

They run in a process of their own, in one event loop, and only note the time, so that what is
measured is delivery.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import urlsplit

import psycopg2

from bench import server

CHANNEL = "orders_told"
TRIGGER = f"""
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('{CHANNEL}', new.order_id::text);
    RETURN NULL;
END $$;
CREATE TRIGGER tell AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION tell();
"""
READY_S = 60.0
_MARK = re.compile(rb'event: progress\ndata: [^\n]*?"source":"([0-9A-F]+)/([0-9A-F]+)"')
# A progress marker is shorter than this: the bytes kept of the input.
_TAIL = 1000

# The events of one reader and their times: WAL positions, or counts of notifications.
Arrivals = tuple[list[int], list[float]]


class Reader(asyncio.Protocol):
    """A connection to a view's changes."""

    def __init__(self, request: bytes) -> None:
        self.positions: list[int] = []
        self.moments: list[float] = []
        self._request = request
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Record the progress markers."""
        now = time.perf_counter()
        rest = self._rest + data
        end = 0
        for found in _MARK.finditer(rest):
            self.positions.append((int(found[1], 16) << 32) + int(found[2], 16))
            self.moments.append(now)
            end = found.end()
        self._rest = rest[end:][-_TAIL:]


class Listener:
    """A session that listens."""

    def __init__(self, dsn: str) -> None:
        self.positions: list[int] = []
        self.moments: list[float] = []
        self._session = psycopg2.connect(dsn)
        self._session.autocommit = True
        with self._session.cursor() as cursor:
            cursor.execute(f"LISTEN {CHANNEL}")
        asyncio.get_running_loop().add_reader(self._session.fileno(), self._hear)

    def _hear(self) -> None:
        now = time.perf_counter()
        self._session.poll()
        for _ in self._session.notifies:
            self.positions.append(len(self.positions) + 1)
            self.moments.append(now)
        self._session.notifies.clear()


async def subscribe(address: tuple[str, str], count: int) -> list[Reader]:
    """Connect readers to (URL, view); return once each has had its first progress marker."""
    url, view = address
    parts = urlsplit(url)
    path = f"/views/{view}/changes?snapshot=false"
    host, port = parts.hostname or "", parts.port or 80
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    made = []
    for _ in range(count):
        reader = Reader(request)
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda r=reader: r, host, port)
        made.append(reader)
    async with asyncio.timeout(READY_S):
        while not all(r.moments for r in made):
            await asyncio.sleep(0.01)
    return made


async def listen(dsn: str, count: int) -> list[Listener]:
    """Open sessions that listen to the trigger."""
    return [Listener(dsn) for _ in range(count)]


@contextmanager
def notifying(dsn: str) -> Iterator[None]:
    """Create a row trigger that notifies of each new order."""
    with server.session(dsn) as cursor:
        cursor.execute(TRIGGER)
        try:
            yield
        finally:
            cursor.execute("DROP TRIGGER tell ON orders; DROP FUNCTION tell")


@contextmanager
def elsewhere(make: Callable[[Any, int], Any], address: Any, count: int) -> Iterator[Connection]:
    """Start readers in a process of their own. Send it a position: it answers with each reader's
    events once all readers have reached that position.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_follow, args=(make, address, count, theirs), daemon=True)
    child.start()
    theirs.close()
    try:
        if not ours.poll(READY_S):
            raise RuntimeError("the readers are not ready")
        ours.recv()
        yield ours
    finally:
        child.terminate()
        child.join()
        ours.close()


def heard_by(readers: Connection, position: int) -> list[Arrivals]:
    """Return the events of each reader, up to a position."""
    readers.send(position)
    if not readers.poll(READY_S):
        raise RuntimeError(f"the readers have not received {position}")
    return readers.recv()


def _follow(make: Callable[[Any, int], Any], address: Any, count: int, channel: Connection) -> None:
    async def follow() -> None:
        readers = await make(address, count)
        channel.send("ready")
        while not channel.poll():
            await asyncio.sleep(0.02)
        position = channel.recv()
        while any(not r.positions or r.positions[-1] < position for r in readers):
            await asyncio.sleep(0.02)
        channel.send([(r.positions, r.moments) for r in readers])

    asyncio.run(follow())
