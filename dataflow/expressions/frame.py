"""The rows that an expression is evaluated over, and the destination of its errors.

A Frame is a batch of input columns, or some rows of another Frame. A branch that may fail is
evaluated only on the rows that need it; its errors are recorded for the rows of the whole batch.
Invariant: values of a frame of n rows have n rows, or one row that stands for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dataflow.delta import Column
from dataflow.expressions.evaluator import Evaluator, RowErrors
from dataflow.expressions.numbers import Numbers
from dataflow.types import SqlType, TypeKind

Value = Column | Numbers

NUMERIC_KINDS = frozenset({TypeKind.FIXED, TypeKind.DECIMAL})


class Frame:
    """n rows of input columns, taken lazily from the parent of a partial frame."""

    __slots__ = ("_cache", "_index", "_parent", "columns", "errors", "evaluator", "n")

    def __init__(
        self,
        columns: Sequence[Column],
        n: int,
        evaluator: Evaluator,
        errors: RowErrors,
    ) -> None:
        self.columns = columns
        self.n = n
        self.evaluator = evaluator
        self.errors = errors
        self._parent: Frame | None = None
        self._index: np.ndarray | None = None
        self._cache: dict[int, Column] = {}

    def part(self, index: np.ndarray) -> Frame:
        """Return the frame of the rows at int64 positions, each at most once."""
        if len(index) == self.n:
            return self
        frame = Frame(self.columns, len(index), self.evaluator, self.errors)
        frame._parent, frame._index = self, index
        return frame

    def column(self, index: int) -> Column:
        """Return the input column at `index`, n rows."""
        if self._parent is None or self._index is None:
            return self.columns[index]
        column = self._cache.get(index)
        if column is None:
            column = self._parent.column(index).take(self._index)
            self._cache[index] = column
        return column

    def fail(self, failed: np.ndarray, sqlstate: str, message: str) -> None:
        """Record an error for the True rows of bool[n], or for all rows if bool[1] is True."""
        if failed.any():
            rows = np.flatnonzero(failed) if len(failed) == self.n else np.arange(self.n)
            for row in rows.tolist():
                self.fail_row(row, sqlstate, message)

    def fail_row(self, row: int, sqlstate: str, message: str) -> None:
        """Record the error of one row."""
        if self._parent is None or self._index is None:
            self.errors.add(row, sqlstate, message)
        else:
            self._parent.fail_row(int(self._index[row]), sqlstate, message)

    def failed(self) -> np.ndarray | None:
        """Return bool[n]: the rows that have failed so far; None when no row of the batch has."""
        if not self.errors:
            return None
        if self._parent is None or self._index is None:
            return self.errors.mask(self.n)
        mask = self._parent.failed()
        return None if mask is None else mask[self._index]


def numbers_of(column: Column, type: SqlType) -> Numbers:
    """Return the numbers of a numeric column in its physical form."""
    if type.kind is TypeKind.FIXED:
        return Numbers.of_fixed(column.values, type.scale, column.valid)
    return Numbers.of_text(column)


def value_of(column: Column, type: SqlType) -> Value:
    """Return a physical column in the form kernels take: Numbers for numeric types."""
    return numbers_of(column, type) if type.kind in NUMERIC_KINDS else column


def column_of(value: Value, type: SqlType) -> Column:
    """Return the physical column of a value of `type`, as many rows as the value has."""
    if isinstance(value, Column):
        return value
    if type.kind is TypeKind.FIXED:
        return value.to_fixed(type.scale)
    return value.to_text()


def expand(column: Column, n: int) -> Column:
    """Return the column with n rows: a single row stands for all."""
    if len(column) == n:
        return column
    return column.take(np.zeros(n, np.int64))


def expand_value(value: Value, n: int) -> Value:
    """Return the value with n rows: a single row stands for all."""
    return value if len(value) == n else value.take(np.zeros(n, np.int64))


def concat_values(values: Sequence[Value]) -> Value:
    """Return rows of all values, in order; all columns of one kind, or all numbers."""
    if isinstance(values[0], Numbers):
        return Numbers.concat(values)  # type: ignore[arg-type]
    return Column.concat(values)  # type: ignore[arg-type]


def null_values(type: SqlType, n: int) -> Value:
    """Return n NULLs of a type."""
    if type.kind in NUMERIC_KINDS:
        return Numbers(np.zeros(n, np.int64), np.zeros(1, np.int64), np.zeros(n, np.bool_))
    return Column.nulls(type.physical, n)


def gather(parts: Sequence[tuple[np.ndarray, Value]], n: int) -> Value:
    """Return n rows assembled from parts (positions, values at these positions) that cover each row
    once."""
    parts = [(index, value) for index, value in parts if len(index)] or list(parts[:1])
    if len(parts) == 1:
        return expand_value(parts[0][1], n)
    order = np.concatenate([index for index, _ in parts])
    whole = concat_values([expand_value(value, len(index)) for index, value in parts])
    position = np.empty(n, np.int64)
    position[order] = np.arange(n)
    return whole.take(position)


def in_postgres(
    frame: Frame, sql: str, types: Sequence[SqlType], values: Sequence[Value], result: SqlType
) -> Value:
    """Evaluate sql over the values in PostgreSQL; record errors in the frame.

    The result is one row for all when every value is.
    """
    constant = all(len(v) == 1 for v in values)
    n = min(1, frame.n) if constant else frame.n
    columns = [expand(column_of(v, t), n) for v, t in zip(values, types, strict=True)]
    if n == 0:
        return null_values(result, 0)
    column, errors = frame.evaluator.evaluate(sql, types, columns, n, result)
    for row, (sqlstate, message) in errors.by_row.items():
        if constant:
            frame.fail(np.ones(1, np.bool_), sqlstate, message)
        else:
            frame.fail_row(row, sqlstate, message)
    return value_of(column, result)


def rows_in_postgres(
    frame: Frame,
    doubtful: np.ndarray,
    native: Value,
    call: tuple[str, Sequence[SqlType], Sequence[Value], SqlType],
) -> Value:
    """Return the native value with the rows at bool doubtful replaced by PostgreSQL's answer.

    call: (sql, argument types, argument values, result type), as for in_postgres.
    """
    sql, types, values, result = call
    if not doubtful.any():
        return native
    if doubtful.all():
        return in_postgres(frame, sql, types, values, result)
    index = np.flatnonzero(doubtful)
    part = frame.part(index)
    taken = [v if len(v) == 1 else v.take(index) for v in values]
    answer = in_postgres(part, sql, types, taken, result)
    rest = np.flatnonzero(~doubtful)
    return gather([(index, answer), (rest, native.take(rest))], frame.n)
