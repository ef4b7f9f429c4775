"""A server on 127.0.0.1 that speaks as much of MongoDB's protocol as a source needs, and answers
what a test says. It follows the wire protocol's page of MongoDB's manual (OP_MSG, OP_QUERY)."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import bson

_HEADER = struct.Struct("<iiii")
OP_REPLY, OP_QUERY, OP_MSG = 1, 2004, 2013
# What a command is answered, as BSON; None for the usual answer.
Answer = Callable[[str, dict[str, Any]], bytes | None]


class MongoServer:
    """Used with `with`. documents: of each collection, as BSON."""

    def __init__(self, documents: list[bytes], answer: Answer = lambda name, body: None) -> None:
        self.documents = documents
        self.greeting: dict[str, Any] = {}
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in [self._listener, *self._sockets]:
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
        with suppress(OSError, EOFError, bson.errors.BSONError):
            while True:
                size, number, _, kind = _HEADER.unpack(_exactly(client, 16))
                body = _exactly(client, size - 16)
                at = 5 if kind == OP_MSG else body.index(b"\0", 4) + 9
                command = bson.decode(body[at:], bson.CodecOptions())
                name = next(iter(command))
                found = self._answer(name, command) or self._usual(name, command)
                head = b"\0\0\0\0\0" if kind == OP_MSG else struct.pack("<iqii", 0, 0, 0, 1)
                kind = OP_MSG if kind == OP_MSG else OP_REPLY
                whole = _HEADER.pack(16 + len(head) + len(found), 1, number, kind) + head + found
                client.sendall(whole)

    def _usual(self, name: str, command: dict[str, Any]) -> bytes:
        if name.lower() in ("hello", "ismaster"):
            facts = {"isWritablePrimary": True, "ismaster": True, "setName": "rs", "hosts": []}
            limits = {"maxBsonObjectSize": 16 << 20, "maxMessageSizeBytes": 48_000_000}
            limits |= {"maxWriteBatchSize": 1000, "minWireVersion": 0, "maxWireVersion": 21}
            return bson.encode({**facts, **limits, **self.greeting, "ok": 1.0})
        if name == "find":
            return cursor(self.documents[: command.get("limit") or None])
        return bson.encode({"ok": 1.0, "operationTime": bson.Timestamp(1, 1)})


def cursor(documents: list[bytes]) -> bytes:
    """An answer with these documents, which may be no BSON."""
    listed = b"".join(
        b"\3" + str(number).encode() + b"\0" + document for number, document in enumerate(documents)
    )
    array = struct.pack("<i", len(listed) + 5) + listed + b"\0"
    inner = b"\4firstBatch\0" + array + b"\2ns\0" + struct.pack("<i", 5) + b"db.c\0"
    inner += b"\x12id\0" + bytes(8)
    inner = struct.pack("<i", len(inner) + 5) + inner + b"\0"
    outer = b"\3cursor\0" + inner + b"\1ok\0" + struct.pack("<d", 1.0)
    return struct.pack("<i", len(outer) + 5) + outer + b"\0"


def _exactly(client: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = client.recv(size - len(found))
        if not part:
            raise EOFError
        found += part
    return found
