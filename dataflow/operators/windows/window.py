"""Window functions over any partition, order and frame.

Invariant: after each epoch the output is each live input row with the values of its calls, as
PostgreSQL computes them over the live rows of its partition. Rows that tie are in the order of all
their columns by text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dataflow.delta import Column, Delta
from dataflow.errors import InvariantError
from dataflow.expressions.evaluator import Evaluator, RowErrors
from dataflow.expressions.ir import ColumnRef
from dataflow.operators.base import Context, Traits, kinds_of, types_of
from dataflow.operators.groups import columns_at, plain_columns, touch
from dataflow.operators.ordered.row_order import Order, RowOrder
from dataflow.operators.windows.window_frames import FrameFinder, Frames
from dataflow.operators.windows.window_postgres import PostgresCall
from dataflow.operators.windows.window_rows import WindowRows, sequence_rows
from dataflow.operators.windows.window_sums import frame_aggregate
from dataflow.operators.windows.window_values import Answer, numbering, picking, shifting
from dataflow.plan.nodes import Frame, SortKey, Window, WindowCall
from dataflow.plan.window_functions import NUMBERING, PICKING, SHIFTING, UNFRAMED, is_native

# Memory beside the old and new rows while partitions of more than this are computed: both versions
# together, in sequence and as output; numbers, frames and hashes.
LARGE_BYTES = 4 << 20
_TIMES_HELD = 3
_BYTES_A_ROW = 200


class WindowOperator:
    """Group: touched partitions are sorted and computed again, new minus old.

    Partition, order and arguments are plain columns (lowering sees to it), the partition in key
    form. State: the input rows by partition. Cost: O(rows of the touched partitions), once for the
    old and once for the new version. NULL: a partition of its own; in ORDER BY as NULLS FIRST or
    LAST says; each function defines its treatment of NULL arguments.
    """

    traits = Traits()

    def __init__(self, plan: Window, context: Context) -> None:
        self._context = context
        self._types = types_of(plan.input.fields)
        self._kinds = kinds_of(plan.fields)
        self._partition = plain_columns(plan.partition)
        self._order = RowOrder(orders_of(plan.order), context.evaluator)
        calls = dict(enumerate(plan.calls))
        self._calls = WindowCalls(calls, orders_of(plan.order), context.evaluator)
        self._rows = context.arrange("rows", kinds_of(plan.input.fields), self._partition)

    def step(self, delta: Delta) -> Delta:
        """Return the change of the rows of touched partitions whose values differ."""
        if len(delta) == 0:
            return Delta.empty(self._kinds)
        touched = touch(columns_at(delta, self._partition), len(delta))
        before, old = self._rows.lookup(touched.keys)
        self._rows.apply(delta)
        after, new = self._rows.lookup(touched.keys)
        self._context.meter.check(len(old) + len(new))
        held_bytes = old.nbytes() + new.nbytes()
        if held_bytes > LARGE_BYTES:
            rows_bytes = _BYTES_A_ROW * (len(old) + len(new))
            self._context.store.require_space(_TIMES_HELD * held_bytes + rows_bytes)
        partition = np.concatenate([2 * before, 2 * after + 1])
        both = Delta.concat([old, new])
        del old, new
        rows = sequence_rows(both, partition, self._order)
        del both
        frames, errors = self._calls.frames(rows)
        columns, failed = self._calls.compute(rows, frames)
        note_errors(failed, errors)
        weights = np.where(rows.partition % 2 == 0, -1, 1)
        if errors:
            self._context.collect(self._types, Delta(rows.columns, weights), errors)
        out = Delta((*rows.columns, *columns.values()), weights)
        return out.filter(~errors.mask(len(out))).consolidate() if errors else out.consolidate()


class WindowCalls:
    """The calls of one node by position, computed over a sequence of rows.

    by_frame: PostgreSQL computes each frame separately (see window_postgres).
    """

    def __init__(
        self,
        calls: Mapping[int, WindowCall],
        order: Sequence[Order],
        evaluator: Evaluator,
        *,
        by_frame: bool = False,
    ) -> None:
        framed = dict.fromkeys(c.frame for c in calls.values() if c.function not in UNFRAMED)
        self._finders = {f: FrameFinder(f, order, evaluator) for f in framed}
        self._compute = {
            i: (c.frame, _compute_of(c, order, evaluator, by_frame)) for i, c in calls.items()
        }

    def frames(self, rows: WindowRows) -> tuple[dict[Frame, Frames], RowErrors]:
        """Return the frames of all rows, and the rows without one."""
        errors = RowErrors()
        frames: dict[Frame, Frames] = {}
        for frame, finder in self._finders.items():
            frames[frame], failed = finder.find(rows)
            note_errors(failed, errors)
        return frames, errors

    def compute(
        self, rows: WindowRows, frames: Mapping[Frame, Frames]
    ) -> tuple[dict[int, Column], RowErrors]:
        """Return a column for each call, and the rows for which one fails."""
        errors = RowErrors()
        columns = {}
        for i, (frame, compute) in self._compute.items():
            columns[i], failed = compute(rows, frames.get(frame))
            note_errors(failed, errors)
        return columns, errors


def orders_of(keys: Sequence[SortKey]) -> tuple[Order, ...]:
    """Return the parts of an ORDER BY over plain columns."""
    orders = []
    for key in keys:
        if not isinstance(key.expression, ColumnRef):
            raise InvariantError("plan.window", f"ORDER BY no plain column: {key.expression}")
        column, type = key.expression.index, key.expression.type
        orders.append(Order(column, type, key.is_descending, key.nulls_first, key.operator))
    return tuple(orders)


def note_errors(failed: RowErrors, errors: RowErrors) -> None:
    """Add the failed rows to the errors."""
    for row, error in failed.by_row.items():
        errors.add(row, *error)


def _compute_of(
    call: WindowCall, order: Sequence[Order], evaluator: Evaluator, by_frame: bool
) -> Callable[..., Answer]:
    if call.function in NUMBERING:
        number = numbering(call)
        return lambda rows, frames: number(rows)
    if call.function in SHIFTING:
        shift = shifting(call)
        return lambda rows, frames: shift(rows)
    if call.function in PICKING:
        return picking(call)
    if is_native(call):
        return frame_aggregate(call, evaluator)
    return PostgresCall(call, order, evaluator, by_frame=by_frame).compute
