"""A total order of rows: the parts of an ORDER BY, then all columns.

Invariant: rows that tie in ORDER BY are ordered by all their columns, the first column first, NULLs
last, numbers by value and everything else by the bytes of its text. So two different rows never
share a rank, and nothing depends on the order of arrival.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dataflow.delta import Column, group_rows
from dataflow.expressions.evaluator import Evaluator
from dataflow.operators.ordered.ordering import peer_ranks, text_ranks
from dataflow.types import INT8, SqlType

# Columns by position: all of a row, or those that a comparison reads.
Columns = Sequence[Column] | Mapping[int, Column]


@dataclass(frozen=True)
class Order:
    """One part of an ORDER BY: the column at a position, of a type.

    operator: of USING, as PostgreSQL writes it, if it is not the type's own < or >.
    """

    column: int
    type: SqlType
    is_descending: bool = False
    nulls_first: bool = False
    operator: str = ""


class RowOrder:
    """Compares rows, many at once."""

    def __init__(self, order: Sequence[Order], evaluator: Evaluator) -> None:
        self._order = tuple(order)
        self._evaluator = evaluator

    def columns(self, parts: int | None = None) -> tuple[int, ...]:
        """Return the positions of the columns that the first `parts` of ORDER BY read; all parts
        by default."""
        return tuple(dict.fromkeys(part.column for part in self._order[:parts]))

    def peers(self, columns: Columns, n: int, parts: int | None = None) -> np.ndarray:
        """Return int64[n]: the rank of each of n rows by ORDER BY alone, equal for its peers.

        parts: compare by so many first parts of ORDER BY only. Comparable within one call only.
        """
        return dense_ranks(self._all_keys(columns, n, parts), n)

    def keys(self, columns: Columns, n: int, parts: int | None = None) -> np.ndarray:
        """Return int64[n] as `peers` does, but any numbers in that order."""
        found = self._all_keys(columns, n, parts)
        return found[0] if len(found) == 1 else dense_ranks(found, n)

    def _all_keys(self, columns: Columns, n: int, parts: int | None) -> list[np.ndarray]:
        keys: list[np.ndarray] = []
        for part in self._order[:parts] if n else ():
            keys += self._keys(part, columns[part.column])
        return keys

    def ranks(
        self, columns: Sequence[Column], n: int, peers: np.ndarray | None = None
    ) -> np.ndarray:
        """Return int64[n]: the rank of each of n rows by the total order; only equal rows share
        one.

        peers: the result of `peers` for these rows, if already computed.
        """
        peers = self.peers(columns, n) if peers is None else dense_ranks([peers], n)
        if int(peers.max(initial=0)) == n:
            return peers
        shared = np.flatnonzero(np.bincount(peers)[peers] > 1)
        within = np.zeros(n, np.int64)
        within[shared] = tie_ranks([c.take(shared) for c in columns], len(shared))
        return dense_ranks([peers, within], n)

    def _keys(self, part: Order, column: Column) -> list[np.ndarray]:
        """Return integers in the order of one part, the most significant first."""
        if column.valid is None:
            return [self._directed(part, column)]
        present = np.flatnonzero(column.valid)
        values = np.zeros(len(column), np.int64)
        if len(present):
            values[present] = self._directed(part, column.take(present))
        nulls = ~column.valid
        return [(~nulls if part.nulls_first else nulls).astype(np.int64), values]

    def _directed(self, part: Order, column: Column) -> np.ndarray:
        if part.operator:
            return self._by_operator(part, column)
        found = peer_ranks(part.type, column, self._evaluator)
        return ~found if part.is_descending else found

    def _by_operator(self, part: Order, column: Column) -> np.ndarray:
        """Return the keys of an order that only PostgreSQL can compute."""
        n = len(column)
        rows = Column(np.arange(n))
        _, (at, position), _ = self._evaluator.evaluate_groups(
            "SELECT tidemark_row.g, $2 AS at, "
            f"dense_rank() OVER (ORDER BY $1 USING {part.operator}) AS place FROM tidemark_row",
            (part.type, INT8),
            (column, rows),
            np.zeros(n, np.int64),
            (INT8, INT8),
        )
        out = np.empty(n, np.int64)
        out[at.values] = position.values
        return out


def dense_ranks(keys: Sequence[np.ndarray], n: int) -> np.ndarray:
    """Return int64[n]: the dense rank, from 1, of each row by its int64 keys, the most significant
    first."""
    if not keys or n == 0:
        return np.ones(n, np.int64)
    sequence = np.lexsort(tuple(reversed(keys)))
    fresh = np.zeros(n, np.bool_)
    fresh[0] = True
    for key in keys:
        ordered = key[sequence]
        fresh[1:] |= ordered[1:] != ordered[:-1]
    out = np.empty(n, np.int64)
    out[sequence] = np.cumsum(fresh)
    return out


def tie_ranks(columns: Sequence[Column], n: int) -> np.ndarray:
    """Return int64[n]: the ranks of rows that tie in ORDER BY; equal rows share one."""
    group, first = group_rows(columns, n)
    row_ranks = np.ones(len(first), np.int64)
    for column in columns:
        if int(row_ranks.max()) == len(first):
            break
        column = column.take(first)
        keys = [row_ranks, text_ranks(Column(column.values, None, column.data))]
        if column.valid is not None:
            keys.insert(1, (~column.valid).astype(np.int64))
        row_ranks = dense_ranks(keys, len(first))
    return row_ranks[group]
