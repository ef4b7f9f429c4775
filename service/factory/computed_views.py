"""Views that another view names and that are not in its group: it computes them itself.

A view in a group of its own (one that Spark maintains) finds no rows of other views there. So the
plans of the views that its query names become parts of its plan, and all of it is at one position.
Invariant: its rows are those of its query over the queries of those views. What those contain that
has no single answer (a value computed once, rows that depend on the order of arrival) is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from connectors.postgres.catalog.catalog import SourceRow, ViewRow
from dataflow.errors import SqlError
from dataflow.plan.check import check_plan
from dataflow.plan.nodes import ViewPlan
from dataflow.plan.properties.view_key import tightened
from dataflow.plan.reading import computing
from dataflow.schema import VIEW_SOURCE, RelationName
from dataflow.sql.rules.find_intervals import find_intervals
from dataflow.sql.rules.merge_projects import merge_projects
from dataflow.sql.rules.prune_columns import prune_columns
from service.engine.definition import ComputedView, ViewDefinition
from service.factory.on_spark import plan_on_spark
from service.factory.planning import plan_again
from service.views.groups import is_own_group, is_spark_group

if TYPE_CHECKING:
    from service.factory.service_factory import ServiceFactory

# Options that determine a view's rows, besides its query.
_OF_ROWS = ("now", "time_zone", "refresh", "lateness", "lateness_by", "late", "window", "retain")


def with_views_computed(
    definition: ViewDefinition,
    factory: ServiceFactory,
    rows: Sequence[ViewRow],
    sources: Sequence[SourceRow],
) -> ViewDefinition:
    """Return a planned view that computes the views which it would read.

    rows, sources: the catalog. SqlError spark.reads_views if that might give other rows than
    theirs, and the errors of `plan_definition`.
    """
    parents = definition.parents()
    if not parents:
        return definition
    by_name = {RelationName(VIEW_SOURCE, r.schema, r.name): r for r in rows}
    plans: dict[RelationName, ViewPlan] = {}
    computed: dict[str, ComputedView] = {}
    objects = {o.key: o for o in definition.names.objects or ()}
    for name in parents:
        # A view that its readers' queries name is in the catalog: it cannot be dropped before them.
        row = by_name[name]
        parent = plan_again(row, factory, rows, sources)
        parent = with_views_computed(parent, factory, rows, sources)
        why = why_not_computed(parent, definition)
        if why:
            raise _refusal(name, why)
        plans[name] = parent.plan
        for used in parent.names.objects or ():
            objects.setdefault(used.key, replace(used, is_direct=False))
        for below in parent.computed:
            computed.setdefault(below.identity, replace(below, is_named=False))
        computed[row.identity] = ComputedView(row.identity, name, digest_of(row), is_named=True)
    plan = composed(definition.plan, plans)
    names = replace(definition.names, objects=tuple(objects.values()))
    return replace(definition, plan=plan, computed=tuple(computed.values()), names=names)


def composed(plan: ViewPlan, views: Mapping[RelationName, ViewPlan]) -> ViewPlan:
    """Return a plan with those of the views that it reads as parts of it."""
    root = computing(plan.root, {name: view.root for name, view in views.items()})
    root = tightened(find_intervals(merge_projects(prune_columns(merge_projects(root)))))
    check_plan(root)
    every = (plan, *views.values())
    return replace(
        plan,
        root=root,
        evaluates=tuple(dict.fromkeys(sql for p in every for sql in p.evaluates)),
        warnings=tuple(dict.fromkeys(text for p in every for text in p.warnings)),
        row_types=tuple(dict.fromkeys(row for p in every for row in p.row_types)),
    )


def planned_in_group(
    definition: ViewDefinition,
    factory: ServiceFactory,
    rows: Sequence[ViewRow],
    sources: Sequence[SourceRow],
    group: str | None = None,
) -> ViewDefinition:
    """Return a planned view as it is built in a group, by default the factory's.

    Errors as of `with_views_computed`.
    """
    group = factory.settings.group if group is None else group
    if is_own_group(group):
        definition = with_views_computed(definition, factory, rows, sources)
    return plan_on_spark(definition) if is_spark_group(group) else definition


def changed_below(definition: ViewDefinition, rows: Sequence[ViewRow]) -> str:
    """Return a digest of the views that a view computes as the catalog has them now; "" if they are
    those that it computes."""
    found = {r.identity: r for r in rows if definition.computed}
    views = [v for v in definition.computed if v.identity in found]
    now = [digest_of(found[v.identity]) for v in views]
    return "" if now == [v.digest for v in views] else _digest(now)


def why_not_computed(view: ViewDefinition, reader: ViewDefinition) -> str:
    """Return why a view's rows might be others if `reader` computed them; "" if they are not."""
    plan = view.plan
    if plan.pinned:
        return f"it computed {plan.pinned[0][0]} once"
    if plan.refresh_us:
        return "its values follow the clock"
    if view.depends_on_history:
        return "its rows depend on the order in which its sources' rows came"
    if plan.time_zone != reader.plan.time_zone:
        return f'its time zone is "{plan.time_zone}", not "{reader.plan.time_zone}"'
    if plan.evaluates and view.role != reader.role:
        return f"PostgreSQL evaluates {plan.evaluates[0]} with the privileges of its own creator"
    return ""


def digest_of(row: ViewRow) -> str:
    """Return a digest of all that a view's rows depend on, besides its sources."""
    options = {name: row.options.get(name) for name in _OF_ROWS}
    facts = [row.query, row.fields, row.key, options]
    return _digest(facts)


def _digest(facts: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _refusal(name: RelationName, why: str) -> SqlError:
    return SqlError(
        "spark.reads_views",
        f'view "{name}" cannot be computed in a view that Spark maintains',
        detail=why,
        hint="write its query into this one, or leave out options.runtime",
    )
