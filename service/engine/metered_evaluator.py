"""An evaluator that measures its calls: PostgreSQL's part of an epoch, for figures.

It forwards every call unchanged; no decision depends on the figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from dataflow.delta import Column
from dataflow.expressions.evaluator import Evaluator, RowErrors
from dataflow.types import SqlType


class MeteredEvaluator:
    """report: called with the rows of each batch and the seconds it took."""

    def __init__(self, inner: Evaluator, report: Callable[[int, float], None]) -> None:
        self._inner = inner
        self._report = report

    def evaluate(
        self,
        sql: str,
        types: Sequence[SqlType],
        columns: Sequence[Column],
        n: int,
        result: SqlType,
    ) -> tuple[Column, RowErrors]:
        """See `Evaluator.evaluate`."""
        started = time.perf_counter()
        answer = self._inner.evaluate(sql, types, columns, n, result)
        self._report(n, time.perf_counter() - started)
        return answer

    def evaluate_groups(
        self,
        sql: str,
        types: Sequence[SqlType],
        columns: Sequence[Column],
        groups: np.ndarray,
        results: Sequence[SqlType],
    ) -> tuple[np.ndarray, tuple[Column, ...], RowErrors]:
        """See `Evaluator.evaluate_groups`."""
        started = time.perf_counter()
        answer = self._inner.evaluate_groups(sql, types, columns, groups, results)
        self._report(len(groups), time.perf_counter() - started)
        return answer

    def rank(self, type: SqlType, column: Column) -> np.ndarray:
        """See `Evaluator.rank`."""
        started = time.perf_counter()
        answer = self._inner.rank(type, column)
        self._report(len(column), time.perf_counter() - started)
        return answer
