"""The watermark of a column: the greatest value seen, minus the lateness that is promised.

It is published when the clock moves, in an epoch of the clock's own. So all rows between two moves
are compared with one watermark, however they are batched. Invariant: it never goes backwards, not
even when rows are deleted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dataflow.collect import WATERMARK
from dataflow.delta import KIND_INT, Column, Delta
from dataflow.expressions.evaluator import RowErrors
from dataflow.operators.base import Context, Traits, kinds_of
from dataflow.operators.groups import columns_at, touch
from dataflow.plan.nodes import Watermark
from dataflow.types import INT8, TypeKind
from storage.store import Arrangement

_LIMITS = np.iinfo(np.int64)
# When a partition moved, where no clock was there yet.
_UNKNOWN = 0


class WatermarkOperator:
    """Group: the least over partitions of the greatest value of each.

    State: for each partition its greatest value and when it moved; the clock; the published value.
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
        self._published = context.arrange("published", KIND_INT, ())
        is_moment = plan.fields[0].type.kind is TypeKind.TIMESTAMPTZ
        self._most = (lambda now: now) if is_moment else (lambda _: _LIMITS.max)

    def step(self, rows: Delta, clock: Delta) -> Delta:
        """Return the change of the published watermark."""
        before = least_of(self._clock)
        if len(rows):
            self._see(rows, _UNKNOWN if before is None else before)
        if len(clock) == 0:
            return Delta.empty(self._kinds)
        self._clock.apply(clock)
        now = least_of(self._clock)
        if before is None or now is None:
            return Delta.empty(self._kinds)
        return self._publish(now)

    def _see(self, rows: Delta, now: int) -> None:
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
        new = [*keys, Column(greatest[moved]), Column(np.full(len(moved), now, np.int64))]
        self._seen.apply(
            Delta.concat([old.weighted(-old.weights), Delta(new, np.ones(len(moved), np.int64))])
        )

    def _publish(self, now: int) -> Delta:
        none = Delta.empty(self._kinds)
        parts = list(self._seen.scan())
        if not parts:
            return none
        seen = Delta.concat(parts)
        greatest, moved_at = (column.values for column in seen.columns[-2:])
        if self._plan.idle_us:
            self._date(seen, now)
            is_active = (moved_at == _UNKNOWN) | (now - moved_at <= self._plan.idle_us)
            if not is_active.any():
                return none
            greatest = greatest[is_active]
        mark = min(int(greatest.min()), self._most(now)) - self._plan.lateness_us
        old = least_of(self._published)
        if old is not None and mark <= old:
            return none
        marks, weights = ([mark], [1]) if old is None else ([old, mark], [-1, 1])
        change = Delta([Column(np.array(marks, np.int64))], np.array(weights, np.int64))
        self._published.apply(change)
        self._context.collect(
            [INT8], change, RowErrors(dict.fromkeys(range(len(change)), self._note))
        )
        return change

    @property
    def _note(self) -> tuple[str, str]:
        return WATERMARK, self._plan.title

    def _date(self, seen: Delta, now: int) -> None:
        """Let partitions whose values came without a clock be idle from now on."""
        undated = seen.filter(seen.columns[-1].values == _UNKNOWN)
        if len(undated):
            at = Column(np.full(len(undated), now, np.int64))
            dated = Delta([*undated.columns[:-1], at], undated.weights)
            self._seen.apply(Delta.concat([undated.weighted(-undated.weights), dated]))


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
