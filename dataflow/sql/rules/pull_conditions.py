"""Pull conditions on the left row of an Apply out of its right side.

A right side that reads the left row only in filters and select lists is split in three: a plain
plan, conditions over left and right, and a select list over both. A join then replaces the Apply.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dataflow.expressions.ir import Call, ColumnRef, Expression, Literal, columns_of, substitute
from dataflow.plan.nodes import Filter, Join, Plan, Project, SemiJoin, TableFunction, Values
from dataflow.plan.outer_refs import OwnReads, may_fail, own_columns
from dataflow.plan.properties.nullability import is_nullable
from dataflow.plan.trees import conjunction, conjuncts, refs, shifted
from dataflow.schema import Field


@dataclass(frozen=True)
class Pulled:
    """A right side, split.

    base does not read the left row; conditions and outputs are over base and the left row; outputs
    are the right side's columns.
    """

    base: Plan
    conditions: tuple[Expression, ...]
    outputs: tuple[Expression, ...]


def is_unit(plan: Plan) -> bool:
    """Return whether a plan is one row without columns, the input of a SELECT without FROM."""
    return isinstance(plan, Values) and plan.rows == ((),)


def pull_conditions(plan: Plan, reads: OwnReads) -> Pulled | None:
    """Return the right side, split; None if more than conditions depend on the left row."""
    if not reads(plan):
        return Pulled(plan, (), refs(plan))
    if isinstance(plan, Filter):
        return _filter(plan, reads)
    if isinstance(plan, Project):
        return _project(plan, reads)
    if isinstance(plan, Join):
        return _join(plan, reads)
    if isinstance(plan, SemiJoin):
        return _semi_join(plan, reads)
    if isinstance(plan, TableFunction):
        return _table_function(plan, reads)
    return None


def _filter(plan: Filter, reads: OwnReads) -> Pulled | None:
    below = pull_conditions(plan.input, reads)
    if below is None:
        return None
    return _filtered(below, [substitute(c, below.outputs) for c in conjuncts(plan.predicate)])


def _filtered(below: Pulled, parts: list[Expression]) -> Pulled:
    crossing = tuple(p for p in parts if own_columns(p))
    predicate = conjunction([p for p in parts if not own_columns(p)])
    base = below.base if predicate is None else Filter(below.base, predicate)
    return Pulled(base, (*below.conditions, *crossing), below.outputs)


def _project(plan: Project, reads: OwnReads) -> Pulled | None:
    """Compute expressions in the base if they neither fail nor depend on the left row.

    An expression may fail only for rows that a left row needs.
    """
    below = pull_conditions(plan.input, reads)
    if below is None:
        return None
    expressions = [substitute(e, below.outputs) for e in plan.expressions]
    computed: list[Expression] = []
    fields: list[Field] = []
    for expression, field in zip(expressions, plan.fields, strict=True):
        is_plain = isinstance(expression, ColumnRef) or own_columns(expression)
        if not is_plain and not may_fail(expression) and expression not in computed:
            computed.append(expression)
            is_null = is_nullable(expression, below.base.fields)
            fields.append(Field(field.name, field.type, is_null))
    base, width = below.base, len(below.base.fields)
    if computed and not is_unit(base):
        base = Project(base, (*refs(base), *computed), (*base.fields, *fields))
        at = {e: ColumnRef(width + i, e.type, fields[i].name) for i, e in enumerate(computed)}
        expressions = [at.get(e, e) for e in expressions]
    return Pulled(base, below.conditions, tuple(expressions))


def _join(plan: Join, reads: OwnReads) -> Pulled | None:
    """In an outer join only the preserved input may read the left row."""
    if plan.kind == "full" or plan.left_keys:
        return None
    if (plan.kind == "left" and reads(plan.right)) or (plan.kind == "right" and reads(plan.left)):
        return None
    left, right = pull_conditions(plan.left, reads), pull_conditions(plan.right, reads)
    if left is None or right is None:
        return None
    n = len(left.base.fields)
    outputs = (*left.outputs, *(shifted(e, n) for e in right.outputs))
    parts = [substitute(c, outputs) for c in conjuncts(plan.residual)]
    crossing = tuple(p for p in parts if own_columns(p))
    if plan.kind != "inner":
        # A padded column is NULL, whatever its expression gives for NULLs.
        padded = right.outputs if plan.kind == "left" else left.outputs
        if crossing or not all(isinstance(e, ColumnRef) for e in padded):
            return None
    residual = conjunction([p for p in parts if p not in crossing])
    fields = _join_fields(plan.kind, left.base, right.base)
    base = Join(plan.kind, left.base, right.base, (), (), residual, fields)
    conditions = (*left.conditions, *(shifted(c, n) for c in right.conditions), *crossing)
    return Pulled(base, conditions, outputs)


def _join_fields(kind: str, left: Plan, right: Plan) -> tuple[Field, ...]:
    fields = [left.fields, right.fields]
    if kind != "inner":
        side = 1 if kind == "left" else 0
        fields[side] = tuple(Field(f.name, f.type) for f in fields[side])
    return fields[0] + fields[1]


def _semi_join(plan: SemiJoin, reads: OwnReads) -> Pulled | None:
    left = pull_conditions(plan.left, reads)
    if left is None or reads(plan.right):
        return None
    n, width = len(plan.left.fields), len(left.base.fields)
    right = tuple(shifted(r, width) for r in refs(plan.right))
    keys = tuple(substitute(k, left.outputs) for k in plan.left_keys)
    residual = plan.residual
    if residual is not None:
        residual = substitute(residual, (*left.outputs[:n], *right))
    if any(own_columns(e) for e in (*keys, *([residual] if residual is not None else []))):
        return None
    return replace(left, base=replace(plan, left=left.base, left_keys=keys, residual=residual))


def _table_function(plan: TableFunction, reads: OwnReads) -> Pulled | None:
    below = pull_conditions(plan.input, reads)
    if below is None:
        return None
    n, width = len(plan.input.fields), len(below.base.fields)
    calls = tuple(
        replace(c, arguments=tuple(substitute(a, below.outputs) for a in c.arguments))
        for c in plan.calls
    )
    if plan.is_outer or any(own_columns(a) for c in calls for a in c.arguments):
        return None
    fields = (*below.base.fields, *plan.fields[n:])
    base = replace(plan, input=below.base, calls=calls, fields=fields)
    added = tuple(shifted(r, width - n) for r in refs(plan)[n:])
    return Pulled(base, below.conditions, (*below.outputs, *added))


def outer_key(condition: Expression) -> tuple[Expression, Expression] | None:
    """Return (operand over the left row, operand over the right row) of an equality.

    A condition over the left row alone counts too: it equals true.
    """
    if own_columns(condition) and not columns_of(condition):
        return condition, Literal("t", condition.type)
    if not isinstance(condition, Call) or condition.function != "=":
        return None
    a, b = condition.arguments
    for outer, inner in ((a, b), (b, a)):
        if own_columns(outer) and not columns_of(outer) and not own_columns(inner):
            return outer, inner
    return None
