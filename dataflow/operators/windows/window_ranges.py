"""RANGE frames with a distance: their bounds by the value of the one part of ORDER BY.

Natively over integers, fixed point, dates and times (distances without months); over anything else
PostgreSQL finds them. Source: the in_range functions (int.c, timestamp.c, date.c, numeric.c).
Invariant: a bound with a distance of a row that is NULL, NaN or infinite is its peers. A bound
beyond the range of times is an error of its row only.
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np
from tidemark_native.windows import range_ends

from dataflow.delta import Column
from dataflow.expressions.evaluator import Evaluator, RowErrors
from dataflow.expressions.intervals import parse_interval
from dataflow.expressions.ir import Literal
from dataflow.operators.ordered.row_order import Order
from dataflow.operators.windows.window_rows import WindowRows
from dataflow.operators.windows.window_text import bound_text, of_partitions, order_text
from dataflow.plan.nodes import Frame, FrameBound
from dataflow.types import FIXED_NAN, INT8, SqlType, TypeKind

_INTS = (TypeKind.INT2, TypeKind.INT4, TypeKind.INT8)
_STAMPS = (TypeKind.TIMESTAMP, TypeKind.TIMESTAMPTZ)
_INT_MAX, _INT_MIN = np.int64(2**63 - 1), np.int64(-(2**63))
_DATE_MAX, _DATE_MIN = 2**31 - 1, -(2**31)
_DAY_US = 86_400_000_000
# The range of PostgreSQL's timestamps, and the first date beyond them.
_LEAST_US, _END_US = -211_813_488_000_000_000, 9_223_371_331_200_000_000
_END_DAYS = 106_751_983
_LARGEST = 2**62
_BAD_STAMP = ("22008", "timestamp out of range")
_BAD_DATE = ("22008", "date out of range for timestamp")

Bounds = tuple[np.ndarray, np.ndarray, RowErrors]


def has_distance(frame: Frame) -> bool:
    """Return whether a bound has a distance."""
    return frame.start.distance is not None or frame.end.distance is not None


def is_native_range(frame: Frame, type: SqlType) -> bool:
    """Return whether a RANGE frame over values of a type needs no query to PostgreSQL."""
    bounds = (frame.start, frame.end)
    return all(b.distance is None or _distance(type, b.distance) is not None for b in bounds)


class RangeFinder:
    """Finds the bounds of one RANGE frame over one order."""

    def __init__(self, frame: Frame, order: Order, evaluator: Evaluator) -> None:
        self._frame = frame
        self._order = order
        self._evaluator = evaluator
        self._is_native = is_native_range(frame, order.type)

    def find(self, rows: WindowRows, low: np.ndarray, high: np.ndarray) -> Bounds:
        """Return the bounds of all rows; low and high: those of bounds without a distance."""
        if not self._is_native:
            return self._in_postgres(rows)
        frame, order = self._frame, self._order
        column = rows.columns[order.column]
        units, special, errors = _units(order.type, column)
        null = ~column.mask()
        # NULLs are at one end of the partition.
        nulls = np.concatenate([[0], np.cumsum(null)])
        count = nulls[rows.end] - nulls[rows.begin]
        first = rows.begin + (count if order.nulls_first else 0)
        last = rows.end - (0 if order.nulls_first else count)
        own = null | special
        ends = []
        for bound, is_low in ((frame.start, True), (frame.end, False)):
            if bound.distance is None:
                ends.append(low if is_low else high)
                continue
            distance = _signed(bound, order)
            found = range_ends(_directed(units, order), first, last, distance, is_low)
            ends.append(np.where(own, rows.peer_begin if is_low else rows.peer_end, found))
            if order.type.kind not in (*_INTS, TypeKind.FIXED):
                _check_stamps(units, -distance if order.is_descending else distance, own, errors)
        return ends[0], ends[1], errors

    def _in_postgres(self, rows: WindowRows) -> Bounds:
        """Return the first and last row of each frame, computed by PostgreSQL; peer groups are
        whole."""
        order = self._order
        window = (
            f"PARTITION BY g ORDER BY {order_text(order, '$2')} "
            f"RANGE BETWEEN {bound_text(self._frame.start)} AND {bound_text(self._frame.end)}"
        )
        _, (at, first, last), failed = self._evaluator.evaluate_groups(
            "SELECT tidemark_row.g, $1 AS at, first_value($1) OVER w AS first, "
            f"last_value($1) OVER w AS last FROM tidemark_row WINDOW w AS ({window})",
            (INT8, order.type),
            (Column(rows.position), rows.columns[order.column]),
            rows.partition,
            (INT8, INT8, INT8),
        )
        low, high = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        found = first.mask()
        low[at.values[found]] = rows.peer_begin[first.values[found]]
        high[at.values[found]] = rows.peer_end[last.values[found]]
        high = np.maximum.accumulate(high)
        empty = np.ones(len(rows), np.bool_)
        empty[at.values[found]] = False
        return np.where(empty, high, low), high, of_partitions(failed, rows)


def _directed(units: np.ndarray, order: Order) -> np.ndarray:
    """Return units that increase in the direction of the order."""
    return ~units if order.is_descending else units


def _signed(bound: FrameBound, order: Order) -> int:
    """Return a distance as an addend to the row's value, in the direction of the order."""
    distance = _distance(order.type, bound.distance) if bound.distance is not None else 0
    return -(distance or 0) if bound.kind == "preceding" else distance or 0


def _units(type: SqlType, column: Column) -> tuple[np.ndarray, np.ndarray, RowErrors]:
    """Return (int64[n] values that distances add to, bool[n] NaN or infinite, rows out of
    range)."""
    values, errors = column.values, RowErrors()
    if type.kind in _INTS:
        return values, np.zeros(len(values), np.bool_), errors
    if type.kind is TypeKind.FIXED:
        return values, values == FIXED_NAN, errors
    if type.kind in _STAMPS:
        return values, (values == _INT_MAX) | (values == _INT_MIN), errors
    special = (values == _DATE_MAX) | (values == _DATE_MIN)
    beyond = ~special & (values >= _END_DAYS)
    for row in np.flatnonzero(beyond).tolist():
        errors.add(row, *_BAD_DATE)
    us = np.where(special | beyond, 0, values) * _DAY_US
    us = np.where(beyond, _INT_MAX - 1, us)
    return np.where(special, np.where(values > 0, _INT_MAX, _INT_MIN), us), special, errors


def _check_stamps(units: np.ndarray, distance: int, own: np.ndarray, errors: RowErrors) -> None:
    """Record the rows whose bound is outside PostgreSQL's range of times."""
    beyond = (units >= _END_US - distance) if distance > 0 else (units < _LEAST_US - distance)
    for row in np.flatnonzero(beyond & ~own).tolist():
        errors.add(row, *_BAD_STAMP)


def _distance(type: SqlType, distance: Literal) -> int | None:
    """Return a distance in the units of `_units`; None: PostgreSQL must compute it."""
    text, kind = str(distance.text), distance.type.kind
    if type.kind in _INTS and kind in _INTS:
        return int(text) if int(text) >= 0 else None
    if type.kind is TypeKind.FIXED and kind in (*_INTS, TypeKind.FIXED, TypeKind.DECIMAL):
        units = Decimal(text).scaleb(type.scale)
        is_whole = units.is_finite() and units == units.to_integral_value()
        return int(units) if is_whole and 0 <= units < _LARGEST else None
    if type.kind not in (*_STAMPS, TypeKind.DATE) or kind is not TypeKind.INTERVAL:
        return None
    parts = parse_interval(text.encode())
    if parts is None or parts[0]:
        # Months differ in length.
        return None
    us = parts[1] * _DAY_US + parts[2]
    return us if 0 <= us < _LARGEST else None
