"""From a query to a definition: the analyzer with the views it may read, and the planner.

Invariant: a returned definition can be stored and run. A query that would crash a later process is
refused here.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from connectors.postgres.analysis.table_names import UNKNOWN, KnownNames
from connectors.postgres.catalog.catalog import SourceRow, ViewRow
from connectors.sink import SinkTable
from dataflow.errors import SourceError, SqlError, TemporaryError
from dataflow.lexer import deepest, position_of
from dataflow.plan.nodes import ViewPlan
from dataflow.schema import VIEW_SOURCE, Relation, RelationName, stored
from dataflow.sql.bind.analysis import Analyzer
from dataflow.sql.lateness import lateness_of, with_lateness
from dataflow.sql.moving_now import MovingNow
from dataflow.sql.planner import plan_view
from service.engine import output_fields
from service.engine.encoding.registered import decode, encode
from service.engine.engine import ViewDefinition
from service.ingest.declared_sources import relations_of
from service.runtime.deep_stack import STORED, deeply
from service.views.name_tracking import are_current, names_now, require_read, with_names

if TYPE_CHECKING:
    from connectors.postgres.analysis.analyzer import PostgresAnalyzer
    from service.factory.service_factory import ServiceFactory

# What now() stands for in a view, and the clock that has it where it moves.
PINNED, MOVING = "pinned", "moving"
CLOCK = "clock"
CLOCK_RELATION = "clock.now"
_NO_OPTIONS: Mapping[str, Any] = {}
# How often a query is planned again because its tables were renamed meanwhile.
_MAX_ATTEMPTS = 5
# PostgreSQL's own limits: of its stack, and of its parser's.
_TOO_DEEP = ("sql.statement_too_complex",)


def plan_definition(
    identity: str,
    name: tuple[str, str],
    query: str,
    factory: ServiceFactory,
    rows: Iterable[ViewRow],
    *,
    sources: Iterable[SourceRow] = (),
    asker: str = "",
    names: KnownNames = UNKNOWN,
    options: Mapping[str, Any] = _NO_OPTIONS,
) -> ViewDefinition:
    """Plan a query.

    - rows, sources: the catalog, whose views and relations the query may read
    - asker: the role that creates the view (`created_by`), whose privileges it keeps; it must be
    allowed to read what the query reads; "" for the service itself
    - names: what its tables were called at the request; the plan uses the current names
    - options: the view's; here those about time count: now, and those of `lateness_of`

    SqlError, including sql.too_deep and lateness.*; SourceError, including source.renamed;
    TemporaryError source.table_changing.
    """
    views = [relation_of(r) for r in rows if r.fields and (r.schema, r.name) != name]
    feeds = [relation for row in sources for relation in relations_of(row)]
    lateness, now = lateness_of(options), options.get("now", PINNED)

    def planned() -> ViewDefinition:
        with factory.analyzer(views, feeds, asker) as analyzer:
            query_now, plan = _plan(query, names, analyzer, now)
            if lateness is not None:
                plan = with_lateness(plan, query_now, lateness, _clock_of(feeds))
            table = SinkTable(*name, stored(plan.root.fields), plan.key)
            role, named = analyzer.role, analyzer.named
        return ViewDefinition(identity, table, query_now, plan, role=role, names=named)

    try:
        definition = deeply(planned)
        # What a pipeline will do with it, where a failure would crash it: pass it to the building
        # process, store it, and run the stored one.
        deeply(lambda: decode(encode(pickle.loads(pickle.dumps(definition)))).tables(), STORED)
    except RecursionError:
        raise too_deep(query) from None
    except SqlError as error:
        if error.code in _TOO_DEEP or "memory exhausted" in error.what:
            raise too_deep(query) from error
        raise
    return definition


def _plan(
    query: str, names: KnownNames, analyzer: PostgresAnalyzer, now: str = PINNED
) -> tuple[str, ViewPlan]:
    """Return the query with its current names, and its plan.

    Planning takes several steps and may wait for schema changes: after a rename it starts again.
    """
    moving: Analyzer = MovingNow(analyzer, CLOCK_RELATION) if now == MOVING else analyzer
    for _ in range(_MAX_ATTEMPTS):
        found = names_now(names, analyzer)
        try:
            query_now = with_names(query, names, found)
            plan = plan_view(query_now, moving)
            if query_now != query:
                require_read(names, found, analyzer)
        except (SqlError, SourceError):
            if names_now(names, analyzer) == found:
                raise
            continue
        if are_current(found, analyzer):
            return query_now, plan
    raise TemporaryError(
        "source.table_changing",
        "the tables of the query were renamed while it was planned",
        detail=f"their names changed during each of {_MAX_ATTEMPTS} attempts",
        hint="try again once no table is being renamed",
    )


def needs_clock(options: Mapping[str, Any]) -> bool:
    """Return whether a view of these options reads the source CLOCK."""
    return options.get("now") == MOVING or bool(options.get("lateness"))


def _clock_of(feeds: Iterable[Relation]) -> Relation:
    return next(r for r in feeds if (r.name.source, str(r.name)) == (CLOCK, CLOCK_RELATION))


def too_deep(query: str = "") -> SqlError:
    """Return the error for a query too deep for any recursive walk."""
    offset, depth = deepest(query)
    detail = f"{depth} levels of nesting here" if query else ""
    return SqlError(
        "sql.too_deep",
        "the query is nested too deeply",
        detail=detail,
        hint="write long chains of OR as IN (...), and deep subqueries as WITH or views on views",
        position=position_of(query, offset) if query else None,
    )


def relation_of(row: ViewRow) -> Relation:
    """Return a maintained view as other views read it."""
    found = output_fields.from_json(row.fields or ())
    names = [f.name for f in found]
    key = tuple(names.index(k) for k in row.key or ())
    name = RelationName(VIEW_SOURCE, row.schema, row.name)
    return Relation(name, 0, found, key, row_estimate=row.row_estimate or -1)
