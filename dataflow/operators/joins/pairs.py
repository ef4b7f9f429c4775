"""Both sides of a join, kept by key, and the pairs that a change of either side makes.

Invariant: a pair is counted once: changes of the left meet the right as it was, changes of the
right meet the left as it is (dL x R_old + L_new x dR). Rows with a NULL key never come here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dataflow.delta import Delta
from dataflow.expressions.compile import compile_expression
from dataflow.expressions.evaluator import RowErrors
from dataflow.operators.base import Context, kinds_of, types_of
from dataflow.operators.filter import is_true
from dataflow.operators.groups import Touched, columns_at, plain_columns, touch
from dataflow.plan.nodes import Join, SemiJoin
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

    def count_into(self, counts: np.ndarray) -> None:
        """Add the weight of the kept rows that each changed row pairs with; int64[changed rows]."""
        np.add.at(counts, self.index, self.kept.weights)


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

    def advance_parts(self, left: Delta, right: Delta, most_rows: int) -> Iterator[Pairs]:
        """Take both deltas into the state: pairs of dL with R_old, then pairs of dR with L_new,
        about so many at a time; to be read to the end."""
        yield from self.meet(LEFT, left, most_rows)
        self.take(LEFT, left)
        yield from self.meet(RIGHT, right, most_rows)
        self.take(RIGHT, right)

    def take(self, side: int, delta: Delta) -> None:
        """Take the delta of one side into the state."""
        if len(delta):
            self.kept[side].apply(delta)

    def meet(
        self, side: int, delta: Delta, most_rows: int, *, is_collecting: bool = True
    ) -> Iterator[Pairs]:
        """Rows of one side with what the other keeps, the residual being true, in parts.

        Pairs whose residual fails are left out, and collected unless they already were.
        """
        if not len(delta):
            return
        key = self.keys[side]
        if not key:
            yield from self.meet_by_kept(side, delta, most_rows, is_collecting=is_collecting)
            return
        for index, rows in self.kept[1 - side].lookup_parts(columns_at(delta, key), most_rows):
            found = Pairs(side, index, delta.take(index), rows)
            if len(found := self._true(found, is_collecting=is_collecting)):
                yield found

    def meet_by_kept(
        self, side: int, delta: Delta, most_rows: int, *, is_collecting: bool = True
    ) -> Iterator[Pairs]:
        """As `meet`, each kept row in one part only, with all that it pairs with."""
        if not len(delta):
            return
        touched = touch(columns_at(delta, self.keys[side]), len(delta))
        for key_of, rows in self.kept[1 - side].lookup_parts(touched.keys, most_rows):
            if touched.count == len(delta):
                index = touched.representative[key_of]
                some = [Pairs(side, index, delta.take(index), rows)]
            else:
                some = _pairs_by_kept(side, delta, touched, (key_of, rows), most_rows)
            for pairs in some:
                if len(found := self._true(pairs, is_collecting=is_collecting)):
                    yield found

    def _true(self, found: Pairs, *, is_collecting: bool = True) -> Pairs:
        """Those whose residual is true."""
        if self._residual is None or len(found) == 0:
            return found
        joined = found.joined()
        verdict, errors = self._residual.evaluate(joined.columns, len(joined))
        if errors and is_collecting:
            self._context.collect(self._types, joined, errors)
        return found.filter(_kept(verdict_mask=is_true(verdict), errors=errors))


def _pairs_by_kept(
    side: int,
    delta: Delta,
    touched: Touched,
    kept: tuple[np.ndarray, Delta],
    most_rows: int,
) -> Iterator[Pairs]:
    """Each kept row beside all changed rows of its key. kept: the key of each row, and the rows."""
    key_of, rows = kept
    order = np.argsort(touched.group, kind="stable")
    sizes = np.bincount(touched.group, minlength=touched.count)
    starts = np.cumsum(sizes) - sizes
    for start, stop in _cuts(sizes[key_of], most_rows):
        of_key = key_of[start:stop]
        count = sizes[of_key]
        at = np.repeat(np.arange(start, stop), count)
        within = np.arange(len(at)) - np.repeat(np.cumsum(count) - count, count)
        index = order[np.repeat(starts[of_key], count) + within]
        yield Pairs(side, index, delta.take(index), rows.take(at))


def _cuts(sizes: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of neighbours whose sizes come to at most `most`, or of one alone.

    >>> list(_cuts(np.array([2, 2, 1, 9, 1, 1]), 4))
    [(0, 2), (2, 3), (3, 4), (4, 6)]
    """
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, before + most, "right")), start + 1)
        yield start, stop
        start = stop


def _kept(verdict_mask: np.ndarray, errors: RowErrors) -> np.ndarray:
    return verdict_mask & ~errors.mask(len(verdict_mask)) if errors else verdict_mask
