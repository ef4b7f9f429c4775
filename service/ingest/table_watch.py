"""The source's tables as they were when views were built on them, and as they are.

The stream tells rows, not DDL. So before a batch is stepped, and once a second, the catalog is
asked whether any table that views read has changed. Invariants: no position is shown before the
catalog was looked at after it; what was seen is kept with the state, in the commit that takes out
the views that cannot go on, so that nothing done to a table while nobody looked is missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from connectors.postgres.replication.table_facts import TableCatalog, TableFacts
from connectors.postgres.replication.wire_shapes import KnownTable, Shape, shape_of
from connectors.source import MAIN_SOURCE
from dataflow.errors import SourceError
from dataflow.schema import Relation
from service.engine.column_requirements import Read
from service.engine.definition import ViewDefinition
from service.engine.encoding.registered import decode, encode
from service.ingest.table_changes import renamed, why_lost
from service.runtime.log import log
from storage.failpoints import failpoint
from storage.store import Store

_KEY = "tables"
_MOST_SHAPES = 8

# A view, live or being built, and what it reads or keeps of the source.
Reader = tuple[ViewDefinition, Sequence[Read]]


@dataclass(frozen=True)
class Seen:
    """What the catalog said at one moment."""

    digest: int
    tables: Mapping[int, TableFacts]


class TablesChanged(SourceError):
    """Views cannot go on as they are. lost: why, by `ViewDefinition.building`. Take them out, then
    `accept` seen."""

    def __init__(self, lost: Mapping[str, SourceError], seen: Seen) -> None:
        first = next(iter(lost.values()))
        super().__init__(
            first.code, first.what, detail=first.detail, hint=first.hint, relation=first.relation
        )
        self.lost = lost
        self.seen = seen


class SourceWatch:
    """Used by the pipeline's thread. readers: all that reads now; position: of the stream; tells:
    the open stream's answer, see ReplicationStream.has_truncation."""

    def __init__(
        self,
        catalog: TableCatalog,
        store: Store,
        readers: Callable[[], Iterable[Reader]],
        position: Callable[[], int],
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._readers = readers
        self._position = position
        stored = store.get(_KEY)
        self._known: dict[int, KnownTable] = decode(stored) if stored else {}
        self._oids: list[int] = []
        self._digest: int | None = None
        self.tells: Callable[[int, int, int], bool] | None = None
        self.shapes: dict[int, tuple[Shape, ...]] = {}
        self.renamed: dict[str, tuple[str, ...]] = {}
        self._list_shapes()

    def follow(self, relations: Iterable[Relation]) -> None:
        """Look at these tables from now on, all at once and against what was known of them.

        TablesChanged as `look`.
        """
        self.narrow(relations)
        self.look()

    def narrow(self, relations: Iterable[Relation]) -> None:
        """Look at no others than these from now on; who reads another again reads it anew."""
        self._oids = sorted({r.oid for r in relations})
        self._digest = None
        for oid, known in self._known.items():
            if oid not in self._oids and known.facts.membership:
                # Unpublished by us: that it is published again then is no gap for anyone.
                facts = replace(known.facts, membership=0, publication=())
                self._known[oid] = replace(known, facts=facts)

    def forget(self) -> None:
        """Nothing of the source is read any more; part of the open epoch."""
        self._known, self._oids, self._digest = {}, [], None
        self._store.put(_KEY, None)
        self._list_shapes()

    def look(self) -> None:
        """Ask the catalog. TablesChanged when views cannot go on; nothing is taken as known then.

        TemporaryError when it cannot be asked.
        """
        self._resolve()
        if not self._oids:
            return
        known = {oid: self._known[oid].facts for oid in self._oids if oid in self._known}
        # Also where all is read in any case: what has been committed just now is waited for.
        digest = self._catalog.digest(known)
        if digest == self._digest:
            return
        seen = Seen(*self._catalog.read(self._oids, known))
        failpoint("ddl.look.after")
        lost = self._lost(seen)
        if lost:
            raise TablesChanged(lost, seen)
        self.accept(seen)

    def accept(self, seen: Seen) -> None:
        """This is known from now on; part of the open epoch."""
        position = 0
        for oid, facts in seen.tables.items():
            known = self._known.get(oid)
            shape = shape_of(facts)
            if known is None:
                self._known[oid] = KnownTable(facts, (shape,))
                continue
            if known.facts == facts:
                continue
            position = position or self._catalog.write_marker()
            shapes = tuple(dict.fromkeys((shape, *known.shapes)))
            if len(shapes) > _MOST_SHAPES:
                # No row is older than the oldest, by which those in between can be read too.
                shapes = (*shapes[: _MOST_SHAPES - 1], shapes[-1])
            self._known[oid] = KnownTable(facts, shapes, position)
            log.info("source.table_changed", table=facts.title)
        self._digest = seen.digest
        self._keep()
        self.renamed = self._renamed()

    def is_moving(self, relations: Iterable[Relation]) -> bool:
        """Whether rows from before a change of one of these tables may still come."""
        self._resolve()
        found = (self._known.get(r.oid) for r in relations if r.name.source == MAIN_SOURCE)
        return any(known is not None and known.until for known in found)

    def close(self) -> None:
        """End the session."""
        self._catalog.close()

    def _lost(self, seen: Seen) -> dict[str, SourceError]:
        lost: dict[str, SourceError] = {}
        is_reported = cache(self._is_reported)
        for definition, reads in self._readers():
            building = definition.building
            for relation, columns in reads:
                if relation.name.source != MAIN_SOURCE or building in lost:
                    continue
                now, known = seen.tables.get(relation.oid), self._known.get(relation.oid)
                before = now if known is None else known.facts
                if before is None:
                    before = _nothing(relation)
                error = why_lost(relation, columns, before, now, is_reported)
                if error is not None:
                    lost[building] = error
        return lost

    def _is_reported(self, xid: int, oid: int) -> bool:
        return self.tells is not None and self.tells(xid, oid, self._catalog.write_marker())

    def _renamed(self) -> dict[str, tuple[str, ...]]:
        found = {}
        for definition, reads in self._readers():
            words: list[str] = []
            for relation, columns in reads:
                known = self._known.get(relation.oid)
                if known is not None and relation.name.source == MAIN_SOURCE:
                    words += renamed(relation, columns, known.facts, known.facts)
            found[definition.identity] = tuple(words)
        return found

    def _resolve(self) -> None:
        """Old shapes are of no use once the stream has passed the change; nor are unread tables."""
        position, is_changed = self._position(), False
        for oid, known in list(self._known.items()):
            if known.until and known.until <= position:
                self._known[oid] = known = KnownTable(known.facts, known.shapes[:1])
                is_changed = True
            if not known.until and oid not in self._oids and self._oids:
                del self._known[oid]
                is_changed = True
        if is_changed:
            self._keep()

    def _keep(self) -> None:
        self._store.put(_KEY, encode(self._known))
        self._list_shapes()

    def _list_shapes(self) -> None:
        # In place: the stream's decoder reads it.
        self.shapes.clear()
        self.shapes.update((oid, known.shapes) for oid, known in self._known.items())


def _nothing(relation: Relation) -> TableFacts:
    """A table that nobody ever saw."""
    name = relation.name
    return TableFacts(relation.oid, name.schema, name.name, "r", "d", 0, 0, False, 0)
