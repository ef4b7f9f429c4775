"""A source whose tables change, as one service has it: publication, snapshots, catalog.

Who asks for a table waits while it is being changed, as PostgreSQL's locks have it, and finds it
as it is then; the catalog alone is asked without a lock, and waits for a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any
from zlib import crc32

from greenlet import getcurrent

from connectors.postgres.replication.stream import StreamLimits
from connectors.postgres.replication.table_facts import CatalogSnapshot, TableFacts
from dataflow.delta import Delta
from dataflow.errors import SourceError, TemporaryError
from dataflow.schema import Relation, RelationName
from tests.simulation.ddl_stream import DdlStream
from tests.simulation.ddl_tables import DdlServer, Shape
from tests.simulation.faults import Faults
from tests.simulation.source import SimPart, SimSnapshot, SimSource
from tests.simulation.stream import SimStream, away

# As connectors/postgres/replication/table_facts.py: how long to wait for who changes a table.
ENDS_S = 0.25
LOCK_S = 30.0


class DdlSource(SimSource):
    """As PostgresSource. random: of what the server does without being asked."""

    def __init__(self, server: DdlServer, faults: Faults, random: Random) -> None:
        super().__init__(server, faults)
        self._tables = server
        self._random = random

    def watch(self, relations: Sequence[Relation | RelationName]) -> None:
        self._ask("source.watch")
        for relation in relations:
            label = label_of(self._tables, relation)
            await_free(self._tables, self._faults, [label])
            if label not in self._tables.seen:
                name = relation.name if isinstance(relation, Relation) else relation
                what = f'table "{name}" does not exist'
                raise SourceError("source.table_missing", what, relation=name)
            self._tables.publish(label)

    def unwatch(self, relations: Sequence[Relation | RelationName]) -> None:
        self._ask("source.unwatch")
        for relation in relations:
            label = label_of(self._tables, relation)
            await_free(self._tables, self._faults, [label])
            self._tables.unpublish(label)

    def drop_slot(self) -> None:
        super().drop_slot()
        self._tables.memberships.clear()

    def open_snapshot(self, relations: Sequence[Relation] = ()) -> DdlSnapshot:
        self._ask("source.snapshot")
        return DdlSnapshot(self._tables, self._faults, relations)

    def tables(self) -> Any:
        return DdlCatalog(self._tables, self._faults)

    def stream(
        self,
        start_position: int,
        relations: Sequence[Relation],
        *,
        identity: Sequence[object] | None = None,
        takes_over: bool = False,
        limits: StreamLimits | None = None,
        shapes: Mapping[int, Any] | None = None,
        refresh: Callable[[], None] | None = None,
        on_promoted: Callable[[], None] | None = None,
        shown: int = 0,
    ) -> SimStream:
        self._ask("source.stream")
        self._require_slot(start_position)
        for relation in relations:
            label = label_of(self._tables, relation)
            if label not in self._tables.seen:
                what = f'table "{relation.name}" was dropped'
                raise SourceError("source.table_missing", what, relation=relation.name)
            if label not in self._tables.memberships:
                raise SourceError("source.not_published", str(relation), relation=relation.name)
        assert shapes is not None and refresh is not None
        return DdlStream(
            *(self._tables, self._faults, start_position, relations),
            shapes=shapes,
            refresh=refresh,
            random=self._random,
        )


class DdlCatalog:
    """As TableCatalog."""

    given = ""

    def __init__(self, server: DdlServer, faults: Faults) -> None:
        self._server = server
        self._faults = faults

    def digest(self, known: Mapping[int, TableFacts], objects: object = ()) -> int:
        self._ask("tables.digest")
        labels = [f"t{oid}" for oid in known]
        self._faults.pause(ENDS_S, lambda: self._server.is_free(labels))
        return self._sum(known)

    def read(
        self, oids: Sequence[int], known: Mapping[int, TableFacts], objects: object = ()
    ) -> CatalogSnapshot:
        self._ask("tables.read")
        facts = {oid: facts for oid in oids if (facts := self._facts(oid))}
        return CatalogSnapshot(self._sum(oids), facts)

    def write_marker(self) -> int:
        self._ask("tables.mark")
        return self._server.advance()

    def close(self) -> None:
        """Nothing is open."""

    def _ask(self, name: str) -> None:
        self._faults.step(name)
        if self._faults.happens("ddl.away"):
            raise away()

    def _sum(self, oids: Any) -> int:
        return crc32(repr([(oid, self._facts(oid)) for oid in sorted(oids)]).encode())

    def _facts(self, oid: int) -> TableFacts | None:
        shape = self._server.seen.get(f"t{oid}")
        if shape is None:
            return None
        return shape.facts(self._server.memberships.get(shape.label, 0))


class DdlSnapshot(SimSnapshot):
    """As PostgresSnapshot: the tables stay as they are until it is closed, or who has opened it is
    no more."""

    def __init__(self, server: DdlServer, faults: Faults, relations: Sequence[Relation]) -> None:
        labels = frozenset(label_of(server, r) for r in relations)
        await_free(server, faults, labels)
        for relation in relations:
            if label_of(server, relation) not in server.now:
                what = f'table "{relation.name}" does not exist'
                raise SourceError("source.table_missing", what, relation=relation.name)
        self._lock = getattr(getcurrent(), "process", None), labels
        self._server = server
        server.readers.append(self._lock)
        super().__init__(server, faults)
        self._shapes = {label: server.now[label] for label in labels}

    def parts(
        self,
        relation: Relation,
        columns: Sequence[int],
        count: int,
        known: Sequence[str] = (),
    ) -> list[SimPart]:
        self._require(relation, columns)
        return super().parts(relation, columns, count, known)

    def part_of_keys(self, relation: Relation, columns: Sequence[int], keys: Delta) -> SimPart:
        self._require(relation, (*columns, *relation.key))
        return super().part_of_keys(relation, columns, keys)

    def close(self) -> None:
        if self._lock in self._server.readers:
            self._server.readers.remove(self._lock)

    def _table(self, relation: Relation) -> list[Any]:
        """Rows by the positions of the relation; what is not what it was reads as NULL."""
        label = label_of(self._server, relation)
        offsets = [n if self._is_there(relation, i) else 0 for i, n in enumerate(relation.numbers)]
        rows = self._rows[label].elements()
        return [tuple(row[n - 1] if n else None for n in offsets) for row in rows]

    def _is_there(self, relation: Relation, position: int) -> bool:
        column = self._shape(relation).column(relation.numbers[position])
        return column is not None and column.field.type == relation.fields[position].type

    def _shape(self, relation: Relation) -> Shape:
        return self._shapes[label_of(self._server, relation)]

    def _require(self, relation: Relation, columns: Sequence[int]) -> None:
        for position in columns:
            if not self._is_there(relation, position):
                what = f'table "{relation.name}" has changed since it was planned'
                raise TemporaryError("source.table_changing", what, relation=relation.name)


def label_of(server: DdlServer, relation: Relation | RelationName) -> str:
    """What the log calls a table, there or not."""
    if isinstance(relation, Relation):
        return f"t{relation.oid}"
    found = (s.label for s in server.seen.values() if s.name == relation.name)
    return next(found, relation.name)


def await_free(server: DdlServer, faults: Faults, labels: Any) -> None:
    """Wait for a lock that nobody has beside one who changes a table."""
    until = faults.now + LOCK_S
    while not server.is_free(labels):
        if faults.now >= until:
            raise TemporaryError("source.busy", "somebody changes the table")
        faults.pause(until - faults.now, lambda: server.is_free(labels))
