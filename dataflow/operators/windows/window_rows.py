"""Rows of partitions in order: the input of window functions.

Invariant: the same rows give the same sequence, whatever the order of arrival: partition by
partition, each in the order of ORDER BY and then of all columns by text. A row of weight 3 occurs
three times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dataflow.delta import Column, Delta
from dataflow.operators.ordered.row_order import RowOrder


@dataclass(frozen=True)
class WindowRows:
    """n rows in sequence.

    columns: n values each. source int64[n]: the input row of each. partition int64[n]: never
    decreasing. begin, end int64[n]: the bounds of the row's partition; peer_begin, peer_end
    int64[n]: those of its peers. first_copy int64[n]: the position of its first copy.
    """

    columns: tuple[Column, ...]
    source: np.ndarray
    partition: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    peer_begin: np.ndarray
    peer_end: np.ndarray
    first_copy: np.ndarray

    def __len__(self) -> int:
        return len(self.partition)

    @property
    def position(self) -> np.ndarray:
        """int64[n]: 0, 1, 2 ..."""
        return np.arange(len(self.partition))


def sequence_rows(rows: Delta, partition: np.ndarray, order: RowOrder) -> WindowRows:
    """Return the rows (weights > 0) of the partitions int64[m] (any numbers), in sequence."""
    m = len(rows)
    peers = order.peers(rows.columns, m)
    positions = order.ranks(rows.columns, m, peers)
    source = np.lexsort((positions, partition))
    source = np.repeat(source, rows.weights[source])
    part, peers = partition[source], peers[source]
    begin, end = runs_of(_changes(part))
    peer_begin, peer_end = runs_of(_changes(part) | _changes(peers))
    columns = tuple(c.take(source) for c in rows.columns)
    first_copy, _ = runs_of(_changes(source))
    return WindowRows(columns, source, part, begin, end, peer_begin, peer_end, first_copy)


def runs_of(starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where the run of each row begins and ends, int64[n], from bool[n]: a run begins here.

    >>> [x.tolist() for x in runs_of(np.array([True, False, True]))]
    [[0, 0, 2], [2, 2, 3]]
    """
    edges = np.append(np.flatnonzero(starts), len(starts))
    lengths = np.diff(edges)
    return np.repeat(edges[:-1], lengths), np.repeat(edges[1:], lengths)


def _changes(values: np.ndarray) -> np.ndarray:
    """Return bool[n]: True where a value differs from the one before, and for the first one."""
    out = np.ones(len(values), np.bool_)
    out[1:] = values[1:] != values[:-1]
    return out
