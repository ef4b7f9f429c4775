"""The frame of each row of a window, as ranges of positions in the sequence.

A frame is one range, or up to three where EXCLUDE cuts it: what lies before, the row itself, what
lies behind. Invariant: both ends of a range never fall from row to row, so that functions may walk
along with them. The bounds of RANGE with a distance are found natively over integers, dates and
times; over anything else PostgreSQL finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dataflow.delta import Column
from dataflow.expressions.evaluator import Evaluator, RowErrors
from dataflow.expressions.intervals import parse_interval
from dataflow.expressions.ir import Literal
from dataflow.operators.row_order import Order
from dataflow.operators.window_kernels import range_ends
from dataflow.operators.window_rows import WindowRows
from dataflow.sql.plan import Frame, FrameBound
from dataflow.types import FIXED_NAN, INT8, SqlType, TypeKind

_INTS = (TypeKind.INT2, TypeKind.INT4, TypeKind.INT8)
_STAMPS = (TypeKind.TIMESTAMP, TypeKind.TIMESTAMPTZ)
_DAY_US = 86_400_000_000
# Times further out may leave PostgreSQL's range when a distance is added: it decides.
_FAR_US = 2**62
_NO_EXCLUSION = ""


@dataclass(frozen=True)
class Frames:
    """low, high int64[pieces, n]: piece by piece the positions low <= p < high of each frame."""

    low: np.ndarray
    high: np.ndarray

    @property
    def counts(self) -> np.ndarray:
        """int64[n]: rows in each frame."""
        return (self.high - self.low).sum(axis=0)


class FrameFinder:
    """Finds the frames of one Frame. order: of the window, RANGE with distances has one part."""

    def __init__(self, frame: Frame, order: Sequence[Order], evaluator: Evaluator) -> None:
        self._frame = frame
        self._order = tuple(order)
        self._evaluator = evaluator

    def find(self, rows: WindowRows) -> tuple[Frames, RowErrors]:
        """The frames of all rows, and the rows whose frame PostgreSQL refuses to give."""
        errors = RowErrors()
        frame = self._frame
        has_distance = frame.start.distance is not None or frame.end.distance is not None
        if frame.mode == "range" and has_distance:
            low, high, errors = self._by_value(rows)
        else:
            low, high = _low(frame, rows), _high(frame, rows)
        high = np.maximum(high, low)
        return _excluded(frame.exclude, low, high, rows), errors

    def _by_value(self, rows: WindowRows) -> tuple[np.ndarray, np.ndarray, RowErrors]:
        """RANGE with a distance."""
        frame, order = self._frame, self._order[0]
        column = rows.columns[order.column]
        units = _units(order.type, column)
        distances = [_distance(order.type, b.distance) for b in (frame.start, frame.end)]
        if units is None or None in distances:
            return self._in_postgres(rows)
        values = ~units if order.is_descending else units
        # NULLs stand at one end of the partition, and are each other's peers.
        null = ~column.mask()
        nulls = np.concatenate([[0], np.cumsum(null)])
        count = nulls[rows.end] - nulls[rows.begin]
        first = rows.begin + (count if order.nulls_first else 0)
        last = rows.end - (0 if order.nulls_first else count)
        low, high = _low(frame, rows), _high(frame, rows)
        if frame.start.distance is not None:
            ends = range_ends(values, first, last, _signed(frame.start, distances[0]), True)
            low = np.where(null, rows.peer_begin, ends)
        if frame.end.distance is not None:
            ends = range_ends(values, first, last, _signed(frame.end, distances[1]), False)
            high = np.where(null, rows.peer_end, ends)
        return low, high, RowErrors()

    def _in_postgres(self, rows: WindowRows) -> tuple[np.ndarray, np.ndarray, RowErrors]:
        """The first and last row of each frame, asked of PostgreSQL; peers are whole."""
        order = self._order[0]
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
        low = np.where(empty, high, low)
        return low, high, of_partitions(failed, rows)


def of_partitions(failed: RowErrors, rows: WindowRows) -> RowErrors:
    """The errors of partitions as errors of all their rows."""
    errors = RowErrors()
    for partition, error in failed.by_row.items():
        for row in np.flatnonzero(rows.partition == partition).tolist():
            errors.add(row, *error)
    return errors


def order_text(order: Order, column: str) -> str:
    """One part of an ORDER BY in SQL."""
    word = "DESC" if order.is_descending else "ASC"
    if order.operator:
        word = f"USING {order.operator}"
    return f"{column} {word} NULLS {'FIRST' if order.nulls_first else 'LAST'}"


def bound_text(bound: FrameBound) -> str:
    """A frame's bound in SQL."""
    distance = f"{literal_text(bound.distance)} " if bound.distance is not None else ""
    return distance + bound.kind.upper()


def literal_text(literal: Literal) -> str:
    """A constant in SQL."""
    if literal.text is None:
        return f"CAST(NULL AS {literal.type.name})"
    quoted = literal.text.replace("'", "''")
    return f"CAST('{quoted}' AS {literal.type.name})"


def _signed(bound: FrameBound, distance: int | None) -> int:
    """A distance as what is added to the row's value."""
    return -(distance or 0) if bound.kind == "preceding" else distance or 0


def _units(type: SqlType, column: Column) -> np.ndarray | None:
    """int64[n]: the values as integers that distances add to; None where PostgreSQL must look."""
    values = column.values
    if type.kind in _INTS:
        return values
    if type.kind is TypeKind.FIXED:
        return None if (values == FIXED_NAN).any() else values
    if type.kind in _STAMPS or type.kind is TypeKind.DATE:
        us = values
        if type.kind is TypeKind.DATE:
            if len(values) and int(np.abs(values).max()) > _FAR_US // _DAY_US:
                return None
            us = values * _DAY_US
        return None if len(us) and (us.max() > _FAR_US or us.min() < -_FAR_US) else us
    return None


def _distance(type: SqlType, distance: Literal | None) -> int | None:
    """A distance in the units of `_units`, 0 where there is none; None: PostgreSQL must look."""
    if distance is None:
        return 0
    text = str(distance.text)
    if type.kind in _INTS and distance.type.kind in _INTS:
        return int(text) if int(text) >= 0 else None
    if type.kind is TypeKind.FIXED and distance.type.kind in _INTS:
        units = int(text) * 10**type.scale
        return units if 0 <= units < 2**62 else None
    if distance.type.kind is not TypeKind.INTERVAL:
        return None
    parts = parse_interval(text.encode())
    if parts is None or parts[0]:
        # Months are of different lengths.
        return None
    us = parts[1] * _DAY_US + parts[2]
    return us if 0 <= us < _FAR_US else None


def _low(frame: Frame, rows: WindowRows) -> np.ndarray:
    """Where each frame begins, RANGE with a distance left out."""
    kind = frame.start.kind
    if kind == "unbounded preceding":
        return rows.begin
    if kind == "current row":
        return rows.position if frame.mode == "rows" else rows.peer_begin
    if frame.start.distance is None or frame.mode == "range":
        return rows.begin
    steps = _steps(frame.start, rows)
    if frame.mode == "rows":
        return np.clip(rows.position + steps, rows.begin, rows.end)
    return _group_ends(rows, steps)[0]


def _high(frame: Frame, rows: WindowRows) -> np.ndarray:
    """Behind the last row of each frame, RANGE with a distance left out."""
    kind = frame.end.kind
    if kind == "unbounded following":
        return rows.end
    if kind == "current row":
        return rows.position + 1 if frame.mode == "rows" else rows.peer_end
    if frame.end.distance is None or frame.mode == "range":
        return rows.end
    steps = _steps(frame.end, rows)
    if frame.mode == "rows":
        return np.clip(rows.position + steps + 1, rows.begin, rows.end)
    return _group_ends(rows, steps)[1]


def _steps(bound: FrameBound, rows: WindowRows) -> int:
    assert bound.distance is not None
    distance = min(int(str(bound.distance.text)), len(rows))
    return -distance if bound.kind == "preceding" else distance


def _group_ends(rows: WindowRows, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Begin and end of the peer group that many groups further on; beyond the partition, both its
    nearer end."""
    if len(rows) == 0:
        return rows.begin, rows.end
    is_first = rows.peer_begin == rows.position
    group = np.cumsum(is_first) - 1
    begins = np.flatnonzero(is_first)
    ends = np.append(begins[1:], len(rows))
    wanted = group + steps
    first, last = group[rows.begin], group[rows.end - 1]
    within = np.clip(wanted, 0, len(begins) - 1)
    low = np.where(wanted < first, rows.begin, np.where(wanted > last, rows.end, begins[within]))
    high = np.where(wanted < first, rows.begin, np.where(wanted > last, rows.end, ends[within]))
    return low, high


def _excluded(exclude: str, low: np.ndarray, high: np.ndarray, rows: WindowRows) -> Frames:
    if exclude == _NO_EXCLUSION:
        return Frames(low[None, :], high[None, :])
    position = rows.position
    first, last = rows.peer_begin, rows.peer_end
    if exclude == "current row":
        first, last = position, position + 1
    before = np.clip(first, low, high)
    behind = np.clip(last, low, high)
    lows, highs = [low, behind], [before, high]
    if exclude == "ties":
        lows.insert(1, np.clip(position, low, high))
        highs.insert(1, np.clip(position + 1, low, high))
    return Frames(np.stack(lows), np.stack(highs))
