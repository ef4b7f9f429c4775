"""Rows of a delta by key: which rows share a key, which keys are NULL.

Invariant: keys arrive in key form, so equal bits are equal keys and nothing else is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tidemark_native import storage as kernels

from dataflow.delta import Column, Delta, row_hashes
from dataflow.errors import InvariantError
from dataflow.expressions.ir import ColumnRef, Expression


@dataclass(frozen=True)
class Touched:
    """The distinct keys of n rows.

    keys: the key columns, one row for each key; group int64[n]: the key of each row;
    representative int64[count]: the first row of each key.
    """

    keys: tuple[Column, ...]
    group: np.ndarray
    representative: np.ndarray

    @property
    def count(self) -> int:
        """How many keys there are."""
        return len(self.representative)

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Return int64[count]: int64[n] values summed by key."""
        return kernels.sum_by_group(self.group, values, self.count)


def touch(columns: Sequence[Column], n: int) -> Touched:
    """Number the distinct keys of n rows; no columns: one key, even over no rows."""
    if not columns:
        return Touched((), np.zeros(n, np.int64), np.zeros(1, np.int64))
    group, representative = kernels.group_hashes(*row_hashes(columns, n))
    keys = tuple(columns)
    if len(representative) < n:
        keys = tuple(c.take(representative) for c in columns)
    return Touched(keys, group, representative)


def null_keys(columns: Sequence[Column]) -> np.ndarray | None:
    """Return bool[n]: where any key column is NULL; None when none is."""
    masks = [~c.valid for c in columns if c.valid is not None]
    if not masks:
        return None
    found = masks[0] if len(masks) == 1 else np.logical_or.reduce(masks)
    return found if found.any() else None


def split_nulls(delta: Delta, key: Sequence[int]) -> tuple[Delta, Delta | None]:
    """(rows whose key may equal another, rows with a NULL in the key or None)."""
    found = null_keys([delta.columns[i] for i in key])
    if found is None:
        return delta, None
    return delta.take(np.flatnonzero(~found)), delta.take(np.flatnonzero(found))


def columns_at(delta: Delta, key: Sequence[int]) -> tuple[Column, ...]:
    """Return the columns of a delta at these positions."""
    return tuple(delta.columns[i] for i in key)


def value_at(column: Column, positions: np.ndarray) -> Column:
    """Return the values at int64 positions, NULL at -1."""
    if len(positions) and positions.min() >= 0:
        return column.take(positions)
    pool = Column.concat([Column.nulls(column.kind, 1), column])
    return pool.take(positions + 1)


def plain_columns(expressions: Sequence[Expression]) -> tuple[int, ...]:
    """Return the positions of expressions that lowering has made plain columns."""
    for expression in expressions:
        if not isinstance(expression, ColumnRef):
            raise InvariantError("plan.key", f"a key is not a plain column: {expression}")
    return tuple(e.index for e in expressions if isinstance(e, ColumnRef))
