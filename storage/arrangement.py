"""Arrangement and Sums of the product store: the contracts of `storage.store` over a RunSet.

`apply` does not read, so it cannot detect a negative weight by itself. A `lookup` of the row's key
and `scan` always detect it. So does a merge that starts at the oldest run (the first flush, and
each large merge); the next `apply` then raises it. Invariant: after a hash matches, the key itself
is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from storage.delta import Column, Delta, equal_rows, hash_columns
from storage.layout import IMAGE_LIMIT_BYTES
from storage.pages import Selection
from storage.run_search import EVERY_ROW
from storage.run_set import RunSet
from storage.store import ArrangementSpec, SumsSpec

# After this many rows in memory, beyond this many bytes, check for space for the results: the rows'
# own bytes, and a few times as much.
_CHECK_ROWS = 1 << 17
_CHECK_BYTES = 16 << 20
_COPIES = 3


def _find(
    runs: RunSet, keys: Sequence[Column], key: Sequence[int], max_rows: int = EVERY_ROW
) -> Iterator[tuple[np.ndarray, list[Column], np.ndarray]]:
    """Yield rows of all requested keys, in parts: (index into keys, columns, totals int64[k,
    width]).
    """
    n = len(keys[0]) if keys else 1
    if n == 0:
        return
    hashes = hash_columns(keys, n)
    order = np.argsort(hashes) if n > 1 else np.zeros(1, np.int64)
    for shift, selection in runs.find(hashes[order], max_rows):
        count = len(selection.hits)
        if count == 0:
            continue
        index = order[selection.hits[:, 0] + shift]
        columns = runs.layout.columns(selection.hits)
        totals = selection.totals
        same = equal_rows(keys, index, [columns[c] for c in key], np.arange(count))
        if not same.all():
            keep = np.flatnonzero(same)
            index, totals = index[keep], totals[keep]
            columns = [column.take(keep) for column in columns]
        yield index, columns, totals


class RocksArrangement:
    """A multiset of rows, indexed by key. An empty key is looked up with no columns, once."""

    def __init__(
        self, spec: ArrangementSpec, runs: RunSet, require_space: Callable[[int], None]
    ) -> None:
        self.spec = spec
        self.runs = runs
        self._require_space = require_space

    def apply(self, delta: Delta) -> None:
        """Add the weights of delta's rows to the state. Delta need not be consolidated."""
        n = len(delta)
        if n > 1 and self.runs.layout.image_bytes(delta.columns, n) > IMAGE_LIMIT_BYTES:
            half = n // 2
            self.apply(delta.slice(0, half))
            self.apply(delta.slice(half, n))
            return
        self.runs.add(delta.columns, delta.weights.reshape(1, -1))

    def lookup(self, keys: Sequence[Column]) -> tuple[np.ndarray, Delta]:
        """Return every row stored under each of n keys; see the contract. NegativeWeightError."""
        parts = list(self.lookup_parts(keys, EVERY_ROW))
        if not parts:
            return np.empty(0, np.int64), Delta.empty(self.spec.kinds)
        if len(parts) == 1:
            return parts[0]
        index = np.concatenate([part[0] for part in parts])
        return index, Delta.concat([rows for _, rows in parts])

    def lookup_parts(
        self, keys: Sequence[Column], max_rows: int
    ) -> Iterator[tuple[np.ndarray, Delta]]:
        """Yield the rows of `lookup`, about max_rows at a time; see the contract."""
        buffered_bytes = 0
        few_rows = min(max_rows, _CHECK_ROWS)
        for index, columns, totals in _find(self.runs, keys, self.spec.key, few_rows):
            rows = Delta(columns, totals[:, 0])
            yield index, rows
            if max_rows > _CHECK_ROWS:
                # A caller that takes so many rows holds all earlier ones.
                buffered_bytes += rows.nbytes()
                if buffered_bytes > _CHECK_BYTES:
                    self._require_space(_COPIES * buffered_bytes)

    def scan(self) -> Iterator[Delta]:
        """Yield all rows, each once, in chunks of some 30,000; see the contract."""
        for selection in self.runs.scan():
            yield _delta(self.runs, selection)

    def clear(self) -> None:
        """Remove every row; see the contract."""
        self.runs.clear()

    def row_count(self) -> int:
        """Return about how many distinct rows are stored; a merge makes it exact."""
        return self.runs.net_rows()


def _delta(runs: RunSet, selection: Selection) -> Delta:
    return Delta(runs.layout.columns(selection.hits), selection.totals[:, 0].copy())


class RocksSums:
    """A vector of int64 sums for each key. An empty key is looked up with no columns, once."""

    def __init__(self, spec: SumsSpec, runs: RunSet) -> None:
        self.spec = spec
        self.runs = runs
        self._key = range(len(spec.key_kinds))

    def add(self, keys: Sequence[Column], sums: np.ndarray) -> None:
        """Add int64[width, n] to the vectors of n keys."""
        n = sums.shape[1]
        if n > 1 and self.runs.layout.image_bytes(keys, n) > IMAGE_LIMIT_BYTES:
            half = n // 2
            self.add([key.slice(0, half) for key in keys], sums[:, :half])
            self.add([key.slice(half, n) for key in keys], sums[:, half:])
            return
        self.runs.add(keys, np.ascontiguousarray(sums, np.int64))

    def lookup(self, keys: Sequence[Column]) -> np.ndarray:
        """Return int64[width, n]: the vector of each key; zeros where there is none."""
        out = np.zeros((self.spec.width, len(keys[0]) if keys else 1), np.int64)
        for index, _, totals in _find(self.runs, keys, self._key):
            out[:, index] = totals.T
        return out

    def scan(self) -> Iterator[tuple[tuple[Column, ...], np.ndarray]]:
        """Yield all (key columns, int64[width, n]), each key once; see the contract."""
        for selection in self.runs.scan():
            keys = tuple(self.runs.layout.columns(selection.hits))
            yield keys, np.ascontiguousarray(selection.totals.T)

    def clear(self) -> None:
        """Remove every key; see the contract."""
        self.runs.clear()

    def key_count(self) -> int:
        """Return about how many keys are stored, within a few percent."""
        return self.runs.distinct_rows()
