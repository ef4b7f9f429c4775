"""The contracts of state: Store (one atomic write an epoch), Arrangement, Sums, BulkWriter.

`storage.memory` is the specification in dictionaries; `storage.rocks` is the product. Callers
guarantee, and implementations need not re-check: one thread, keys of the declared kinds, keys in
normal form (equal keys are equal bits).

Life of an epoch: operators call `apply` / `add` / `lookup` as often as they like and see their own
writes; then the pipeline puts positions and outbox with `put` and calls `commit` once. What was
not committed is gone after a crash, all of it. An arrangement whose row would keep a negative
weight raises `NegativeWeightError` from a call of its own, never from `commit`: the caller gives up
what is computed from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from storage.delta import Column, Delta


class Yielding(Protocol):
    """A cache that can do with less."""

    def press(self, excess_bytes: int) -> int:
        """Hold so many bytes less, or (below 0) up to as many more; the bytes let go."""
        ...


class Watch(Protocol):
    """The memory of the whole process, as far as a store has to do with it."""

    def look(self, cache: Yielding) -> None:
        """Between two steps: let the cache give way as far as the process asks for it."""
        ...

    def has_space(self, wanted_bytes: int, cache: Yielding) -> bool:
        """Whether the process may take so many bytes more."""
        ...


@dataclass(frozen=True)
class ArrangementSpec:
    """What an arrangement holds: rows of `kinds`, looked up by the columns at `key`.

    name is unique in the store and stable across restarts: "<scope>/<operator>/<role>".
    key () means one key for all rows; it is asked for with no columns, as one key (n = 1).
    is_searched: whether rows are looked up, not only read all at once now and then.
    """

    name: str
    kinds: str
    key: tuple[int, ...]
    is_searched: bool = True


@dataclass(frozen=True)
class SumsSpec:
    """What a Sums holds: one vector of `width` int64 sums for each key of `key_kinds`."""

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
        """Every row kept under each of n keys: (int64 index into keys, rows with weights > 0).

        Each row comes once for every key that asks for it, with its total weight; the order is
        not defined. Keys may repeat. NULL in a key matches NULL. OutOfRoomError before there is
        more of it than the process can hold.
        """
        ...

    def lookup_parts(
        self, keys: Sequence[Column], most_rows: int
    ) -> Iterator[tuple[np.ndarray, Delta]]:
        """As `lookup`, in parts: each row once for every key that asks for it, in one part only.

        A part has about most_rows rows at most (1 at least), or twice as many as keys. Nothing may
        be applied to this arrangement before the last part; to others it may, and the store may
        be relieved.
        """
        ...

    def scan(self) -> Iterator[Delta]:
        """All rows, each once, in chunks of bounded size. Nothing may be applied to this
        arrangement meanwhile; to others it may, and the store may be relieved."""
        ...

    def clear(self) -> None:
        """Remove every row, at no cost for each; part of the open epoch."""
        ...

    def row_count(self) -> int:
        """About how many distinct rows are kept: for status and explain, never for answers."""
        ...


class Sums(Protocol):
    """A vector of int64 sums for each key: the state of linear aggregates.

    A key whose sums are all zero is gone.
    """

    spec: SumsSpec

    def add(self, keys: Sequence[Column], sums: np.ndarray) -> None:
        """Add int64[width, n] to the vectors of n distinct keys."""
        ...

    def lookup(self, keys: Sequence[Column]) -> np.ndarray:
        """int64[width, n]: the vector of each key; zeros where there is none."""
        ...

    def scan(self) -> Iterator[tuple[tuple[Column, ...], np.ndarray]]:
        """All (key columns, int64[width, n]) in chunks of bounded size; as of an Arrangement."""
        ...

    def clear(self) -> None:
        """Remove every key, at no cost for each; part of the open epoch."""
        ...

    def key_count(self) -> int:
        """About how many keys are kept."""
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
        """The names of all arrangements and sums."""
        ...

    def size(self, name: str) -> tuple[int, int]:
        """About (rows, bytes) of an arrangement or sums, for people: rows that were taken back may
        count until they are merged away."""
        ...

    def disk_bytes(self) -> int:
        """What the files of the whole state take, for people."""
        ...

    def put(self, key: str, value: bytes | None) -> None:
        """Set (None: remove) a named value; part of the open epoch, visible to get at once."""
        ...

    def put_ahead(self, key: str, value: bytes) -> None:
        """Set a named value that means nothing before another one, which the commit writes, names
        it: it may be on disk before the commit, and be left over where there is none."""
        ...

    def get(self, key: str) -> bytes | None:
        """A named value, or None; committed ones from any thread."""
        ...

    def items(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """Named values whose key starts with prefix, in key order."""
        ...

    def relieve(self) -> None:
        """Between two steps: bring what the open epoch holds in memory under its budget."""
        ...

    def require_space(self, nbytes: int) -> None:
        """OutOfRoomError unless the process may take so many bytes more."""
        ...

    def commit(self, *, sync: bool = False) -> None:
        """Write everything since the last commit, at once or not at all.

        sync: also wait until it is on disk. Without it a crash of the process loses nothing, a
        crash of the machine may lose the newest commits, in order.
        """
        ...

    def sync(self) -> None:
        """Wait until every commit so far is on disk."""
        ...

    def ingest(self, files: Sequence[BulkFile]) -> None:
        """Take the files of `BulkWriter` as the whole content of their still empty arrangements.

        Durable on return, apart from the epoch. The files are moved.
        """
        ...

    def copy_to(self, folder: Path) -> None:
        """A copy of all that was committed, in a folder that is not there yet; from any thread,
        while the state is written."""
        ...

    def close(self) -> None:
        """Release the state directory. What was not committed is dropped."""
        ...
