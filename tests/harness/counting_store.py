"""Stores that count the rows which operators read and write.

Invariant: it adds nothing but counts, so what a test sees of it is what an operator does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dataflow.delta import Column, Delta
from storage.memory import MemoryStore
from storage.rocks import RocksStore
from storage.store import ArrangementSpec, SumsSpec


class _Counting:
    """touched: rows and keys applied, found, asked for or scanned since `reset`. written: rows
    applied to arrangements, ever."""

    touched = 0
    written = 0

    def reset(self) -> int:
        """The count so far, and start again from zero."""
        touched, self.touched = self.touched, 0
        return touched

    def arrange(self, spec: ArrangementSpec):
        """A counting arrangement."""
        return _Arrangement(self, super().arrange(spec))  # type: ignore[misc]

    def arrange_sums(self, spec: SumsSpec):
        """Counting sums."""
        return _Sums(self, super().arrange_sums(spec))  # type: ignore[misc]


class CountingStore(_Counting, MemoryStore):
    """In memory."""


class CountingRocksStore(_Counting, RocksStore):
    """The product's store, for more rows than dictionaries hold in good time."""


class _Arrangement:
    def __init__(self, store: _Counting, inner) -> None:
        self._store = store
        self._inner = inner
        self.spec = inner.spec

    def apply(self, delta: Delta) -> None:
        self._store.touched += len(delta)
        self._store.written += len(delta)
        self._inner.apply(delta)

    def lookup(self, keys: Sequence[Column]) -> tuple[np.ndarray, Delta]:
        index, rows = self._inner.lookup(keys)
        self._store.touched += len(rows) + (len(keys[0]) if keys else 1)
        return index, rows

    def lookup_parts(
        self, keys: Sequence[Column], max_rows: int
    ) -> Iterator[tuple[np.ndarray, Delta]]:
        self._store.touched += len(keys[0]) if keys else 1
        for index, rows in self._inner.lookup_parts(keys, max_rows):
            self._store.touched += len(rows)
            yield index, rows

    def scan(self) -> Iterator[Delta]:
        for rows in self._inner.scan():
            self._store.touched += len(rows)
            yield rows

    def scan_from(self, start: int) -> Iterator[tuple[int, Delta]]:
        for end, rows in self._inner.scan_from(start):
            self._store.touched += len(rows)
            yield end, rows

    def clear(self) -> None:
        self._inner.clear()

    def row_count(self) -> int:
        return self._inner.row_count()


class _Sums:
    def __init__(self, store: _Counting, inner) -> None:
        self._store = store
        self._inner = inner
        self.spec = inner.spec

    def add(self, keys: Sequence[Column], sums: np.ndarray) -> None:
        self._store.touched += sums.shape[1]
        self._inner.add(keys, sums)

    def lookup(self, keys: Sequence[Column]) -> np.ndarray:
        found = self._inner.lookup(keys)
        self._store.touched += found.shape[1]
        return found
