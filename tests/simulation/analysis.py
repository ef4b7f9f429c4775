"""What PostgreSQL would say of the simulation's queries: they are canonical already.

Only what they need is known: columns, comparisons, and the aggregates in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from connectors.postgres.analysis.table_names import KnownNames
from connectors.postgres.replication.used_objects import UsedObject
from dataflow.errors import SourceError, SqlError
from dataflow.expressions.ir import Literal
from dataflow.plan.nodes import ViewPlan
from dataflow.schema import Field, Relation
from dataflow.sql.bind.analysis import Analysis, Analyzer, Routine, Table
from dataflow.sql.planner import plan_view
from dataflow.types import BOOL, INT4, INT8, NUMERIC, UTC, SqlType
from tests.simulation import clock, zones
from tests.simulation.reads import SCHEMA, canonical, reads
from tests.simulation.shop import EVERY

_PLANS: dict[object, tuple[ViewPlan, KnownNames]] = {}
_SELECT = re.compile(r"\s*SELECT (?:DISTINCT )?")


def plan_once(query: str, analyzer: Analyzer) -> ViewPlan:
    """As plan_view, which gives the same plan for the same query over the same views."""
    if not isinstance(analyzer, SimAnalyzer):
        return plan_view(query, analyzer)
    key = query, analyzer.views_in(query), analyzer.tables(query), analyzer.time_zone
    if key not in _PLANS:
        _PLANS[key] = plan_view(query, analyzer), analyzer.named
    plan, analyzer.named = _PLANS[key]
    return plan


class SimAnalyzer:
    """As dataflow.sql.bind.analysis.Analyzer. views: maintained ones; feeds: of other sources."""

    role = ""
    named = KnownNames(objects=())
    unchecked: SourceError | None = None

    def __init__(
        self, views: Iterable[Relation], feeds: Iterable[Relation] = (), time_zone: str = UTC
    ) -> None:
        self.time_zone = time_zone
        self._views = {v.name.name: v for v in views}
        self._feeds = {(f.name.schema, f.name.name): f for f in feeds}
        self._tables: Mapping[str, Relation] = EVERY

    def __enter__(self) -> SimAnalyzer:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def analyze(self, query: str) -> Analysis:
        """The query itself, with the types of its output."""
        query = canonical(query)
        known = self._columns_of(query)
        fields = []
        for text in _output(query):
            expression, _, name = text.partition(" AS ")
            named = name or expression.rsplit(".", 1)[-1]
            fields.append(Field(named, self._type(expression, known)))
            if expression.isidentifier() and expression not in known:
                raise SqlError("sql.undefined_column", f'column "{expression}" does not exist')
        calls = sorted(set(re.findall(r"\b(count|sum|min|max)\(", query)))
        return Analysis(query, tuple(fields), tuple(Routine(c, "a", "i") for c in calls))

    def views_in(self, query: str) -> tuple[Relation, ...]:
        """The maintained views that a query names."""
        return tuple(v for n, v in sorted(self._views.items()) if f"public.{n}" in canonical(query))

    def tables(self, query: str) -> tuple[object, ...]:
        """What else than in another run may stand for the names in a query: here nothing."""
        return ()

    def relation(self, schema: str, name: str) -> Table | Analysis:
        """A table or a maintained view."""
        relation = self._find(schema, name)
        if relation is None:
            raise SourceError("source.table_missing", f'table "{schema}.{name}" does not exist')
        columns = tuple((f.name, i) for i, f in enumerate(relation.fields))
        return Table(relation, columns)

    def types(self, columns: Sequence[SqlType], expressions: Sequence[str]) -> tuple[SqlType, ...]:
        """Of columns c1, c2 ..., comparisons and aggregates."""
        known = {f"c{i}": Field(f"c{i}", t) for i, t in enumerate(columns, 1)}
        texts = (expression.replace("tidemark_row.", "") for expression in expressions)
        return tuple(self._type(text, known) for text in texts)

    def routines(self, columns: Sequence[SqlType], expression: str) -> tuple[Routine, ...]:
        """Nothing but what is built in."""
        return ()

    def check_time_zone(self) -> None:
        """Every server knows UTC."""

    def check_collations(self, columns: Sequence[SqlType], expressions: Sequence[str]) -> None:
        """All texts have the collation "C"."""

    def names(self, oids: Iterable[int]) -> KnownNames:
        """A server of which nothing can be told, where nothing is ever called otherwise."""
        return KnownNames(objects=())

    def objects(self, keys: Iterable[tuple[str, int]]) -> tuple[UsedObject, ...]:
        """None is used."""
        return ()

    def columns(self, columns: Sequence[SqlType], function: str) -> tuple[Field, ...]:
        """No functions in FROM."""
        raise NotImplementedError(function)

    def constants(
        self, expressions: Sequence[str], types: Sequence[SqlType]
    ) -> tuple[Literal | None, ...]:
        """Numbers; all else fails."""
        pairs = zip(expressions, types, strict=True)
        return tuple(Literal(e, t) if e.isdecimal() else None for e, t in pairs)

    def _find(self, schema: str, name: str) -> Relation | None:
        if schema == SCHEMA:
            return self._views.get(name) or self._tables.get(name)
        return self._feeds.get((schema, name))

    def _columns_of(self, query: str) -> dict[str, Field]:
        """The columns that a query may name, by their names in it."""
        known: dict[str, Field] = {}
        # What a subquery reads is named by its alias.
        found = sorted(reads(query), key=lambda read: read.schema in clock.CLOCKS)
        for read in found:
            relation = self._find(read.schema, read.name)
            if relation is None:
                continue
            called = read.called([field.name for field in relation.fields])
            for name, field in zip(called, relation.fields, strict=True):
                known.setdefault(name, field)
                known[f"{read.alias}.{name}"] = field
        return known

    @staticmethod
    def _type(expression: str, known: dict[str, Field]) -> SqlType:
        if (found := zones.type_of(expression)) is not None:
            return found
        call = re.fullmatch(r"(\w+)\((.*)\)", expression)
        if call is None and ("/" in expression or "%" in expression):
            # Integers alone are divided here.
            return INT4
        if call is not None and call[1] == "count":
            return INT8
        if call is not None:
            if call[2] not in known and "/" not in call[2]:
                raise SqlError("sql.undefined_column", f'column "{call[2]}" does not exist')
            argument = known[call[2]].type if call[2] in known else INT4
            if call[1] == "sum":
                if argument not in (INT4, INT8):
                    what = f"function sum({argument.name}) does not exist"
                    raise SqlError("sql.undefined_function", what)
                return NUMERIC if argument == INT8 else INT8
            return argument
        if expression.isdecimal():
            return INT4
        return known[expression].type if expression in known else BOOL


def _output(query: str) -> list[str]:
    """The expressions that a query selects, with their names."""
    begin = _SELECT.match(query)
    assert begin is not None
    found, depth, start = [], 0, begin.end()
    for at in range(start, len(query)):
        depth += {"(": 1, ")": -1}.get(query[at], 0)
        is_end = query.startswith(" FROM ", at)
        if not depth and (is_end or query.startswith(", ", at)):
            found.append(query[start:at])
            start = at + 2
            if is_end:
                return found
    raise AssertionError(query)
