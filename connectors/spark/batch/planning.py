"""From settings to views that a driver can step: sources with resolved types, and plans.

Invariant: a view's identity stays the same from run to run as long as its query, its relations and
its plan do, and changes with any of them. So a state is only used by the view that it is of.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from connectors.extras import extra_required
from connectors.feed_source import BoundedSource, Connector, DeclaredRelation
from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from connectors.postgres.evaluation.evaluator import PostgresEvaluator
from connectors.spark.batch.settings import SourceSettings
from connectors.spark.maintained.layout import Layout, MaintainedView
from dataflow.errors import InvariantError, SourceError, SqlError
from dataflow.graph import needed_columns
from dataflow.lexer import one_query
from dataflow.plan.nodes import ViewPlan, scans_of
from dataflow.plan.properties.unique_keys import keys_of
from dataflow.schema import Field, Relation, RelationName, stored
from dataflow.sql.lower.lowering import lower
from dataflow.sql.planner import plan_view
from dataflow.sql.rules.split_aggregates import split_aggregates
from dataflow.sql.rules.split_top_k import split_top_k

# How often a row of a multiset view is in it.
COUNT = "_count"
_OIDS = 2**31 - 2


@dataclass(frozen=True)
class PlannedView:
    """A view that can be stepped.

    fields, key: of its rows. A multiset view has each row once, with its COUNT as the last column,
    and all others are the key; rows are then equal if GROUP BY finds them equal. identity: see
    above.
    """

    name: str
    identity: str
    fields: tuple[Field, ...]
    key: tuple[int, ...]
    view: MaintainedView
    warnings: tuple[str, ...]


def open_source(name: str, settings: SourceSettings, analyzer: PostgresAnalyzer) -> BoundedSource:
    """Return a source with the types of its relations resolved. SourceError, SqlError;
    TidemarkError package.missing.
    """
    with extra_required(f'source type "{settings.type}"'):
        found = importlib.import_module(f"connectors.{settings.type}.source")
    connector = cast(Connector, found)
    relations = []
    for declared in connector.declare(settings.options):
        try:
            fields = analyzer.declare(declared.columns)
        except SqlError as error:
            raise SourceError(
                "source.bad_option",
                f'columns of relation "{declared.name}" of source "{name}" cannot be used',
                detail=error.described,
                hint="write types as in CREATE TABLE",
            ) from None
        relations.append(_relation(name, declared, fields))
    return cast(BoundedSource, connector.make(name, settings.options, relations))


def _relation(source: str, declared: DeclaredRelation, fields: Sequence[Field]) -> Relation:
    names = [field.name for field in fields]
    missing = [column for column in declared.key if column not in names]
    if missing:
        raise SourceError(
            "source.bad_option",
            f'key column "{missing[0]}" of relation "{declared.name}" is not declared',
            hint=f"its columns are: {', '.join(names)}",
        )
    # A record without a whole key is malformed, so its columns are never NULL.
    own = tuple(
        replace(f, is_nullable=f.is_nullable and f.name not in declared.key) for f in fields
    )
    number = int(hashlib.sha256(f"{source}.{declared.name}".encode()).hexdigest()[:12], 16)
    return Relation(
        RelationName(source, source, declared.name),
        1 + number % _OIDS,
        own,
        tuple(names.index(column) for column in declared.key),
        is_full=declared.is_full,
        is_append=declared.is_append,
    )


def plan(name: str, query: str, dsn: str, feeds: Sequence[Relation], buckets: int) -> PlannedView:
    """Plan a view. SqlError, also batch.moment and spark.unsupported; SourceError."""
    with PostgresAnalyzer(dsn, "source", feeds=feeds) as analyzer:
        found = plan_view(query, analyzer)
        key = _key(found)
        if key is None:
            key = tuple(range(len(found.root.fields)))
            found = plan_view(_counted(query, len(key)), analyzer)
        role = analyzer.role
    if found.pinned:
        raise SqlError(
            "batch.moment",
            f'view "{name}" depends on the moment or the session that plans it',
            detail=f"it calls {', '.join(text for text, _ in found.pinned)}",
            hint="compare with constants, or let the service maintain it",
        )
    own = {relation.name for relation in feeds}
    scanned = {scan.relation.name: scan.relation for scan in scans_of(found.root)}
    foreign = sorted(str(relation) for relation in scanned if relation not in own)
    if foreign:
        raise SqlError(
            "batch.table",
            f'view "{name}" reads "{foreign[0]}", which is not of a source in the settings',
            hint=f"its sources have: {', '.join(sorted(map(str, own)))}",
        )
    nodes = lower(split_aggregates(split_top_k(found.root)))
    fields = stored(found.root.fields)
    facts = (query, key, fields, tuple(scanned.values()), nodes)
    identity = hashlib.sha256(repr(facts).encode()).hexdigest()[:24]
    view = MaintainedView(
        identity,
        nodes,
        f"v{identity}",
        tuple(scanned.values()),
        needed_columns(nodes),
        functools.partial(PostgresEvaluator, dsn, role=role, time_zone=found.time_zone),
    )
    single = _check(name, view, buckets)
    warnings = [f"it is maintained in one bucket, because it cannot be split: {w}" for w in single]
    return PlannedView(name, identity, fields, key, view, (*map(str, found.warnings), *warnings))


def _key(plan: ViewPlan) -> tuple[int, ...] | None:
    """Return columns on which no two rows agree, NULLs counting as equal; None for a multiset."""
    keys = keys_of(plan.root).keys
    if plan.key or not keys:
        return plan.key or None
    # At most one row has no key columns.
    return min(tuple(sorted(key)) or tuple(range(len(plan.root.fields))) for key in keys)


def _counted(query: str, width: int) -> str:
    """Return the query of a multiset view with each row once, and how often it is in the view."""
    columns = ", ".join(str(number + 1) for number in range(width))
    inner = one_query(query)
    return f'SELECT q.*, count(*) AS "{COUNT}" FROM (\n{inner}\n) AS q GROUP BY {columns}'


def _check(name: str, view: MaintainedView, buckets: int) -> list[str]:
    """Return what of a view has one bucket. SqlError spark.unsupported."""
    layout = Layout(view, buckets)
    try:
        assert layout.specs is not None
    except InvariantError as error:
        raise SqlError(
            "spark.unsupported",
            f'Spark cannot maintain view "{name}"',
            detail=error.described,
            hint="let the service maintain it",
        ) from None
    return layout.single_stages()
