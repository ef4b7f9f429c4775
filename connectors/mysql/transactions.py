"""Transactions of the log with the rows of watched tables, as undecoded images.

Rows of a transaction that is too large for memory are in a temporary file until it is delivered.
Invariant: a transaction is handed on once its end was read, whole and in the order of the log.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import IO

import numpy as np
from tidemark_native import mysql

from connectors.mysql.positions import Gtid, LogPosition
from connectors.mysql.shapes import Shape
from dataflow.schema import RelationName
from storage.reserve import TEMPORARY

INSERT, UPDATE, DELETE, TRUNCATE = "insert", "update", "delete", "truncate"


@dataclass(frozen=True, eq=False)
class RowSet:
    """What the images of one event, or of several alike, have in common.

    present: bool[2, columns], the columns of old images, and of new ones (mysql.walk).
    """

    relation: RelationName
    shape: Shape
    present: tuple[bytes, bytes]

    @cached_property
    def masks(self) -> np.ndarray:
        """`present` as bool[2, columns]."""
        n = len(self.shape.columns)
        rows = [np.frombuffer(bits, np.uint8) for bits in self.present]
        return np.array([np.unpackbits(row, bitorder="little")[:n] for row in rows], np.bool_)

    def count(self, images: bytes) -> int:
        """Return the number of images; -1 if the event is broken."""
        data = np.frombuffer(images, np.uint8)
        slots = np.full(len(self.shape.columns), -1, np.int64)
        none = np.empty((0, 0), np.int64)
        widths = self.shape.widths
        return mysql.walk(data, 0, len(data), widths, self.masks, slots, none, none, 0)


@dataclass(frozen=True)
class RowEvent:
    """An event. rows: None for TRUNCATE. count: of images, two for each updated row."""

    relation: RelationName
    kind: str
    rows: RowSet | None = None
    images: bytes = b""
    count: int = 0


@dataclass
class Transaction:
    """A transaction, while it is read and after.

    end, gtid: where the log is after it. time_us: microseconds since 1970 of its commit, in whole
    seconds. count: of images. nbytes: in memory.
    """

    end: LogPosition
    gtid: Gtid | None = None
    time_us: int = 0
    count: int = 0
    nbytes: int = 0
    _events: list[RowEvent] = field(default_factory=list)
    _sizes: list[int] = field(default_factory=list)
    _file: IO[bytes] | None = None

    def add(self, event: RowEvent, max_bytes: int) -> None:
        """Append an event; beyond max_bytes the images are in a file."""
        self.count += event.count
        if self._file is None and self.nbytes + len(event.images) > max_bytes:
            self._file = tempfile.TemporaryFile(prefix="tidemark-mysql-")  # noqa: SIM115
            moved, self._events, self.nbytes = self._events, [], 0
            for one in moved:
                self._store(one)
        if self._file is None:
            self._events.append(event)
            self.nbytes += len(event.images) + 100
        else:
            self._store(event)

    def events(self) -> Iterator[RowEvent]:
        """Yield the events in order, as often as required, until `close`."""
        if self._file is None:
            yield from self._events
            return
        self._file.seek(0)
        for event, size in zip(self._events, self._sizes, strict=True):
            images = self._file.read(size)
            yield RowEvent(event.relation, event.kind, event.rows, images, event.count)

    @property
    def is_large(self) -> bool:
        """Return True if the images are in a file."""
        return self._file is not None

    @property
    def is_empty(self) -> bool:
        """Return True if it changes no watched table."""
        return not self._events

    def close(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.close()

    def _store(self, event: RowEvent) -> None:
        assert self._file is not None
        TEMPORARY.take(len(event.images))
        self._file.write(event.images)
        self._sizes.append(len(event.images))
        self._events.append(RowEvent(event.relation, event.kind, event.rows, b"", event.count))
