"""Helpers of the rules: rebuild a plan over new inputs, conjuncts, column substitution.

Pure functions of frozen trees; an unchanged plan is returned as the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from dataflow.expressions.ir import (
    Call,
    ColumnRef,
    Expression,
    InPostgres,
    Literal,
    children,
    columns_of,
    remap,
)
from dataflow.plan.nodes import (
    AggregateCall,
    Plan,
    SetCall,
    SortKey,
    WindowCall,
    fold,
    inputs_of,
)
from dataflow.plan.walk import conjuncts as conjuncts
from dataflow.plan.walk import refs as refs
from dataflow.plan.walk import with_inputs
from dataflow.types import BOOL


def bottom_up(plan: Plan, change: Callable[[Plan], Plan]) -> Plan:
    """Return the plan with `change` applied to every node, inputs first, to each object once."""
    return fold(plan, lambda node, inputs: change(with_inputs(node, inputs)))


def expressions_within(plan: Plan) -> tuple[Expression, ...]:
    """Return the expressions of a node itself, also those inside its calls and sort keys."""
    inputs = inputs_of(plan)
    return tuple(
        found
        for f in fields(plan)
        if not any(getattr(plan, f.name) is i for i in inputs)
        for found in _expressions(getattr(plan, f.name))
    )


def map_expressions(
    plan: Plan, change: Callable[[Expression], Expression], inputs: Sequence[Plan]
) -> Plan:
    """Return the same node over other inputs, with each of its own expressions changed."""
    own = inputs_of(plan)
    changed = {
        f.name: _mapped(getattr(plan, f.name), change)
        for f in fields(plan)
        if not any(getattr(plan, f.name) is i for i in own)
    }
    return with_inputs(replace(plan, **changed), inputs)


_PARTS = (AggregateCall, WindowCall, SetCall, SortKey)


def _expressions(value: Any) -> list[Expression]:
    if isinstance(value, Expression):
        return [value]
    if isinstance(value, tuple):
        return [found for part in value for found in _expressions(part)]
    if isinstance(value, _PARTS):
        return [found for f in fields(value) for found in _expressions(getattr(value, f.name))]
    return []


def _mapped(value: Any, change: Callable[[Expression], Expression]) -> Any:
    if isinstance(value, Expression):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_mapped(part, change) for part in value)
    if isinstance(value, _PARTS):
        parts = {f.name: _mapped(getattr(value, f.name), change) for f in fields(value)}
        return replace(value, **parts)
    return value


def conjunction(parts: Sequence[Expression]) -> Expression | None:
    """Return the conjunction of the parts, each once; None for none."""
    distinct = list(dict.fromkeys(parts))
    if not distinct:
        return None
    return distinct[0] if len(distinct) == 1 else Call("and", tuple(distinct), BOOL)


def shifted(expression: Expression, by: int) -> Expression:
    """Return the expression with every column `by` positions further right."""
    return remap(expression, {i: i + by for i in columns_of(expression)})


def can_substitute(expression: Expression, inputs: Sequence[Expression]) -> bool:
    """Return whether the columns may be replaced by inputs: PostgreSQL's expressions read columns
    only, and nothing may be computed twice."""
    if any(
        not isinstance(inputs[i], ColumnRef | Literal) for i in _columns_in_postgres(expression)
    ):
        return False
    counts: dict[int, int] = {}
    for index in _all_columns(expression):
        counts[index] = counts.get(index, 0) + 1
    return all(n == 1 or not children(inputs[i]) for i, n in counts.items())


def in_postgres(expression: Expression) -> bool:
    """Return whether PostgreSQL computes a part of the expression."""
    return isinstance(expression, InPostgres) or any(map(in_postgres, children(expression)))


def _columns_in_postgres(expression: Expression) -> set[int]:
    if isinstance(expression, InPostgres):
        return columns_of(expression)
    return set().union(*(_columns_in_postgres(c) for c in children(expression)))


def _all_columns(expression: Expression) -> list[int]:
    if isinstance(expression, ColumnRef):
        return [expression.index]
    return [i for c in children(expression) for i in _all_columns(c)]
