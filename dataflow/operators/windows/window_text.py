"""Parts of a window as SQL text for PostgreSQL, and the rows that its errors belong to."""

from __future__ import annotations

import numpy as np

from dataflow.expressions.evaluator import RowErrors
from dataflow.expressions.ir import Literal
from dataflow.operators.ordered.row_order import Order
from dataflow.operators.windows.window_rows import WindowRows
from dataflow.plan.nodes import FrameBound


def of_partitions(failed: RowErrors, rows: WindowRows) -> RowErrors:
    """Return the errors of partitions as errors of all their rows."""
    errors = RowErrors()
    for partition, error in failed.by_row.items():
        for row in np.flatnonzero(rows.partition == partition).tolist():
            errors.add(row, *error)
    return errors


def order_text(order: Order, column: str) -> str:
    """Return one part of an ORDER BY."""
    word = "DESC" if order.is_descending else "ASC"
    if order.operator:
        word = f"USING {order.operator}"
    return f"{column} {word} NULLS {'FIRST' if order.nulls_first else 'LAST'}"


def bound_text(bound: FrameBound) -> str:
    """Return a frame's bound."""
    distance = f"{literal_text(bound.distance)} " if bound.distance is not None else ""
    return distance + bound.kind.upper()


def literal_text(literal: Literal) -> str:
    """Return a constant."""
    if literal.text is None:
        return f"CAST(NULL AS {literal.type.name})"
    quoted = literal.text.replace("'", "''")
    return f"CAST('{quoted}' AS {literal.type.name})"
