"""The compiled tree: each node computes its values over a frame.

Invariant: "and", "or", CASE and COALESCE are lazy. Their arguments are computed left to right, and
one that may fail or needs PostgreSQL is computed only on the rows that still need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from dataflow.delta import Column
from dataflow.expressions.frame import (
    NUMERIC_KINDS,
    Frame,
    Value,
    gather,
    in_postgres,
    null_values,
    numbers_of,
)
from dataflow.expressions.kernel import Kernel
from dataflow.types import SqlType


class Node(Protocol):
    """A compiled expression. can_fail: compute it only on rows that need it."""

    can_fail: bool

    def run(self, frame: Frame) -> Value:
        """Return frame.n values, or one that stands for all."""
        ...


class InputNode:
    """A column of the input."""

    can_fail = False

    def __init__(self, index: int, type: SqlType) -> None:
        self.index = index
        self.type = type
        self.is_numeric = type.kind in NUMERIC_KINDS

    def run(self, frame: Frame) -> Value:
        column = frame.column(self.index)
        return numbers_of(column, self.type) if self.is_numeric else column


class ConstantNode:
    """One value for all rows."""

    can_fail = False

    def __init__(self, value: Value) -> None:
        self.value = value

    def run(self, frame: Frame) -> Value:
        return self.value


class CallNode:
    """A kernel over its arguments, all of them computed on every row."""

    def __init__(self, kernel: Kernel, arguments: Sequence[Node]) -> None:
        self.kernel = kernel
        self.arguments = arguments
        self.can_fail = kernel.can_fail or any(a.can_fail for a in arguments)

    def run(self, frame: Frame) -> Value:
        return self.kernel.run(frame, [a.run(frame) for a in self.arguments])


class ChainNode:
    """The first argument, then each kernel over the result so far and the next argument."""

    def __init__(self, kernels: Sequence[Kernel], arguments: Sequence[Node]) -> None:
        self.kernels = kernels
        self.arguments = arguments
        self.can_fail = any(k.can_fail for k in kernels) or any(a.can_fail for a in arguments)

    def run(self, frame: Frame) -> Value:
        value = self.arguments[0].run(frame)
        for kernel, argument in zip(self.kernels, self.arguments[1:], strict=True):
            value = kernel.run(frame, [value, argument.run(frame)])
        return value


class PostgresNode:
    """An expression that PostgreSQL computes over its arguments."""

    can_fail = True

    def __init__(
        self, sql: str, types: Sequence[SqlType], arguments: Sequence[Node], result: SqlType
    ) -> None:
        self.sql = sql
        self.types = types
        self.arguments = arguments
        self.result = result

    def run(self, frame: Frame) -> Value:
        values = [a.run(frame) for a in self.arguments]
        return in_postgres(frame, self.sql, self.types, values, self.result)


class LogicNode:
    """n-ary AND or OR in three-valued logic, left to right.

    `decisive` is the value that ends the evaluation of a row: False for AND, True for OR.
    """

    def __init__(self, decisive: bool, arguments: Sequence[Node]) -> None:
        self.decisive = decisive
        self.arguments = arguments
        self.can_fail = any(a.can_fail for a in arguments)

    def run(self, frame: Frame) -> Value:
        """Return bool; NULL where nothing decided and some argument was NULL."""
        first = self.arguments[0].run(frame)
        decided, unknown = self._read(first)
        for argument in self.arguments[1:]:
            if argument.can_fail:
                decided, unknown = self._lazy(frame, argument, decided, unknown)
                continue
            other, other_unknown = self._read(argument.run(frame))
            decided = decided | other
            if other_unknown is not None:
                unknown = other_unknown if unknown is None else unknown | other_unknown
        values = decided if self.decisive else ~decided
        if unknown is None:
            return Column(values)
        valid = decided | ~unknown
        return Column(np.broadcast_to(values, len(valid)), valid)

    def _read(self, value: Value) -> tuple[np.ndarray, np.ndarray | None]:
        assert isinstance(value, Column)
        decided = value.values if self.decisive else ~value.values
        if value.valid is None:
            return decided, None
        return decided & value.valid, ~value.valid

    def _lazy(
        self, frame: Frame, argument: Node, decided: np.ndarray, unknown: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Compute one argument on the rows where no earlier one has decided or failed."""
        decided = np.array(np.broadcast_to(decided, frame.n))
        wanted = ~decided
        failed = frame.failed()
        if failed is not None:
            wanted &= ~failed
        index = np.flatnonzero(wanted)
        if len(index) == 0:
            return decided, unknown
        other, other_unknown = self._read(argument.run(frame.part(index)))
        decided[index] |= other
        if other_unknown is not None:
            unknown = np.zeros(frame.n, np.bool_) if unknown is None else unknown
            unknown = np.array(np.broadcast_to(unknown, frame.n))
            unknown[index] |= other_unknown
        return decided, unknown


class CaseNode:
    """Searched CASE: the branch of the first condition that is true, else the last branch."""

    def __init__(
        self, branches: Sequence[tuple[Node, Node]], otherwise: Node | None, result: SqlType
    ) -> None:
        self.branches = branches
        self.otherwise = otherwise
        self.result = result
        nodes = [node for pair in branches for node in pair]
        self.can_fail = any(node.can_fail for node in nodes) or (
            otherwise is not None and otherwise.can_fail
        )

    def run(self, frame: Frame) -> Value:
        """Compute each branch on its own rows only."""
        parts: list[tuple[np.ndarray, Value]] = []
        rows, rest = np.arange(frame.n), frame
        for condition, branch in self.branches:
            true = _is_true(condition.run(rest), len(rows))
            failed = rest.failed() if condition.can_fail else None
            if failed is not None:
                true = true & ~failed
                parts.append((rows[failed], null_values(self.result, int(failed.sum()))))
            chosen = np.flatnonzero(true)
            if len(chosen):
                parts.append((rows[chosen], branch.run(rest.part(chosen))))
            left = np.flatnonzero(~true if failed is None else ~(true | failed))
            rows, rest = rows[left], rest.part(left)
            if len(rows) == 0:
                break
        if len(rows) and self.otherwise is not None:
            parts.append((rows, self.otherwise.run(rest)))
        elif len(rows) or not parts:
            parts.append((rows, null_values(self.result, len(rows))))
        return gather(parts, frame.n)


class CoalesceNode:
    """The first argument that is not NULL."""

    def __init__(self, arguments: Sequence[Node], result: SqlType) -> None:
        self.arguments = arguments
        self.result = result
        self.can_fail = any(a.can_fail for a in arguments)

    def run(self, frame: Frame) -> Value:
        """Compute each argument only on the rows where all before it were NULL."""
        value = self.arguments[0].run(frame)
        if value.valid is None:
            return value
        parts: list[tuple[np.ndarray, Value]] = []
        rows, rest = np.arange(frame.n), frame
        for position, argument in enumerate(self.arguments):
            if position > 0:
                value = argument.run(rest)
            given = np.broadcast_to(value.mask(), len(rows))
            failed = rest.failed() if argument.can_fail else None
            if failed is not None:
                given = given | failed
            index = np.flatnonzero(given)
            if len(index):
                parts.append((rows[index], value if len(value) == 1 else value.take(index)))
            left = np.flatnonzero(~given)
            if len(left) == 0:
                return gather(parts or [(rows, value)], frame.n)
            rows, rest = rows[left], rest.part(left)
        parts.append((rows, null_values(self.result, len(rows))))
        return gather(parts, frame.n)


def _is_true(value: Value, n: int) -> np.ndarray:
    """Return bool[n]: the condition is neither false nor NULL."""
    assert isinstance(value, Column)
    true = value.values if value.valid is None else value.values & value.valid
    return true if len(true) == n else np.broadcast_to(true, n)
