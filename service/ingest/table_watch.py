"""The source's tables when views were built on them, compared with their current form.

The stream reports rows, not DDL. So before each batch is stepped, and once a second, the catalog is
checked for changes of the tables that views read. Invariants: no position is shown before the
catalog was checked after it. The found facts are stored with the state, in the commit that removes
views that cannot continue, so no change made while the service was down is missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache

from connectors.postgres.replication.object_changes import why_outdated
from connectors.postgres.replication.table_changes import renamed, why_lost
from connectors.postgres.replication.table_facts import (
    CatalogSnapshot,
    ObjectKey,
    TableCatalog,
    TableFacts,
)
from connectors.postgres.replication.wire_shapes import KnownTable, Shape, shape_of
from connectors.source import MAIN_SOURCE
from dataflow.errors import SourceError
from dataflow.schema import Relation
from service.engine.column_requirements import Read
from service.engine.definition import ViewDefinition
from service.engine.encoding.registered import decode, encode
from service.runtime.log import log
from storage.failpoints import failpoint
from storage.store import Store

_KEY = "tables"
_MAX_SHAPES = 8
# What is known of a table only for the publication that it is read by.
_OF_PUBLICATION = ("is_published", "membership", "publication", "withheld")

# A view, live or being built, and what it reads or stores of the source.
Reader = tuple[ViewDefinition, Sequence[Read]]


class TablesChanged(SourceError):
    """Views cannot continue as they are.

    lost: the reason by `ViewDefinition.building`. Remove these views, then `accept` found.
    """

    def __init__(self, lost: Mapping[str, SourceError], found: CatalogSnapshot) -> None:
        first = next(iter(lost.values()))
        super().__init__(
            first.code, first.what, detail=first.detail, hint=first.hint, relation=first.relation
        )
        self.lost = lost
        self.found = found


class SourceWatch:
    """Used by the pipeline's thread.

    readers: returns all current readers; definitions: only their definitions, which costs less.
    position: returns the stream's position. reports_truncation: of the open stream, see
    ReplicationStream.has_truncation.
    """

    def __init__(
        self,
        catalog: TableCatalog,
        store: Store,
        readers: Callable[[], Iterable[Reader]],
        definitions: Callable[[], Iterable[ViewDefinition]],
        position: Callable[[], int],
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._readers = readers
        self._definitions = definitions
        self._position = position
        stored = store.get(_KEY)
        self._tables: dict[int, KnownTable] = decode(stored) if stored else {}
        self._oids: list[int] = []
        self._digest: int | None = None
        self._used: tuple[tuple[object, ...], frozenset[ObjectKey]] = (), frozenset()
        self.reports_truncation: Callable[[int, int, int], bool] | None = None
        self.shapes: dict[int, tuple[Shape, ...]] = {}
        self.renamed: dict[str, tuple[str, ...]] = {}
        self._list_shapes()

    def follow(self, relations: Iterable[Relation]) -> None:
        """Watch these tables from now on; check them all at once against their stored facts.

        TablesChanged as `refresh`.
        """
        self.narrow(relations)
        self.refresh()

    def narrow(self, relations: Iterable[Relation]) -> None:
        """Watch only these tables from now on; a later reader of another one reads it from the
        start.
        """
        self._oids = sorted({r.oid for r in relations})
        self._digest = None
        for oid, table in self._tables.items():
            if oid not in self._oids and table.facts.membership:
                # We unpublish it ourselves: publishing it again later is no gap for anyone.
                facts = replace(table.facts, membership=0, publication=())
                self._tables[oid] = replace(table, facts=facts)

    def forget(self) -> None:
        """Drop all facts, as nothing of the source is read; part of the open epoch."""
        self._tables, self._oids, self._digest = {}, [], None
        self._store.put(_KEY, None)
        self._list_shapes()

    def refresh(self) -> None:
        """Check the catalog. TablesChanged if views cannot continue; then no facts are stored.

        TemporaryError if the catalog cannot be read.
        """
        self._resolve()
        objects = self._objects()
        if not self._oids and not objects:
            return
        before = {oid: self._tables[oid].facts for oid in self._oids if oid in self._tables}
        # Even if everything is read anyway: this waits for the newest commits.
        digest = self._catalog.digest(before, objects)
        if digest == self._digest:
            return
        found = self._catalog.read(self._oids, before, objects)
        failpoint("ddl.refresh.after")
        lost = self._lost(found)
        if lost:
            raise TablesChanged(lost, found)
        self.accept(found)

    def accept(self, found: CatalogSnapshot) -> None:
        """Store these facts; part of the open epoch."""
        position = 0
        for oid, facts in found.tables.items():
            table = self._tables.get(oid)
            shape = shape_of(facts)
            if table is None:
                self._tables[oid] = KnownTable(facts, (shape,))
                continue
            if table.facts == facts:
                continue
            position = position or self._catalog.write_marker()
            shapes = tuple(dict.fromkeys((shape, *table.shapes)))
            if len(shapes) > _MAX_SHAPES:
                # No row is older than the oldest shape, which can also read those in between.
                shapes = (*shapes[: _MAX_SHAPES - 1], shapes[-1])
            self._tables[oid] = KnownTable(facts, shapes, position)
            log.info("source.table_changed", table=facts.title)
        self._digest = found.digest
        self._save()
        self.renamed = self._renamed()

    def known(self, relations: Iterable[Relation]) -> dict[int, KnownTable]:
        """Return the stored facts of these tables, by oid."""
        oids = (r.oid for r in relations if r.name.source == MAIN_SOURCE)
        return {oid: self._tables[oid] for oid in oids if oid in self._tables}

    def is_moving(self, relations: Iterable[Relation]) -> bool:
        """Return True if rows from before a change of one of these tables may still arrive."""
        self._resolve()
        found = (self._tables.get(r.oid) for r in relations if r.name.source == MAIN_SOURCE)
        return any(table is not None and table.until for table in found)

    def close(self) -> None:
        """Close the session."""
        self._catalog.close()

    @property
    def needs_turns(self) -> bool:
        """Return True if views rest on objects of the database but none reads its tables, whose
        stream would have the catalog checked."""
        return not self._oids and bool(self._objects())

    def _objects(self) -> frozenset[ObjectKey]:
        """Return what queries rest on besides tables: mostly what it was at the last call."""
        used = tuple(definition.names.objects or () for definition in self._definitions())
        if used != self._used[0]:
            self._used = used, frozenset(o.key for objects in used for o in objects)
        return self._used[1]

    def _lost(self, found: CatalogSnapshot) -> dict[str, SourceError]:
        lost: dict[str, SourceError] = {}
        is_reported = cache(self._is_reported)
        for definition, reads in self._readers():
            building = definition.building
            rows = {row.table: row for row in definition.plan.row_types}
            for relation, columns in reads:
                if relation.name.source != MAIN_SOURCE or building in lost:
                    continue
                now, table = found.tables.get(relation.oid), self._tables.get(relation.oid)
                before = now if table is None else table.facts
                if before is None:
                    before = _nothing(relation)
                row = rows.get(relation.name)
                given = self._catalog.given
                error = why_lost(relation, columns, before, now, is_reported, row=row, given=given)
                if error is not None:
                    lost[building] = error
            if building not in lost:
                # Any relation that it reads stands for the view itself.
                name = next((r.name for r, _ in reads), definition.name)
                error = why_outdated(definition.names.objects or (), found.objects, name)
                if error is not None:
                    lost[building] = error
        return lost

    def _is_reported(self, xid: int, oid: int) -> bool:
        return self.reports_truncation is not None and self.reports_truncation(
            xid, oid, self._catalog.write_marker()
        )

    def _renamed(self) -> dict[str, tuple[str, ...]]:
        found = {}
        for definition, reads in self._readers():
            words: list[str] = []
            for relation, columns in reads:
                table = self._tables.get(relation.oid)
                if table is not None and relation.name.source == MAIN_SOURCE:
                    words += renamed(relation, columns, table.facts, table.facts)
            found[definition.identity] = tuple(words)
        return found

    def _resolve(self) -> None:
        """Drop old shapes once the stream has passed the change, and tables that are not read."""
        position, is_changed = self._position(), False
        for oid, table in list(self._tables.items()):
            if table.until and table.until <= position:
                self._tables[oid] = table = KnownTable(table.facts, table.shapes[:1])
                is_changed = True
            if not table.until and oid not in self._oids and self._oids:
                del self._tables[oid]
                is_changed = True
        if is_changed:
            self._save()

    def _save(self) -> None:
        self._store.put(_KEY, encode(self._tables))
        self._list_shapes()

    def _list_shapes(self) -> None:
        # In place: the stream's decoder reads it.
        self.shapes.clear()
        self.shapes.update((oid, table.shapes) for oid, table in self._tables.items())


def of_other_publication(
    catalog: TableCatalog, tables: Mapping[int, KnownTable]
) -> dict[int, KnownTable]:
    """Return what is known of tables, for a reader of another publication that has them too.

    catalog: with that publication. What else has changed meanwhile is found by that reader.
    TemporaryError.
    """
    now = catalog.read(list(tables), {oid: table.facts for oid, table in tables.items()}).tables
    found = {}
    for oid, table in tables.items():
        if oid in now:
            own = {name: getattr(now[oid], name) for name in _OF_PUBLICATION}
            table = replace(table, facts=replace(table.facts, **own))
        found[oid] = table
    return found


def store_tables(store: Store, tables: Mapping[int, KnownTable]) -> None:
    """Store what is known of tables, as part of the open epoch."""
    store.put(_KEY, encode(dict(tables)))


def _nothing(relation: Relation) -> TableFacts:
    """Return the facts of a table that was never read."""
    name = relation.name
    return TableFacts(relation.oid, name.schema, name.name, "r", "d", 0, 0, False, 0)
