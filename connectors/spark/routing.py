"""How the rows of a join's inputs reach its buckets: by key, by row, or to all.

Rows go to the bucket of their key. The rows of a frequent key would fill its bucket with work and
state. So such a key may be spread: its rows of one input go to the buckets of their own hashes, and
its rows of the other input to every bucket. A row with a NULL key meets no other row, so it goes to
the bucket of its own hash, or nowhere if the join does not output it. Invariant: a row and its
retraction reach the same buckets, as long as the same keys are spread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from dataflow.delta import Column
from dataflow.operators.groups import null_keys
from storage.bulk import partition_of, partition_rows, positions_by
from storage.delta import hash_columns


class JoinRouting:
    """The spread keys of one join.

    padded: the inputs of which rows with a NULL key are output. keys: of each spread key the input
    that is spread, and the hash of its columns.
    """

    def __init__(self, padded: Iterable[int], keys: Iterable[tuple[int, int]] = ()) -> None:
        self._padded = frozenset(padded)
        found = sorted((hash, side) for side, hash in keys)
        self.hashes = np.array([hash for hash, _ in found], np.uint64)
        self.sides = np.array([side for _, side in found], np.int64)

    def positions(
        self, columns: Sequence[Column], key: Sequence[int], n: int, buckets: int, side: int
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield each bucket that gets rows of an input, with their positions, int64.

        columns: whole rows; key: the positions of their key.
        """
        hashes = hash_columns([columns[c] for c in key], n)
        bucket = partition_of(hashes, buckets)
        by_row, is_copied = self._found(hashes, side)
        stays = ~is_copied
        nulls = null_keys([columns[c] for c in key])
        if nulls is not None:
            by_row, is_copied = by_row | nulls, is_copied & ~nulls
            stays = ~is_copied if side in self._padded else ~(is_copied | nulls)
        rows = np.flatnonzero(by_row & stays)
        if not len(rows) and stays.all():
            yield from positions_by(bucket)
            return
        if len(rows):
            bucket[rows] = partition_rows([c.take(rows) for c in columns], len(rows), buckets)
        once, copied = np.flatnonzero(stays), np.flatnonzero(is_copied)
        at = np.concatenate([once, np.tile(copied, buckets)])
        to = np.concatenate([bucket[once], np.repeat(np.arange(buckets), len(copied))])
        for number, positions in positions_by(to):
            yield number, at[positions]

    def counted_once(self, hashes: np.ndarray, side: int, buckets: int, bucket: int) -> np.ndarray:
        """Return bool[n]: which rows of a bucket are no copies of rows in another one.

        hashes: uint64[n] of the keys. One of all copies counts, that in the bucket of the key.
        """
        _, is_copied = self._found(hashes, side)
        if not is_copied.any():
            return ~is_copied
        return ~is_copied | (partition_of(hashes, buckets) == bucket)

    def _found(self, hashes: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (bool[n] whether rows of an input are spread, bool[n] whether they are copied)."""
        if not len(self.hashes):
            return np.zeros(len(hashes), np.bool_), np.zeros(len(hashes), np.bool_)
        at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        is_known, is_own = self.hashes[at] == hashes, self.sides[at] == side
        return is_known & is_own, is_known & ~is_own
