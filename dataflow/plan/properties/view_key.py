"""The primary key of a view, and the nullability of its columns in the sink.

A primary key has only columns that are never NULL: by their declaration, or because a filter or a
join leaves no NULL. A view without one is a multiset view, and reports why.
"""

from __future__ import annotations

from dataclasses import replace

from dataflow.expressions.ir import ColumnRef, InPostgres
from dataflow.expressions.keys import key_form
from dataflow.plan.nodes import AsOfJoin, Join, Plan, Project, UnionAll
from dataflow.plan.properties.key_facts import NO_COLUMNS
from dataflow.plan.properties.unique_keys import keys_of
from dataflow.plan.walk import refs
from dataflow.schema import Field


def view_key(plan: Plan) -> tuple[int, ...]:
    """Return the smallest key whose columns are never NULL; () if there is none (a multiset
    view)."""
    known = keys_of(plan)
    found = []
    for key in known.keys:
        columns = [ColumnRef(i, plan.fields[i].type) for i in key]
        if key and key <= known.present and all(map(_is_sink_key, columns)):
            found.append(tuple(sorted(key)))
    return min(found, key=lambda k: (len(k), k)) if found else ()


def reason_without_key(plan: Plan) -> str:
    """Return a sentence why a plan's view has no primary key; "" if it has one."""
    if view_key(plan):
        return ""
    known = keys_of(plan)
    if NO_COLUMNS in known.keys:
        return "it has at most one row, and no columns that identify rows"
    if not known.keys:
        return "no output columns identify its rows: select those of a unique key"
    key = known.keys[0]
    unknown = [plan.fields[i].name for i in sorted(key - known.present)]
    if unknown:
        names = ", ".join(f'"{name}"' for name in unknown)
        return f"its rows are identified by columns of which {names} may be NULL"
    names = ", ".join(f'"{plan.fields[i].name}"' for i in sorted(key))
    return f"the sink's index cannot compare values of {names} as PostgreSQL's = does"


def tightened(plan: Plan) -> Plan:
    """Return the plan with output columns declared not null where no row has a NULL in them."""
    present = keys_of(plan).present
    fields = tuple(
        Field(f.name, f.type, f.is_nullable and i not in present) for i, f in enumerate(plan.fields)
    )
    if fields == plan.fields:
        return plan
    if isinstance(plan, Project | Join | AsOfJoin | UnionAll):
        return replace(plan, fields=fields)
    return Project(plan, refs(plan), fields)


def _is_sink_key(column: ColumnRef) -> bool:
    """Return whether the sink's index has the same equality: not for types compared by a hash
    here."""
    form = key_form(column)
    return form is not None and not isinstance(form, InPostgres)
