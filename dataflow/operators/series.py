"""generate_series over whole columns: the rows of each start, stop and step.

Invariant: the same values in the same order as PostgreSQL's generate_series_step_int8 (int8.c) and
generate_series_timestamp (timestamp.c). Rows that it refuses, or whose numbers may overflow, and
steps that depend on the calendar are left to PostgreSQL: months, and days of a time zone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dataflow.delta import Column
from dataflow.expressions.intervals import DAY_US, parts_of
from dataflow.expressions.stamps import FIRST_STAMP
from dataflow.plan.nodes import SetCall
from dataflow.types import TypeKind

# Of two numbers below it neither sum nor difference overflows.
_FAR = 1 << 61


@dataclass(frozen=True)
class Made:
    """m values: int64[m] the input row of each, in order; its number from 1 within that row.

    doubtful bool[n]: the input rows that PostgreSQL must compute, which have no values here.
    """

    rows: np.ndarray
    values: np.ndarray
    numbers: np.ndarray
    doubtful: np.ndarray


def make_series(call: SetCall, columns: Sequence[Column], require: Callable[[int], None]) -> Made:
    """Return the series of n rows; columns: the call's arguments.

    require: raises an error if so many rows cannot be made.
    """
    start, stop = (c.values for c in columns[:2])
    step, doubtful = _steps(call, columns)
    for values in (start, stop, step):
        doubtful = doubtful | (values <= -_FAR) | (values >= _FAR)
    doubtful |= step == 0
    if call.arguments[0].type.kind not in (TypeKind.INT4, TypeKind.INT8):
        # PostgreSQL computes one value more than it returns.
        doubtful |= np.minimum(start, stop) < FIRST_STAMP - np.minimum(step, 0)
    masks = [c.mask() for c in columns]
    valid = np.logical_and.reduce(masks)
    is_made = valid & ~doubtful
    size = np.where(is_made, np.abs(step), 1)
    way = np.where(is_made, stop - start, -1) * np.where(step < 0, -1, 1)
    counts = np.where(is_made & (way >= 0), way // size + 1, 0)
    require(int(counts.astype(np.float64).sum()))
    rows = np.repeat(np.arange(len(start)), counts)
    first = np.cumsum(counts) - counts
    offset = np.arange(len(rows)) - first[rows]
    return Made(rows, start[rows] + offset * step[rows], offset + 1, valid & doubtful)


def _steps(call: SetCall, columns: Sequence[Column]) -> tuple[np.ndarray, np.ndarray]:
    """Return int64[n] steps, and which are doubtful."""
    n = len(columns[0])
    if len(columns) == 2:
        return np.ones(n, np.int64), np.zeros(n, np.bool_)
    if call.arguments[2].type.kind is not TypeKind.INTERVAL:
        return columns[2].values, np.zeros(n, np.bool_)
    months, days, micros, finite = parts_of(columns[2])
    is_near = finite & (months == 0) & (micros > -_FAR) & (micros < _FAR)
    max_days = 1 if call.arguments[0].type.kind is TypeKind.TIMESTAMPTZ else _FAR // DAY_US
    is_near &= (days > -max_days) & (days < max_days)
    return np.where(is_near, days * DAY_US + micros, 1), ~is_near
