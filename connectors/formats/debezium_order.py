"""Deduplication of Debezium's at-least-once delivery, by partition.

Pure state, which the source stores with its positions: events that the connector repeats after a
restart are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

UNKNOWN = -1


class DedupState:
    """The order of each partition's newest event.

    An order is int64[4]: PostgreSQL's (end of the last commit, LSN, number in the transaction, 0),
    MySQL's (number of the binlog file, position, row, 0). It starts with UNKNOWN if an event has
    none, like events of a snapshot.
    """

    def __init__(self, state: Mapping[str, Sequence[int]] | None = None) -> None:
        self._newest = {int(p): tuple(order) for p, order in (state or {}).items()}

    def fresh(self, partition: int, orders: np.ndarray) -> np.ndarray:
        """Return bool[n] for int64[n, 4] in the order of the partition: False for repeated events.

        Events of equal order (rows of one COPY without transaction metadata) all pass: repeating
        one does no harm to rows with a key, losing one would.
        """
        keep = np.ones(len(orders), np.bool_)
        has_order = orders[:, 0] != UNKNOWN
        if not has_order.any():
            return keep
        newest = self._newest.get(partition, (UNKNOWN,) * 4)
        orders_seen = np.concatenate([np.array([newest], np.int64), orders[has_order]])
        values, ranks = np.unique(orders_seen, axis=0, return_inverse=True)
        ranks = ranks.ravel()
        before = np.maximum.accumulate(ranks)[:-1]
        has_no_offset = orders_seen[1:, 2] == UNKNOWN
        keep[has_order] = (ranks[1:] > before) | ((ranks[1:] == before) & has_no_offset)
        self._newest[partition] = tuple(values[-1].tolist())
        return keep

    def state(self) -> dict[str, list[int]]:
        """Return the state as JSON."""
        return {str(p): list(order) for p, order in self._newest.items()}
