"""What a view promises, as one query over base tables that PostgreSQL can answer.

Maintained and ordinary views are replaced by their queries, and base tables by their rows at the
given moment. Rows listed in tidemark.errors are left out, if their source rows can be determined.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from connectors.postgres.catalog.catalog import SourceRow, ViewRow
from connectors.postgres.session.quoting import quote_name, quote_text
from connectors.postgres.snapshot.overlay import Overlay
from connectors.source import MAIN_SOURCE
from dataflow.errors import TidemarkError
from dataflow.lexer import one_query
from dataflow.plan.nodes import Filter, LateRows, Project, Scan
from dataflow.schema import VIEW_SOURCE, Relation, RelationName
from dataflow.sql.bind.analysis import Analysis, Table
from dataflow.sql.lower.lowering import Node, lower
from dataflow.sql.moving_now import texts_of_now
from dataflow.sql.parse.flatten import flattened, relations_named
from dataflow.types import UTC
from service.factory.computed_views import planned_in_group
from service.factory.planning import CLOCK, MOVING, TimeOptions, plan_again, relation_of
from service.factory.service_factory import ServiceFactory
from service.ingest.declared_sources import relations_of
from service.views.groups import group_of
from service.views.name_tracking import names_in, with_current_names

# Warnings of queries to which PostgreSQL has several correct answers, or changing ones.
_OPEN = (
    *("is computed once", "for each row when it comes", "leaves open", "the order inside"),
    "is the least of its values",
)
_MAX_ERRORS = 2_000
_NO_TIMES: Mapping[str, str] = {}


@dataclass(frozen=True)
class LeftOut:
    """Failed rows of a base relation: the values of `columns` as texts of whole rows."""

    relation: RelationName
    columns: tuple[str, ...]
    rows: tuple[str, ...]


@dataclass
class Promise:
    """A view's canonical text, and what its names stand for: tables, or the texts of views.

    role: whose privileges run it; "" for the service's own. pinned: values computed once at
    creation, by their text. is_moving: now() is the moment of the epoch. clocks: the source of
    each relation that is a clock. time_zone: in which it runs.
    """

    text: str
    titles: dict[tuple[str, str], str] = field(default_factory=dict)
    tables: dict[tuple[str, str], Table] = field(default_factory=dict)
    views: dict[tuple[str, str], Promise] = field(default_factory=dict)
    title: str = ""
    role: str = ""
    pinned: Mapping[str, str] = field(default_factory=dict)
    is_moving: bool = False
    clocks: dict[tuple[str, str], str] = field(default_factory=dict)
    time_zone: str = UTC

    def relations(self) -> list[Relation]:
        """Return the base relations below, each once."""
        found = {t.relation.name: t.relation for t in self.tables.values()}
        for view in self.views.values():
            found |= {r.name: r for r in view.relations()}
        return list(found.values())

    def of(self, title: str) -> Promise:
        """Return the promise of the maintained view of this title, itself or one below."""
        if self.title == title:
            return self
        below = (v for v in self.views.values() if title in v.maintained())
        return next(below).of(title)

    def maintained(self) -> list[str]:
        """Return the titles of the maintained views in it, itself first."""
        below = [title for view in self.views.values() for title in view.maintained()]
        return list(dict.fromkeys([*([self.title] if self.title else []), *below]))

    def query(
        self,
        overlays: Mapping[RelationName, Overlay],
        left_out: Mapping[str, Sequence[LeftOut]],
        owner: str = "",
        times: Mapping[str, str] = _NO_TIMES,
    ) -> str:
        """Return the query.

        left_out: by the title of the view whose errors list the rows. times: the value of each
        clock, as SQL of a timestamptz.
        """
        owner = self.title or owner
        texts = dict(self.pinned)
        if self.is_moving and CLOCK in times:
            texts |= texts_of_now(times[CLOCK])

        def replacement(schema: str, name: str) -> str | None:
            if view := self.views.get((schema, name)):
                return view.query(overlays, left_out, owner, times)
            if (schema, name) in self.clocks:
                return f"SELECT 1 AS id, {times[self.clocks[schema, name]]} AS at"
            table = self.tables[schema, name]
            overlay = overlays.get(table.relation.name)
            query = overlay.query(table) if overlay and overlay.is_changed else None
            for rows in left_out.get(owner, ()):
                if rows.relation == table.relation.name:
                    query = _without(rows, query or _whole(table))
            return query

        return flattened(self.text, replacement, texts)


def promise_of(
    row: ViewRow, factory: ServiceFactory, rows: Iterable[ViewRow], sources: Iterable[SourceRow]
) -> Promise:
    """Return the promise of a catalog row's view. SqlError, SourceError.

    TidemarkError verify.not_in_database if it reads a topic or a folder; verify.roles if its views
    have the privileges of several roles.
    """
    by_name = {(r.schema, r.name): r for r in rows}
    views = [relation_of(r) for r in by_name.values() if r.fields and r.identity != row.identity]
    sources = list(sources)
    feeds = [relation for source in sources for relation in relations_of(source)]
    time_zone = TimeOptions.of(row.options).time_zone
    with factory.analyzer(views, feeds, row.created_by, time_zone) as analyzer:
        analysis = analyzer.analyze(one_query(_query_now(row, analyzer)))
        clocks = {source.name for source in sources if source.type == CLOCK}
        found = _promise(analysis, row, analyzer, by_name, clocks, title=row.title)
        found.role, found.time_zone = analyzer.role, time_zone
    below = [r for r in by_name.values() if r.title in found.maintained()]
    _require_one_zone(row, below)
    creators = {r.created_by for r in below}
    if len({factory.role_of(creator) for creator in creators}) > 1:
        raise TidemarkError(
            "verify.roles",
            f'view "{row.title}" reads views of other creators',
            detail=f"functions run with their creator's privileges: {', '.join(sorted(creators))}",
            hint="verify the views that it reads one by one",
        )
    return found


def _require_one_zone(row: ViewRow, views: Sequence[ViewRow]) -> None:
    """Require that one session can run the queries of all views. TidemarkError
    verify.time_zones."""
    zones = {TimeOptions.of(r.options).time_zone for r in views}
    if len(zones) > 1:
        raise TidemarkError(
            "verify.time_zones",
            f'view "{row.title}" reads views of other time zones',
            detail=f"one query has one time zone: {', '.join(sorted(zones))}",
            hint="verify the views that it reads one by one",
        )


def _promise(
    analysis: Analysis,
    owner: ViewRow,
    analyzer: PostgresAnalyzer,
    rows: Mapping[tuple[str, str], ViewRow],
    clocks: Collection[str],
    *,
    title: str = "",
) -> Promise:
    """Return the promise of an analysis.

    owner: with a title, the maintained view itself; otherwise the one that contains it.
    """
    pinned = (owner.plan or {}).get("pinned", {})
    is_moving = TimeOptions.of(owner.options).now == MOVING
    found = Promise(analysis.text, title=title, pinned=pinned, is_moving=is_moving)
    for schema, name in relations_named(analysis.text):
        what = analyzer.relation(schema, name)
        if isinstance(what, Analysis):
            found.views[schema, name] = _promise(what, owner, analyzer, rows, clocks)
            continue
        relation = what.relation.name
        if relation.source == VIEW_SOURCE:
            parent = rows[relation.schema, relation.name]
            below = analyzer.analyze(one_query(_query_now(parent, analyzer)))
            found.views[schema, name] = _promise(
                below, parent, analyzer, rows, clocks, title=parent.title
            )
        elif relation.source == MAIN_SOURCE:
            found.tables[schema, name] = what
        elif relation.source in clocks:
            found.clocks[schema, name] = relation.source
        else:
            raise TidemarkError(
                "verify.not_in_database",
                f'the view reads "{relation}", which is not in PostgreSQL',
                detail="only tables of the database can be queried again",
                hint="compare the view with the topic or the folder itself",
            )
    return found


def _query_now(row: ViewRow, analyzer: PostgresAnalyzer) -> str:
    return with_current_names(row.query, names_in(row.plan), analyzer)


def open_reasons(rows: Iterable[ViewRow]) -> list[str]:
    """Return the views' warnings that PostgreSQL may correctly answer otherwise."""

    return [w for row in rows for w in row.warnings if any(words in w for words in _OPEN)]


def left_out(
    row: ViewRow,
    errors: Sequence[tuple[str, str]],
    promise: Promise,
    factory: ServiceFactory,
    catalog: tuple[Sequence[ViewRow], Sequence[SourceRow]],
) -> list[LeftOut]:
    """Return the rows of base relations behind the view's error rows, (operator, row).

    TidemarkError verify.error_rows if they cannot be determined.
    """
    rows, sources = catalog
    if not errors:
        return []
    if len(errors) > _MAX_ERRORS:
        raise _unknown(row, f"it has more than {_MAX_ERRORS} error rows")
    definition = plan_again(row, factory, rows, sources)
    found: dict[Scan, list[str]] = {}
    late: set[Scan] = set()
    definition = planned_in_group(definition, factory, rows, sources, group_of(row))
    nodes = lower(definition.plan.root)
    for operator, text in errors:
        scan = _scan_of(row, nodes, operator)
        found.setdefault(scan, []).append(text)
        if any(n.name == operator and isinstance(n.plan, LateRows) for n in nodes):
            late.add(scan)
    names = relations_named(promise.text)
    # A late row is left out wherever the view reads its table.
    for scan in found.keys() - late:
        relation = scan.relation.name
        if (relation.schema, relation.name) not in names:
            raise _unknown(row, f'the failing rows of "{relation}" are not read by the view itself')
        if _count_named(promise.text, relation) != 1:
            raise _unknown(row, f'the query reads "{relation}" more than once')
    return [
        LeftOut(
            scan.relation.name,
            tuple(scan.relation.fields[c].name for c in scan.columns),
            tuple(texts),
        )
        for scan, texts in found.items()
    ]


def _scan_of(row: ViewRow, nodes: Sequence[Node], operator: str) -> Scan:
    """Return the scan whose unchanged rows reach the operator that failed."""
    node = next((n for n in nodes if n.name == operator), None)
    if node is None or not isinstance(node.plan, Filter | Project | LateRows):
        raise _unknown(row, f'an expression of "{operator}" fails')
    below = nodes[node.inputs[0]]
    while isinstance(below.plan, Filter | LateRows):
        below = nodes[below.inputs[0]]
    if not isinstance(below.plan, Scan) or below.plan.relation.name.source != MAIN_SOURCE:
        raise _unknown(row, f'an expression of "{operator}", which reads no table, fails')
    return below.plan


def _count_named(text: str, relation: RelationName) -> int:
    count = 0

    def count_one(schema: str, name: str) -> None:
        nonlocal count
        count += (schema, name) == (relation.schema, relation.name)

    flattened(text, count_one)
    return count


def _unknown(row: ViewRow, detail: str) -> TidemarkError:
    return TidemarkError(
        "verify.error_rows",
        f'view "{row.title}" has error rows, and its query fails in PostgreSQL',
        detail=detail,
        hint="repair the rows listed in tidemark.errors, then verify again",
    )


def _whole(table: Table) -> str:
    name = table.relation.name
    columns = ", ".join(quote_name(n) for n, _ in table.columns)
    return f"SELECT {columns} FROM {quote_name(name.schema)}.{quote_name(name.name)}"


def _without(rows: LeftOut, query: str) -> str:
    """Return the query without rows of these texts; OFFSET 0 makes PostgreSQL remove them first."""
    cells = ", ".join(f"b.{quote_name(c)}" for c in rows.columns)
    texts = ", ".join(quote_text(text) for text in rows.rows)
    return f"SELECT b.* FROM ({query}) b WHERE ROW({cells})::text <> ALL (ARRAY[{texts}]) OFFSET 0"
