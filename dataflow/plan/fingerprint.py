"""What a plan computes, without names: finds equal work of several views.

Invariant: nodes with equal fingerprints, over the same changes, emit the same deltas and store the
same state, whichever view they were planned for. Types, nullability, and the names of tables and
their columns are part of a fingerprint; aliases and view names are not.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

from dataflow.expressions.ir import ColumnRef
from dataflow.plan.nodes import (
    FinalRows,
    LateRows,
    Loop,
    Plan,
    Remember,
    RetainedAggregate,
    Scan,
    Watermark,
    fold,
    inputs_of,
)
from dataflow.plan.walk import with_inputs
from dataflow.schema import VIEW_SOURCE, Field
from dataflow.types import SqlType

_OF_HISTORY = (Remember, Watermark, LateRows, FinalRows, RetainedAggregate)


def fingerprints(root: Plan) -> dict[int, Plan]:
    """Return for each object of a prepared plan, by its id, the same plan without names."""
    found: dict[int, Plan] = {}
    known: dict[Plan, Plan] = {}

    def visit(node: Plan, inputs: tuple[Plan, ...]) -> Plan:
        nameless = _scan(node) if isinstance(node, Scan) else _nameless(node, inputs)
        # Comparing two nodes is cheap, since equal inputs are one object.
        found[id(node)] = known.setdefault(nameless, nameless)
        return found[id(node)]

    fold(root, visit)
    return found


def repeatable(root: Plan) -> frozenset[int]:
    """Return the ids of the objects whose rows are the same whenever they are computed.

    Others store the result of a stable function at a row's arrival, or depend on the order in which
    rows come: they may differ between views.
    """
    found: set[int] = set()

    def visit(node: Plan, inputs: tuple[bool, ...]) -> bool:
        within = not isinstance(node, Loop) or id(node.body) in repeatable(node.body)
        if all(inputs) and within and not isinstance(node, _OF_HISTORY):
            found.add(id(node))
        return id(node) in found

    fold(root, visit)
    return frozenset(found)


def _scan(plan: Scan) -> Scan:
    """Return the table, its key and the columns by name, since views may have planned with
    different versions of it (as `live_tables.is_one_table`). Columns of a maintained view go by
    position."""
    relation = plan.relation
    if relation.name.source == VIEW_SOURCE:
        return Scan(replace(relation, row_estimate=-1), plan.columns, _stripped(plan.fields))
    columns = tuple(
        Field(relation.fields[c].name, f.type, f.is_nullable)
        for c, f in zip(plan.columns, plan.fields, strict=True)
    )
    keys = tuple(relation.fields[c] for c in relation.key)
    table = replace(relation, fields=keys, key=tuple(range(len(keys))), row_estimate=-1)
    return Scan(table, (), columns)


def _nameless(node: Plan, inputs: tuple[Plan, ...]) -> Plan:
    below = {id(i) for i in inputs_of(node)}
    own = {
        f.name: _stripped(value)
        for f in fields(node)
        if id(value := getattr(node, f.name)) not in below and not _holds(value, below)
    }
    return with_inputs(replace(node, **own), inputs)


def _holds(value: Any, below: set[int]) -> bool:
    """Return whether a value is the tuple of a node's inputs."""
    return isinstance(value, tuple) and bool(value) and all(id(v) in below for v in value)


def _stripped(value: Any) -> Any:
    """Return fields and references without their names, at any depth, plans inside a node
    included."""
    if isinstance(value, tuple):
        return tuple(map(_stripped, value))
    if isinstance(value, Field):
        return Field("", value.type, value.is_nullable)
    if isinstance(value, ColumnRef):
        return ColumnRef(value.index, value.type)
    if isinstance(value, SqlType) or not is_dataclass(value) or isinstance(value, type):
        return value
    if isinstance(value, Plan):
        return fingerprints(value)[id(value)]
    return replace(value, **{f.name: _stripped(getattr(value, f.name)) for f in fields(value)})
