"""Joins in which a value of one input lies between two of the other store both in order.

`b.ts BETWEEN a.ts - interval '5 min' AND a.ts` compares one expression of b with two of a. Both
conditions stay in the residual; the bounds only say where the matches are. Not where the keys are
unique in an input: one row of it at most is looked up then. Not in the step of a recursion, whose
rows come in rounds. Only values that are stored as integers (times and integers, numerics of a
fixed scale), since distances between them are computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dataflow.delta import KIND_INT
from dataflow.expressions.ir import Call, Expression, columns_of
from dataflow.plan.nodes import Bounds, Join, Plan, Recursive, SemiJoin, fold
from dataflow.plan.outer_refs import may_fail_often
from dataflow.plan.properties.unique_keys import keys_of
from dataflow.plan.trees import conjuncts, in_postgres, shifted
from dataflow.plan.walk import nodes_of, with_inputs
from dataflow.sql.rules.one_order import MIRRORED, in_one_order

# (over the left input, operator, over the right input)
_Comparison = tuple[Expression, str, Expression]


def find_intervals(plan: Plan) -> Plan:
    """Return the plan with the bounds of every join that has some."""
    recursions = [node for node in nodes_of(plan) if isinstance(node, Recursive)]
    within = {id(node) for recursion in recursions for node in nodes_of(recursion.step)}

    def visit(node: Plan, inputs: tuple[Plan, ...]) -> Plan:
        over = with_inputs(node, inputs)
        if not isinstance(over, Join | SemiJoin) or id(node) in within or over.kind == "not in":
            return over
        bounds = _bounds(over)
        return over if bounds is None else replace(over, bounds=bounds)

    return fold(plan, visit)


def _bounds(plan: Join | SemiJoin) -> Bounds | None:
    n = len(plan.left.fields)
    found = [c for part in conjuncts(plan.residual) if (c := _comparison(part, n)) is not None]
    if len(found) < 2 or _is_once(plan.left, plan.left_keys):
        return None
    if _is_once(plan.right, plan.right_keys):
        return None
    mirrored = [(b, MIRRORED[operator], a) for a, operator, b in found]
    return next(_between(found, is_left=True), None) or next(
        _between(mirrored, is_left=False), None
    )


def _comparison(part: Expression, n: int) -> _Comparison | None:
    """Return a comparison of the two inputs that computes little."""
    if not isinstance(part, Call) or part.function not in MIRRORED:
        return None
    a, b = part.arguments
    if any(map(in_postgres, (a, b))) or any(map(may_fail_often, (a, b))):
        return None
    for left, operator, right in ((a, part.function, b), (b, MIRRORED[part.function], a)):
        own, other = columns_of(left), columns_of(right)
        if own and other and max(own) < n <= min(other):
            return left, operator, shifted(right, -n)
    return None


def _between(comparisons: Sequence[_Comparison], *, is_left: bool) -> Iterator[Bounds]:
    """Yield the first operands that have a lower and an upper bound."""
    for value, lower, low in comparisons:
        for same, upper, high in comparisons:
            if same != value or lower[0] != ">" or upper[0] != "<":
                continue
            parts = _in_one_order(value, low, high)
            if parts is not None and all(e.type.physical == KIND_INT for e in parts):
                yield Bounds(*parts, is_left)


def _in_one_order(
    value: Expression, low: Expression, high: Expression
) -> tuple[Expression, Expression, Expression] | None:
    """Return the three in forms that order alike; None where none are known."""
    first = in_one_order(value, low)
    # A date is a date to one end, and a moment to the other.
    last = in_one_order(first[0], high) if first else None
    again = in_one_order(last[0], low) if last else None
    return (again[0], again[1], last[1]) if last and again and again[0] == last[0] else None


def _is_once(plan: Plan, keys: Sequence[Expression]) -> bool:
    """Return whether at most one row has a key."""
    columns = {i for key in keys for i in _columns(key)}
    return keys_of(plan).is_once(columns)


def _columns(key: Expression) -> set[int]:
    """Return the column that a key determines."""
    return columns_of(key) if len(columns_of(key)) == 1 and not _computes(key) else set()


def _computes(key: Expression) -> bool:
    return isinstance(key, Call) and key.function not in ("key form", "cast")
