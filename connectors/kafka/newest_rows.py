"""The last row of each key among records of one partition, by 128-bit hashes of the keys.

Memory: 25 bytes a key, twice that while they are merged; no row is stored. For the risk of a hash
collision see docs/contributing/decisions/0002.
"""

from __future__ import annotations

import numpy as np

from connectors.kafka.rows import Rows
from dataflow.changes import Changes
from dataflow.delta import row_hashes
from dataflow.schema import Relation

LEAST_ROWS = 100_000


class LastRows:
    """Finds the last row of each key; rows arrive in the order of their offsets."""

    def __init__(self, relation: Relation) -> None:
        self._key = relation.key
        self._whole = _empty()
        self._parts: list[tuple[np.ndarray, ...]] = []
        self._waiting = 0
        self._truncated = -1

    def add(self, rows: Rows, offsets: np.ndarray) -> None:
        """Add rows and removals, with their offsets."""
        n = len(rows.kinds)
        if not n:
            return
        truncated = offsets[rows.kinds == Changes.TRUNCATE]
        if len(truncated):
            self._truncated = int(truncated.max())
        first, second = row_hashes([rows.columns[c] for c in self._key], n)
        self._parts.append((first, second, offsets, rows.kinds != Changes.UPSERT))
        self._waiting += n
        # Merging costs as much as there are keys: do it rarely enough to be linear overall.
        if self._waiting > max(LEAST_ROWS, len(self._whole[0])):
            self._gather()

    def offsets(self) -> np.ndarray:
        """Return int64, ascending: offsets of the rows that no later one replaced or removed."""
        self._gather()
        _, _, offsets, removes = self._whole
        found = np.sort(offsets[~removes & (offsets > self._truncated)])
        self._whole = _empty()
        return found

    def _gather(self) -> None:
        parts = [self._whole, *self._parts]
        first, second, offsets, removes = (np.concatenate(p) for p in zip(*parts, strict=True))
        order = np.lexsort((offsets, second, first))
        first, second = first[order], second[order]
        is_last = np.ones(len(order), np.bool_)
        is_last[:-1] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
        kept = order[is_last]
        self._whole = (first[is_last], second[is_last], offsets[kept], removes[kept])
        self._parts, self._waiting = [], 0


def _empty() -> tuple[np.ndarray, ...]:
    hashes = np.empty(0, np.uint64)
    return hashes, hashes, np.empty(0, np.int64), np.empty(0, np.bool_)
