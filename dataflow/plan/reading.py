"""Rebase a plan on another version of a relation that it reads, or on a view's own plan.

Columns are matched by name.

Pure functions of frozen trees. Invariant: the fields above a scan stay the same, so the state of
every operator stays valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dataflow.expressions.ir import Call, ColumnRef, Expression
from dataflow.plan.nodes import Plan, Project, Scan, fold, scans_of
from dataflow.plan.walk import with_inputs
from dataflow.schema import Field, Relation, RelationName


def what_is_missing(plan: Plan, name: RelationName, relation: Relation) -> list[str]:
    """Return what prevents a plan from reading `relation` in place of `name`; empty if nothing
    does."""
    found = {f.name: f for f in relation.fields}
    missing: dict[str, None] = {}
    for scan in scans_of(plan):
        if scan.relation.name != name:
            continue
        for position in scan.columns:
            old = scan.relation.fields[position]
            new = found.get(old.name)
            if new is None:
                missing[f'column "{old.name}" is gone'] = None
            elif new.type != old.type:
                missing[f'column "{old.name}" is {new.type.name} now'] = None
            elif new.is_nullable and not old.is_nullable:
                missing[f'column "{old.name}" may be NULL now'] = None
        if not _is_key_kept(scan.relation, relation):
            missing["its key is another one"] = None
    return list(missing)


def _is_key_kept(old: Relation, new: Relation) -> bool:
    """Return whether the old key still distinguishes rows."""
    if not old.key:
        return True
    names = [new.fields[i].name for i in new.key]
    return bool(names) and set(names) <= {old.fields[i].name for i in old.key}


def reading(plan: Plan, name: RelationName, relation: Relation) -> Plan:
    """Return the plan with `relation` in place of `name`; nothing may be missing."""
    positions = {f.name: i for i, f in enumerate(relation.fields)}

    def visit(node: Plan, inputs: tuple[Plan, ...]) -> Plan:
        if isinstance(node, Scan) and node.relation.name == name:
            columns = tuple(positions[node.relation.fields[c].name] for c in node.columns)
            return replace(node, relation=relation, columns=columns)
        return with_inputs(node, inputs)

    return fold(plan, visit)


def computing(plan: Plan, roots: Mapping[RelationName, Plan]) -> Plan:
    """Return the plan with the views of these names computed in it instead of read.

    roots: their own plans, with all columns. A scan of another relation stays.
    """

    def visit(node: Plan, inputs: tuple[Plan, ...]) -> Plan:
        if not isinstance(node, Scan) or node.relation.name not in roots:
            return with_inputs(node, inputs)
        root = roots[node.relation.name]
        positions = {f.name: i for i, f in enumerate(root.fields)}
        names = [node.relation.fields[c].name for c in node.columns]
        columns = [
            _column(root, positions[name], field)
            for name, field in zip(names, node.fields, strict=True)
        ]
        return Project(root, tuple(columns), node.fields)

    return fold(plan, visit)


def _column(root: Plan, position: int, field: Field) -> Expression:
    """Return a column of a view's plan, with the type of its table's column."""
    column = ColumnRef(position, root.fields[position].type, field.name)
    if column.type == field.type:
        return column
    # A value of a domain is stored as one of its base type.
    return Call("coalesce", (column,), field.type)
