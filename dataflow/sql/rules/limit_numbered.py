"""row_number() <= k and rank() <= k above a window: only the first k rows of a partition matter.

The window's input becomes a TopK, and if nothing else reads the number, pruning removes the window.
It applies only if every call of the node is a numbering, which depends only on earlier rows. rank()
<= k keeps the peers of the k-th row: WITH TIES.
"""

from __future__ import annotations

from dataclasses import replace

from dataflow.expressions.ir import Call, ColumnRef, Expression, Literal
from dataflow.plan.nodes import Filter, Plan, TopK, Window, fold
from dataflow.plan.trees import conjunction, conjuncts
from dataflow.plan.walk import with_inputs

_LOOKING_BACK = ("row_number", "rank", "dense_rank")
_MIRRORED = {">": "<", ">=": "<=", "=": "="}
_MOST = 2**62


def limit_numbered(plan: Plan) -> Plan:
    """Return windows below such a filter over only the rows that pass it."""
    return fold(plan, lambda node, inputs: _limited(with_inputs(node, inputs)))


def _limited(plan: Plan) -> Plan:
    if not isinstance(plan, Filter) or not isinstance(plan.input, Window):
        return plan
    window = plan.input
    if any(c.function not in _LOOKING_BACK or c.filter is not None for c in window.calls):
        return plan
    parts = conjuncts(plan.predicate)
    bounds = {part: found for part in parts if (found := _bound(part, window)) is not None}
    if not bounds:
        return plan
    # TopK takes the tightest bound; the others stay conditions.
    chosen, (limit, with_ties) = min(bounds.items(), key=lambda pair: pair[1])
    below = TopK(window.input, window.partition, window.order, limit, 0, with_ties)
    rest = conjunction([part for part in parts if part is not chosen])
    numbered = replace(window, input=below)
    return numbered if rest is None else Filter(numbered, rest)


def _bound(part: Expression, window: Window) -> tuple[int, bool] | None:
    """Return (rows that pass the condition, with ties) if it is such a bound."""
    if not isinstance(part, Call) or len(part.arguments) != 2:
        return None
    word, (left, right) = part.function, part.arguments
    if isinstance(left, Literal) and word in _MIRRORED:
        word, left, right = _MIRRORED[word], right, left
    if not isinstance(left, ColumnRef) or not isinstance(right, Literal) or right.text is None:
        return None
    position = left.index - len(window.input.fields)
    if position < 0 or not right.text.lstrip("-").isdigit():
        return None
    function, number = window.calls[position].function, int(right.text)
    if word == "<":
        number -= 1
    if word not in ("<", "<=", "=") or (word == "=" and number != 1):
        return None
    # dense_rank() passes an unknown number of rows.
    if function == "dense_rank" or not number < _MOST:
        return None
    return max(number, 0), function == "rank"
