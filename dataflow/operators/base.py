"""The contract of an operator, and of what it is lowered from.

One class, one file, three families: linear (no state), bilinear (join), group (touched keys are
re-evaluated, new minus old). State comes in through the constructor; an operator never opens,
commits or closes anything. Rows whose expression fails go to the ErrorCollector, with their
weights, so that a repaired row takes its error back.
"""

from __future__ import annotations

from typing import Protocol

from dataflow.delta import Delta
from dataflow.expressions.evaluator import RowErrors


class Operator(Protocol):
    """Incremental: state and deltas in, one consolidated delta out."""

    def step(self, *deltas: Delta) -> Delta:
        """One epoch. One delta for each input, empty ones included; called at least once."""
        ...


class ErrorCollector(Protocol):
    """Where operators leave rows that failed: a Z-set of (sqlstate, message, row)."""

    def collect(self, operator: str, rows: Delta, errors: RowErrors) -> None:
        """Note rows.take(failed positions) with their weights under the operator's name."""
        ...
