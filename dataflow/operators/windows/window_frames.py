"""The frame of each row of a window, as ranges of positions in the sequence.

A frame is one range, or up to three where EXCLUDE cuts it: the rows before, the row itself, the
rows after. Invariant: both ends of a range never decrease from row to row, so that functions can
advance with them. Bounds of RANGE with a distance are found in window_ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dataflow.expressions.evaluator import Evaluator, RowErrors
from dataflow.operators.ordered.row_order import Order
from dataflow.operators.windows.window_ranges import RangeFinder, has_distance
from dataflow.operators.windows.window_rows import WindowRows
from dataflow.plan.nodes import Frame, FrameBound

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
        self._by_value = None
        if frame.mode == "range" and has_distance(frame):
            self._by_value = RangeFinder(frame, order[0], evaluator)

    def find(self, rows: WindowRows) -> tuple[Frames, RowErrors]:
        """Return the frames of all rows, and the rows whose frame is an error in PostgreSQL."""
        errors, frame = RowErrors(), self._frame
        low, high = _low(frame, rows), _high(frame, rows)
        if self._by_value is not None:
            low, high, errors = self._by_value.find(rows, low, high)
        return _excluded(frame.exclude, low, np.maximum(high, low), rows), errors


def _low(frame: Frame, rows: WindowRows) -> np.ndarray:
    """Return where each frame begins, except RANGE with a distance."""
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
    """Return the position after the last row of each frame, except RANGE with a distance."""
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
    """Return begin and end of the peer group at that distance in groups; beyond the partition, both
    are its nearer end."""
    if len(rows) == 0:
        return rows.begin, rows.end
    is_first = rows.peer_begin == rows.position
    group = np.cumsum(is_first) - 1
    begins = np.flatnonzero(is_first)
    ends = np.append(begins[1:], len(rows))
    required = group + steps
    first, last = group[rows.begin], group[rows.end - 1]
    within = np.clip(required, 0, len(begins) - 1)
    low = np.where(
        required < first, rows.begin, np.where(required > last, rows.end, begins[within])
    )
    high = np.where(required < first, rows.begin, np.where(required > last, rows.end, ends[within]))
    return low, high


def _excluded(exclude: str, low: np.ndarray, high: np.ndarray, rows: WindowRows) -> Frames:
    if exclude == _NO_EXCLUSION:
        return Frames(low[None, :], high[None, :])
    position = rows.position
    first, last = rows.peer_begin, rows.peer_end
    if exclude == "current row":
        first, last = position, position + 1
    before = np.clip(first, low, high)
    clipped = np.clip(last, low, high)
    lows, highs = [low, clipped], [before, high]
    if exclude == "ties":
        lows.insert(1, np.clip(position, low, high))
        highs.insert(1, np.clip(position + 1, low, high))
    return Frames(np.stack(lows), np.stack(highs))
