"""A broker of one topic with one partition that speaks enough of Kafka's protocol to be read from,
and says what a test wants instead of any answer.

The protocol's guide (kafka.apache.org/protocol) has the layouts; answers are of old versions, which
are plainer.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self

FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, CONFIGS = 1, 2, 3, 18, 32
# The newest version of each request that is answered.
VERSIONS = {0: 7, FETCH: 4, LIST_OFFSETS: 2, METADATA: 4, API_VERSIONS: 3, CONFIGS: 0}
TOPIC = "t"
NODE = 1
EARLIEST = -2
# Before an answer without records.
WAIT_S = 0.05
UNCOMPRESSED, GZIP, SNAPPY = 0, 1, 2
# (key of the request, right answer without its length) -> what is sent; None to send nothing.
Change = Callable[[int, bytes], bytes | None]


def batch(
    values: list[bytes], *, compression: int = UNCOMPRESSED, packed: bytes = b"", first: int = 0
) -> bytes:
    """A batch of records at offset `first`; packed: what is sent as the records instead."""
    records = b"".join(record(number, value) for number, value in enumerate(values))
    count = len(values)
    head = struct.pack(">hiqqqhii", compression, count - 1, 0, 0, -1, -1, -1, count)
    # Clients do not check the sum unless they are asked to.
    body = struct.pack(">ibI", 0, 2, 0) + head + (packed or records)
    return struct.pack(">qi", first, len(body)) + body


def record(number: int, value: bytes) -> bytes:
    body = b"\0" + varint(0) + varint(number) + varint(-1) + varint(len(value)) + value + varint(0)
    return varint(len(body)) + body


def varint(number: int) -> bytes:
    """Of Protobuf, with the sign in the last bit."""
    left, out = (number << 1) ^ (number >> 63), bytearray()
    while left > 127:
        out.append(left & 127 | 128)
        left >>= 7
    return bytes([*out, left])


class HostileBroker:
    """Listens on 127.0.0.1 while used with `with`. records: the whole log, of `count` records.

    host: under which it says that it can be reached.
    """

    def __init__(
        self,
        records: bytes,
        count: int,
        change: Change = lambda _key, answer: answer,
        host: str = "127.0.0.1",
    ) -> None:
        self.records = records
        self.count = count
        self.change = change
        self.host = host
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError, struct.error):
            while True:
                (size,) = struct.unpack(">i", _exactly(client, 4))
                request = _exactly(client, size)
                key, version, number = struct.unpack(">hhi", request[:8])
                answer = struct.pack(">i", number) + self._answer(key, version, request)
                changed = self.change(key, answer)
                if changed is not None:
                    client.sendall(struct.pack(">i", len(changed)) + changed)

    def _answer(self, key: int, version: int, request: bytes) -> bytes:
        if key == API_VERSIONS:
            if version < 3:
                rows = b"".join(struct.pack(">hhh", k, 0, v) for k, v in VERSIONS.items())
                return struct.pack(">hi", 0, len(VERSIONS)) + rows + b"\0\0\0\0"
            rows = b"".join(struct.pack(">hhhb", k, 0, v, 0) for k, v in VERSIONS.items())
            return struct.pack(">hb", 0, len(VERSIONS) + 1) + rows + b"\0\0\0\0\0"
        if key == METADATA:
            brokers = struct.pack(">iii", 0, 1, NODE) + text(self.host)
            brokers += struct.pack(">ih", self.port, -1) + text("c") + struct.pack(">i", NODE)
            partition = struct.pack(">hiiiiii", 0, 0, NODE, 1, NODE, 1, NODE)
            topic = struct.pack(">ih", 1, 0) + text(TOPIC) + struct.pack(">bi", 0, 1) + partition
            return brokers + topic
        if key == LIST_OFFSETS:
            # A request for one partition ends with a time: that of the oldest or the newest record.
            (time_ms,) = struct.unpack(">q", request[-8:])
            row = struct.pack(">iihqq", 1, 0, 0, -1, 0 if time_ms == EARLIEST else self.count)
            return struct.pack(">ii", 0, 1) + text(TOPIC) + row
        if key == CONFIGS:
            policy = text("cleanup.policy") + text("delete") + b"\0\0\0"
            described = struct.pack(">hhb", 0, -1, 2) + text(TOPIC) + struct.pack(">i", 1)
            return struct.pack(">ii", 0, 1) + described + policy
        assert key == FETCH, key
        # A request for one partition ends with its offset and how many bytes may come.
        (offset, _) = struct.unpack(">qi", request[-12:])
        records = self.records if offset < self.count else b""
        if not records:
            time.sleep(WAIT_S)
        row = struct.pack(">iihqqii", 1, 0, 0, self.count, self.count, -1, len(records))
        return struct.pack(">ii", 0, 1) + text(TOPIC) + row + records


class Hungry:
    """The object of a child that takes as much memory as is asked of it."""

    def __init__(self, _report: object) -> None:
        self.eaten = 0

    def eat(self, size: int) -> int:
        self.eaten += len(bytearray(size))
        return self.eaten


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def _exactly(client: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = client.recv(size - len(found))
        if not part:
            raise OSError("the client has gone")
        found += part
    return found
