"""From a query to a definition: the analyzer with the views it should know, and the planner.

What comes out can be kept and run: a query that would take a later process down is refused here.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import TYPE_CHECKING

from connectors.postgres.analysis.table_names import UNKNOWN, KnownNames
from connectors.postgres.catalog.catalog import SourceRow, ViewRow
from connectors.sink import SinkTable
from dataflow.errors import SourceError, SqlError, TemporaryError
from dataflow.lexer import deepest, position_of
from dataflow.plan.nodes import ViewPlan
from dataflow.schema import VIEW_SOURCE, Relation, RelationName, stored
from dataflow.sql.bind.analysis import Analyzer
from dataflow.sql.moving_now import MovingNow
from dataflow.sql.planner import plan_view
from service.engine import output_fields
from service.engine.encoding.registered import decode, encode
from service.engine.engine import ViewDefinition
from service.ingest.declared_sources import relations_of
from service.runtime.deep_stack import KEPT, deeply
from service.views.name_tracking import are_kept, names_now, require_read, with_names

if TYPE_CHECKING:
    from connectors.postgres.analysis.analyzer import PostgresAnalyzer
    from service.factory.service_factory import ServiceFactory

# What now() stands for in a view, and the clock that has it where it moves.
PINNED, MOVING = "pinned", "moving"
CLOCK = "clock"
CLOCK_RELATION = "clock.now"
# How often a query is planned anew because its tables were renamed meanwhile.
_MOST_LOOKS = 5
# PostgreSQL's own limits: of its stack, and of its parser's.
_TOO_DEEP = ("sql.statement_too_complex",)


def plan_definition(
    identity: str,
    name: tuple[str, str],
    query: str,
    parts: ServiceFactory,
    rows: Iterable[ViewRow],
    *,
    sources: Iterable[SourceRow] = (),
    asker: str = "",
    names: KnownNames = UNKNOWN,
    now: str = PINNED,
) -> ViewDefinition:
    """Plan a query. rows, sources: the catalog, whose views and relations the query may read;
    asker: the role that creates it (`created_by`) and must be allowed to read what it reads, whose
    rights it has for good; "" for the service itself. names: what its tables were called when it
    was asked for; it is planned, and kept, with those of now. now: MOVING where now() is the
    moment of each epoch.

    SqlError, sql.too_deep among them, SourceError, source.renamed among them; TemporaryError
    source.table_changing.
    """
    views = [relation_of(r) for r in rows if r.fields and (r.schema, r.name) != name]
    feeds = [relation for row in sources for relation in relations_of(row)]

    def planned() -> ViewDefinition:
        with parts.analyzer(views, feeds, asker) as analyzer:
            query_now, plan = _plan(query, names, analyzer, now)
            table = SinkTable(*name, stored(plan.root.fields), plan.key)
            role, named = analyzer.role, analyzer.named
        return ViewDefinition(identity, table, query_now, plan, role=role, names=named)

    try:
        definition = deeply(planned)
        # What the pipeline will do with it, in a process that it would take down: hand it to the
        # process that builds it, keep it, and run what was kept.
        deeply(lambda: decode(encode(pickle.loads(pickle.dumps(definition)))).tables(), KEPT)
    except RecursionError:
        raise too_deep(query) from None
    except SqlError as error:
        if error.code in _TOO_DEEP or "memory exhausted" in error.what:
            raise too_deep(query) from error
        raise
    return definition


def _plan(
    query: str, known: KnownNames, analyzer: PostgresAnalyzer, now: str = PINNED
) -> tuple[str, ViewPlan]:
    """The query with the names of now, and its plan. A query is looked at in several steps, and
    waits for those who change its tables: what was renamed meanwhile is looked at again."""
    moving: Analyzer = MovingNow(analyzer, CLOCK_RELATION) if now == MOVING else analyzer
    for _ in range(_MOST_LOOKS):
        found = names_now(known, analyzer)
        try:
            query_now = with_names(query, known, found)
            plan = plan_view(query_now, moving)
            if query_now != query:
                require_read(known, found, analyzer)
        except (SqlError, SourceError):
            if names_now(known, analyzer) == found:
                raise
            continue
        if are_kept(found, analyzer):
            return query_now, plan
    raise TemporaryError(
        "source.table_changing",
        "the tables of the query were renamed while it was planned",
        detail=f"they had other names at each of {_MOST_LOOKS} looks",
        hint="try again once they keep their names",
    )


def too_deep(query: str = "") -> SqlError:
    """The error for a query that no walk over its parts comes to the bottom of."""
    offset, depth = deepest(query)
    detail = f"{depth} levels are inside each other here" if query else ""
    return SqlError(
        "sql.too_deep",
        "the query is nested too deeply",
        detail=detail,
        hint="write long chains of OR as IN (...), deep subqueries as WITH, or views on views",
        position=position_of(query, offset) if query else None,
    )


def relation_of(row: ViewRow) -> Relation:
    """A maintained view as other views read it."""
    found = output_fields.from_json(row.fields or ())
    names = [f.name for f in found]
    key = tuple(names.index(k) for k in row.key or ())
    name = RelationName(VIEW_SOURCE, row.schema, row.name)
    return Relation(name, 0, found, key, row_estimate=row.row_estimate or -1)
