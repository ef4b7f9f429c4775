"""The replication stream of tables that change: rows in the shape that they were written in.

Here what is sent is written as pgoutput does, and read by the product's own decoder. A relation is
described before its first row, and again whenever it may have changed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

from connectors.postgres.replication.decode import RELATION, Decoder
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.errors import TidemarkError
from dataflow.schema import Relation
from dataflow.types import TIMESTAMPTZ, SqlType
from tests.simulation.ddl_tables import DdlServer, Shape, Written
from tests.simulation.faults import Faults
from tests.simulation.reads import SCHEMA
from tests.simulation.rows import moment_text
from tests.simulation.server import Row
from tests.simulation.shop import Change, Commit
from tests.simulation.stream import SimStream

_KEY_FLAG = 1
_TOASTED = "note"


class DdlStream(SimStream):
    """As ReplicationStream, decoder included. shapes, refresh: as PostgresSource.stream has them;
    random: of what the server does without being asked."""

    def __init__(
        self,
        server: DdlServer,
        faults: Faults,
        start: int,
        relations: Sequence[Relation],
        *,
        shapes: Mapping[int, Any],
        refresh: Callable[[], None],
        random: Random,
    ) -> None:
        super().__init__(server, faults, start, relations)
        self._decoder = Decoder(relations, None, shapes)
        self._refresh = refresh
        self._described: dict[int, bytes] = {}
        self._refusal: TidemarkError | None = None
        self._own = random

    def poll(
        self, max_rows: int, timeout_s: float, *, until: int | None = None
    ) -> SourceBatch | None:
        if self._refusal is not None:
            raise self._refusal
        return super().poll(max_rows, timeout_s, until=until)

    def _batch(self, taken: list[Commit], position: int) -> SourceBatch:
        chunks = self._cut_payloads([p for commit in taken for p in self._payloads(commit)])
        try:
            self._refresh()
            first = self._decoder.decode(chunks[0])
            for payload in (p for _ in chunks[1:] for chunk in chunks for p in chunk):
                if payload[0] == RELATION:
                    self._decoder.check(payload)
        except TidemarkError as error:
            self._refusal = error
            raise
        self.position = position
        return SourceBatch(
            position,
            first,
            len(taken),
            sum(payload[0] != RELATION for chunk in chunks for payload in chunk),
            taken[-1].at_us if taken else 0,
            taken[-1].end if taken else 0,
            self._later(chunks[1:]) if chunks[1:] else None,
        )

    def _later(self, chunks: list[list[bytes]]) -> Iterator[list[Changes]]:
        for chunk in chunks:
            try:
                yield self._decoder.decode(chunk)
            except TidemarkError as error:
                self._refusal = error
                raise

    def _cut_payloads(self, payloads: list[bytes]) -> list[list[bytes]]:
        if len(payloads) < 4 or self._faults.random.random() < 0.5:
            return [payloads]
        at = self._faults.random.randint(1, len(payloads) - 1)
        return [payloads[:at], payloads[at:]]

    def _payloads(self, commit: Commit) -> Iterator[bytes]:
        assert isinstance(commit, Written)
        for change, shape in zip(commit.changes, commit.shapes, strict=True):
            if shape is None:
                continue
            described = _description(shape)
            if self._described.get(shape.oid) != described or self._own.random() < 0.05:
                self._described[shape.oid] = described
                yield described
            yield from _rows(shape, change)


def _description(shape: Shape) -> bytes:
    parts = [
        struct.pack(">BI", RELATION, shape.oid),
        *(SCHEMA.encode(), b"\0", shape.name.encode(), b"\0"),
        b"f" if shape.is_full else b"d",
        struct.pack(">H", len(shape.columns)),
    ]
    for column in shape.columns:
        is_key = shape.is_full or column.number in shape.key
        parts += [bytes([_KEY_FLAG if is_key else 0]), column.field.name.encode(), b"\0"]
        parts.append(struct.pack(">Ii", column.field.type.oid, column.field.type.typmod))
    return b"".join(parts)


def _rows(shape: Shape, change: Change) -> Iterator[bytes]:
    """The payload of a change, as the replica identity has it."""
    _, kind, old, new = change
    oid, is_full = struct.pack(">I", shape.oid), shape.is_full
    if kind == "T":
        yield b"T" + struct.pack(">IB", 1, 0) + oid
    elif kind == "I":
        assert new is not None
        yield b"I" + oid + b"N" + _values(shape, new)
    elif kind == "D":
        assert old is not None
        yield b"D" + oid + (b"O" + _values(shape, old) if is_full else b"K" + _keys(shape, old))
    else:
        assert old is not None and new is not None
        before = b""
        if is_full:
            before = b"O" + _values(shape, old)
        elif any(old[n - 1] != new[n - 1] for n in shape.key):
            before = b"K" + _keys(shape, old)
        # A value that is stored apart and did not change is not sent.
        unsent = {
            c.number
            for c in shape.columns
            if not is_full and c.field.name.startswith(_TOASTED) and _is_same(old, new, c.number)
        }
        yield b"U" + oid + before + b"N" + _values(shape, new, unsent)


def _is_same(old: Row, new: Row, number: int) -> bool:
    value = new[number - 1]
    return isinstance(value, str) and bool(value) and old[number - 1] == value


def _values(shape: Shape, row: Row, unsent: set[int] | None = None) -> bytes:
    parts = [struct.pack(">H", len(shape.columns))]
    for column in shape.columns:
        is_unsent = unsent is not None and column.number in unsent
        parts.append(b"u" if is_unsent else _value(column.field.type, row[column.number - 1]))
    return b"".join(parts)


def _keys(shape: Shape, row: Row) -> bytes:
    parts = [struct.pack(">H", len(shape.columns))]
    for column in shape.columns:
        is_key = column.number in shape.key
        parts.append(_value(column.field.type, row[column.number - 1]) if is_key else b"n")
    return b"".join(parts)


def _value(type: SqlType, value: Any) -> bytes:
    if value is None:
        return b"n"
    text = (moment_text(value) if type == TIMESTAMPTZ else str(value)).encode()
    return b"t" + struct.pack(">I", len(text)) + text
