"""Window calls without a kernel: any aggregate over any frame, and window functions of extensions.

PostgreSQL gets positions instead of sort keys, so that ties have the order of our sequence. An
aggregate is computed over ROWS of the sequence if its frames allow it, else once for each distinct
frame. Invariant: no result depends on an order that SQL leaves open, except the order of peers in
window functions of extensions, which get sorted rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from dataflow.delta import Column
from dataflow.expressions.evaluator import Evaluator, RowErrors
from dataflow.expressions.ir import ColumnRef, Literal
from dataflow.operators.ordered.row_order import Order
from dataflow.operators.windows.window_frames import Frames
from dataflow.operators.windows.window_rows import WindowRows
from dataflow.operators.windows.window_text import (
    bound_text,
    literal_text,
    of_partitions,
    order_text,
)
from dataflow.operators.windows.window_values import Answer, pick
from dataflow.plan.nodes import WindowCall
from dataflow.types import BOOL, INT8, SqlType

_TOKENS = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\$(\d+)""")
_RUNNING = "UNBOUNDED PRECEDING AND CURRENT ROW"
_REMAINING = "CURRENT ROW AND UNBOUNDED FOLLOWING"
# Frame rows per row that are computed frame by frame before a sliding or growing frame is left to
# PostgreSQL; and the rows of one query.
_CHEAP_FACTOR = 8
_CHUNK_ROWS = 1 << 20
_AT, _IS_INSIDE = 1, 2


class PostgresCall:
    """One call. order: the window's. by_frame: each frame is computed separately, so that an error
    in one affects no other; only for aggregates."""

    def __init__(
        self,
        call: WindowCall,
        order: Sequence[Order],
        evaluator: Evaluator,
        *,
        by_frame: bool = False,
    ) -> None:
        self._call = call
        self._order = tuple(order)
        self._evaluator = evaluator
        self._by_frame = by_frame
        self._types = {e.index: e.type for e in call.operands if isinstance(e, ColumnRef)}
        self._columns = list(self._types)

    def compute(self, rows: WindowRows, frames: Frames) -> Answer:
        """Return the call's value for each row, and the rows for which it fails."""
        if len(rows) == 0:
            return Column.empty(self._call.field.type.physical), RowErrors()
        if not self._call.is_aggregate:
            return self._in_sequence(rows)
        different, frame_of = _different(frames)
        if self._by_frame or int(different.counts.sum()) <= _CHEAP_FACTOR * len(rows):
            return self._of_frames(rows, different, frame_of)
        low, high = frames.low[0], frames.high[0]
        frame = self._call.frame
        if frame.mode == "rows" and not frame.exclude:
            bounds = f"{bound_text(frame.start)} AND {bound_text(frame.end)}"
            return self._over(rows, bounds, rows.position)
        is_single = len(frames.low) == 1 and bool((high > low).all())
        if is_single and bool((low == rows.begin).all()):
            return self._over(rows, _RUNNING, high - 1)
        if is_single and bool((high == rows.end).all()):
            return self._over(rows, _REMAINING, low)
        return self._of_frames(rows, different, frame_of)

    def _over(self, rows: WindowRows, bounds: str, position: np.ndarray) -> Answer:
        """Return the value at int64[n] positions of a window over ROWS of the sequence."""
        sql = (
            f"SELECT tidemark_row.g, ${_AT} AS at, {self._text(_AT)}{self._filtered(_AT)} "
            f"OVER (PARTITION BY tidemark_row.g ORDER BY ${_AT} ROWS BETWEEN {bounds}) "
            "FROM tidemark_row"
        )
        types = (INT8, *(self._types[c] for c in self._columns))
        columns = (Column(rows.position), *(rows.columns[c] for c in self._columns))
        return self._answered(rows, sql, types, columns, position)

    def _in_sequence(self, rows: WindowRows) -> Answer:
        """Compute a window function, which may depend on peers and on its frame: rows are sorted,
        first by the window's own order."""
        first = _AT + len(self._columns)
        parts = [order_text(o, f"${first + i}") for i, o in enumerate(self._order, 1)]
        frame = self._call.frame
        bounds = f"{frame.mode} BETWEEN {bound_text(frame.start)} AND {bound_text(frame.end)}"
        bounds += f" EXCLUDE {frame.exclude}" if frame.exclude else ""
        ordered = f"ORDER BY {', '.join(parts)}" if parts else ""
        sql = (
            f"SELECT tidemark_row.g, ${_AT} AS at, {self._text(_AT)}{self._filtered(_AT)} "
            f"OVER (PARTITION BY tidemark_row.g {ordered} {bounds}) "
            f"FROM (SELECT * FROM tidemark_row ORDER BY {', '.join(['g', *parts, f'${_AT}'])}) "
            "AS tidemark_row"
        )
        types = [INT8, *(self._types[c] for c in self._columns), *(o.type for o in self._order)]
        columns = [
            Column(rows.position),
            *(rows.columns[c] for c in self._columns),
            *(rows.columns[o.column] for o in self._order),
        ]
        return self._answered(rows, sql, types, columns, rows.position)

    def _answered(
        self,
        rows: WindowRows,
        sql: str,
        types: Sequence[SqlType],
        columns: Sequence[Column],
        position: np.ndarray,
    ) -> Answer:
        _, (at, values), failed = self._evaluator.evaluate_groups(
            sql, types, columns, rows.partition, (INT8, self._call.field.type)
        )
        answer = np.full(len(rows), -1, np.int64)
        answer[at.values] = np.arange(len(at))
        return pick(values, answer[position]), of_partitions(failed, rows)

    def _of_frames(self, rows: WindowRows, different: Frames, frame_of: np.ndarray) -> Answer:
        """Compute each distinct frame as a group of its rows; a placeholder row represents an empty
        frame."""
        text = self._text(_IS_INSIDE)
        if not text.endswith("(*)"):
            text = f"{text[:-1]}{'' if text.endswith('()') else f' ORDER BY ${_AT}'})"
        condition = self._filtered(_IS_INSIDE, f"${_IS_INSIDE}")
        sql = f"SELECT tidemark_row.g, {text}{condition} FROM tidemark_row GROUP BY tidemark_row.g"
        types = (INT8, BOOL, *(self._types[c] for c in self._columns))
        counts = different.counts + 1
        edges = np.concatenate([[0], np.cumsum(counts)])
        parts: list[Column] = []
        numbers: list[np.ndarray] = []
        errors = RowErrors()
        first = 0
        while first < len(counts):
            last = int(np.searchsorted(edges, edges[first] + _CHUNK_ROWS, side="right")) - 1
            last = max(last, first + 1)
            group, at, is_inside = _members(different, first, last)
            columns = (
                Column(at),
                Column(is_inside),
                *(rows.columns[c].take(at) for c in self._columns),
            )
            found, (values,), failed = self._evaluator.evaluate_groups(
                sql, types, columns, group, (self._call.field.type,)
            )
            parts.append(values)
            numbers.append(found)
            for frame, error in failed.by_row.items():
                for row in np.flatnonzero(frame_of == frame).tolist():
                    errors.add(row, *error)
            first = last
        position = np.full(len(counts), -1, np.int64)
        every = np.concatenate(numbers)
        position[every] = np.arange(len(every))
        return pick(Column.concat(parts), position[frame_of]), errors

    def _text(self, before: int) -> str:
        """Return the call over columns that follow `before` others; constants are literals."""

        def argument(token: re.Match[str]) -> str:
            if token[1] is None:
                return token[0]
            found = self._call.arguments[int(token[1]) - 1]
            if isinstance(found, Literal):
                return literal_text(found)
            assert isinstance(found, ColumnRef)
            return f"${before + 1 + self._columns.index(found.index)}"

        return _TOKENS.sub(argument, self._call.sql)

    def _filtered(self, before: int, condition: str = "") -> str:
        """Return the FILTER clause: a condition and the call's own."""
        parts = [condition] if condition else []
        if isinstance(self._call.filter, ColumnRef):
            parts.append(f"${before + 1 + self._columns.index(self._call.filter.index)}")
        elif isinstance(self._call.filter, Literal):
            parts.append("true" if self._call.filter.text == "t" else "false")
        return f" FILTER (WHERE {' AND '.join(parts)})" if parts else ""


def _different(frames: Frames) -> tuple[Frames, np.ndarray]:
    """Return the distinct frames, and the index of each row's frame."""
    bounds = np.concatenate([frames.low, frames.high])
    empty = frames.counts == 0
    bounds[:, empty] = 0
    found, frame_of = np.unique(bounds, axis=1, return_inverse=True)
    pieces = len(frames.low)
    return Frames(found[:pieces], found[pieces:]), frame_of.reshape(-1)


def _members(frames: Frames, first: int, last: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (frame, position, whether inside) of the rows of the frames [first, last), and for
    each frame of one row that is not inside it."""
    chosen = np.arange(first, last)
    groups, positions, inside = [chosen], [np.zeros(len(chosen), np.int64)], [chosen < 0]
    for low, high in zip(frames.low[:, chosen], frames.high[:, chosen], strict=True):
        sizes = high - low
        starts = np.cumsum(sizes) - sizes
        within = np.arange(int(sizes.sum())) - np.repeat(starts, sizes)
        groups.append(np.repeat(chosen, sizes))
        positions.append(np.repeat(low, sizes) + within)
        inside.append(np.ones(len(within), np.bool_))
    return np.concatenate(groups), np.concatenate(positions), np.concatenate(inside)
