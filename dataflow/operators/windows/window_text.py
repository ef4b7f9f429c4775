"""Parts of a window in SQL, for what PostgreSQL computes, and whose fault an error of it is."""

from __future__ import annotations

import numpy as np

from dataflow.expressions.evaluator import RowErrors
from dataflow.expressions.ir import Literal
from dataflow.operators.ordered.row_order import Order
from dataflow.operators.windows.window_rows import WindowRows
from dataflow.plan.nodes import FrameBound


def of_partitions(failed: RowErrors, rows: WindowRows) -> RowErrors:
    """The errors of partitions as errors of all their rows."""
    errors = RowErrors()
    for partition, error in failed.by_row.items():
        for row in np.flatnonzero(rows.partition == partition).tolist():
            errors.add(row, *error)
    return errors


def order_text(order: Order, column: str) -> str:
    """One part of an ORDER BY."""
    word = "DESC" if order.is_descending else "ASC"
    if order.operator:
        word = f"USING {order.operator}"
    return f"{column} {word} NULLS {'FIRST' if order.nulls_first else 'LAST'}"


def bound_text(bound: FrameBound) -> str:
    """A frame's bound."""
    distance = f"{literal_text(bound.distance)} " if bound.distance is not None else ""
    return distance + bound.kind.upper()


def literal_text(literal: Literal) -> str:
    """A constant."""
    if literal.text is None:
        return f"CAST(NULL AS {literal.type.name})"
    quoted = literal.text.replace("'", "''")
    return f"CAST('{quoted}' AS {literal.type.name})"
