"""A TCP proxy between the service and a server, with the faults that networks have.

One event loop in a thread of its own; faults are set from the test's thread and hold until they
are healed. What a half-open link has swallowed is lost, as the link is from then on, and the far
side hears nothing of its end: neither does it in a network. `Fault.draw` draws one by a seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Self

CUT, RESET, HALF_OPEN, DELAY, DRIP, REFUSE = "cut", "reset", "half-open", "delay", "drip", "refuse"
KINDS = (CUT, RESET, HALF_OPEN, DELAY, DRIP, REFUSE)
UP, DOWN = "up", "down"  # to the server; to the service
BOTH = (UP, DOWN)
_CHUNK = 1 << 16
_DRIP_BYTES = 7
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Fault:
    """kind: of KINDS. directions: what passes there. after_bytes: so many pass before it begins,
    on each link. pause_s: of delay and drip. is_one: one link only, any that has it first."""

    kind: str
    directions: tuple[str, ...] = BOTH
    after_bytes: int = 0
    pause_s: float = 0.05
    is_one: bool = False

    @staticmethod
    def draw(pick: random.Random, kinds: tuple[str, ...] = KINDS) -> Fault:
        """Any of them."""
        return Fault(
            pick.choice(kinds),
            pick.choice((BOTH, BOTH, (UP,), (DOWN,))),
            pick.choice((0, 0, pick.randint(1, 200), pick.randint(1, 100_000))),
            pick.choice((0.001, 0.02, 0.3)),
            pick.random() < 0.4,
        )


@dataclass
class _Link:
    client: socket.socket
    server: socket.socket
    passed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BOTH, 0))
    lost: set[str] = field(default_factory=set)
    is_over: bool = False

    def ends(self, direction: str) -> tuple[socket.socket, socket.socket]:
        """Return where bytes of a direction come from and go to."""
        return (self.client, self.server) if direction == UP else (self.server, self.client)


class Proxy:
    """Before 127.0.0.1:`target`; `port` is where it listens. Used with `with`."""

    def __init__(self, target: int, port: int = 0) -> None:
        self.target = target
        self.port = port
        self.links_total = 0
        self.faults_met = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._listener: socket.socket | None = None
        self._links: list[_Link] = []
        self._tasks: set[asyncio.Task] = set()
        self._fault: Fault | None = None
        self._marked: _Link | None = None

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=200)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def begin(self, fault: Fault) -> None:
        """From now on, for links that are there and those to come."""
        self._do(self._begin(fault))

    def heal(self) -> None:
        """No fault for anything more that comes; what was swallowed stays so."""
        self._do(self._heal())

    def terminate_orphan(self) -> None:
        """Both sides of half-open links hear of their end."""
        self._do(self._bury())

    def dsn(self, dsn: str) -> str:
        """libpq's connection string by way of the proxy."""
        return " ".join(
            w if not w.startswith("port=") else f"port={self.port}" for w in dsn.split()
        )

    # --- in the loop ---------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._spawn(self._accept())
        self._loop.run_forever()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        assert self._listener is not None
        while True:
            client, _ = await self._loop.sock_accept(self._listener)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            fault = self._fault
            if fault is not None and fault.kind in (REFUSE, RESET, CUT) and not fault.is_one:
                self.faults_met += 1
                client.close()
                continue
            self._spawn(self._open(client))

    async def _open(self, client: socket.socket) -> None:
        client.setblocking(False)
        server = socket.socket()
        server.setblocking(False)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await self._loop.sock_connect(server, ("127.0.0.1", self.target))
        except OSError:
            client.close()
            server.close()
            return
        link = _Link(client, server)
        self._links.append(link)
        self.links_total += 1
        for direction in BOTH:
            self._spawn(self._pump(link, direction))

    async def _pump(self, link: _Link, direction: str) -> None:
        source, _ = link.ends(direction)
        with contextlib.suppress(OSError):
            while data := await self._loop.sock_recv(source, _CHUNK):
                await self._pass(link, direction, data)
        if link.lost:
            # One side has gone: nobody tells the other one.
            source.close()
            return
        self._end(link)

    async def _pass(self, link: _Link, direction: str, data: bytes) -> None:
        _, sink = link.ends(direction)
        if direction in link.lost:
            return
        fault = self._fault if self._is_met(link, direction) else None
        if fault is None:
            await self._loop.sock_sendall(sink, data)
            return
        free = max(0, fault.after_bytes - link.passed[direction])
        link.passed[direction] += len(data)
        if free:
            await self._loop.sock_sendall(sink, data[:free])
            data = data[free:]
        if not data:
            return
        self.faults_met += 1
        if fault.kind == HALF_OPEN:
            link.lost.add(direction)
        elif fault.kind == DELAY:
            await asyncio.sleep(fault.pause_s)
            await self._loop.sock_sendall(sink, data)
        elif fault.kind == DRIP:
            await self._drip(fault, sink, data)
        elif fault.kind == RESET:
            self._reset(link)
        else:
            self._end(link)

    async def _drip(self, fault: Fault, sink: socket.socket, data: bytes) -> None:
        while data and self._fault is fault:
            piece, data = data[:_DRIP_BYTES], data[_DRIP_BYTES:]
            await self._loop.sock_sendall(sink, piece)
            await asyncio.sleep(fault.pause_s)
        await self._loop.sock_sendall(sink, data)

    def _is_met(self, link: _Link, direction: str) -> bool:
        fault = self._fault
        if fault is None or direction not in fault.directions or fault.kind == REFUSE:
            return False
        if fault.is_one and self._marked is None:
            self._marked = link
        return not fault.is_one or self._marked is link

    async def _begin(self, fault: Fault) -> None:
        self._fault, self._marked = fault, None
        for link in self._links:
            link.passed = dict.fromkeys(BOTH, 0)
        if fault.kind not in (CUT, RESET) or fault.after_bytes:
            return
        chosen = self._links[-1:] if fault.is_one else list(self._links)
        for link in chosen:
            self.faults_met += 1
            self._marked = link
            if fault.kind == RESET:
                self._reset(link)
            else:
                self._end(link)

    async def _heal(self) -> None:
        self._fault = None

    async def _bury(self) -> None:
        for link in [one for one in self._links if one.lost]:
            self._end(link)

    def _reset(self, link: _Link) -> None:
        for end in (link.client, link.server):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._end(link)

    def _end(self, link: _Link) -> None:
        if link.is_over:
            return
        link.is_over = True
        with contextlib.suppress(ValueError):
            self._links.remove(link)
        for end in (link.client, link.server):
            if end.fileno() >= 0:
                self._loop.remove_reader(end)
                self._loop.remove_writer(end)
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR) if not _is_reset(end) else None
                end.close()

    async def _close(self) -> None:
        assert self._listener is not None
        self._listener.close()
        for link in list(self._links):
            self._end(link)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.sleep(0)


def _is_reset(end: socket.socket) -> bool:
    return end.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == _RESET
