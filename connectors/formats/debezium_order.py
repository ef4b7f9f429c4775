"""Debezium delivers at least once: what of a partition has been seen.

Pure state, for the source to keep beside its places: events that are repeated after a restart of
the connector are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

UNKNOWN = -1


class LastSeen:
    """By partition, the order of its newest event.

    An order is int64[4]: PostgreSQL's (end of the last commit, LSN, place in the transaction, 0),
    MySQL's (number of the binlog file, position, row, 0); UNKNOWN in front means that it has
    none, as events of a snapshot have.
    """

    def __init__(self, state: Mapping[str, Sequence[int]] | None = None) -> None:
        self._newest = {int(p): tuple(order) for p, order in (state or {}).items()}

    def fresh(self, partition: int, orders: np.ndarray) -> np.ndarray:
        """bool[n] of int64[n, 4] in the order of the partition: False for events seen before.

        Events of one order (rows of one COPY without transaction metadata) are all let through:
        a repeated one does no harm to rows with a key, a lost one would.
        """
        keep = np.ones(len(orders), np.bool_)
        known = orders[:, 0] != UNKNOWN
        if not known.any():
            return keep
        newest = self._newest.get(partition, (UNKNOWN,) * 4)
        asked = np.concatenate([np.array([newest], np.int64), orders[known]])
        values, ranks = np.unique(asked, axis=0, return_inverse=True)
        ranks = ranks.ravel()
        before = np.maximum.accumulate(ranks)[:-1]
        has_no_offset = asked[1:, 2] == UNKNOWN
        keep[known] = (ranks[1:] > before) | ((ranks[1:] == before) & has_no_offset)
        self._newest[partition] = tuple(values[-1].tolist())
        return keep

    def state(self) -> dict[str, list[int]]:
        """As JSON has it."""
        return {str(p): list(order) for p, order in self._newest.items()}
