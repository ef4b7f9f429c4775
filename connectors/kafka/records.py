"""Raw records of one topic in columns, and their metadata columns.

Invariant: a column holds exactly what the broker sent. A key or header that is not text is shown as
bytes; a missing one is NULL.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np

from connectors.kafka.options import HEADERS, KEY, OFFSET, PARTITION, TIME
from connectors.outside import texts
from dataflow.delta import KIND_BYTES, Column
from dataflow.types import EPOCH_2000_US

# 2000-01-01 in milliseconds since 1970, the epoch of our times.
_EPOCH_MS = EPOCH_2000_US // 1000
# 294276-12-31, the last day of a timestamp.
_LAST_MS = 9_224_318_015_999_999
# Memory of a record in addition to its bytes: objects and list slots.
OVERHEAD_BYTES = 200


@dataclass
class Records:
    """n records in the order in which they are read; within a partition by offset.

    numbers: partition numbers. times: milliseconds since 1970, -1 for none. headers: pairs of name
    and bytes, or None. Both are empty if they were not requested. terms: leader epochs under which
    the records were written, -1 if unknown.
    """

    numbers: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    headers: list[Any] = field(default_factory=list)
    terms: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.offsets)

    def nbytes(self) -> int:
        """Return about how many bytes of memory it takes."""
        found = sum(map(len, filter(None, self.values))) + sum(map(len, filter(None, self.keys)))
        for pairs in filter(None, self.headers):
            found += sum(OVERHEAD_BYTES + len(name) + len(value or b"") for name, value in pairs)
        return found + OVERHEAD_BYTES * len(self)

    def add(self, other: Records) -> None:
        """Append the other's records."""
        for mine, more in zip(self._parts(), other._parts(), strict=True):
            mine.extend(more)

    def head(self, count: int) -> Records:
        """Return the first `count` records."""
        return Records(*(part[:count] for part in self._parts()))

    def tail(self, count: int) -> Records:
        """Return all but the first `count` records."""
        return Records(*(part[count:] for part in self._parts()))

    def where(self, keep: Sequence[bool]) -> Records:
        """Return the records with True."""
        return Records(*(list(compress(part, keep)) for part in self._parts()))

    def nexts(self) -> dict[int, int]:
        """Return {partition: offset after its last record}."""
        last = dict(zip(self.numbers, self.offsets, strict=True))
        return {number: offset + 1 for number, offset in last.items()}

    def position(self, row: int) -> str:
        """Return the readable position of a record."""
        return f"{self.numbers[row]}:{self.offsets[row]}"

    def metadata(self, name: str, rows: np.ndarray) -> Column:
        """Return the metadata column of this name, for the records at int64 positions."""
        if name in (PARTITION, OFFSET):
            source = self.numbers if name == PARTITION else self.offsets
            return Column(np.array(source, np.int64)[rows])
        if name == TIME:
            times = np.array(self.times, np.int64)[rows]
            # A producer may write any number.
            valid = (times >= 0) & (times <= _LAST_MS)
            values = np.where(valid, (np.where(valid, times, 0) - _EPOCH_MS) * 1000, 0)
            return Column(values, None if valid.all() else valid)
        if name == KEY:
            return _bytea([self.keys[row] for row in rows.tolist()])
        assert name == HEADERS
        return Column.of(KIND_BYTES, [_headers(self.headers[row]) for row in rows.tolist()])

    def _parts(self) -> tuple[list[Any], ...]:
        parts = self.numbers, self.offsets, self.keys, self.values
        return *parts, self.times, self.headers, self.terms


def _bytea(values: Sequence[bytes | None]) -> Column:
    """Return PostgreSQL's text of bytea: `\\x` and two hexadecimal digits a byte."""
    return Column.of(KIND_BYTES, [None if v is None else b"\\x" + v.hex().encode() for v in values])


def _headers(pairs: Sequence[tuple[str, bytes | None]] | None) -> str:
    """Return a jsonb array of {"key", "value"} as PostgreSQL prints it.

    A value that is not text becomes {"key", "bytes"}, in the output format of bytea.
    """
    found = [_header(name, value) for name, value in pairs or ()]
    return json.dumps(found, ensure_ascii=False)


def _header(name: str, value: bytes | None) -> dict[str, str | None]:
    name = texts.storable(name)
    if value is None:
        return {"key": name, "value": None}
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:  # what jsonb cannot hold
        return {"key": name, "bytes": f"\\x{value.hex()}"}
    return {"key": name, "value": text}
