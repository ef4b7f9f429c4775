"""Tables of the simulated source that change: what they are at each moment, and their server.

A table is known by its oid and a column by its number, which no rename touches and nothing has
twice. Rows lie as PostgreSQL keeps them, by number, with the values of columns that were dropped.
What commits is in the log at once; the catalog shows it when it is let go of (`show`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from connectors.postgres.replication.table_facts import ColumnFacts, TableFacts
from dataflow.schema import Field, Relation, RelationName
from tests.simulation.fibers import Process
from tests.simulation.reads import SCHEMA
from tests.simulation.server import Row, Server, write_row
from tests.simulation.shop import EVERY, TABLES, Change, Commit

# The kind of a change that is a statement: (label, ALTER, the table before, the table after).
ALTER = "A"


@dataclass(frozen=True)
class Column:
    """version: counts up whenever its row in the catalog is written; default: of the rows that
    were there before it was added; raised: by how much its values were, by ALTER ... USING."""

    number: int
    field: Field
    version: int = 1
    default: Any = None
    raised: int = 0


@dataclass(frozen=True)
class Shape:
    """A table at one moment. template: the one of the shop that it is written to as; width: how
    many columns it ever had; file: counts up when all rows are rewritten; tells_all: old rows are
    sent whole, though there is a key."""

    oid: int
    name: str
    template: str
    columns: tuple[Column, ...]
    width: int
    key: tuple[int, ...] = ()
    file: int = 1
    tells_all: bool = False

    @property
    def label(self) -> str:
        """What the log calls it, whatever its name is."""
        return f"t{self.oid}"

    @property
    def is_altered(self) -> bool:
        """Whether anybody alters it, or writes to it among the others."""
        return self.template in TABLES

    @property
    def is_full(self) -> bool:
        """Whether it has REPLICA IDENTITY FULL."""
        return self.tells_all or not self.key

    def column(self, number: int) -> Column | None:
        """A column by its number."""
        return next((c for c in self.columns if c.number == number), None)

    def relation(self) -> Relation:
        """As one knows it who plans a query over it now."""
        numbers = tuple(c.number for c in self.columns)
        return Relation(
            RelationName("source", SCHEMA, self.name),
            self.oid,
            tuple(c.field for c in self.columns),
            tuple(numbers.index(n) for n in self.key),
            is_full=self.is_full,
            numbers=numbers,
        )

    def facts(self, membership: int) -> TableFacts:
        """As the catalog has it."""
        columns = {c.number: ColumnFacts(c.field, c.version, True) for c in self.columns}
        return TableFacts(
            *(self.oid, SCHEMA, self.name, "r", "f" if self.is_full else "d", self.file),
            *(1, membership != 0, 1, self.key),
            columns=columns,
            membership=membership,
        )


def first_shapes() -> list[Shape]:
    """The tables of the source as they begin."""
    found = []
    for name, relation in EVERY.items():
        columns = tuple(Column(n, f) for n, f in enumerate(relation.fields, 1))
        key = tuple(i + 1 for i in relation.key)
        found.append(Shape(relation.oid, name, name, columns, len(columns), key))
    return found


@dataclass(frozen=True)
class Written(Commit):
    """shapes: for each change the shape in which it is sent, None for what is not sent."""

    shapes: tuple[Shape | None, ...] = ()


@dataclass
class DdlServer(Server):
    """now: tables as of the end of the log; seen: as the catalog shows them; memberships: by label
    since when it is published; locked: what is being changed, or was and is not shown yet;
    readers: who holds tables against being changed."""

    now: dict[str, Shape] = field(default_factory=lambda: {s.label: s for s in first_shapes()})
    seen: dict[str, Shape] = field(default_factory=lambda: {s.label: s for s in first_shapes()})
    memberships: dict[str, int] = field(default_factory=dict)
    locked: set[str] = field(default_factory=set)
    readers: list[tuple[Process | None, frozenset[str]]] = field(default_factory=list)
    members: int = 0

    def __post_init__(self) -> None:
        self.tables = {label: Counter() for label in self.now}

    def commit(self, changes: Sequence[Change], at: float) -> Commit:
        shapes: list[Shape | None] = []
        for label, kind, old, new in changes:
            if kind == ALTER:
                self._alter(label, old, new)
                shapes.append(None)
                continue
            shapes.append(self.now[label] if label in self.published else None)
            write_row(self.tables[label], kind, old, new)
        self.advance()
        xid = len(self.log) + 700
        made = Written(self.end, xid, int(at * 1e6), tuple(changes), frozenset(), tuple(shapes))
        self.log.append(made)
        return made

    def _alter(self, label: str, before: Any, after: Any) -> None:
        if after is None:
            del self.now[label], self.tables[label]
            self.published.discard(label)
            return
        self.now[label] = after
        rows = self.tables.get(label, Counter())
        self.tables[label] = Counter({rewritten(r, before, after): n for r, n in rows.items()})

    def show(self) -> None:
        """From now on the catalog has all that was committed, and nothing is locked."""
        self.seen = dict(self.now)
        for label in self.memberships.keys() - self.now.keys():
            del self.memberships[label]
        self.locked = set()

    def is_free(self, labels: Iterable[str]) -> bool:
        """Whether nobody changes these tables."""
        return self.locked.isdisjoint(labels)

    def is_read(self, labels: Iterable[str]) -> bool:
        """Whether somebody who lives holds one of them against being changed."""
        expected = set(labels)
        self.readers = [(p, held) for p, held in self.readers if p is None or not p.is_dead]
        return any(expected & held for _, held in self.readers)

    def publish(self, label: str) -> None:
        """One table more in the publication."""
        if label not in self.published:
            self.published.add(label)
            self.members += 1
            self.memberships[label] = self.members

    def unpublish(self, label: str) -> None:
        """One less."""
        self.published.discard(label)
        self.memberships.pop(label, None)


def rewritten(row: Row, before: Shape | None, after: Shape) -> Row:
    """A row of before a table was changed, as it is after."""
    if before is None:
        return row
    added = (after.column(number) for number in range(before.width + 1, after.width + 1))
    values = [*row, *(None if c is None else c.default for c in added)]
    for number, by in raised(before, after):
        if values[number - 1] is not None:
            values[number - 1] += by
    return tuple(values)


def raised(before: Shape, after: Shape) -> list[tuple[int, int]]:
    """The numbers of columns of which all values were changed, and by how much."""
    both = ((c, after.column(c.number)) for c in before.columns)
    return [(c.number, now.raised - c.raised) for c, now in both if now and now.raised != c.raised]
