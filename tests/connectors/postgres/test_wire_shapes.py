"""Oracle: PostgreSQL's numbering of columns, played by hand: a column keeps its number for life, a
new one gets a higher one than all before it, and messages have them in the order of their numbers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from connectors.postgres.replication.wire_shapes import Shape, ShapeColumn, WireColumn, positions_of

INT, TEXT = 23, 25


class Table:
    """A table under ALTER TABLE; every statement gives what it touches another version."""

    def __init__(self, *names: str) -> None:
        self._columns: dict[int, ShapeColumn] = {}
        self._last = self._version = 0
        for name in names:
            self.add(name)

    def add(self, name: str, oid: int = TEXT) -> None:
        self._last += 1
        self._version += 1
        self._columns[self._last] = ShapeColumn(self._last, name, oid, -1, self._version)

    def drop(self, name: str) -> None:
        del self._columns[self._number(name)]

    def rename(self, name: str, to: str) -> None:
        number = self._number(name)
        self._version += 1
        self._columns[number] = replace(self._columns[number], name=to, version=self._version)

    def shape(self) -> Shape:
        return tuple(self._columns[n] for n in sorted(self._columns))

    def names(self) -> list[str]:
        return [c.name for c in self.shape()]

    def wire(self) -> list[WireColumn]:
        return [WireColumn(c.name, c.oid, c.typmod, False) for c in self.shape()]

    def positions(self, numbers: Sequence[int]) -> tuple[int, ...]:
        return tuple(list(sorted(self._columns)).index(n) for n in numbers)

    def _number(self, name: str) -> int:
        return next(n for n, c in self._columns.items() if c.name == name)


def test_renamed_and_renamed_back_between_two_probes() -> None:
    table = Table("id", "note", "spare")
    before = table.shape()
    table.rename("note", "remark")
    table.drop("spare")
    table.add("spare")
    between = table.wire()
    table.rename("remark", "note")
    assert positions_of([1, 2], between, [table.shape(), before]) == (0, 1)


def test_in_doubt_nothing_is_read() -> None:
    table = Table("a", "b")
    before = table.shape()
    table.rename("b", "c")
    table.drop("a")
    table.add("d")
    # (c, d): the message may as well have been of a table whose first column is still a's.
    assert positions_of([2], table.wire(), [table.shape(), before]) == (0,)
    between = table.wire()
    table.rename("c", "b")
    assert positions_of([2], between, [table.shape(), before]) is None


def test_never_another_column() -> None:
    """Whatever was done between two looks."""
    pick, found = random.Random(5), 0
    for _ in range(3_000):
        table = Table(*"abcd"[: pick.randint(1, 4)])
        numbers = [c.number for c in table.shape()]
        shapes, messages = [table.shape()], []
        for _ in range(pick.randint(1, 6)):
            names = table.names()
            free = sorted(set("abcdefg") - set(names))
            what = pick.choice(("add", "drop", "rename", "rename"))
            if what == "add" and free:
                table.add(pick.choice(free))
            elif what == "drop" and len(names) > 1:
                table.drop(pick.choice(names))
            elif what == "rename" and free:
                table.rename(pick.choice(names), pick.choice(free))
            messages.append((table.wire(), table))
            wanted = [n for n in numbers if n in {c.number for c in table.shape()}]
            messages[-1] = (table.wire(), {n: table.positions([n])[0] for n in wanted})
            if not pick.randrange(4):
                shapes.insert(0, table.shape())
        shapes.insert(0, table.shape())
        kept = [c.number for c in table.shape() if c.number in numbers]
        for wire, positions in messages:
            asked = [n for n in kept if pick.randrange(2)]
            answer = positions_of(asked, wire, shapes)
            assert answer in (None, tuple(positions[n] for n in asked)), (shapes, wire)
            found += answer is not None and bool(asked)
    assert found > 3_000
