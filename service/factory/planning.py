"""From a query to a definition: the analyzer with the views it may read, and the planner.

Invariant: a returned definition can be stored and run. A query that would crash a later process is
refused here.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from connectors.postgres.analysis.table_names import UNKNOWN, KnownNames
from connectors.postgres.catalog.catalog import SourceRow, ViewRow
from connectors.sink import SinkTable
from dataflow.errors import SourceError, SqlError, TemporaryError
from dataflow.lexer import deepest, find_words, position_of
from dataflow.plan.nodes import ViewPlan, scans_of
from dataflow.plan.properties.clock_use import following_columns
from dataflow.schema import VIEW_SOURCE, Relation, RelationName, stored
from dataflow.sql.bind.analysis import Analyzer
from dataflow.sql.lateness import lateness_of, with_lateness
from dataflow.sql.moving_now import ClockMissingError, MovingNow, texts_of_now
from dataflow.sql.planner import plan_view
from dataflow.types import UTC
from service.engine import output_fields
from service.engine.encoding.registered import decode, encode
from service.engine.engine import ViewDefinition
from service.ingest.declared_sources import relations_of
from service.runtime.deep_stack import STORED, deeply
from service.views.name_tracking import (
    are_current,
    names_in,
    names_now,
    require_checked,
    require_objects,
    require_read,
    with_names,
)

if TYPE_CHECKING:
    from connectors.postgres.analysis.analyzer import PostgresAnalyzer
    from service.factory.service_factory import ServiceFactory

# What now() stands for in a view, and the clock that has it where it moves.
PINNED: Final = "pinned"
MOVING: Final = "moving"
# The option `history` of a view whose past is not retained.
NO_HISTORY = "none"
CLOCK = "clock"
CLOCK_RELATION = "clock.now"
_NO_OPTIONS: Mapping[str, Any] = {}
# How often values of now() change: a number and its unit.
REFRESH = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) ?(ms|s|min|h|d)")
_UNITS_US = {
    "ms": 1_000,
    "s": 1_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_NOW_WORDS = ("now", "current_timestamp", "localtimestamp", "transaction_timestamp", "current_time")


@dataclass(frozen=True)
class TimeOptions:
    """What now() stands for in a view, and the time zone in which it is computed."""

    now: str = PINNED
    time_zone: str = UTC
    refresh: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> TimeOptions:
        """Return them from a view's options; a view from before the options has the defaults."""
        now, zone = options.get("now", PINNED), options.get("time_zone", UTC)
        return cls(now, zone, options.get("refresh"))

    @property
    def refresh_us(self) -> int:
        """Return how often values of now() change, in microseconds; 0 if they may not."""
        if self.refresh is None:
            return 0
        number, unit = REFRESH.fullmatch(self.refresh).groups()  # type: ignore[union-attr]
        return round(float(number) * _UNITS_US[unit])


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
    requester: str = "",
    names: KnownNames = UNKNOWN,
    options: Mapping[str, Any] = _NO_OPTIONS,
) -> ViewDefinition:
    """Plan a query.

    - rows, sources: the catalog, whose views and relations the query may read
    - requester: the role that creates the view (`created_by`), whose privileges it keeps; it must
    be allowed to read what the query reads; "" for the service itself
    - names: what its tables were called at the request; the plan uses the current names
    - options: the view's; here those about time count: now, and those of `lateness_of`

    SqlError, including sql.too_deep and lateness.*; SourceError, including source.renamed;
    TemporaryError source.table_changing.
    """
    views = [relation_of(r) for r in rows if r.fields and (r.schema, r.name) != name]
    feeds = [relation for row in sources for relation in relations_of(row)]
    time, lateness = TimeOptions.of(options), lateness_of(options)
    named_clock = (CLOCK, CLOCK_RELATION)
    clock = next((r for r in feeds if (r.name.source, str(r.name)) == named_clock), None)

    def planned() -> ViewDefinition:
        with factory.analyzer(views, feeds, requester, time.time_zone) as analyzer:
            analyzer.check_time_zone()
            read = CLOCK_RELATION if clock is not None else ""
            query_now, plan = _plan(query, names, analyzer, (time.now, read))
            plan = _refreshed(query_now, plan, time)
            if lateness is not None:
                plan = with_lateness(plan, query_now, lateness, _required(clock))
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


def plan_again(
    row: ViewRow,
    factory: ServiceFactory,
    rows: Iterable[ViewRow],
    sources: Iterable[SourceRow],
) -> ViewDefinition:
    """Plan the query of a view in the catalog, for its creator and with its options.

    rows, sources, errors: as of `plan_definition`.
    """
    return plan_definition(
        row.identity,
        (row.schema, row.name),
        row.query,
        factory,
        rows,
        sources=sources,
        requester=row.created_by,
        names=names_in(row.plan),
        options=row.options,
    )


def _plan(
    query: str, names: KnownNames, analyzer: PostgresAnalyzer, clock: tuple[str, str]
) -> tuple[str, ViewPlan]:
    """Return the query with its current names, and its plan.

    clock: what now() is, and the clock's relation.

    Planning takes several steps and may wait for schema changes: after a rename it starts again.
    """
    now, relation = clock
    moving: Analyzer = MovingNow(analyzer, relation) if now == MOVING else analyzer
    for _ in range(_MAX_ATTEMPTS):
        found = names_now(names, analyzer)
        try:
            query_now = with_names(query, names, found)
            plan = plan_view(query_now, moving)
            if query_now != query:
                require_read(names, found, analyzer)
            require_objects(names, analyzer)
            require_checked(names, analyzer)
        except ClockMissingError:
            raise
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


def _refreshed(query: str, plan: ViewPlan, time: TimeOptions) -> ViewPlan:
    """Return the plan with a warning of values that follow the clock. SqlError sql.clock_value."""
    columns = sorted(following_columns(plan.root, {CLOCK}))
    if time.now != MOVING or not columns:
        return plan
    shown = ", ".join(f'"{plan.root.fields[i].name}"' for i in columns)
    if not time.refresh_us:
        found = (find_words(query, [word]) for word in _NOW_WORDS)
        raise SqlError(
            "sql.clock_value",
            f"{shown} would have another value at every moment",
            detail="now() is in a value, not in a comparison",
            hint="compare it with a column, use CURRENT_DATE or date_trunc('day', now()), or set "
            'options.refresh, such as "10 s"; options.now "pinned" computes it once',
            position=next(filter(None, found), None),
        )
    text = f"every row is computed again each {time.refresh}: {shown} follows the clock"
    return replace(plan, warnings=(*plan.warnings, text), refresh_us=time.refresh_us)


def clock_of(plan: ViewPlan, time: TimeOptions) -> Literal["pinned", "moving"] | None:
    """Return what now() is in a plan: MOVING or PINNED; None if the query does not say it."""
    if time.now == MOVING:
        is_read = any(s.relation.name.source == CLOCK for s in scans_of(plan.root))
        return MOVING if is_read else None
    words = texts_of_now("")
    return PINNED if any(word in text for text, _ in plan.pinned for word in words) else None


def _required(clock: Relation | None) -> Relation:
    """Return the clock that watermarks read. ClockMissingError."""
    if clock is None:
        raise ClockMissingError("a watermark")
    return clock


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
