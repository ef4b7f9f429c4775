"""Both inputs of a join, arranged by key, and the pairs that a delta of either one makes.

Invariant: a pair is counted once: the left delta joins the old right input, the right delta the new
left input (dL x R_old + L_new x dR). Rows with a NULL key are excluded by the callers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
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


def clearable_inputs(plan: Join | SemiJoin, with_nulls: Collection[int]) -> tuple[int, ...]:
    """Return the inputs of which every row that has an effect is stored: `Traits.clearable`.

    with_nulls: the inputs whose rows with a NULL key have an effect, although they are not stored.
    """
    if plan.bounds is not None:
        return ()
    sides = ((plan.left, plan.left_keys), (plan.right, plan.right_keys))
    return tuple(
        side
        for side, (rows, keys) in enumerate(sides)
        if side not in with_nulls
        or not any(rows.fields[c].is_nullable for c in plain_columns(keys))
    )


def all_of(rows: Arrangement) -> Iterator[Delta]:
    """Yield the rows of an arrangement for `Clearable.stored_rows`."""
    yield from rows.scan()
    # Each has been retracted; this removes what that has left.
    rows.clear()


@dataclass(frozen=True)
class Pairs:
    """k pairs of a changed row and a stored row.

    index int64[k]: the changed row's position in the delta of input `side` (0 left, 1 right);
    changed and stored: the changed and the stored rows, k of each, with their own weights.
    """

    side: int
    index: np.ndarray
    changed: Delta
    kept: Delta

    def __len__(self) -> int:
        return len(self.index)

    def joined(self) -> Delta:
        """Return the joined rows: left columns, then right ones; weights multiplied. Not
        consolidated."""
        left, right = self.changed.columns, self.kept.columns
        if self.side == RIGHT:
            left, right = right, left
        return Delta(left + right, self.changed.weights * self.kept.weights)

    def filter(self, keep: np.ndarray) -> Pairs:
        """Return the pairs where bool[k] keep is True."""
        if keep.all():
            return self
        chosen = np.flatnonzero(keep)
        stored, changed = self.kept.take(chosen), self.changed.take(chosen)
        return Pairs(self.side, self.index[chosen], changed, stored)

    def count_into(self, counts: np.ndarray) -> None:
        """Add to int64[changed rows] the weight of the stored rows that each one pairs with."""
        np.add.at(counts, self.index, self.kept.weights)


class PairState:
    """The state of a join: finds the pairs of changed rows and stored rows. Subclasses store the
    rows."""

    def __init__(self, plan: Join | SemiJoin, context: Context) -> None:
        self._context = context
        self.keys = (plain_columns(plan.left_keys), plain_columns(plan.right_keys))
        self._types = types_of(plan.left.fields) + types_of(plan.right.fields)
        self._residual = None
        if plan.residual is not None:
            self._residual = compile_expression(plan.residual, context.evaluator)

    @property
    def has_residual(self) -> bool:
        """Whether a pair needs more than equal keys."""
        return self._residual is not None

    def take(self, side: int, delta: Delta) -> None:
        """Apply the delta of one input to the state."""
        raise NotImplementedError

    def stored_rows(self, side: int) -> Iterator[Delta]:
        """See `dataflow.operators.base.Clearable`."""
        raise NotImplementedError

    def meet(
        self, side: int, delta: Delta, max_rows: int, *, is_collecting: bool = True
    ) -> Iterator[Pairs]:
        """Yield the pairs of one input's rows with the other's stored rows for which the residual
        is true, in parts.

        Pairs whose residual fails are left out, and reported as errors unless they already were.
        """
        raise NotImplementedError

    def meet_by_stored(
        self, side: int, delta: Delta, max_rows: int, *, is_collecting: bool = True
    ) -> Iterator[Pairs]:
        """Like `meet`, but all pairs of a stored row are in one part."""
        raise NotImplementedError

    def advance_parts(self, left: Delta, right: Delta, max_rows: int) -> Iterator[Pairs]:
        """Apply both deltas to the state; yield pairs of dL with R_old, then of dR with L_new,
        about that many at a time. Read it to the end."""
        yield from self.meet(LEFT, left, max_rows)
        self.take(LEFT, left)
        yield from self.meet(RIGHT, right, max_rows)
        self.take(RIGHT, right)

    def _true(self, found: Pairs, *, is_collecting: bool = True) -> Pairs:
        """Return the pairs whose residual is true."""
        if self._residual is None or len(found) == 0:
            return found
        joined = found.joined()
        verdict, errors = self._residual.evaluate(joined.columns, len(joined))
        if errors and is_collecting:
            self._context.collect(self._types, joined, errors)
        return found.filter(_kept(verdict_mask=is_true(verdict), errors=errors))


class JoinState(PairState):
    """Both inputs arranged by key."""

    def __init__(self, plan: Join | SemiJoin, context: Context) -> None:
        super().__init__(plan, context)
        self._stored: tuple[Arrangement, ...] = tuple(
            context.arrange(role, kinds_of(side.fields), key)
            for role, side, key in zip(
                ("left", "right"), (plan.left, plan.right), self.keys, strict=True
            )
        )

    def take(self, side: int, delta: Delta) -> None:
        """See PairState."""
        if len(delta):
            self._stored[side].apply(delta)

    def stored_rows(self, side: int) -> Iterator[Delta]:
        """See PairState."""
        yield from all_of(self._stored[side])

    def meet(
        self, side: int, delta: Delta, max_rows: int, *, is_collecting: bool = True
    ) -> Iterator[Pairs]:
        """See PairState."""
        if not len(delta):
            return
        key = self.keys[side]
        if not key:
            yield from self.meet_by_stored(side, delta, max_rows, is_collecting=is_collecting)
            return
        for index, rows in self._stored[1 - side].lookup_parts(columns_at(delta, key), max_rows):
            found = Pairs(side, index, delta.take(index), rows)
            if len(found := self._true(found, is_collecting=is_collecting)):
                yield found

    def meet_by_stored(
        self, side: int, delta: Delta, max_rows: int, *, is_collecting: bool = True
    ) -> Iterator[Pairs]:
        """See PairState."""
        if not len(delta):
            return
        touched = touch(columns_at(delta, self.keys[side]), len(delta))
        for key_of, rows in self._stored[1 - side].lookup_parts(touched.keys, max_rows):
            if touched.count == len(delta):
                index = touched.representative[key_of]
                some = [Pairs(side, index, delta.take(index), rows)]
            else:
                some = _pairs_by_stored(side, delta, touched, (key_of, rows), max_rows)
            for pairs in some:
                if len(found := self._true(pairs, is_collecting=is_collecting)):
                    yield found


def _pairs_by_stored(
    side: int,
    delta: Delta,
    touched: Touched,
    stored: tuple[np.ndarray, Delta],
    max_rows: int,
) -> Iterator[Pairs]:
    """Pair each stored row with all changed rows of its key. stored: the key of each row, and the
    rows."""
    key_of, rows = stored
    order = np.argsort(touched.group, kind="stable")
    sizes = np.bincount(touched.group, minlength=touched.count)
    starts = np.cumsum(sizes) - sizes
    for start, stop in _cuts(sizes[key_of], max_rows):
        of_key = key_of[start:stop]
        count = sizes[of_key]
        at = np.repeat(np.arange(start, stop), count)
        within = np.arange(len(at)) - np.repeat(np.cumsum(count) - count, count)
        index = order[np.repeat(starts[of_key], count) + within]
        yield Pairs(side, index, delta.take(index), rows.take(at))


def _cuts(sizes: np.ndarray, most: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of runs whose sizes add up to at most `most`, or of a single larger one.

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
