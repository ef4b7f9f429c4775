"""Rows that come later than promised: passed on, left out, or the end of the view.

A row is late if it appears when the published watermark is beyond its value. Invariant: an update
or a deletion is never dropped. If the row was passed on, both sides pass. If it was left out, it
leaves the rows left out, and its new side is judged like a new row.
"""

from __future__ import annotations

import numpy as np

from dataflow.delta import Delta, row_hashes
from dataflow.errors import ViewError
from dataflow.expressions.evaluator import RowErrors
from dataflow.notes import LATE_APPLIED, LATE_LEFT_OUT
from dataflow.operators.base import Context, Traits, kinds_of, types_of
from dataflow.operators.groups import columns_at, plain_columns
from dataflow.operators.lateness.watermark import least_of
from dataflow.plan.nodes import LateRows
from storage import kernels

APPLIED, DEAD_LETTER, ERROR = "applied", "dead-letter", "error"
POLICIES = (APPLIED, DEAD_LETTER, ERROR)


class LateRowsOperator:
    """Linear, over the rows that are left out.

    State: the watermark; with "dead-letter" the late rows that are still there.
    Cost: O(rows of the delta); with "dead-letter" a lookup for each row that is taken away.
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

    def step(self, rows: Delta, watermark: Delta) -> Delta:
        """Return the rows that are passed on."""
        mark = least_of(self._mark)
        if len(watermark):
            self._mark.apply(watermark)
        if len(rows) == 0 or mark is None:
            return rows
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
        if not (self._plan.key and is_late.any()):
            return is_late
        keys = columns_at(rows, self._plan.key)
        group, first = kernels.group_hashes(*row_hashes(keys, len(rows)))
        replaced = np.zeros(len(first), np.bool_)
        replaced[group[(rows.weights < 0) & ~is_gone]] = True
        return is_late & ~replaced[group]

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
