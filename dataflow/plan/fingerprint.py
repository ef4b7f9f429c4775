"""What a plan computes, apart from what things are called: so equal work of several views is found.

Invariant: nodes of equal likeness, over the same changes, give the same deltas and keep the same
state, whichever view they were planned for. Aliases and the names of a view are not part of it;
types, nullability, the names of tables and of their columns are.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

from dataflow.expressions.ir import ColumnRef
from dataflow.plan.nodes import Loop, Plan, Remember, Scan, fold, inputs_of
from dataflow.plan.walk import with_inputs
from dataflow.schema import VIEW_SOURCE, Field
from dataflow.types import SqlType


def fingerprints(root: Plan) -> dict[int, Plan]:
    """For each object of a prepared plan, by its id, the same plan without names."""
    found: dict[int, Plan] = {}
    known: dict[Plan, Plan] = {}

    def visit(node: Plan, inputs: tuple[Plan, ...]) -> Plan:
        nameless = _scan(node) if isinstance(node, Scan) else _nameless(node, inputs)
        # Over inputs that are one object where equal, comparing two nodes is cheap.
        found[id(node)] = known.setdefault(nameless, nameless)
        return found[id(node)]

    fold(root, visit)
    return found


def repeatable(root: Plan) -> frozenset[int]:
    """The ids of the objects whose rows are the same whenever they are computed.

    Others keep what a stable function said when a row came: the same row may have been told
    otherwise in another view.
    """
    found: set[int] = set()

    def visit(node: Plan, inputs: tuple[bool, ...]) -> bool:
        within = not isinstance(node, Loop) or id(node.body) in repeatable(node.body)
        if all(inputs) and within and not isinstance(node, Remember):
            found.add(id(node))
        return id(node) in found

    fold(root, visit)
    return frozenset(found)


def _scan(plan: Scan) -> Scan:
    """The table, its key and the columns by name, since views may know it at different times: as
    rows are kept of it (`live_tables.is_one_table`); of a view that is read the columns by
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
    """Whether it is the tuple of a node's inputs."""
    return isinstance(value, tuple) and bool(value) and all(id(v) in below for v in value)


def _stripped(value: Any) -> Any:
    """Fields and references without their names, at any depth; a plan inside a node too."""
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
