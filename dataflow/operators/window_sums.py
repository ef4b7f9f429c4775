"""Aggregates over frames that have a kernel: count, sum, avg, min, max, bool_and, bool_or.

Sums of integers, fixed point and numeric are exact, by differences of running sums; numeric shows
the greatest scale in the frame, as PostgreSQL does. Floats are added in the order of the frame, in
PostgreSQL's own steps. Of equal extremes the last of the frame is shown, as by int4larger and its
kin. Arguments are NULL where FILTER does not hold.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dataflow.delta import KIND_BYTES, Column
from dataflow.errors import InvariantError
from dataflow.expressions.evaluator import Evaluator, RowErrors
from dataflow.expressions.numbers import EXACT, Numbers, scale_of
from dataflow.operators.filter import is_true
from dataflow.operators.numeric_results import (
    average_column,
    average_text,
    fixed_text,
    sum_column,
    whole_totals,
)
from dataflow.operators.ordering import peer_ranks
from dataflow.operators.window_frames import Frames
from dataflow.operators.window_kernels import average_floats, best_rows, sum_floats
from dataflow.operators.window_rows import WindowRows
from dataflow.operators.window_values import Answer, argument_column, as_type, pick
from dataflow.sql.plan import WindowCall
from dataflow.types import FIXED_NAN, SqlType, TypeKind

Compute = Callable[[WindowRows, Frames], Answer]
_SMALL = (TypeKind.INT2, TypeKind.INT4)
_FLOATS = (TypeKind.FLOAT4, TypeKind.FLOAT8)
_LOW = 0xFFFFFFFF
_OVERFLOW = ("22003", "value out of range: overflow")


def frame_aggregate(call: WindowCall, evaluator: Evaluator) -> Compute:
    """How to compute an aggregate that has a kernel (see dataflow.sql.window_functions)."""
    name = call.function
    if name == "count":
        return lambda rows, frames: (Column(_totals(_counted(call, rows), frames)), RowErrors())
    argument = call.arguments[0]
    type = argument.type
    if name in ("min", "max"):
        how = (name, type, call.field.type, evaluator)
        return lambda rows, frames: _extremes(how, argument_column(argument, rows), frames)
    if type.kind is TypeKind.BOOL:
        return lambda rows, frames: _verdicts(name, argument_column(argument, rows), frames)
    sums = _sums_of(name, type)
    return lambda rows, frames: sums(argument_column(argument, rows), frames)


def _counted(call: WindowCall, rows: WindowRows) -> np.ndarray:
    """bool[n]: the rows that count."""
    if call.arguments:
        return argument_column(call.arguments[0], rows).mask()
    if call.filter is not None:
        return is_true(argument_column(call.filter, rows))
    return np.ones(len(rows), np.bool_)


def _totals(values: np.ndarray, frames: Frames) -> np.ndarray:
    """The sum of values over each frame, in whatever numpy adds them up as."""
    kind = np.int64 if values.dtype == np.bool_ else values.dtype
    running = np.zeros(len(values) + 1, kind)
    running[1:] = np.cumsum(values, dtype=kind)
    return (running[frames.high] - running[frames.low]).sum(axis=0)


def _masked(values: np.ndarray, counts: np.ndarray) -> Column:
    """Values, NULL where nothing was counted."""
    valid = counts > 0
    if valid.all():
        return Column(values)
    return Column(np.where(valid, values, np.zeros(1, values.dtype)), valid)


def _verdicts(name: str, column: Column, frames: Frames) -> Answer:
    counts = _totals(column.mask(), frames)
    held = _totals(is_true(column), frames)
    verdict = held > 0 if name == "bool_or" else held == counts
    return _masked(verdict, counts), RowErrors()


def _extremes(
    how: tuple[str, SqlType, SqlType, Evaluator], column: Column, frames: Frames
) -> Answer:
    name, type, result, evaluator = how
    valid = column.mask()
    places = np.zeros(len(column), np.int64)
    present = np.flatnonzero(valid)
    if len(present):
        places[present] = peer_ranks(type, column.take(present), evaluator)
    if name == "min":
        places = ~places
    best = np.full(len(column), -1, np.int64)
    for low, high in zip(frames.low, frames.high, strict=True):
        found = best_rows(places, valid, low, high)
        wins = (found >= 0) & ((best < 0) | (places[found] >= places[best]))
        best = np.where(wins, found, best)
    return as_type(type, pick(column, best), result), RowErrors()


def _sums_of(name: str, type: SqlType) -> Callable[[Column, Frames], Answer]:
    if type.kind in _FLOATS:
        return _average_of_floats if name == "avg" else _float_sums(type)
    if type.kind is TypeKind.DECIMAL:
        return lambda column, frames: _of_decimals(name, column, frames)
    if type.kind in _SMALL and name == "sum":
        return _small_sums
    if type.kind in (*_SMALL, TypeKind.INT8, TypeKind.FIXED):
        return lambda column, frames: _of_integers(name, type, column, frames)
    raise InvariantError("plan.window", f"no sums of {type.name}")


def _small_sums(column: Column, frames: Frames) -> Answer:
    return _masked(_totals(column.values, frames), _totals(column.mask(), frames)), RowErrors()


def _of_integers(name: str, type: SqlType, column: Column, frames: Frames) -> Answer:
    """numeric sums and averages of integers or fixed point, in two limbs."""
    counts = _totals(column.mask(), frames)
    values, nan = column.values, None
    if type.kind is TypeKind.FIXED:
        is_nan = values == FIXED_NAN
        if is_nan.any():
            values = np.where(is_nan, 0, values)
            nan = _totals(is_nan, frames) > 0
    low, high = _totals(values & _LOW, frames), _totals(values >> 32, frames)
    masks = (counts > 0, nan)
    if name == "sum":
        return sum_column(low, high, type.scale, masks), RowErrors()
    totals = whole_totals(low, high)[0]
    return average_column(totals, counts, type.scale, masks), RowErrors()


def _of_decimals(name: str, column: Column, frames: Frames) -> Answer:
    """numeric sums and averages of numeric without a fixed scale."""
    n = len(column)
    numbers = Numbers.of_text(column)
    scales, units = np.zeros(n, np.int64), np.zeros(n, object)
    kinds = {"NaN": np.zeros(n, np.bool_), "Infinity": np.zeros(n, np.bool_)}
    kinds["-Infinity"] = np.zeros(n, np.bool_)
    for i, number in enumerate(numbers.decimals().tolist()):
        if number.is_finite():
            scales[i] = scale_of(number)
        else:
            kinds["NaN" if number.is_nan() else str(number)][i] = True
            units[i] = None
    valid = column.mask()
    scales[~valid] = 0
    widest = int(scales.max(initial=0))
    for i, number in enumerate(numbers.decimals().tolist()):
        units[i] = 0 if units[i] is None else int(number.scaleb(widest, EXACT))
    counts = _totals(valid, frames)
    totals = _totals(units, frames)
    shown = np.zeros(n, np.int64)
    for scale in np.unique(scales[valid]).tolist():
        shown = np.where(_totals(valid & (scales == scale), frames) > 0, scale, shown)
    found = {text: _totals(mask & valid, frames) > 0 for text, mask in kinds.items()}
    found["NaN"] |= found["Infinity"] & found["-Infinity"]
    texts: list[str | None] = []
    for i, (total, count) in enumerate(zip(totals.tolist(), counts.tolist(), strict=True)):
        special = next((text for text, where in found.items() if where[i]), None)
        scale = int(shown[i])
        if count == 0:
            texts.append(None)
        elif special is not None:
            texts.append(special)
        elif name == "sum":
            texts.append(fixed_text(total // 10 ** (widest - scale), scale))
        else:
            texts.append(average_text(total // 10 ** (widest - scale), scale, count))
    return Column.of(KIND_BYTES, texts), RowErrors()


def _float_sums(type: SqlType) -> Callable[[Column, Frames], Answer]:
    is_single = type.kind is TypeKind.FLOAT4

    def compute(column: Column, frames: Frames) -> Answer:
        sums, counts, failed = sum_floats(
            column.values, column.mask(), frames.low, frames.high, is_single
        )
        return _masked(sums, counts), _overflowed(failed)

    return compute


def _average_of_floats(column: Column, frames: Frames) -> Answer:
    found, counts, failed = average_floats(column.values, column.mask(), frames.low, frames.high)
    return _masked(found, counts), _overflowed(failed)


def _overflowed(failed: np.ndarray) -> RowErrors:
    return RowErrors({int(row): _OVERFLOW for row in np.flatnonzero(failed)})
