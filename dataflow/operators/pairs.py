"""Both sides of a join, kept by key, and the pairs that a change of either side makes.

Invariant: a pair is counted once: changes of the left meet the right as it was, changes of the
right meet the left as it is (dL x R_old + L_new x dR). Rows with a NULL key never come here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dataflow.delta import Delta
from dataflow.errors import InvariantError
from dataflow.expressions.compile import compile_expression
from dataflow.expressions.evaluator import RowErrors
from dataflow.expressions.ir import ColumnRef, Expression
from dataflow.operators.base import Context, kinds_of, types_of
from dataflow.operators.filter import is_true
from dataflow.operators.groups import columns_at
from dataflow.sql.plan import Join, SemiJoin
from storage.store import Arrangement

LEFT, RIGHT = 0, 1


@dataclass(frozen=True)
class Pairs:
    """k pairs of a changed row and a kept row.

    index int64[k]: the changed row's position in the delta of side `side`; changed and kept: the
    k rows of either, with their own weights.
    """

    side: int
    index: np.ndarray
    changed: Delta
    kept: Delta

    def __len__(self) -> int:
        return len(self.index)

    def joined(self) -> Delta:
        """Left columns, then right ones; weights multiplied. Not consolidated."""
        left, right = self.changed.columns, self.kept.columns
        if self.side == RIGHT:
            left, right = right, left
        return Delta(left + right, self.changed.weights * self.kept.weights)

    def filter(self, keep: np.ndarray) -> Pairs:
        """The pairs where bool[k] keep is True."""
        if keep.all():
            return self
        chosen = np.flatnonzero(keep)
        kept, changed = self.kept.take(chosen), self.changed.take(chosen)
        return Pairs(self.side, self.index[chosen], changed, kept)

    def match_counts(self, n: int) -> np.ndarray:
        """int64[n]: for each of the n changed rows the weight of the rows that it pairs with."""
        counts = np.zeros(n, np.int64)
        np.add.at(counts, self.index, self.kept.weights)
        return counts


class Sides:
    """The state of a join with both sides kept, and its residual condition."""

    def __init__(self, plan: Join | SemiJoin, context: Context) -> None:
        self._context = context
        inputs = (plan.left, plan.right)
        self.keys = (plain_columns(plan.left_keys), plain_columns(plan.right_keys))
        self._kinds = (kinds_of(plan.left.fields), kinds_of(plan.right.fields))
        self._types = types_of(plan.left.fields) + types_of(plan.right.fields)
        self.kept: tuple[Arrangement, ...] = tuple(
            context.arrange(role, kinds_of(side.fields), key)
            for role, side, key in zip(("left", "right"), inputs, self.keys, strict=True)
        )
        self._residual = None
        if plan.residual is not None:
            self._residual = compile_expression(plan.residual, context.evaluator)

    @property
    def has_residual(self) -> bool:
        """Whether equal keys are not enough for a pair."""
        return self._residual is not None

    def advance(self, left: Delta, right: Delta) -> tuple[Pairs, Pairs]:
        """Take both deltas into the state: (pairs of dL with R_old, pairs of dR with L_new)."""
        first = self.pairs(LEFT, left)
        if len(left):
            self.kept[LEFT].apply(left)
        second = self.pairs(RIGHT, right)
        if len(right):
            self.kept[RIGHT].apply(right)
        return first, second

    def advance_parts(self, left: Delta, right: Delta, most_rows: int) -> Iterator[Pairs]:
        """As `advance`, all pairs of dL first, about so many at a time; to be read to the end."""
        yield from self._parts(LEFT, left, most_rows)
        if len(left):
            self.kept[LEFT].apply(left)
        yield from self._parts(RIGHT, right, most_rows)
        if len(right):
            self.kept[RIGHT].apply(right)

    def _parts(self, side: int, delta: Delta, most_rows: int) -> Iterator[Pairs]:
        n = len(delta)
        if not n:
            return
        kept, key = self.kept[1 - side], self.keys[side]
        if key:
            for index, rows in kept.lookup_parts(columns_at(delta, key), most_rows):
                if len(found := self._true(Pairs(side, index, delta.take(index), rows))):
                    yield found
            return
        for _, rows in kept.lookup_parts((), max(most_rows // n, 1)):
            if len(found := self._true(_every_pair(side, delta, rows))):
                yield found

    def pairs(self, side: int, delta: Delta, *, is_collecting: bool = True) -> Pairs:
        """Rows of one side with what the other keeps now, the residual being true.

        Pairs whose residual fails are left out, and collected unless they already were.
        """
        other = 1 - side
        if len(delta) == 0:
            return Pairs(side, np.empty(0, np.int64), delta, Delta.empty(self._kinds[other]))
        if self.keys[side]:
            index, kept = self.kept[other].lookup(columns_at(delta, self.keys[side]))
            found = Pairs(side, index, delta.take(index), kept)
        else:
            found = _every_pair(side, delta, self.kept[other].lookup(())[1])
        return self._true(found, is_collecting=is_collecting)

    def _true(self, found: Pairs, *, is_collecting: bool = True) -> Pairs:
        """Those whose residual is true."""
        if self._residual is None or len(found) == 0:
            return found
        joined = found.joined()
        verdict, errors = self._residual.evaluate(joined.columns, len(joined))
        if errors and is_collecting:
            self._context.collect(self._types, joined, errors)
        return found.filter(_kept(verdict_mask=is_true(verdict), errors=errors))


def _every_pair(side: int, delta: Delta, every: Delta) -> Pairs:
    index = np.repeat(np.arange(len(delta)), len(every))
    kept = every.take(np.tile(np.arange(len(every)), len(delta)))
    return Pairs(side, index, delta.take(index), kept)


def _kept(verdict_mask: np.ndarray, errors: RowErrors) -> np.ndarray:
    return verdict_mask & ~errors.mask(len(verdict_mask)) if errors else verdict_mask


def plain_columns(expressions: Sequence[Expression]) -> tuple[int, ...]:
    """The positions of expressions that lowering has made plain columns."""
    for expression in expressions:
        if not isinstance(expression, ColumnRef):
            raise InvariantError("plan.key", f"a key is not a plain column: {expression}")
    return tuple(e.index for e in expressions if isinstance(e, ColumnRef))
