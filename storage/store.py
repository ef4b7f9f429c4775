"""The contracts of state: Store (one atomic write an epoch), Arrangement, Sums, BulkWriter.

`storage.memory` is the specification in dictionaries; `storage.rocks` is the product. Callers
guarantee, and implementations need not re-check: one thread, keys of the declared kinds, keys in
normal form (equal keys are equal bits).

Life of an epoch: operators call `apply` / `add` / `lookup` as often as they like and see their own
writes. Then the pipeline stores positions and outbox with `put` and calls `commit` once. After a
crash, everything uncommitted is lost. An arrangement with a negative weight raises
`NegativeWeightError` from one of its own calls, never from `commit`; the caller then drops what is
computed from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from storage.delta import Column, Delta

# The position after all rows of an arrangement: key hashes have 64 bits.
END = 1 << 64


class Yielding(Protocol):
    """A cache that can shrink."""

    def press(self, excess_bytes: int) -> int:
        """Reduce the budget by so many bytes, or (below 0) raise it; return the bytes released."""
        ...


class Watch(Protocol):
    """The memory of the whole process, as far as a store needs it."""

    def check(self, cache: Yielding) -> None:
        """Between two steps, shrink the cache as far as the process requires."""
        ...

    def has_space(self, requested_bytes: int, cache: Yielding) -> bool:
        """Return True if the process may use so many bytes more."""
        ...


@dataclass(frozen=True)
class ArrangementSpec:
    """The shape of an arrangement: rows of `kinds`, looked up by the columns at `key`.

    name is unique in the store and stable across restarts: "<scope>/<operator>/<role>". An empty
    key means one key for all rows; it is looked up with no columns, as one key (n = 1).
    is_searched: True if rows are looked up, not only scanned now and then.
    """

    name: str
    kinds: str
    key: tuple[int, ...]
    is_searched: bool = True


@dataclass(frozen=True)
class SumsSpec:
    """The shape of a Sums: one vector of `width` int64 sums for each key of `key_kinds`."""

    name: str
    key_kinds: str
    width: int


@dataclass(frozen=True)
class BulkFile:
    """One file of a bulk load: all entries of one arrangement in one range of key hashes.

    first_hashes: uint64[2, pages], key hash and row hash of the first row of each page.
    pages = 0: the range has no rows, and there is no file.
    """

    name: str
    path: str
    partition: int
    rows: int
    pages: int
    first_hashes: bytes


class Arrangement(Protocol):
    """A multiset of rows, indexed by key."""

    spec: ArrangementSpec

    def apply(self, delta: Delta) -> None:
        """Add the weights of delta's rows to the state. Delta need not be consolidated."""
        ...

    def lookup(self, keys: Sequence[Column]) -> tuple[np.ndarray, Delta]:
        """Return every row stored under each of n keys: (int64 index into keys, rows with weights >
        0).

        Each row comes once for every key that matches it, with its total weight; the order is
        undefined. Keys may repeat. NULL in a key matches NULL. OutOfSpaceError before the result
        exceeds the process's memory.
        """
        ...

    def lookup_parts(
        self, keys: Sequence[Column], max_rows: int
    ) -> Iterator[tuple[np.ndarray, Delta]]:
        """Yield the rows of `lookup` in parts: each row once for every matching key, in one part
        only.

        A part has about max_rows rows at most (1 at least), or twice as many as keys. Nothing may
        be applied to this arrangement before the last part; to others it may, and the store may be
        relieved.
        """
        ...

    def scan(self) -> Iterator[Delta]:
        """Yield all rows, each once, in chunks of bounded size.

        Nothing may be applied to this arrangement meanwhile but the removal of rows that have been
        yielded; to others anything may, and the store may be relieved.
        """
        ...

    def scan_from(self, start: int) -> Iterator[tuple[int, Delta]]:
        """Yield the rows from a position on, in chunks of bounded size: (the next position, rows).

        0 is the first position and END the one after the last. A later call may resume at any
        position that a chunk had, whatever was applied in between; some rows may then come again.
        Nothing may be applied to this arrangement while one call is read.
        """
        ...

    def clear(self) -> None:
        """Remove every row, at no cost for each; part of the open epoch."""
        ...

    def row_count(self) -> int:
        """Return about how many distinct rows are stored: for status and explain, never for
        results.
        """
        ...


class Sums(Protocol):
    """A vector of int64 sums for each key: the state of linear aggregates.

    A key whose sums are all zero is removed.
    """

    spec: SumsSpec

    def add(self, keys: Sequence[Column], sums: np.ndarray) -> None:
        """Add int64[width, n] to the vectors of n distinct keys."""
        ...

    def lookup(self, keys: Sequence[Column]) -> np.ndarray:
        """Return int64[width, n]: the vector of each key; zeros where there is none."""
        ...

    def scan(self) -> Iterator[tuple[tuple[Column, ...], np.ndarray]]:
        """Yield all (key columns, int64[width, n]) in chunks of bounded size; see
        Arrangement.scan.
        """
        ...

    def clear(self) -> None:
        """Remove every key, at no cost for each; part of the open epoch."""
        ...

    def key_count(self) -> int:
        """Return about how many keys are stored."""
        ...


class Store(Protocol):
    """Arrangements and small named values, written together in one atomic write an epoch."""

    def arrange(self, spec: ArrangementSpec) -> Arrangement:
        """Open or create. StorageError state.mismatch if it exists with another shape."""
        ...

    def arrange_sums(self, spec: SumsSpec) -> Sums:
        """Open or create. StorageError state.mismatch if it exists with another shape."""
        ...

    def drop(self, prefix: str) -> None:
        """Remove every arrangement whose name starts with prefix; part of the open epoch."""
        ...

    def names(self) -> list[str]:
        """Return the names of all arrangements and sums."""
        ...

    def size(self, name: str) -> tuple[int, int]:
        """Return about (rows, bytes) of an arrangement or sums, for display.

        Retracted rows may count until they are merged away.
        """
        ...

    def disk_bytes(self) -> int:
        """Return the bytes of all files of the state, for display."""
        ...

    def put(self, key: str, value: bytes | None) -> None:
        """Set (None: remove) a named value; part of the open epoch, visible to get at once."""
        ...

    def put_ahead(self, key: str, value: bytes) -> None:
        """Set a named value that may be on disk before the commit.

        It has no meaning until another value, which the commit writes, names it. Without that
        commit it may be left over.
        """
        ...

    def get(self, key: str) -> bytes | None:
        """Return a named value, or None; committed ones from any thread."""
        ...

    def items(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """Yield named values whose key starts with prefix, in key order."""
        ...

    def relieve(self) -> None:
        """Between two steps, bring the memory of the open epoch under its budget."""
        ...

    def require_space(self, nbytes: int) -> None:
        """Raise OutOfSpaceError unless the process may use so many bytes more."""
        ...

    def commit(self, *, sync: bool = False) -> None:
        """Write everything since the last commit atomically.

        sync: also wait until it is durable. Without it a crash of the process loses nothing, a
        crash of the machine may lose the newest commits, in order.
        """
        ...

    def sync(self) -> None:
        """Wait until every commit so far is durable."""
        ...

    def warm(self, pages: int) -> bool:
        """Read into memory, while there is space, up to so many pages that no search has read yet.

        Return False when none is left.
        """
        ...

    def merge_when_idle(self) -> bool:
        """Do in advance a little of what later searches would pay for; part of the open epoch.

        A few milliseconds at most. Return False when nothing is left to do.
        """
        ...

    def ingest(self, files: Sequence[BulkFile]) -> None:
        """Ingest the files of `BulkWriter` as the whole content of their still empty arrangements.

        Durable on return, independent of the epoch. The files are moved.
        """
        ...

    def copy_to(self, folder: Path) -> None:
        """Copy everything committed into a folder that does not exist yet.

        From any thread, while the state is written.
        """
        ...

    def close(self) -> None:
        """Release the state directory. Uncommitted writes are dropped."""
        ...
