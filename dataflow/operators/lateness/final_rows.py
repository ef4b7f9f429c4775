"""Final rows: a view's rows, and beside them each row once when its window is closed.

The input passes through unchanged. Invariant: a row is published once, with the values that it has
when the watermark passes the end of its window; what changes in a closed window later is not.
"""

from __future__ import annotations

import numpy as np

from dataflow.delta import Column, Delta
from dataflow.expressions.evaluator import RowErrors
from dataflow.notes import WINDOW_EDGE
from dataflow.operators.base import Context, Traits, kinds_of
from dataflow.operators.groups import plain_columns
from dataflow.operators.lateness.watermark import least_over, replaced
from dataflow.operators.ordered.ordered_rows import AFTER_PEERS, Order, OrderedRows
from dataflow.plan.nodes import FinalRows
from dataflow.types import INT8
from dataflow.window_close import is_closed, last_closed

_PART_ROWS = 50_000


class FinalRowsOperator:
    """Linear for its output; beside it a group of all rows in the order of their windows.

    State: the rows of open windows (see OrderedRows); the watermarks. Cost: O(log n) for each
    changed row; O(log n + rows that are closed) for each move of a watermark.
    NULL: a row whose window is NULL is never closed.
    """

    traits = Traits(passes_rows=True, depends_on_history=True)

    def __init__(self, plan: FinalRows, context: Context) -> None:
        self._context = context
        (self._value,) = plain_columns([plan.value])
        self._type, self._width_us = plan.value.type, plan.width_us
        self._kinds = kinds_of(plan.fields)
        order = [Order(self._value, self._type)]
        self._open = OrderedRows(context, "open", self._kinds, (), order)
        self._marks = [
            context.arrange(f"watermark {number}", kinds_of(mark.fields), ())
            for number, mark in enumerate(plan.watermarks)
        ]

    def step(self, rows: Delta, *watermarks: Delta) -> Delta:
        """Return the rows, and publish those whose window a watermark has closed."""
        before = least_over(self._marks)
        if len(rows):
            column = rows.columns[self._value]
            closed = is_closed(column, self._type, self._width_us, before)
            self._open.apply(rows.filter(column.mask() & ~closed))
        if any(map(len, watermarks)):
            for mark, delta in zip(self._marks, watermarks, strict=True):
                if len(delta):
                    mark.apply(delta)
            self._close(before, least_over(self._marks))
        return rows

    def _close(self, before: int | None, edge: int | None) -> None:
        if edge is None or edge == before:
            return
        columns = [Column.nulls(kind, 1) for kind in self._kinds]
        last = last_closed(self._type, self._width_us, edge)
        columns[self._value] = Column(np.array([last], np.int64))
        one = Delta(columns, np.ones(1, np.int64))
        while True:
            end = int(self._open.ranks(one, AFTER_PEERS)[0])
            if end == 0:
                break
            until = np.array([min(end, _PART_ROWS)])
            found = self._open.ranges((), np.zeros(1, np.int64), until).rows
            self._context.errors.publish(found)
            self._open.apply(found.negate())
        change = replaced(before, edge)
        note = (WINDOW_EDGE, "")
        self._context.collect([INT8], change, RowErrors(dict.fromkeys(range(len(change)), note)))
