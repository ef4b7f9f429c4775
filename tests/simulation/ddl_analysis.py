"""What PostgreSQL says of the simulation's queries while tables change under their names.

The tables of a query are locked for as long as it is examined, so one that is being changed is
waited for; what the names stand for then holds for all questions about this query.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from connectors.postgres.analysis.table_names import KnownNames, TableNames
from dataflow.errors import SqlError
from dataflow.schema import Relation
from dataflow.sql.bind.analysis import Analysis
from dataflow.types import UTC
from tests.simulation.analysis import SimAnalyzer
from tests.simulation.ddl_source import await_free
from tests.simulation.ddl_tables import DdlServer, Shape
from tests.simulation.faults import Faults
from tests.simulation.reads import SCHEMA, canonical, reads, with_reads
from tests.simulation.shop import EVERY
from tests.simulation.stream import away
from tests.simulation.topics import RELATIONS

COLUMNS = {f.name for r in (*EVERY.values(), *RELATIONS) for f in r.fields}


class DdlAnalyzer(SimAnalyzer):
    """As SimAnalyzer, over the tables as they are called now."""

    def __init__(
        self,
        server: DdlServer,
        faults: Faults,
        views: Iterable[Relation],
        feeds: Iterable[Relation] = (),
        time_zone: str = UTC,
    ) -> None:
        super().__init__(views, feeds, time_zone)
        self._server = server
        self._faults = faults
        self._looked_at = ""
        self.named = KnownNames(objects=())

    def views_in(self, query: str) -> tuple[Relation, ...]:
        self._look(query)
        return super().views_in(query)

    def tables(self, query: str) -> tuple[object, ...]:
        self._look(query)
        found = (self._tables.get(name) for name in tables_in(query))
        return tuple((r, r and r.numbers, r and r.oid) for r in found)

    def analyze(self, query: str) -> Analysis:
        self._look(query)
        query = canonical(query)
        for name in tables_in(query):
            if self._find(SCHEMA, name) is None:
                what = f'relation "{SCHEMA}.{name}" does not exist'
                raise SqlError("sql.undefined_table", what)
        known = self._columns_of(query)
        for column in columns_in(query):
            if column not in known:
                raise SqlError("sql.undefined_column", f'column "{column}" does not exist')
        self.named = _names(self._shapes[n] for n in set(tables_in(query)) & self._shapes.keys())
        return super().analyze(query)

    def names(self, oids: Iterable[int]) -> KnownNames:
        """As the catalog has them, which waits for nobody."""
        if self._faults.happens("ddl.away"):
            raise away()
        seen = self._server.seen
        return _names(seen[f"t{oid}"] for oid in set(oids) if f"t{oid}" in seen)

    def _look(self, query: str) -> None:
        if query == self._looked_at:
            return
        if self._faults.happens("ddl.away"):
            raise away()
        self._looked_at = query
        names = tables_in(query)
        await_free(self._server, self._faults, self._labels(names))
        self._shapes = {s.name: s for s in self._server.seen.values()}
        self._tables = {name: s.relation() for name, s in self._shapes.items()}

    def _labels(self, names: Iterable[str]) -> set[str]:
        """Tables that have, or are about to have, one of these names."""
        expected = set(names)
        both = (*self._server.seen.values(), *self._server.now.values())
        return {shape.label for shape in both if shape.name in expected}


def _names(shapes: Iterable[Shape]) -> KnownNames:
    tables = (
        TableNames(s.oid, SCHEMA, s.name, tuple((c.number, c.field.name) for c in s.columns))
        for s in sorted(shapes, key=lambda s: s.oid)
    )
    return KnownNames("simulated", tuple(tables), ())


def tables_in(query: str) -> list[str]:
    """The relations of the database and the views that a query names."""
    return [read.name for read in reads(query) if read.schema == SCHEMA]


def columns_in(query: str) -> list[str]:
    """The columns that a query names, as it does."""
    text = re.sub(r" AS \w+", "", with_reads(query, lambda _: "?"))
    words = re.findall(r"(?:\b[a-z]\.)?\b[a-z]\w*", text)
    return [word for word in dict.fromkeys(words) if word.rsplit(".", 1)[-1] in COLUMNS]


def plain_columns_in(query: str) -> set[str]:
    """The same, without the aliases of their tables."""
    return {column.rsplit(".", 1)[-1] for column in columns_in(query)}
