"""An aggregate that forgets: groups of old windows are frozen, and their state is freed.

Invariant: a frozen group's row stays as it is for all time; the groups that are not frozen are
exactly those of an ordinary aggregate.
"""

from __future__ import annotations

import numpy as np

from dataflow.delta import Column, Delta
from dataflow.expressions.evaluator import RowErrors
from dataflow.notes import FROZEN_EDGE, FROZEN_ROW
from dataflow.operators.aggregates.aggregate import AggregateOperator
from dataflow.operators.base import Context, Traits, kinds_of, types_of
from dataflow.operators.groups import columns_at, plain_columns
from dataflow.operators.lateness.watermark import least_over, replaced
from dataflow.operators.ordered.ordered_rows import AFTER_PEERS, Order, OrderedRows
from dataflow.plan.nodes import RetainedAggregate
from dataflow.types import INT8
from dataflow.window_close import is_closed, last_closed

_PART_GROUPS = 50_000


class RetainedAggregateOperator:
    """Group, up to a moving edge: see AggregateOperator.

    State: that of the aggregate for the groups that are not frozen, and their keys in the order of
    their windows (see OrderedRows); the watermarks. Cost: that of the aggregate, and O(log n) for
    each group that comes, goes or is frozen.
    NULL: a group whose window is NULL is never frozen.
    """

    traits = Traits(depends_on_history=True)

    def __init__(self, plan: RetainedAggregate, context: Context) -> None:
        self._plan = plan
        self._context = context
        self._types = types_of(plan.input.fields)
        keys = plan.fields[: len(plan.groups)]
        self._column = plain_columns(plan.groups)[plan.window]
        self._type = keys[plan.window].type
        self._key_kinds = kinds_of(keys)
        self._aggregate = AggregateOperator(plan, context)
        order = [Order(plan.window, self._type)]
        self._groups = OrderedRows(context, "windows", self._key_kinds, (), order)
        self._marks = [
            context.arrange(f"watermark {number}", kinds_of(mark.fields), ())
            for number, mark in enumerate(plan.watermarks)
        ]

    def step(self, rows: Delta, *watermarks: Delta) -> Delta:
        """Return the change of the rows of groups that are not frozen."""
        before = least_over(self._marks)
        column = rows.columns[self._column]
        frozen = is_closed(column, self._type, self._plan.after_us, before)
        if frozen.any():
            self._report(rows.filter(frozen))
            rows = rows.filter(~frozen)
        out = self._aggregate.step(rows)
        if len(out):
            keys = Delta(columns_at(out, range(len(self._key_kinds))), out.weights)
            self._groups.apply(keys.consolidate())
        if any(map(len, watermarks)):
            for mark, delta in zip(self._marks, watermarks, strict=True):
                if len(delta):
                    mark.apply(delta)
            self._freeze(before, least_over(self._marks))
        return out

    def _freeze(self, before: int | None, edge: int | None) -> None:
        """Free the groups whose windows the edge has passed."""
        if edge is None or edge == before:
            return
        columns = [Column.nulls(kind, 1) for kind in self._key_kinds]
        last = last_closed(self._type, self._plan.after_us, edge)
        columns[self._plan.window] = Column(np.array([last], np.int64))
        one = Delta(columns, np.ones(1, np.int64))
        while end := int(self._groups.ranks(one, AFTER_PEERS)[0]):
            until = np.array([min(end, _PART_GROUPS)])
            found = self._groups.ranges((), np.zeros(1, np.int64), until).rows
            self._aggregate.forget(found.columns, len(found))
            self._groups.apply(found.negate())
        change = replaced(before, edge)
        note = (FROZEN_EDGE, "")
        self._context.collect([INT8], change, RowErrors(dict.fromkeys(range(len(change)), note)))

    def _report(self, rows: Delta) -> None:
        """Note each row that came or went, however it changed the group that it had."""
        note = (FROZEN_ROW, self._plan.title)
        counted = rows.weighted(np.abs(rows.weights))
        errors = RowErrors(dict.fromkeys(range(len(rows)), note))
        self._context.collect(self._types, counted, errors)
