"""Rows that come later than promised: passed on, left out, or the end of the view.

A row is late if it appears when the published watermark is beyond its value. Invariant: an update
or a deletion is never dropped. If the row was passed on, both sides pass. If it was left out, it
leaves the rows left out, and its new side is judged like a new row.
A deletion and an insertion of one key are an update until the watermark moves, so a transaction
that reloads a table makes no row late, in whatever parts it comes.
"""

from __future__ import annotations

import numpy as np
from tidemark_native import storage as kernels

from dataflow.delta import Column, Delta, row_hashes
from dataflow.errors import ViewError
from dataflow.expressions.evaluator import RowErrors
from dataflow.notes import LATE_APPLIED, LATE_LEFT_OUT
from dataflow.operators.base import Context, Traits, kinds_of, types_of
from dataflow.operators.groups import columns_at, plain_columns
from dataflow.operators.lateness.watermark import least_of
from dataflow.plan.nodes import LateRows

APPLIED, DEAD_LETTER, ERROR = "applied", "dead-letter", "error"
POLICIES = (APPLIED, DEAD_LETTER, ERROR)


class LateRowsOperator:
    """Linear, over the rows that are left out.

    State: the watermark; the keys of rows that were passed on and removed since it last moved; with
    "dead-letter" the late rows that are still there.
    Cost: O(rows of the delta); a lookup for each row that is removed or late.
    NULL: a row whose value is NULL is never late.
    A delta's rows are compared with the watermark of the steps before.
    """

    traits = Traits(needs_evaluator=False, passes_rows=True, depends_on_history=True)

    def __init__(self, plan: LateRows, context: Context) -> None:
        self._plan = plan
        self._context = context
        (self._value,) = plain_columns([plan.value])
        self._types = types_of(plan.fields)
        kinds = kinds_of(plan.fields)
        self._mark = context.arrange("watermark", kinds_of(plan.watermark.fields), ())
        self._left_out = context.arrange("late", kinds, tuple(range(len(kinds))))
        key_kinds = "".join(kinds[c] for c in plan.key)
        self._removed = context.arrange("removed", key_kinds, tuple(range(len(key_kinds))))

    def step(self, rows: Delta, watermark: Delta) -> Delta:
        """Return the rows that are passed on."""
        mark = least_of(self._mark)
        if len(rows) and mark is not None:
            rows = self._judged(rows, mark)
        if len(watermark):
            self._mark.apply(watermark)
            self._removed.clear()
        return rows

    def _judged(self, rows: Delta, mark: int) -> Delta:
        """Return the rows that are passed on at this watermark."""
        is_gone = self._gone(rows)
        is_late = self._late(rows, mark, is_gone)
        if self._plan.policy == ERROR and is_late.any():
            raise self._refused(int(is_late.sum()))
        if self._plan.policy == APPLIED:
            self._report(rows.filter(is_late), LATE_APPLIED)
            return rows
        is_left_out = is_gone | is_late
        if not is_left_out.any():
            return rows
        left_out = rows.filter(is_left_out)
        self._left_out.apply(left_out)
        self._report(left_out, LATE_LEFT_OUT)
        return rows.take(np.flatnonzero(~is_left_out))

    def _gone(self, rows: Delta) -> np.ndarray:
        """Return bool[n]: rows taken away that had been left out."""
        found = np.zeros(len(rows), np.bool_)
        taken = np.flatnonzero(rows.weights < 0)
        if self._plan.policy == DEAD_LETTER and len(taken):
            index, _ = self._left_out.lookup(rows.take(taken).columns)
            found[taken[index]] = True
        return found

    def _late(self, rows: Delta, mark: int, is_gone: np.ndarray) -> np.ndarray:
        """Return bool[n]: new rows behind the watermark that replace no row that was passed on."""
        column = rows.columns[self._value]
        is_late = (column.values < mark) & column.mask() & (rows.weights > 0)
        is_removed = (rows.weights < 0) & ~is_gone
        if not self._plan.key or not (is_late.any() or is_removed.any()):
            return is_late
        keys = columns_at(rows, self._plan.key)
        group, first = kernels.group_hashes(*row_hashes(keys, len(rows)))
        went, came = np.zeros((2, len(first)), np.bool_)
        went[group[is_removed]] = True
        came[group[rows.weights > 0]] = True
        was_removed = self._exchange([c.take(first) for c in keys], went, came)
        return is_late & ~(went | was_removed)[group]

    def _exchange(self, keys: list[Column], went: np.ndarray, came: np.ndarray) -> np.ndarray:
        """Return bool[n]: keys that come, and were removed since the watermark moved; note those
        that go now."""
        found = np.zeros(len(went), np.bool_)
        alone = np.flatnonzero(went != came)
        index, _ = self._removed.lookup([column.take(alone) for column in keys])
        found[alone[index]] = True
        weights = (went & ~came & ~found).astype(np.int64) - (came & ~went & found)
        changed = np.flatnonzero(weights)
        self._removed.apply(Delta([c.take(changed) for c in keys], weights[changed]))
        return found & came

    def _report(self, rows: Delta, code: str) -> None:
        note = (code, self._plan.title)
        self._context.collect(self._types, rows, RowErrors(dict.fromkeys(range(len(rows)), note)))

    def _refused(self, count: int) -> ViewError:
        return ViewError(
            "view.late_row",
            f"rows came later than the lateness of {self._plan.title} allows",
            detail=f'{count} of them in one epoch; the view\'s option late is "{ERROR}"',
            hint="rebuild the view, which takes all rows; or give more lateness, or another late",
        )
