"""Window functions that number rows or pick one: they use positions only, so any type works.

Source: windowfuncs.c. Invariant: numbers depend on the sequence alone; a picked value is the
picked row's own, in the result's form.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tidemark_native.windows import tiles

from dataflow.delta import KIND_BYTES, Column
from dataflow.errors import InvariantError
from dataflow.expressions.evaluator import RowErrors
from dataflow.expressions.ir import ColumnRef, Expression, Literal
from dataflow.operators.windows.window_frames import Frames
from dataflow.operators.windows.window_rows import WindowRows
from dataflow.plan.nodes import WindowCall
from dataflow.types import INT4, SqlType
from dataflow.values import from_text, to_text

Answer = tuple[Column, RowErrors]
_BAD_NTILE = ("22014", "argument of ntile must be greater than zero")
_BAD_NTH = ("22016", "argument of nth_value must be greater than zero")


def as_type(type: SqlType, column: Column, result: SqlType) -> Column:
    """Return the same values in the form of the result's type: numeric(p,s) as plain numeric."""
    if type.kind is result.kind and type.scale == result.scale:
        return column
    return from_text(result, to_text(type, column))


def pick(column: Column, rows: np.ndarray) -> Column:
    """Return the values at int64 positions, NULL at -1."""
    if len(rows) == 0 or int(rows.min()) >= 0:
        return column.take(rows)
    pool = Column.concat([column, Column.nulls(column.kind, 1)])
    return pool.take(np.where(rows < 0, len(column), rows))


def argument_column(argument: Expression, rows: WindowRows) -> Column:
    """Return an argument's value for each row."""
    if isinstance(argument, ColumnRef):
        return rows.columns[argument.index]
    if not isinstance(argument, Literal):
        raise InvariantError("plan.window", f"an argument is not a plain column: {argument}")
    one = from_text(argument.type, Column.of(KIND_BYTES, [argument.text]))
    return one.take(np.zeros(len(rows), np.int64))


def numbering(call: WindowCall) -> Callable[[WindowRows], Answer]:
    """row_number, rank, dense_rank, percent_rank, cume_dist, ntile."""
    if call.function == "ntile":
        return lambda rows: _ntile(argument_column(call.arguments[0], rows), rows)
    numbers = _NUMBERS[call.function]
    return lambda rows: (Column(numbers(rows)), RowErrors())


def _dense_rank(rows: WindowRows) -> np.ndarray:
    group = np.cumsum(rows.peer_begin == rows.position)
    return group - group[rows.begin] + 1


def _percent_rank(rows: WindowRows) -> np.ndarray:
    others = rows.end - rows.begin - 1
    return np.where(others > 0, (rows.peer_begin - rows.begin) / np.maximum(others, 1), 0.0)


_NUMBERS: dict[str, Callable[[WindowRows], np.ndarray]] = {
    "row_number": lambda rows: rows.position - rows.begin + 1,
    "rank": lambda rows: rows.peer_begin - rows.begin + 1,
    "dense_rank": _dense_rank,
    "percent_rank": _percent_rank,
    "cume_dist": lambda rows: (rows.peer_end - rows.begin) / (rows.end - rows.begin),
}


def _ntile(buckets: Column, rows: WindowRows) -> Answer:
    found, failed = tiles(rows.begin, rows.end, buckets.values, buckets.mask())
    valid = found > 0
    return Column(found, None if valid.all() else valid), _errors(failed, _BAD_NTILE)


def shifting(call: WindowCall) -> Callable[[WindowRows], Answer]:
    """lag and lead, with offset and default."""
    direction = -1 if call.function == "lag" else 1
    value, result = call.arguments[0], call.field.type
    offset = call.arguments[1] if len(call.arguments) > 1 else Literal("1", INT4)
    default = call.arguments[2] if len(call.arguments) > 2 else None

    def compute(rows: WindowRows) -> Answer:
        steps = argument_column(offset, rows)
        at = rows.position + direction * steps.values
        within = (at >= rows.begin) & (at < rows.end)
        known = steps.mask()
        column = as_type(value.type, argument_column(value, rows), result)
        if default is None:
            return pick(column, np.where(within & known, at, -1)), RowErrors()
        others = as_type(default.type, argument_column(default, rows), result)
        pool = Column.concat([column, others])
        position = np.where(within, at, rows.position + len(rows))
        return pick(pool, np.where(known, position, -1)), RowErrors()

    return compute


def picking(call: WindowCall) -> Callable[[WindowRows, Frames], Answer]:
    """first_value, last_value, nth_value."""
    value, result = call.arguments[0], call.field.type

    def compute(rows: WindowRows, frames: Frames) -> Answer:
        errors = RowErrors()
        counts = frames.counts
        if call.function == "first_value":
            number = np.zeros(len(rows), np.int64)
        elif call.function == "last_value":
            number = counts - 1
        else:
            nth = argument_column(call.arguments[1], rows)
            number = np.where(nth.mask(), nth.values - 1, counts)
            errors = _errors(nth.mask() & (nth.values <= 0), _BAD_NTH)
        at = np.where((number >= 0) & (number < counts), _at(frames, number), -1)
        column = as_type(value.type, argument_column(value, rows), result)
        return pick(column, at), errors

    return compute


def _at(frames: Frames, number: np.ndarray) -> np.ndarray:
    """Return the positions of each frame's row of a number from 0 on, which it has."""
    out = np.full(len(number), -1, np.int64)
    rest = number.copy()
    for low, high in zip(frames.low, frames.high, strict=True):
        here = (out < 0) & (rest < high - low)
        out = np.where(here, low + rest, out)
        rest = rest - (high - low)
    return out


def _errors(failed: np.ndarray, error: tuple[str, str]) -> RowErrors:
    return RowErrors({int(row): error for row in np.flatnonzero(failed)})
