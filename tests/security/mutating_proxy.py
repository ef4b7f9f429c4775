"""A server between a client and a real one that changes what the real one answers.

Each connection is changed by a seed of its own, so a failure is repeated by the number that the
test prints. The client's bytes pass as they are.
"""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self

# (what the server sends, random numbers) -> what the client gets.
Change = Callable[[bytes, random.Random], bytes]
_EDGES = (b"\0", b"\xff", b"\x80", b"\x7f", b"\xfe", b"\xfb", b"\xed\xa0\x80", b"\xff\xff\xff\xff")


def flipped(data: bytes, found: random.Random) -> bytes:
    """A few bytes of it changed, some left out, or some put in."""
    out = bytearray(data)
    for _ in range(found.choice((1, 1, 2, 4))):
        at, kind = found.randrange(len(out) + 1), found.randrange(8)
        edge = found.choice(_EDGES)
        if kind == 0:
            out[at:at] = edge * found.choice((1, 1, 3, 1000))
        elif kind == 1:
            del out[at : at + found.choice((1, 2, 4, 100))]
        elif kind == 2:
            out[at : at + 1] = bytes([found.randrange(256)])
        else:
            out[at : at + len(edge)] = edge
    return bytes(out)


class MutatingProxy:
    """Listens on 127.0.0.1 while used with `with`. target: the real server's port.

    pass_bytes: of each connection, at most how much of what the server sends is left as it is.
    rate: how much of the rest is changed, 0 to 1.
    """

    def __init__(self, target: int, seed: int, *, pass_bytes: int = 0, rate: float = 0.5) -> None:
        self.target = target
        self._random = random.Random(seed)
        self._pass_bytes = pass_bytes
        self.rate = rate
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._is_closed = False

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        for one in [self._listener, *self._sockets]:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            self._sockets += [client, server]
            own = random.Random(self._random.random())
            ways = [(client, server, None), (server, client, own)]
            for way in ways:
                threading.Thread(target=self._pump, args=way, daemon=True).start()

    def _pump(self, begin: socket.socket, end: socket.socket, own: random.Random | None) -> None:
        left = 0 if own is None else own.randrange(self._pass_bytes + 1)
        with suppress(OSError):
            while data := begin.recv(1 << 16):
                if own is not None and left <= 0 and own.random() < self.rate:
                    data = flipped(data, own)
                left -= len(data)
                end.sendall(data)
        for one in (begin, end):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
