"""Aggregates of all rows, computed by groups: the values of an empty group.

GROUP BY has no group without rows, but an aggregate without GROUP BY always has one row. So the
groups are left-joined to the rows that need them, and missing aggregates get their value over no
rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from dataflow.expressions.ir import Call, ColumnRef, Expression, Literal, substitute
from dataflow.plan.aggregate_functions import aggregate_function
from dataflow.plan.nodes import Aggregate, AggregateCall, Join, Plan, Project, Values
from dataflow.plan.properties.nullability import is_nullable
from dataflow.plan.trees import refs
from dataflow.schema import Field
from dataflow.types import BOOL


def over_empty(
    left: Plan,
    grouped: Aggregate,
    left_keys: Sequence[Expression],
    outputs: Sequence[Expression],
) -> tuple[Plan, tuple[Expression, ...]]:
    """Return left rows joined with their group, and the value of each output for each left row.

    grouped: its group keys equal `left_keys`, in key form; outputs are over its columns. The plan's
    fields begin with the left ones; no left row is lost or duplicated.
    """
    n, k = len(left.fields), len(grouped.groups)
    if any(aggregate_function(c.function).of_no_rows == "unknown" for c in grouped.calls):
        joined, calls = _with_unknown(left, grouped, left_keys)
        return joined, tuple(substitute(e, (*refs(grouped)[:k], *calls)) for e in outputs)
    empty = (*refs(grouped)[:k], *(_of_no_rows(c) for c in grouped.calls))
    shown = [substitute(e, empty) for e in outputs]
    names = [e.name if isinstance(e, ColumnRef) else "value" for e in outputs]
    nullable = [is_nullable(e, grouped.fields) for e in outputs]
    fields = [Field(m, e.type, o) for m, e, o in zip(names, outputs, nullable, strict=True)]
    computed, flag = list(outputs), len(outputs)
    if any(o and not _is_null(e) for o, e in zip(nullable, shown, strict=True)):
        computed.append(Literal("t", BOOL))
        fields.append(Field("found", BOOL, False))
    retained = (*refs(grouped)[:k], *computed)
    right = Project(grouped, retained, (*grouped.fields[:k], *fields))
    joined = _left_join(left, right, left_keys)
    values = []
    for i, (expression, is_null) in enumerate(zip(shown, nullable, strict=True)):
        value: Expression = ColumnRef(n + k + i, expression.type, names[i])
        if not _is_null(expression) and not is_null:
            value = Call("coalesce", (value, expression), value.type)
        elif not _is_null(expression):
            found = Call("is not null", (ColumnRef(n + k + flag, BOOL, "found"),), BOOL)
            value = Call("case", (found, value, expression), value.type)
        values.append(value)
    return joined, tuple(values)


def _is_null(expression: Expression) -> bool:
    return isinstance(expression, Literal) and expression.text is None


def _of_no_rows(call: AggregateCall) -> Literal:
    return Literal(aggregate_function(call.function).of_no_rows, call.field.type)


def _left_join(left: Plan, right: Plan, left_keys: Sequence[Expression]) -> Plan:
    padded = tuple(Field(f.name, f.type) for f in right.fields)
    right_keys = refs(right)[: len(left_keys)]
    return Join("left", left, right, tuple(left_keys), right_keys, None, left.fields + padded)


def _with_unknown(
    left: Plan, grouped: Aggregate, left_keys: Sequence[Expression]
) -> tuple[Plan, tuple[Expression, ...]]:
    """Like `over_empty`, where the aggregate itself must compute its result over no rows."""
    n, k = len(left.fields), len(grouped.groups)
    flag = Field("found", BOOL, False)
    flagged = Project(grouped, (*refs(grouped), Literal("t", BOOL)), (*grouped.fields, flag))
    joined = _left_join(left, flagged, left_keys)
    at = len(joined.fields)
    nothing = Values((), grouped.input.fields)
    fields = tuple(c.field for c in grouped.calls)
    empty = Aggregate(nothing, (), grouped.calls, fields)
    crossed = Join("inner", joined, empty, (), (), None, joined.fields + fields)
    found = Call("is not null", (ColumnRef(at - 1, BOOL, "found"),), BOOL)
    values = tuple(
        Call("case", (found, ColumnRef(n + k + i, f.type), ColumnRef(at + i, f.type)), f.type)
        for i, f in enumerate(fields)
    )
    return crossed, values
