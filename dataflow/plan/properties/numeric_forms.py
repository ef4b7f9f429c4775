"""Static bounds of a numeric column: its scales, and its largest number of digits.

`price * (1 - discount)` of numeric(15,2) columns has the scale 4 in every row and at most 31
digits, whatever PostgreSQL's type of it says (plain numeric). Invariant: conservative: a form holds
for every value of an expression except NaN, and implies that none is infinite.
"""

from __future__ import annotations

import re

from dataflow.expressions.ir import Call, ColumnRef, Expression, Literal
from dataflow.expressions.number_casts import limits
from dataflow.expressions.numeric_form import NumericForm
from dataflow.plan.aggregate_functions import LEAST
from dataflow.plan.nodes import (
    Aggregate,
    AsOfJoin,
    Distinct,
    Filter,
    FinalRows,
    Join,
    LateRows,
    Plan,
    Project,
    Remember,
    Scan,
    SemiJoin,
    Shard,
    SingleRow,
    ThresholdFilter,
    TopK,
    UnionAll,
    Window,
)
from dataflow.types import NUMERIC_OID, SqlType, TypeKind

_PLAIN = re.compile(r"-?(\d+)(?:\.(\d+))?").fullmatch
_INT_DIGITS = {TypeKind.INT2: 5, TypeKind.INT4: 10, TypeKind.INT8: 19}
_ROWS_DIGITS = 19
_OF_VALUES = ("sum", "min", "max", LEAST)
_SAME = (
    *(Filter, Distinct, Remember, SemiJoin, SingleRow, ThresholdFilter, TopK, Shard, Window),
    *(LateRows, FinalRows),
)


def numeric_form(plan: Plan, expression: Expression) -> NumericForm | None:
    """Return the form of a numeric or integer expression over a plan's columns; None if unknown."""
    kind = expression.type.kind
    if kind in _INT_DIGITS:
        return NumericForm(_INT_DIGITS[kind], frozenset({0}))
    if kind is TypeKind.FIXED:
        return _of_limits(expression.type)
    if isinstance(expression, ColumnRef):
        return _of_column(plan, expression.index)
    if isinstance(expression, Literal):
        return _of_literal(expression.text)
    if isinstance(expression, Call):
        return _of_call(plan, expression)
    return None


def _of_limits(type: SqlType) -> NumericForm | None:
    """Return the form of the results of a cast to the type, and of a table's column of the type."""
    limit = limits(type) if type.oid == NUMERIC_OID else None
    if limit is None:
        return None
    precision, scale = limit
    return NumericForm(max(precision - scale, 0), frozenset({max(scale, 0)}))


def _of_literal(text: str | None) -> NumericForm | None:
    if text is None:
        return NumericForm(0, frozenset())
    found = _PLAIN(text)
    return found and NumericForm(len(found[1]), frozenset({len(found[2] or "")}))


def _of_call(plan: Plan, call: Call) -> NumericForm | None:
    function, arguments = call.function, call.arguments
    if function == "case":
        return _either(plan, (*arguments[1:-1:2], arguments[-1]))
    if function == "coalesce":
        return _either(plan, arguments)
    if function == "cast" and limits(call.type) is not None:
        return _of_limits(call.type)
    if function == "cast" or (len(arguments) == 1 and function in ("+", "-", "@", "abs")):
        is_numeric = arguments[0].type.oid == NUMERIC_OID or arguments[0].type.kind in _INT_DIGITS
        return numeric_form(plan, arguments[0]) if is_numeric else None
    if function not in ("+", "-", "*") or len(arguments) != 2:
        return None
    a, b = (numeric_form(plan, x) for x in arguments)
    if a is None or b is None:
        return None
    if function == "*":
        return NumericForm(
            a.integral + b.integral, frozenset(x + y for x in a.scales for y in b.scales)
        )
    integral = max(a.integral, b.integral) + 1
    return NumericForm(integral, frozenset(max(x, y) for x in a.scales for y in b.scales))


def _either(plan: Plan, expressions: tuple[Expression, ...]) -> NumericForm | None:
    forms = [numeric_form(plan, e) for e in expressions]
    known = [form for form in forms if form is not None]
    if len(known) < len(forms):
        return None
    scales = frozenset(scale for form in known for scale in form.scales)
    return NumericForm(max(form.integral for form in known), scales)


def _of_column(plan: Plan, index: int) -> NumericForm | None:
    """Return the form of a plan's column whose type does not determine it."""
    if isinstance(plan, Scan):
        return _of_limits(plan.fields[index].type)
    if isinstance(plan, Project):
        return numeric_form(plan.input, plan.expressions[index])
    if isinstance(plan, Join | AsOfJoin):
        left = len(plan.left.fields)
        side = plan.left if index < left else plan.right
        return _of_field(side, index if index < left else index - left)
    if isinstance(plan, UnionAll):
        forms = [_of_field(part, index) for part in plan.inputs]
        known = [form for form in forms if form is not None]
        if len(known) < len(forms):
            return None
        scales = frozenset(scale for form in known for scale in form.scales)
        return NumericForm(max(form.integral for form in known), scales)
    if isinstance(plan, Aggregate):
        return _of_aggregate(plan, index)
    if isinstance(plan, _SAME):
        input = plan.left if isinstance(plan, SemiJoin) else plan.input
        return _of_field(input, index) if index < len(input.fields) else None
    return None


def _of_field(plan: Plan, index: int) -> NumericForm | None:
    return numeric_form(plan, ColumnRef(index, plan.fields[index].type))


def _of_aggregate(plan: Aggregate, index: int) -> NumericForm | None:
    if index < len(plan.groups):
        # Keys are in key form: their scale is not the values'.
        return None
    call = plan.calls[index - len(plan.groups)]
    if call.sql or call.argument is None or call.function not in _OF_VALUES:
        return None
    form = numeric_form(plan.input, call.argument)
    if form is None or call.function != "sum":
        return form
    return NumericForm(form.integral + _ROWS_DIGITS, form.scales)
