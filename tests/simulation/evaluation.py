"""What PostgreSQL computes for expressions without a kernel: here divisions of integers.

sqlite divides as PostgreSQL does, and says NULL where that says that it cannot.
"""

from __future__ import annotations

import functools
import re
import sqlite3
from collections.abc import Sequence
from typing import Any

import numpy as np

from dataflow.delta import Column, Delta
from dataflow.errors import TemporaryError
from dataflow.expressions.evaluator import RowErrors
from dataflow.types import SqlType
from tests.simulation.faults import Faults
from tests.simulation.zones import answer_about_zone


class SimEvaluator:
    """As PostgresEvaluator, on a session of its own that may be lost."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def evaluate(
        self,
        sql: str,
        types: Sequence[SqlType],
        columns: Sequence[Column],
        n: int,
        result: SqlType,
    ) -> tuple[Column, RowErrors]:
        self._faults.step("evaluate")
        if self._faults.happens("source.evaluation"):
            raise TemporaryError("source.unreachable", "the simulated source cannot be reached")
        errors, found = RowErrors(), []
        for number, (row, _) in enumerate(Delta(tuple(columns), np.ones(n, np.int64)).rows()):
            found.append(_computed(sql, row))
            if found[-1] is None and None not in row:
                errors.add(number, "22012", "division by zero")
        return Column.of(result.physical, found), errors

    def evaluate_groups(
        self,
        sql: str,
        types: Sequence[SqlType],
        columns: Sequence[Column],
        groups: np.ndarray,
        results: Sequence[SqlType],
    ) -> tuple[np.ndarray, tuple[Column, ...], RowErrors]:
        raise NotImplementedError

    def rank(self, type: SqlType, column: Column) -> np.ndarray:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open."""


@functools.cache
def _computed(sql: str, row: tuple[Any, ...]) -> Any:
    if (found := answer_about_zone(sql, row)) is not None:
        return found
    statement = re.sub(r"\$(\d+)", r"?\1", sql)
    session = _session()
    return session.execute(f"SELECT {statement}", row).fetchone()[0]


@functools.cache
def _session() -> sqlite3.Connection:
    return sqlite3.connect(":memory:")
