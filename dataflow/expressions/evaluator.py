"""The contract of evaluation in PostgreSQL, and of row errors.

`connectors.postgres.evaluation.evaluator` implements it against a real database. Invariant: a
failing row never fails a batch: it becomes an entry of RowErrors.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from dataflow.delta import Column
from dataflow.types import SqlType


@dataclass
class RowErrors:
    """The rows for which an expression failed: position -> (SQLSTATE, message).

    The value of a failed row is NULL in the column and must not be used.
    """

    by_row: dict[int, tuple[str, str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.by_row)

    def __len__(self) -> int:
        return len(self.by_row)

    def add(self, row: int, sqlstate: str, message: str) -> None:
        """Record the first error of a row; PostgreSQL stops there, so later ones are dropped."""
        self.by_row.setdefault(row, (sqlstate, message))

    def mask(self, n: int) -> np.ndarray:
        """Return bool[n]: True where the row failed."""
        out = np.zeros(n, np.bool_)
        out[list(self.by_row)] = True
        return out


class TimeLimit(Protocol):
    """How long the caller of an evaluator will wait."""

    def seconds_left(self) -> float:
        """Return the seconds that are left of it; infinity if there is no limit."""
        ...

    def waiting(self) -> AbstractContextManager[None]:
        """Return what a statement is run within: that time counts."""
        ...

    def exceeded(self) -> Exception:
        """Return what an evaluator raises that was stopped at the limit."""
        ...


class Evaluator(Protocol):
    """Computes in PostgreSQL the expressions that have no native kernel."""

    def evaluate(
        self,
        sql: str,
        types: Sequence[SqlType],
        columns: Sequence[Column],
        n: int,
        result: SqlType,
    ) -> tuple[Column, RowErrors]:
        """Evaluate one immutable scalar expression over n rows.

        sql has $1 ... $k for the k columns, whose SQL types are `types`; the result has n rows of
        type `result`. A row that fails is in the errors (found by halving the batch); the others
        are computed. Raise TemporaryError when the database cannot be reached.
        """
        ...

    def evaluate_groups(
        self,
        sql: str,
        types: Sequence[SqlType],
        columns: Sequence[Column],
        groups: np.ndarray,
        results: Sequence[SqlType],
    ) -> tuple[np.ndarray, tuple[Column, ...], RowErrors]:
        """Evaluate a query over rows in groups: aggregates, windows and set-returning functions.

        sql is a SELECT from the relation `tidemark_row` of n rows; `tidemark_row.g` is the row's
        group (groups: int64[n], any numbers, in any order), $1 ... $k stand for its columns of
        `types`. Its output: g, then columns of `results`. Return (int64[m] groups, the m rows'
        columns, errors by group number); a group that fails has no rows. A group is never split
        over queries; different groups may be. Rows of a group keep the query's order. Raise
        TemporaryError when the database cannot be reached.
        """
        ...

    def rank(self, type: SqlType, column: Column) -> np.ndarray:
        """Return int64[n]: the rank of each value in the type's order and collation; equal values
        share one.

        Comparable within one call only. The rank of NULL is not defined.
        """
        ...


class NoEvaluator:
    """The evaluator of plans that are native throughout: any use is a broken invariant."""

    def evaluate(self, sql, types, columns, n, result):
        raise RuntimeError(f"no evaluator for: {sql}")

    def evaluate_groups(self, sql, types, columns, groups, results):
        raise RuntimeError(f"no evaluator for: {sql}")

    def rank(self, type, column):
        raise RuntimeError(f"no evaluator to order {type.name}")
