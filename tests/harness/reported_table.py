"""A table with its present rows, and random changes of it as a source reports them.

With a primary key only new rows and keys of old ones are reported, with REPLICA IDENTITY FULL whole
old and new rows; now and then the table is truncated. All from a seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from dataflow.changes import Changes
from dataflow.delta import Column, Delta
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import INT4, TEXT

Row = tuple[Any, ...]
_WORDS = (b"", b"a", b"b", b"ab")


class ReportedTable:
    """Columns: n - 1 integers, the first the key if there is one, and a text."""

    def __init__(self, name: str, columns: int, random: Random, *, is_full: bool) -> None:
        fields = [Field(f"{name}{i}", INT4, i > 0 or is_full) for i in range(columns - 1)]
        fields.append(Field(f"{name}{columns - 1}", TEXT))
        self.relation = Relation(
            RelationName("s", "public", name),
            7 + ord(name[0]),
            tuple(fields),
            key=() if is_full else (0,),
            is_full=is_full,
        )
        self.rows: list[Row] = []
        self._random = random

    def delta(self, columns: Sequence[int]) -> Delta:
        """Return the present rows of these columns, as a snapshot returns them."""
        kinds = [self.relation.fields[c].type.physical for c in columns]
        return Delta.of(kinds, [tuple(row[c] for c in columns) for row in self.rows])

    def change(self) -> Changes:
        """Return some changes; apply them to the rows too."""
        reported: list[tuple[int, Row]] = []
        for _ in range(self._random.choice([1, 1, 2, 6])):
            reported += self._one()
        kinds = np.array([kind for kind, _ in reported], np.uint8)
        columns = tuple(
            Column.of(f.type.physical, [row[i] for _, row in reported])
            for i, f in enumerate(self.relation.fields)
        )
        return Changes(self.relation, kinds, columns)

    def _one(self) -> list[tuple[int, Row]]:
        draw, full = self._random.random(), self.relation.is_full
        if draw < 0.02:
            self.rows.clear()
            return [(Changes.TRUNCATE, (None,) * len(self.relation.fields))]
        if draw < 0.5 or not self.rows:
            row = self._row()
            if not full and self._has(row[0]):
                return []
            self.rows.append(row)
            return [(Changes.INSERT, row)]
        old = self.rows.pop(self._random.randrange(len(self.rows)))
        if draw < 0.7:
            return [(Changes.DELETE, old) if full else (Changes.DELETE_KEY, self._key_of(old))]
        new = self._row()
        if not full and (self._has(new[0]) or self._random.random() < 0.8):
            new = (old[0], *new[1:])
        self.rows.append(new)
        if full:
            return [(Changes.OLD, old), (Changes.NEW, new)]
        before = [(Changes.OLD_KEY, self._key_of(old))] if new[0] != old[0] else []
        return [*before, (Changes.NEW, new)]

    def _row(self) -> Row:
        draw, n = self._random, len(self.relation.fields)
        first = draw.randint(0, 30) if not self.relation.is_full else draw.randint(-2, 4)
        values = [None if draw.random() < 0.1 else draw.randint(-2, 4) for _ in range(n - 2)]
        return (first, *values, draw.choice(_WORDS))

    def _has(self, key: int) -> bool:
        return any(row[0] == key for row in self.rows)

    def _key_of(self, row: Row) -> Row:
        return (row[0], *(None for _ in row[1:]))
