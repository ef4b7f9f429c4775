"""The watermark of a column: the greatest value seen, minus the lateness that is promised.

It is published when the clock moves, in an epoch of the clock's own. So all rows between two moves
are compared with one watermark, however they are batched. The clock moves when rows have come, or
a partition may fall silent. Invariant: it never goes backwards, not even when rows are deleted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dataflow.delta import KIND_INT, Column, Delta
from dataflow.expressions.evaluator import RowErrors
from dataflow.notes import WATERMARK
from dataflow.operators.base import Context, Traits, kinds_of
from dataflow.operators.groups import columns_at, touch
from dataflow.plan.nodes import Watermark
from dataflow.types import INT8, TypeKind
from storage.store import Arrangement

_LIMITS = np.iinfo(np.int64)
# Of a step of the clock, so much of the idle time-out counts as time that was watched, at least the
# second figure: a service that was stopped has not seen a partition fall silent.
_PART_OF_IDLE, _LEAST_STEP_US = 4, 2_000_000
# When a partition has moved since the clock did.
_JUST_NOW = _LIMITS.max


class WatermarkOperator:
    """Group: the least over partitions of the greatest value of each.

    State: for each partition its greatest value and the tick after it moved; the clock, and how
    long it was watched; the published value.
    Cost: O(rows of the delta); O(partitions) for each move of the clock.
    NULL: NULL and infinite values do not count. A partition may be NULL.
    Nothing is published before the clock first moves, so the rows of a first load are never late.
    A value later than the clock counts as the clock: a row from the future closes nothing early.
    """

    traits = Traits(needs_evaluator=False, depends_on_history=True)

    def __init__(self, plan: Watermark, context: Context) -> None:
        self._plan = plan
        self._context = context
        self._kinds = kinds_of(plan.fields)
        self._parts = tuple(range(1, len(plan.input.fields)))
        own = kinds_of(plan.input.fields[1:])
        key = tuple(range(len(own)))
        self._seen = context.arrange("seen", own + KIND_INT * 2, key)
        self._clock = context.arrange("clock", kinds_of(plan.clock.fields), ())
        self._watched = context.arrange("watched", KIND_INT, ())
        self._published = context.arrange("published", KIND_INT, ())
        is_moment = plan.fields[0].type.kind is TypeKind.TIMESTAMPTZ
        self._most = (lambda now: now) if is_moment else (lambda _: _LIMITS.max)

    def step(self, rows: Delta, clock: Delta) -> Delta:
        """Return the change of the published watermark."""
        before = least_of(self._clock)
        if len(rows):
            self._see(rows)
        if len(clock) == 0:
            return Delta.empty(self._kinds)
        self._clock.apply(clock)
        now = least_of(self._clock)
        if before is None or now is None:
            return Delta.empty(self._kinds)
        return self._publish(now, self._watch(now - before))

    def first_change(self, moments: np.ndarray) -> int:
        """Return the first of these moments to which the clock must move; how many they are if to
        none, as long as no row comes.

        moments: int64[n], in order, from the clock's present value on. There the watermark moves,
        or a partition falls silent, or a longer step would count only in part.
        """
        parts = list(self._seen.scan())
        if not parts:
            return len(moments)
        seen, watched = Delta.concat(parts), least_of(self._watched) or 0
        greatest, moved_at = (column.values for column in seen.columns[-2:])
        found = len(moments)
        if (moved_at == _JUST_NOW).any():
            return 1
        if self._plan.idle_us:
            is_active = watched - moved_at <= self._plan.idle_us
            if not is_active.any():
                return found
            greatest = greatest[is_active]
            silent_us = int(moved_at[is_active].min()) + self._plan.idle_us + 1 - watched
            ends = moments[0] + np.array([silent_us, self._max_step_us + 1])
            silent, too_long = np.searchsorted(moments, ends)
            found = min(int(silent), int(too_long) - 1)
        old = least_of(self._published)
        marks = np.minimum(int(greatest.min()), self._most(moments)) - self._plan.lateness_us
        is_moved = np.broadcast_to(True if old is None else marks > old, len(moments))
        if is_moved.any():
            found = min(found, int(is_moved.argmax()))
        return max(1, found)

    @property
    def _max_step_us(self) -> int:
        """How much of a step of the clock counts as watched at most."""
        return max(self._plan.idle_us // _PART_OF_IDLE, _LEAST_STEP_US)

    def _watch(self, step_us: int) -> int:
        """Return for how long the clock was watched, with this step; 0 where nobody asks."""
        if not self._plan.idle_us:
            return 0
        old = least_of(self._watched)
        new = (old or 0) + min(step_us, self._max_step_us)
        self._watched.apply(replaced(old, new))
        return new

    def _see(self, rows: Delta) -> None:
        """Raise the greatest value of each partition that the rows have."""
        values = rows.columns[0]
        counts = values.mask() & (rows.weights > 0)
        counts &= (values.values != _LIMITS.max) & (values.values != _LIMITS.min)
        rows = rows.filter(counts)
        if len(rows) == 0:
            return
        touched = touch(columns_at(rows, self._parts), len(rows))
        greatest = np.full(touched.count, _LIMITS.min, np.int64)
        np.maximum.at(greatest, touched.group, rows.columns[0].values)
        index, stored = self._seen.lookup(touched.keys)
        known = np.full(touched.count, _LIMITS.min, np.int64)
        known[index] = stored.columns[-2].values
        moved = np.flatnonzero(greatest > known)
        if len(moved) == 0:
            return
        old = stored.filter(np.isin(index, moved))
        keys = [column.take(moved) for column in touched.keys]
        moved_at = np.full(len(moved), _JUST_NOW if self._plan.idle_us else 0, np.int64)
        new = [*keys, Column(greatest[moved]), Column(moved_at)]
        self._seen.apply(
            Delta.concat([old.weighted(-old.weights), Delta(new, np.ones(len(moved), np.int64))])
        )

    def _publish(self, now: int, watched: int) -> Delta:
        none = Delta.empty(self._kinds)
        parts = list(self._seen.scan())
        if not parts:
            return none
        seen = Delta.concat(parts)
        greatest, moved_at = (column.values for column in seen.columns[-2:])
        if self._plan.idle_us:
            self._date(seen.filter(moved_at == _JUST_NOW), watched)
            is_active = watched - moved_at <= self._plan.idle_us
            if not is_active.any():
                return none
            greatest = greatest[is_active]
        mark = min(int(greatest.min()), self._most(now)) - self._plan.lateness_us
        old = least_of(self._published)
        if old is not None and mark <= old:
            return none
        change = replaced(old, mark)
        self._published.apply(change)
        self._context.collect(
            [INT8], change, RowErrors(dict.fromkeys(range(len(change)), self._note))
        )
        return change

    def _date(self, moved: Delta, watched: int) -> None:
        """Note the tick after partitions have moved."""
        if len(moved):
            at = Column(np.full(len(moved), watched, np.int64))
            dated = Delta([*moved.columns[:-1], at], moved.weights)
            self._seen.apply(Delta.concat([moved.negate(), dated]))

    @property
    def _note(self) -> tuple[str, str]:
        return WATERMARK, self._plan.title


def replaced(old: int | None, new: int) -> Delta:
    """Return the change of an arrangement of one row."""
    values, weights = ([new], [1]) if old is None else ([old, new], [-1, 1])
    return Delta([Column(np.array(values, np.int64))], np.array(weights, np.int64)).consolidate()


def least_of(stored: Arrangement) -> int | None:
    """Return the least value of an arrangement of one column, looked up without a key; None where
    it has none that is not NULL."""
    _, rows = stored.lookup(())
    column = rows.columns[0]
    values = column.values[column.mask()]
    return int(values.min()) if len(values) else None


def least_over(stored: Sequence[Arrangement]) -> int | None:
    """Return the least value of several watermarks; None until each has one."""
    marks = [least_of(one) for one in stored]
    known = [mark for mark in marks if mark is not None]
    return min(known) if len(known) == len(marks) else None
