"""Window functions over long partitions, recomputed only where a change can have an effect.

Invariant: the output is that of the operator in dataflow.operators.windows.window. The slabs read
contain every row whose value may have changed; outside of them all stored states are valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dataflow.delta import Column, Delta, equal_rows
from dataflow.expressions.evaluator import RowErrors
from dataflow.operators.base import Context, Traits, kinds_of, types_of
from dataflow.operators.groups import columns_at, plain_columns, touch
from dataflow.operators.ordered.ordered_rows import ENDLESS, OrderedRows
from dataflow.operators.windows.window import WindowCalls, note_errors, orders_of
from dataflow.operators.windows.window_frames import Frames
from dataflow.operators.windows.window_reach import (
    kind_of,
    reach_of,
    reaches_end,
    sees_peers,
)
from dataflow.operators.windows.window_rows import WindowRows
from dataflow.operators.windows.window_running import Ran, RunningCall, Start, running_call
from dataflow.operators.windows.window_slabs import Changes, Slabs, Turn, read_turn
from dataflow.plan.nodes import Frame, Window

_FIRST_ROWS = 8
_GROWTH = 3


class IncrementalWindowOperator:
    """Group: the rows of each partition that a change can affect are computed again.

    For row numbers, running values, and functions of nearby rows (see window_reach). State: the
    input rows in order (see ordered_rows); for running values each distinct row with the state
    before it. Cost: O(log rows) for each change, and the affected rows: nearby rows whose value
    depends on it; for numbers and running values all later rows, as long as their state differs.
    NULL: as WindowOperator.
    """

    traits = Traits()

    def __init__(self, plan: Window, context: Context) -> None:
        self._context = context
        self._types = types_of(plan.input.fields)
        self._kinds = kinds_of(plan.fields)
        self._partition = plain_columns(plan.partition)
        kinds = kinds_of(plan.input.fields)
        self._calls = plan.calls
        self._kind = [kind_of(c, plan.order) for c in plan.calls]
        self._by_peers = any(map(sees_peers, plan.calls))
        near = {i: c for i, c in enumerate(plan.calls) if self._kind[i] == "local"}
        orders = orders_of(plan.order)
        self._rows = OrderedRows(context, "rows", kinds, self._partition, orders)
        self._near = WindowCalls(near, orders, context.evaluator, by_frame=True)
        self._running: dict[int, RunningCall] = {
            i: running_call(c, context.evaluator)
            for i, c in enumerate(plan.calls)
            if self._kind[i] == "running"
        }
        others = (i for i in range(len(kinds)) if i not in self._partition)
        self._row = (*self._partition, *others)
        self._state_kinds = "".join(r.kinds for r in self._running.values())
        self._states = None
        if self._state_kinds:
            self._states = context.arrange("states", kinds + self._state_kinds, self._row)
        self._is_carried = any(k != "local" for k in self._kind)
        self._is_one = any(map(reaches_end, plan.calls, self._kind))

    def step(self, delta: Delta) -> Delta:
        """Return the change of the rows whose values differ."""
        if len(delta) == 0:
            return Delta.empty(self._kinds)
        touched = touch(columns_at(delta, self._partition), len(delta))
        self._rows.apply(delta)
        changes = Changes.of(delta, touched.group, touched.keys, touched.count, self._rows)
        slabs = Slabs.around(changes, _FIRST_ROWS, _FIRST_ROWS, is_one=self._is_one)
        while True:
            turn = read_turn(slabs, changes, self._rows)
            extent = self._find_extent(turn)
            if not (extent.grows_left.any() or extent.grows_right.any()):
                return self._turned(turn, slabs, extent)
            before = np.where(extent.grows_left, _GROWTH * (turn.change + _FIRST_ROWS), 0)
            after = np.where(extent.grows_right, _GROWTH * (turn.same + _FIRST_ROWS), 0)
            slabs = slabs.grown(before, after, changes.sizes)

    def _find_extent(self, turn: Turn) -> _Extent:
        """Return whether the slabs are wide enough, and which of their rows a change may have
        affected."""
        rows = turn.rows
        frames, errors = self._near.frames(rows)
        low, high = self._reach(rows, frames)
        first = turn.change.copy()
        reached = np.flatnonzero(high - rows.begin > turn.change[turn.slab])
        np.minimum.at(first, turn.slab[reached], turn.index[reached])
        origin = self._origin(turn)
        left = turn.is_left_open & _at_rows(turn, first, low <= rows.begin)
        if self._running:
            left |= turn.is_left_open & ((origin > first) | (origin >= turn.change))
        if left.any():
            nowhere = np.zeros(len(left), np.bool_)
            return _Extent(left, nowhere, np.empty(0, np.int64), frames, errors, {})
        after_last = turn.of_versions(turn.after_changes)
        unreached = (turn.index >= after_last) & (low - rows.begin >= after_last)
        rest = turn.counts_of(unreached).min(axis=0)
        ran = self._run(turn, origin)
        is_resolved = rest > 0
        if self._is_carried:
            edge = self._edge(turn)
            is_resolved = (edge > 0) & (edge <= rest) & self._is_resolved(turn, edge, ran)
            rest = np.where(turn.is_right_open, edge, 0)
        is_cut = _at_rows(turn, turn.count - rest - 1, high >= rows.end)
        right = turn.is_right_open & (~is_resolved | is_cut)
        last = turn.of_versions(turn.count - rest)
        zone = np.flatnonzero((turn.index >= first[turn.slab]) & (turn.index < last))
        return _Extent(left, right, zone, frames, errors, ran)

    def _reach(
        self, rows: WindowRows, frames: Mapping[Frame, Frames]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the nearby rows that each row's values depend on, int64[n] low and high."""
        low, high = rows.position, rows.position + 1
        if self._by_peers:
            low, high = rows.peer_begin, rows.peer_end
        for call, kind in zip(self._calls, self._kind, strict=True):
            if kind == "local":
                near = reach_of(call, rows, frames)
                low, high = np.minimum(low, near[0]), np.maximum(high, near[1])
        return low, high

    def _origin(self, turn: Turn) -> np.ndarray:
        """Return int64[s]: the index where running values resume: an unchanged row before the first
        change, and where peers matter the first of its peers."""
        rows, origin = turn.rows, np.full(len(turn.change), ENDLESS)
        is_fit = turn.index < turn.change[turn.slab]
        if self._by_peers:
            is_fit &= (rows.peer_begin == rows.position) & (turn.index > 0)
        np.minimum.at(origin, turn.slab[is_fit], turn.index[is_fit])
        return np.where(turn.is_left_open, origin, 0)

    def _run(self, turn: Turn, origin: np.ndarray) -> dict[int, Ran]:
        """Run the running calls over all slabs."""
        if self._states is None:
            return {}
        rows = turn.rows
        open_left = np.flatnonzero(turn.is_left_open)
        at = turn.at(1, origin)[open_left]
        index, found = self._states.lookup([rows.columns[i].take(at) for i in self._row])
        width = len(rows.columns)
        position = np.zeros(len(turn.change), np.int64)
        position[open_left[index]] = 1 + np.arange(len(index))
        start, ran = rows.begin + origin[turn.slab], {}
        for i, call in self._running.items():
            stored = found.columns[width : width + len(call.kinds)]
            width += len(call.kinds)
            pools = zip(call.first(1), stored, strict=True)
            base = [Column.concat([a, b]).take(position) for a, b in pools]
            ran[i] = call.run(rows, Start(turn.slab, start, base))
        return ran

    def _edge(self, turn: Turn) -> np.ndarray:
        """Return int64[s]: how many rows at the end of a slab may be left out: unchanged, and not
        separated from their peers or copies; 0 for none."""
        rows, edges = turn.rows, []
        starts = rows.peer_begin if self._by_peers else rows.first_copy
        for side in (0, 1):
            last = turn.at(side, turn.count[side] - 1)
            index = starts[last] - rows.begin[last]
            is_same = (last >= 0) & (index >= turn.after_changes[side])
            edges.append(np.where(is_same, turn.count[side] - index, 0))
        return np.where(edges[0] == edges[1], edges[1], 0)

    def _is_resolved(self, turn: Turn, edge: np.ndarray, ran: Mapping[int, Ran]) -> np.ndarray:
        """Return bool[s]: whether all running states after the edge are unchanged."""
        old, new = (turn.at(side, turn.count[side] - edge) for side in (0, 1))
        settled = (old >= 0) & (new >= 0)
        if "number" in self._kind:
            settled &= turn.count[0] == turn.count[1]
        for found in ran.values():
            settled &= equal_rows(found.states, old, found.states, new)
        return settled

    def _turned(self, turn: Turn, slabs: Slabs, extent: _Extent) -> Delta:
        """Return new minus old of the rows in the zone, and their new states."""
        rows, zone = turn.rows, extent.zone
        values, failed = self._near.compute(rows, extent.frames)
        for i, found in extent.ran.items():
            values[i] = found.values
            note_errors(found.errors, failed)
        note_errors(extent.errors, failed)
        for i, call in enumerate(self._calls):
            if self._kind[i] == "number":
                at = rows.peer_begin if call.function == "rank" else rows.position
                values[i] = Column(at - rows.begin + slabs.low[turn.slab] + 1)
        weights = np.where(rows.partition[zone] % 2 == 0, -1, 1)
        given = Delta([c.take(zone) for c in rows.columns], weights)
        self._keep_states(turn, extent, given)
        own = (values[i].take(zone) for i in range(len(self._calls)))
        out = Delta((*given.columns, *own), weights)
        position = {int(row): i for i, row in enumerate(zone)} if failed else {}
        errors = RowErrors({position[r]: e for r, e in failed.by_row.items() if r in position})
        if errors:
            self._context.collect(self._types, given, errors)
            out = out.filter(~errors.mask(len(out)))
        return out.consolidate()

    def _keep_states(self, turn: Turn, extent: _Extent, given: Delta) -> None:
        if self._states is None:
            return
        first = np.flatnonzero(turn.rows.first_copy[extent.zone] == extent.zone)
        at = extent.zone[first]
        states = [s.take(at) for found in extent.ran.values() for s in found.states]
        stored = given.take(first)
        self._states.apply(Delta((*stored.columns, *states), stored.weights).consolidate())


@dataclass(frozen=True)
class _Extent:
    """The extent of the slabs. grows_left, grows_right bool[s]: where a slab is too narrow. zone:
    the rows that may be affected, if none is too narrow."""

    grows_left: np.ndarray
    grows_right: np.ndarray
    zone: np.ndarray
    frames: Mapping[Frame, Frames]
    errors: RowErrors
    ran: dict[int, Ran]


def _at_rows(turn: Turn, index: np.ndarray, holds: np.ndarray) -> np.ndarray:
    """Return bool[s]: whether it holds of the row at an index of either sequence; int64[s] or [2,
    s]."""
    index = np.broadcast_to(index, turn.count.shape)
    found = np.zeros(turn.count.shape[1], np.bool_)
    for side in (0, 1):
        at = turn.at(side, index[side])
        found |= (at >= 0) & holds[at]
    return found
