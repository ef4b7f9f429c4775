"""A planned view in the form of its catalog row: kind, key, columns, plan.

The API writes these for a new view, the pipeline when another version takes over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from connectors.postgres.catalog.catalog import ViewRow
from dataflow.errors import TidemarkError
from dataflow.plan.nodes import ViewPlan
from dataflow.schema import VIEW_SOURCE, RelationName, stored
from service.engine import output_fields
from service.engine.definition import ViewDefinition
from service.views.groups import group_of, is_own_group
from service.views.lifecycle import DesiredState, ViewState
from service.views.name_tracking import names_in
from service.views.plan_facts import plan_facts
from service.views.requested_changes import VERSION, table_of


def kind_of(plan: ViewPlan) -> str:
    """Return "keyed" or "multiset"."""
    return "keyed" if plan.key else "multiset"


def key_names(plan: ViewPlan) -> list[str]:
    """Return the columns of its key."""
    return [plan.root.fields[i].name for i in plan.key]


def facts_of(definition: ViewDefinition, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a view's catalog row that its query determines."""
    plan = definition.plan
    return {
        "query": definition.query,
        "version": definition.version,
        "kind": kind_of(plan),
        "key": key_names(plan),
        "fields": output_fields.to_json(stored(plan.root.fields)),
        "plan": plan_facts(definition, None)
        | ({"pinned": dict(plan.pinned)} if plan.pinned else {}),
        "options": dict(options),
        "warnings": list(plan.warnings),
    }


def changed_facts(definition: ViewDefinition, row: ViewRow) -> dict[str, Any]:
    """Return the facts of a version whose catalog row has others; {} if they are equal.

    Since it was planned, its tables may have changed (names, types, what may be NULL). After a
    rebuild, now() may stand for another moment.
    """
    known, plan = row.plan or {}, definition.plan
    is_same = (row.query, table_of(row)) == (definition.query, definition.table)
    stands_for = names_in(known), known.get("pinned", {})
    if is_same and stands_for == (definition.names, dict(plan.pinned)):
        return {}
    facts = facts_of(definition, row.options)
    facts["plan"] |= {"estimate": known.get("estimate")}
    if is_same:
        # The answer at the time of the request.
        del facts["warnings"]
    return facts


def require_parents(
    definition: ViewDefinition,
    rows: Sequence[ViewRow],
    group: str,
    awaited: frozenset[str] = frozenset(),
) -> None:
    """Require that every view that a query names is live and not changing.

    awaited: identities of views that will be live. TidemarkError view.parent_not_live, view.busy,
    view.other_group.
    """
    for parent in definition.views_named():
        found = next((r for r in rows if (r.schema, r.name) == (parent.schema, parent.name)), None)
        is_ready = found is not None and found.status == ViewState.LIVE and not is_pausing(found)
        if found is None or not (is_ready or found.identity in awaited):
            going = "being paused" if found is not None and is_pausing(found) else ""
            raise TidemarkError(
                "view.parent_not_live",
                f'view "{parent}", which the query reads, is not live',
                detail="" if found is None else f"it is {going or found.status}",
                hint=f'create this view once view "{parent}" is live',
            )
        if found.change is not None and found.identity not in awaited:
            raise busy(found)
        if group_of(found) != group and not is_own_group(group):
            raise TidemarkError(
                "view.other_group",
                f'view "{parent}", which the query reads, is in group "{group_of(found)}"',
                detail="views of different groups never show the same position",
                hint=f'create this view in group "{group_of(found)}"',
            )


def is_being_rebuilt(row: ViewRow) -> bool:
    """Return True if a failed view is to be rebuilt."""
    return (
        row.status == ViewState.FAILED and row.change is not None and row.change["kind"] == VERSION
    )


def require_possible(row: ViewRow) -> None:
    """Require that a view to be built can eventually read this one.

    TidemarkError view.parent_failed; view.parent_not_live if it was paused at the same time.
    """
    if is_being_rebuilt(row):
        return
    if row.status == ViewState.FAILED:
        code, what = "view.parent_failed", "has failed"
        hint, detail = "drop both views and create them again", row.detail or ""
    elif row.desired == DesiredState.PAUSED:
        code, what = "view.parent_not_live", "is paused"
        hint, detail = f'resume view "{row.title}" first', ""
    else:
        return
    what = f'view "{row.title}", which this one reads, {what}'
    relation = RelationName(VIEW_SOURCE, row.schema, row.name)
    raise TidemarkError(code, what, detail=detail, hint=hint, relation=relation)


def is_pausing(row: ViewRow) -> bool:
    """Return True if a pause was requested and the view is not paused yet."""
    return row.desired == DesiredState.PAUSED and row.status != ViewState.PAUSED


def busy(row: ViewRow) -> TidemarkError:
    """Return the error for a second change of a view while one is in progress."""
    going = "pause" if is_pausing(row) else (row.replacing or {}).get("kind", "change")
    return TidemarkError(
        "view.busy",
        f'view "{row.title}" is being changed',
        detail=f"a {going} is in progress",
        hint="wait until it is done, or cancel it",
    )


def require_free(row: ViewRow) -> None:
    """Require that no change of the view is in progress and it is not being dropped. TidemarkError
    view.busy.
    """
    if row.change is not None or row.desired == DesiredState.DROPPED:
        raise busy(row)


def require_not_pausing(row: ViewRow) -> None:
    """Require that no requested pause is pending. TidemarkError view.busy."""
    if is_pausing(row):
        raise busy(row)


def require_status(row: ViewRow, *statuses: ViewState) -> None:
    """Require that the view has one of these statuses. TidemarkError view.not_live."""
    if row.status not in statuses or row.desired == DesiredState.DROPPED:
        raise TidemarkError(
            "view.not_live",
            f'view "{row.title}" is not {" or ".join(statuses)}',
            detail=f"it is {row.status}",
            hint="resume it" if row.status == ViewState.PAUSED else "wait until it is live",
        )
