"""Calls over all rows up to the current one, resumed from the state of the row before.

The state before each row is stored (before its first copy; before its peers if the frame is defined
by peers). Invariant: the state is a function of the earlier rows alone, bit for bit: sums of
integers and numerics are exact, floats are added in sequence. So a change needs no row before it,
and no row after one whose state is unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from tidemark_native.windows import best_rows, running_floats

from dataflow.delta import KIND_BYTES, Column
from dataflow.expressions.evaluator import Evaluator, RowErrors
from dataflow.long_integers import digits_of, int_of
from dataflow.operators.windows.window_rows import WindowRows
from dataflow.operators.windows.window_sums import (
    LinearCall,
    decimal_text,
    decimals_of,
    linear_call,
    overflowed,
    ranks_of,
    running_sums,
)
from dataflow.operators.windows.window_values import argument_column, as_type, pick
from dataflow.plan.nodes import WindowCall
from dataflow.types import FLOAT4, TypeKind
from dataflow.values import one_nan


@dataclass(frozen=True)
class Start:
    """Where each of k sequences resumes.

    sequence int64[n]: of each row its sequence, 0 to k - 1. origin int64[n]: the row where it
    resumes; earlier rows have no value. base: the state there, k rows.
    """

    sequence: np.ndarray
    origin: np.ndarray
    base: Sequence[Column]


@dataclass(frozen=True)
class Ran:
    """Values of n rows, those that fail, and the states before each of them."""

    values: Column
    errors: RowErrors
    states: list[Column]


class RunningCall(Protocol):
    """kinds: of the state's columns; a state at the beginning of a partition is `first`."""

    kinds: str

    def first(self, n: int) -> list[Column]:
        """Return the state before any row, n times."""
        ...

    def run(self, rows: WindowRows, start: Start) -> Ran:
        """Return the call's value for each row."""
        ...


def running_call(call: WindowCall, evaluator: Evaluator) -> RunningCall:
    """Return the native call over "unbounded preceding" to "current row"."""
    by_peers = call.frame.mode != "rows" or call.function == "dense_rank"
    if call.function == "dense_rank":
        return _Linear(_GROUPS, by_peers=True)
    if call.function == "first_value":
        return _First(call, by_peers=by_peers)
    linear = linear_call(call)
    if linear is not None:
        return _Linear(linear, by_peers=by_peers)
    if call.function in ("min", "max"):
        return _Extreme(call, evaluator, by_peers=by_peers)
    if call.arguments[0].type.kind is TypeKind.DECIMAL:
        return _Decimal(call, by_peers=by_peers)
    return _Float(call, by_peers=by_peers)


_GROUPS = LinearCall(
    1, lambda rows: [rows.peer_begin == rows.position], lambda sums: Column(sums[0])
)


class _Running:
    """Shared parts of the calls: the end of a row's value, and the position of the state before
    it."""

    kinds = ""

    def __init__(self, *, by_peers: bool) -> None:
        self._by_peers = by_peers

    def first(self, n: int) -> list[Column]:
        return [
            Column.nulls(k, n) if k == KIND_BYTES else Column.of(k, [0] * n) for k in self.kinds
        ]

    def _high(self, rows: WindowRows) -> np.ndarray:
        return rows.peer_end if self._by_peers else rows.position + 1

    def _before(self, rows: WindowRows) -> np.ndarray:
        return rows.peer_begin if self._by_peers else rows.first_copy


class _Linear(_Running):
    """Sums of integers."""

    def __init__(self, call: LinearCall, *, by_peers: bool) -> None:
        super().__init__(by_peers=by_peers)
        self._call = call
        self.kinds = "i" * call.width

    def run(self, rows: WindowRows, start: Start) -> Ran:
        high, before = self._high(rows), self._before(rows)
        totals, states = [], []
        for base, measure in zip(start.base, self._call.measures(rows), strict=True):
            running = running_sums(measure)
            own = base.values[start.sequence] - running[start.origin]
            totals.append(own + running[high])
            states.append(Column(own + running[before]))
        return Ran(self._call.finish(totals), RowErrors(), states)


class _First(_Running):
    """first_value: whether there is an earlier row, and the first one's value."""

    def __init__(self, call: WindowCall, *, by_peers: bool) -> None:
        super().__init__(by_peers=by_peers)
        self._call = call
        self.kinds = "b" + call.field.type.physical

    def first(self, n: int) -> list[Column]:
        return [Column(np.zeros(n, np.bool_)), Column.nulls(self.kinds[1], n)]

    def run(self, rows: WindowRows, start: Start) -> Ran:
        argument, result = self._call.arguments[0], self._call.field.type
        own = as_type(argument.type, argument_column(argument, rows), result)
        known = start.base[0].values[start.sequence]
        pool = Column.concat([own, start.base[1]])
        position = np.where(known, len(rows) + start.sequence, start.origin)
        has_before = known | (self._before(rows) > start.origin)
        states = [Column(has_before), pick(pool, np.where(has_before, position, -1))]
        return Ran(pick(pool, position), RowErrors(), states)


class _Extreme(_Running):
    """min and max: the value so far."""

    def __init__(self, call: WindowCall, evaluator: Evaluator, *, by_peers: bool) -> None:
        super().__init__(by_peers=by_peers)
        self._call = call
        self._evaluator = evaluator
        self.kinds = call.arguments[0].type.physical

    def first(self, n: int) -> list[Column]:
        return [Column.nulls(self.kinds, n)]

    def run(self, rows: WindowRows, start: Start) -> Ran:
        n, argument = len(rows), self._call.arguments[0]
        pool = Column.concat([argument_column(argument, rows), start.base[0]])
        positions = ranks_of(self._call.function, argument.type, pool, self._evaluator)
        valid = pool.mask()
        base = np.where(valid[n:], np.arange(n, len(pool)), -1)[start.sequence]

        def best(high: np.ndarray) -> Column:
            high = np.maximum(high, start.origin)
            found = best_rows(positions[:n], valid[:n], start.origin, high)
            wins = (found >= 0) & ((base < 0) | (positions[found] >= positions[base]))
            return pick(pool, np.where(wins, found, base))

        values = as_type(argument.type, best(self._high(rows)), self._call.field.type)
        return Ran(values, RowErrors(), [best(self._before(rows))])


class _Float(_Running):
    """Sums and averages of floats: total, squares, count, overflow."""

    kinds = "ffff"

    def __init__(self, call: WindowCall, *, by_peers: bool) -> None:
        super().__init__(by_peers=by_peers)
        self._call = call
        is_single = call.arguments[0].type.kind is FLOAT4.kind
        self._kind = 2 if call.function == "avg" else int(is_single)

    def run(self, rows: WindowRows, start: Start) -> Ran:
        column = argument_column(self._call.arguments[0], rows)
        base = np.stack([b.values[start.sequence] for b in start.base])
        after = running_floats(column.values, column.mask(), start.origin, base, self._kind)
        after = one_nan(after)
        total, _, count, bad = after[:, self._high(rows) - 1]
        valid = count > 0
        if self._kind == 2:
            total = total / np.where(valid, count, 1.0)
        values = Column(np.where(valid, total, 0.0), None if valid.all() else valid)
        before = self._before(rows)
        is_base = before <= start.origin
        states = np.where(is_base, base, after[:, np.maximum(before - 1, 0)])
        return Ran(values, overflowed(bad > 0), [Column(s) for s in states])


class _Decimal(_Running):
    """Sums and averages of numeric: units as text, scale, count, flags of NaN and infinities."""

    kinds = "siii"

    def __init__(self, call: WindowCall, *, by_peers: bool) -> None:
        super().__init__(by_peers=by_peers)
        self._call = call

    def first(self, n: int) -> list[Column]:
        zeros = np.zeros(n, np.int64)
        return [Column.of(KIND_BYTES, ["0"] * n), Column(zeros), Column(zeros), Column(zeros)]

    def run(self, rows: WindowRows, start: Start) -> Ran:
        after = self._after(rows, start)
        base = list(zip(*(b.to_list() for b in start.base), strict=True))
        values = [
            decimal_text(self._call.function, after[high][:2], *after[high][2:])
            for high in (self._high(rows) - 1).tolist()
        ]
        states = [
            base[of]
            if before <= origin
            else (digits_of(after[before - 1][0]), *after[before - 1][1:])
            for before, origin, of in zip(
                self._before(rows).tolist(),
                start.origin.tolist(),
                start.sequence.tolist(),
                strict=True,
            )
        ]
        columns = list(zip(*states, strict=True)) or [()] * 4
        stored = [Column.of(k, part) for k, part in zip(self.kinds, columns, strict=True)]
        return Ran(Column.of(KIND_BYTES, values), RowErrors(), stored)

    def _after(self, rows: WindowRows, start: Start) -> list[tuple]:
        """Return (units, scale, count, flags) after each row."""
        column = argument_column(self._call.arguments[0], rows)
        numbers, valid = decimals_of(column), column.mask().tolist()
        base = list(zip(*(b.to_list() for b in start.base), strict=True))
        scales, flags = numbers.scales.tolist(), numbers.flags.tolist()
        out: list[tuple] = []
        units, scale, count, visited = 0, 0, 0, 0
        for i, (origin, of) in enumerate(
            zip(start.origin.tolist(), start.sequence.tolist(), strict=True)
        ):
            if i == origin:
                units, scale, count, visited = base[of]
                units = int_of(units.decode())
            if valid[i]:
                wider = max(scale, scales[i])
                units *= 10 ** (wider - scale)
                units += numbers.units[i] * 10 ** (wider - scales[i])
                scale, count, visited = wider, count + 1, visited | flags[i]
            out.append((units, scale, count, visited))
        return out
