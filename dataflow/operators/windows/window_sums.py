"""Aggregates over frames that have a kernel: count, sum, avg, min, max, bool_and, bool_or.

Sums of integers, fixed point and numeric are exact, by differences of running sums; numeric shows
the greatest scale in the frame, as PostgreSQL does. Floats are added in the order of the frame, in
PostgreSQL's own steps. Of equal extremes the last of the frame is shown, as by int4larger and
similar functions. Arguments are NULL where FILTER does not hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tidemark_native.windows import average_floats, best_rows, sum_floats

from dataflow.delta import KIND_BYTES, Column
from dataflow.expressions.evaluator import Evaluator, RowErrors
from dataflow.expressions.numbers import Numbers, scale_of
from dataflow.long_integers import units_of
from dataflow.operators.aggregates.numeric_results import (
    Masks,
    average_column,
    average_text,
    fixed_text,
    sum_column,
)
from dataflow.operators.filter import is_true
from dataflow.operators.ordered.ordering import peer_ranks
from dataflow.operators.windows.window_frames import Frames
from dataflow.operators.windows.window_rows import WindowRows
from dataflow.operators.windows.window_values import Answer, argument_column, as_type, pick
from dataflow.plan.nodes import WindowCall
from dataflow.types import FIXED_NAN, SqlType, TypeKind
from dataflow.values import one_nan

Compute = Callable[[WindowRows, Frames], Answer]
_SMALL = (TypeKind.INT2, TypeKind.INT4)
_FLOATS = (TypeKind.FLOAT4, TypeKind.FLOAT8)
_LOW = 0xFFFFFFFF
_OVERFLOW = ("22003", "value out of range: overflow")
NAN, PLUS_INFINITY, MINUS_INFINITY = 1, 2, 4


@dataclass(frozen=True)
class LinearCall:
    """A call whose value follows from sums of integers.

    measures: what each row adds to `width` sums; finish: the values, from the sums.
    """

    width: int
    measures: Callable[[WindowRows], list[np.ndarray]]
    finish: Callable[[list[np.ndarray]], Column]


def frame_aggregate(call: WindowCall, evaluator: Evaluator) -> Compute:
    """Return how to compute an aggregate that has a kernel (see dataflow.plan.window_functions)."""
    linear = linear_call(call)
    if linear is not None:
        return lambda rows, frames: (
            linear.finish([_totals(m, frames) for m in linear.measures(rows)]),
            RowErrors(),
        )
    name, argument = call.function, call.arguments[0]
    type = argument.type
    if name in ("min", "max"):
        how = (name, type, call.field.type, evaluator)
        return lambda rows, frames: _extremes(how, argument_column(argument, rows), frames)
    sums = _sums_of(name, type)
    return lambda rows, frames: sums(argument_column(argument, rows), frames)


def linear_call(call: WindowCall) -> LinearCall | None:
    """count, bool_and, bool_or, and sum and avg of integers and fixed point; None for others."""
    name = call.function
    if name == "count":
        return LinearCall(1, lambda rows: [_counted(call, rows)], lambda sums: Column(sums[0]))
    argument = call.arguments[0]
    type = argument.type
    if type.kind is TypeKind.BOOL and name not in ("min", "max"):
        return LinearCall(
            2, lambda rows: _held(argument_column(argument, rows)), lambda s: _verdicts(name, s)
        )
    if name not in ("sum", "avg"):
        return None
    if type.kind in _SMALL and name == "sum":
        return LinearCall(
            2, lambda rows: _small(argument_column(argument, rows)), lambda s: _masked(s[0], s[1])
        )
    if type.kind in (*_SMALL, TypeKind.INT8, TypeKind.FIXED):
        return LinearCall(
            4,
            lambda rows: _limbs(type, argument_column(argument, rows)),
            lambda sums: _of_limbs(name, type, sums),
        )
    return None


def _counted(call: WindowCall, rows: WindowRows) -> np.ndarray:
    """Return bool[n]: the rows that count."""
    if call.arguments:
        return argument_column(call.arguments[0], rows).mask()
    if call.filter is not None:
        return is_true(argument_column(call.filter, rows))
    return np.ones(len(rows), np.bool_)


def running_sums(values: np.ndarray) -> np.ndarray:
    """Return the sum of the values before each position, [n + 1], in numpy's type for the sum."""
    kind = np.int64 if values.dtype == np.bool_ else values.dtype
    running = np.zeros(len(values) + 1, kind)
    running[1:] = np.cumsum(values, dtype=kind)
    return running


def _totals(values: np.ndarray, frames: Frames) -> np.ndarray:
    """Return the sum of values over each frame."""
    running = running_sums(values)
    return (running[frames.high] - running[frames.low]).sum(axis=0)


def _masked(values: np.ndarray, counts: np.ndarray) -> Column:
    """Values, NULL where nothing was counted."""
    valid = counts > 0
    if valid.all():
        return Column(values)
    return Column(np.where(valid, values, np.zeros(1, values.dtype)), valid)


def _held(column: Column) -> list[np.ndarray]:
    return [is_true(column), column.mask()]


def _verdicts(name: str, sums: list[np.ndarray]) -> Column:
    held, counts = sums
    return _masked(held > 0 if name == "bool_or" else held == counts, counts)


def _small(column: Column) -> list[np.ndarray]:
    return [column.values, column.mask()]


def _limbs(type: SqlType, column: Column) -> list[np.ndarray]:
    """Low and high half, count, and NaN of each row."""
    values, nan = column.values, np.zeros(len(column), np.bool_)
    if type.kind is TypeKind.FIXED:
        nan = values == FIXED_NAN
        values = np.where(nan, 0, values)
    return [values & _LOW, values >> 32, column.mask(), nan]


def _of_limbs(name: str, type: SqlType, sums: list[np.ndarray]) -> Column:
    """numeric sums and averages of integers or fixed point."""
    low, high, counts, nans = sums
    masks = Masks(counts > 0, nans > 0)
    if name == "sum":
        return sum_column((low, high), type.scale, type.scale, masks)
    return average_column((low, high), counts, type.scale, type.scale, masks)


def _extremes(
    how: tuple[str, SqlType, SqlType, Evaluator], column: Column, frames: Frames
) -> Answer:
    name, type, result, evaluator = how
    positions = ranks_of(name, type, column, evaluator)
    valid = column.mask()
    best = np.full(len(column), -1, np.int64)
    for low, high in zip(frames.low, frames.high, strict=True):
        found = best_rows(positions, valid, low, high)
        wins = (found >= 0) & ((best < 0) | (positions[found] >= positions[best]))
        best = np.where(wins, found, best)
    return as_type(type, pick(column, best), result), RowErrors()


def ranks_of(name: str, type: SqlType, column: Column, evaluator: Evaluator) -> np.ndarray:
    """Return int64[n] ranks: the "min" or "max" is the value of the greatest rank."""
    positions = np.zeros(len(column), np.int64)
    present = np.flatnonzero(column.mask())
    if len(present):
        positions[present] = peer_ranks(type, column.take(present), evaluator)
    return ~positions if name == "min" else positions


def _sums_of(name: str, type: SqlType) -> Callable[[Column, Frames], Answer]:
    if type.kind in _FLOATS:
        return _average_of_floats if name == "avg" else _float_sums(type)
    return lambda column, frames: _of_decimals(name, column, frames)


@dataclass(frozen=True)
class Decimals:
    """n numerics: integers at their own scale, 0 for NULL; flag of NaN or an infinity."""

    units: list[int]
    scales: np.ndarray
    flags: np.ndarray


def decimals_of(column: Column) -> Decimals:
    """Return the numbers of a column of numeric text."""
    n = len(column)
    units, scales, flags = [0] * n, np.zeros(n, np.int64), np.zeros(n, np.int64)
    numbers = Numbers.of_text(column).decimals()
    for i in np.flatnonzero(column.mask()).tolist():
        number = numbers[i]
        if number.is_finite():
            scales[i] = scale_of(number)
            units[i] = units_of(number, int(scales[i]))
        elif number.is_nan():
            flags[i] = NAN
        else:
            flags[i] = PLUS_INFINITY if number > 0 else MINUS_INFINITY
    return Decimals(units, scales, flags)


def decimal_text(name: str, total: tuple[int, int], count: int, flags: int) -> str | None:
    """Return sum or avg as PostgreSQL prints it. total: units and display scale; flags:
    those present."""
    if count == 0:
        return None
    if flags & NAN or flags == PLUS_INFINITY | MINUS_INFINITY:
        return "NaN"
    if flags:
        return "Infinity" if flags == PLUS_INFINITY else "-Infinity"
    return fixed_text(*total) if name == "sum" else average_text(*total, count)


def _of_decimals(name: str, column: Column, frames: Frames) -> Answer:
    """numeric sums and averages of numeric without a fixed scale."""
    numbers, valid = decimals_of(column), column.mask()
    widest = int(numbers.scales.max(initial=0))
    units = np.empty(len(column), object)
    for i, (own, scale) in enumerate(zip(numbers.units, numbers.scales.tolist(), strict=True)):
        units[i] = own * 10 ** (widest - scale)
    counts, totals = _totals(valid, frames), _totals(units, frames)
    shown = np.zeros(len(column), np.int64)
    for scale in np.unique(numbers.scales).tolist():
        shown = np.where(_totals(valid & (numbers.scales == scale), frames) > 0, scale, shown)
    flags = np.zeros(len(column), np.int64)
    for flag in (NAN, PLUS_INFINITY, MINUS_INFINITY):
        flags |= np.where(_totals(numbers.flags == flag, frames) > 0, flag, 0)
    rows = zip(totals.tolist(), shown.tolist(), counts.tolist(), flags.tolist(), strict=True)
    texts = [
        decimal_text(name, (total // 10 ** (widest - scale), scale), count, flag)
        for total, scale, count, flag in rows
    ]
    return Column.of(KIND_BYTES, texts), RowErrors()


def _float_sums(type: SqlType) -> Callable[[Column, Frames], Answer]:
    is_single = type.kind is TypeKind.FLOAT4

    def compute(column: Column, frames: Frames) -> Answer:
        sums, counts, failed = sum_floats(
            column.values, column.mask(), frames.low, frames.high, is_single
        )
        return _masked(one_nan(sums), counts), overflowed(failed)

    return compute


def _average_of_floats(column: Column, frames: Frames) -> Answer:
    found, counts, failed = average_floats(column.values, column.mask(), frames.low, frames.high)
    return _masked(one_nan(found), counts), overflowed(failed)


def overflowed(failed: np.ndarray) -> RowErrors:
    """Return the errors of sums beyond the range of floats."""
    return RowErrors({int(row): _OVERFLOW for row in np.flatnonzero(failed)})
