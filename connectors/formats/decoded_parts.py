"""Assemble columns from records of one batch that were written by different schemas.

Each schema's records are converted separately; a column that a schema lacks is NULL in its records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from connectors.formats.declared import DeclaredColumn
from connectors.formats.fields import SHOWN_CHARACTERS, Fields, shown
from connectors.formats.leaves import Leaf, column_of_values
from dataflow.delta import Column


def read_part(
    column: DeclaredColumn,
    leaf: Leaf | None,
    rows: Sequence[int],
    found: Sequence[Any],
    fields: Fields,
) -> Column:
    """Return the values at the column's path, of the records `rows`; without a leaf, NULLs."""
    if leaf is None:
        return Column.nulls(column.field.type.physical, len(found))
    answer, faults = column_of_values(column, leaf, found)
    reasons = {rows[row]: f"{reason}: {_shown_value(found[row])}" for row, reason in faults.items()}
    fields.refuse_values(column.field.name, reasons)
    return answer


def _shown_value(value: Any) -> str:
    """Return a value for a reason; of what is within another, printing may take minutes."""
    if isinstance(value, bytes | str):
        value = value[: 2 * SHOWN_CHARACTERS]
    is_single = value is None or isinstance(value, bytes | str | int | float)
    return shown(str(value).encode(errors="replace")) if is_single else type(value).__name__


def values_at(values: Sequence[Any], path: Sequence[str]) -> list[Any]:
    """Return the value below the keys of the path in each value, None if one is missing."""
    found = list(values)
    for key in path:
        found = [one.get(key) if isinstance(one, dict) else None for one in found]
    return found


def scattered(
    column: DeclaredColumn, pieces: Sequence[Column], positions: Sequence[np.ndarray], n: int
) -> Column:
    """Return a column of n rows from pieces for some of them; NULL elsewhere."""
    if len(pieces) == 1 and len(positions[0]) == n:
        return pieces[0]
    gap = Column.nulls(column.field.type.physical, 1)
    index = np.zeros(n, np.int64)
    at = 1
    for rows in positions:
        index[rows] = np.arange(at, at + len(rows))
        at += len(rows)
    return Column.concat([gap, *pieces]).take(index)
