"""Raw records of one topic, in columns of their parts, and the columns that tell of them.

Invariant: what a column tells is what the broker sent: a key or a header that is no text stands
as bytes, and what is missing is NULL.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np

from connectors.kafka.options import HEADERS, KEY, OFFSET, PARTITION, TIME
from dataflow.delta import KIND_BYTES, Column

# 2000-01-01 in milliseconds since 1970: where our times begin.
_EPOCH_MS = 946_684_800_000
# What a record costs beside its bytes: objects and places in lists.
OVERHEAD_BYTES = 200


@dataclass
class Records:
    """n records in the order in which they are taken; within a partition by offset.

    numbers: of the partitions. times: milliseconds since 1970, -1 for none; headers: pairs of
    name and bytes, or None. Both are empty where nobody asked. terms: of the leaders that they
    were written under, -1 where that is not known.
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
        """About the memory it holds."""
        texts = sum(map(len, filter(None, self.values))) + sum(map(len, filter(None, self.keys)))
        return texts + OVERHEAD_BYTES * len(self)

    def add(self, other: Records) -> None:
        """The other's records after ours."""
        for mine, more in zip(self._parts(), other._parts(), strict=True):
            mine.extend(more)

    def head(self, count: int) -> Records:
        """The first ones."""
        return Records(*(part[:count] for part in self._parts()))

    def tail(self, count: int) -> Records:
        """All but the first ones."""
        return Records(*(part[count:] for part in self._parts()))

    def where(self, keep: Sequence[bool]) -> Records:
        """Those with True."""
        return Records(*(list(compress(part, keep)) for part in self._parts()))

    def nexts(self) -> dict[int, int]:
        """By partition the offset after its last record."""
        last = dict(zip(self.numbers, self.offsets, strict=True))
        return {number: offset + 1 for number, offset in last.items()}

    def place(self, row: int) -> str:
        """Where a record lies, as people write it."""
        return f"{self.numbers[row]}:{self.offsets[row]}"

    def metadata(self, name: str, rows: np.ndarray) -> Column:
        """The metadata column of this name, for the records at int64 positions."""
        if name in (PARTITION, OFFSET):
            source = self.numbers if name == PARTITION else self.offsets
            return Column(np.array(source, np.int64)[rows])
        if name == TIME:
            times = np.array(self.times, np.int64)[rows]
            valid = times >= 0
            values = np.where(valid, (times - _EPOCH_MS) * 1000, 0)
            return Column(values, None if valid.all() else valid)
        if name == KEY:
            return _bytea([self.keys[row] for row in rows.tolist()])
        assert name == HEADERS
        return Column.of(KIND_BYTES, [_headers(self.headers[row]) for row in rows.tolist()])

    def _parts(self) -> tuple[list[Any], ...]:
        known = self.numbers, self.offsets, self.keys, self.values
        return *known, self.times, self.headers, self.terms


def _bytea(values: Sequence[bytes | None]) -> Column:
    """PostgreSQL's output of bytea: two hexadecimal digits a byte after a mark."""
    return Column.of(KIND_BYTES, [None if v is None else b"\\x" + v.hex().encode() for v in values])


def _headers(pairs: Sequence[tuple[str, bytes | None]] | None) -> str:
    """A jsonb array of {"key", "value"} as PostgreSQL prints it; a value that is no text stands
    as {"key", "bytes"}, in the output of bytea."""
    found = [_header(name, value) for name, value in pairs or ()]
    return json.dumps(found, ensure_ascii=False)


def _header(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {"key": name, "value": None}
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:  # what jsonb cannot hold
        return {"key": name, "bytes": f"\\x{value.hex()}"}
    return {"key": name, "value": text}
