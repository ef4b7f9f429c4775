"""MemoryStore: the specification of state, and the store of tests and of Spark tasks.

An arrangement is the sum of its deltas and nothing more. It is a few consolidated parts, each at
least twice as large as the next, searched through a sorted array of key hashes. It is strict where
the product store is lazy: the `apply` that makes a weight negative refuses it. Invariant: each row
is once in a part, and its weight is the sum over the parts. There is nothing to commit: writes are
visible at once and gone with the process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from tidemark_native import storage as kernels

from storage.delta import Column, Delta, equal_rows, hash_columns, row_hashes
from storage.errors import NegativeWeightError, StorageError
from storage.layout import Layout
from storage.store import END, ArrangementSpec, BulkFile, SumsSpec

_SCAN_ROWS = 32768


class _Part:
    """Distinct rows with a vector of totals each: columns of n rows, int64[width, n]."""

    def __init__(self, columns: Sequence[Column], totals: np.ndarray) -> None:
        self.columns = columns
        self.totals = totals
        self._sorted: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = {}

    def __len__(self) -> int:
        return self.totals.shape[1]

    @staticmethod
    def consolidated(columns: Sequence[Column], totals: np.ndarray) -> _Part:
        """Return the part of these rows: equal rows summed, rows whose totals are all
        zero removed.
        """
        n = totals.shape[1]
        group, firsts = kernels.group_hashes(*row_hashes(columns, n))
        sums = [kernels.sum_by_group(group, row, len(firsts)) for row in totals]
        summed = np.array(sums, np.int64).reshape(len(totals), len(firsts))
        keep = np.flatnonzero(summed.any(axis=0))
        return _Part([c.take(firsts[keep]) for c in columns], summed[:, keep])

    @staticmethod
    def together(parts: Sequence[_Part]) -> _Part:
        """Return the sum of parts."""
        columns = [Column.concat(same) for same in zip(*(p.columns for p in parts), strict=True)]
        return _Part.consolidated(columns, np.concatenate([p.totals for p in parts], axis=1))

    def find(
        self, keys: Sequence[Column], n: int, key: tuple[int, ...]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return rows whose columns at `key` equal one of n keys: (index into keys, row)."""
        if key not in self._sorted:
            hashes = hash_columns([self.columns[c] for c in key], len(self))
            order = np.argsort(hashes)
            self._sorted[key] = order, hashes[order]
        order, hashes = self._sorted[key]
        requested = hash_columns(keys, n)
        start = np.searchsorted(hashes, requested, "left")
        count = np.searchsorted(hashes, requested, "right") - start
        index = np.repeat(np.arange(n), count)
        before = np.cumsum(count) - count
        rows = order[np.arange(len(index)) + np.repeat(start - before, count)]
        same = np.flatnonzero(equal_rows(keys, index, [self.columns[c] for c in key], rows))
        return index[same], rows[same]


class _Parts:
    """A Z-set with vectors for weights, as parts of halving size."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []

    def add(self, columns: Sequence[Column], totals: np.ndarray) -> _Part:
        """Add rows; return them consolidated."""
        new = _Part.consolidated(columns, totals)
        parts = self._parts
        if len(new):
            parts.append(new)
        while len(parts) > 1 and 2 * len(parts[-1]) >= len(parts[-2]):
            parts[-2:] = [_Part.together(parts[-2:])]
        self._parts = [part for part in parts if len(part)]
        return new

    def find(self, keys: Sequence[Column], key: tuple[int, ...]) -> _Part:
        """Return the rows of n keys, with the index into keys as column 0; one key if there are no
        columns.
        """
        n = len(keys[0]) if keys else 1
        found = []
        for part in self._parts:
            index, rows = part.find(keys, n, key)
            columns = [Column(index), *(c.take(rows) for c in part.columns)]
            found.append(_Part(columns, part.totals[:, rows]))
        found = [part for part in found if len(part)] or found[:1]
        if len(found) == 1:
            return found[0]
        return _Part.together(found) if found else _Part([], np.empty((0, 0), np.int64))

    def whole(self) -> _Part | None:
        """Return all rows in one part; None if there are none."""
        if len(self._parts) > 1:
            self._parts = [_Part.together(self._parts)]
        return self._parts[0] if self._parts else None

    def count(self) -> int:
        """Return the number of rows."""
        whole = self.whole()
        return 0 if whole is None else len(whole)


class MemoryArrangement:
    """A multiset of rows, indexed by key. An empty key is looked up with no columns, once."""

    def __init__(self, spec: ArrangementSpec) -> None:
        self.spec = spec
        self._parts = _Parts()

    def apply(self, delta: Delta) -> None:
        """Add the weights of delta's rows. NegativeWeightError if a weight becomes negative."""
        if not len(delta):
            return
        new = self._parts.add(delta.columns, delta.weights.reshape(1, -1))
        less = np.flatnonzero(new.totals[0] < 0)
        if len(less):
            rows = [column.take(less) for column in new.columns]
            self._check(self._parts.find(rows, tuple(range(len(rows)))))

    def _check(self, found: _Part) -> None:
        if len(found) and found.totals.min() < 0:
            at = int(np.argmin(found.totals[0]))
            row = tuple(c.slice(at, at + 1).to_list()[0] for c in found.columns[1:])
            raise NegativeWeightError(self.spec.name, repr(row), int(found.totals[0, at]))

    def lookup(self, keys: Sequence[Column]) -> tuple[np.ndarray, Delta]:
        """Return every row stored under each of n keys; see the contract."""
        found = self._parts.find(keys, self.spec.key)
        if not len(found):
            return np.empty(0, np.int64), Delta.empty(self.spec.kinds)
        return found.columns[0].values, Delta(found.columns[1:], found.totals[0])

    def lookup_parts(
        self, keys: Sequence[Column], max_rows: int
    ) -> Iterator[tuple[np.ndarray, Delta]]:
        """Yield the rows of `lookup`, max_rows at a time."""
        index, rows = self.lookup(keys)
        for start in range(0, len(rows), max_rows):
            stop = min(start + max_rows, len(rows))
            yield index[start:stop], rows.slice(start, stop)

    def scan(self) -> Iterator[Delta]:
        """Yield all rows, each once, in chunks of bounded size."""
        whole = self._parts.whole()
        if whole is not None:
            delta = Delta(whole.columns, whole.totals[0])
            for start in range(0, len(delta), _SCAN_ROWS):
                yield delta.slice(start, min(start + _SCAN_ROWS, len(delta)))

    def scan_from(self, start: int) -> Iterator[tuple[int, Delta]]:
        """Yield the rows from a position on, in the order of their keys' hashes."""
        whole = self._parts.whole()
        if whole is None:
            return
        keys = [whole.columns[c] for c in self.spec.key]
        hashes = hash_columns(keys, len(whole))
        order = np.argsort(hashes, kind="stable")
        rows = Delta(whole.columns, whole.totals[0]).take(order)
        hashes = hashes[order]
        at = int(np.searchsorted(hashes, np.uint64(start))) if start < END else len(rows)
        while at < len(rows):
            end = min(at + _SCAN_ROWS, len(rows))
            yield int(hashes[end]) if end < len(rows) else END, rows.slice(at, end)
            at = end

    def clear(self) -> None:
        """Remove every row."""
        self._parts = _Parts()

    def row_count(self) -> int:
        """Return the number of distinct rows."""
        return self._parts.count()


class MemorySums:
    """A vector of int64 sums for each key. An empty key is looked up with no columns, once."""

    def __init__(self, spec: SumsSpec) -> None:
        self.spec = spec
        self._parts = _Parts()
        self._key = tuple(range(len(spec.key_kinds)))

    def add(self, keys: Sequence[Column], sums: np.ndarray) -> None:
        """Add int64[width, n] to the vectors of n keys."""
        if sums.shape[1]:
            self._parts.add(keys, np.ascontiguousarray(sums, np.int64))

    def lookup(self, keys: Sequence[Column]) -> np.ndarray:
        """Return int64[width, n]: the vector of each key; zeros where there is none."""
        out = np.zeros((self.spec.width, len(keys[0]) if keys else 1), np.int64)
        found = self._parts.find(keys, self._key)
        if len(found):
            out[:, found.columns[0].values] = found.totals
        return out

    def scan(self) -> Iterator[tuple[tuple[Column, ...], np.ndarray]]:
        """Yield all (key columns, int64[width, n]) in chunks of bounded size."""
        whole = self._parts.whole()
        if whole is not None:
            for start in range(0, len(whole), _SCAN_ROWS):
                stop = min(start + _SCAN_ROWS, len(whole))
                keys = tuple(c.slice(start, stop) for c in whole.columns)
                yield keys, np.ascontiguousarray(whole.totals[:, start:stop])

    def clear(self) -> None:
        """Remove every key."""
        self._parts = _Parts()

    def key_count(self) -> int:
        """Return the number of keys."""
        return self._parts.count()


class MemoryStore:
    """Arrangements and named values in this process only; implements `storage.store.Store`."""

    def __init__(self) -> None:
        self._arrangements: dict[str, MemoryArrangement] = {}
        self._sums: dict[str, MemorySums] = {}
        self._values: dict[str, bytes] = {}

    def arrange(self, spec: ArrangementSpec) -> MemoryArrangement:
        """Open or create. StorageError state.mismatch if it exists with another shape."""
        found = self._arrangements.get(spec.name) or MemoryArrangement(spec)
        if found.spec != spec or spec.name in self._sums:
            raise StorageError("state.mismatch", f'"{spec.name}" exists with another shape')
        self._arrangements[spec.name] = found
        return found

    def arrange_sums(self, spec: SumsSpec) -> MemorySums:
        """Open or create. StorageError state.mismatch if it exists with another shape."""
        found = self._sums.get(spec.name) or MemorySums(spec)
        if found.spec != spec or spec.name in self._arrangements:
            raise StorageError("state.mismatch", f'"{spec.name}" exists with another shape')
        self._sums[spec.name] = found
        return found

    def drop(self, prefix: str) -> None:
        """Remove every arrangement whose name starts with prefix."""
        for kept in (self._arrangements, self._sums):
            for name in [name for name in kept if name.startswith(prefix)]:
                del kept[name]

    def names(self) -> list[str]:
        """Return the names of all arrangements and sums."""
        return [*self._arrangements, *self._sums]

    def size(self, name: str) -> tuple[int, int]:
        """Return (rows, bytes) of an arrangement or sums."""
        state = self._arrangements.get(name) or self._sums.get(name)
        if state is None:
            return 0, 0
        rows = state.row_count() if isinstance(state, MemoryArrangement) else state.key_count()
        return rows, rows * Layout.of(state.spec).row_bytes

    def disk_bytes(self) -> int:
        """Return 0: nothing is on disk."""
        return 0

    def put(self, key: str, value: bytes | None) -> None:
        """Set (None: remove) a named value."""
        if value is None:
            self._values.pop(key, None)
        else:
            self._values[key] = value

    def put_ahead(self, key: str, value: bytes) -> None:
        """Set a named value."""
        self._values[key] = value

    def get(self, key: str) -> bytes | None:
        """Return a named value, or None."""
        return self._values.get(key)

    def items(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """Yield named values whose key starts with prefix, in key order."""
        yield from sorted((k, v) for k, v in self._values.items() if k.startswith(prefix))

    def relieve(self) -> None:
        """Do nothing: everything is in memory."""

    def require_space(self, nbytes: int) -> None:
        """Do nothing: memory is not limited."""

    def commit(self, *, sync: bool = False) -> None:
        """Do nothing: nothing is durable."""

    def warm(self, pages: int) -> bool:
        """Return False: everything is in memory."""
        return False

    def merge_when_idle(self) -> bool:
        """Return False: there are no runs."""
        return False

    def sync(self) -> None:
        """Do nothing: nothing is durable."""

    def ingest(self, files: Sequence[BulkFile]) -> None:
        """Add the rows of the files to their arrangements. The files stay."""
        from storage.bulk import read_file

        for file in files:
            if file.name in self._arrangements:
                rows = self._arrangements[file.name]
                for columns, values in read_file(file, rows.spec):
                    rows.apply(Delta(columns, values[0]))
            elif file.name in self._sums:
                sums = self._sums[file.name]
                for columns, values in read_file(file, sums.spec):
                    sums.add(columns, values)
            else:
                raise StorageError("state.mismatch", f'bulk file for unknown "{file.name}"')

    def contents(self) -> list[MemoryArrangement | MemorySums]:
        """Return all arrangements, then all sums, each in order of creation."""
        return [*self._arrangements.values(), *self._sums.values()]

    def write_files(self, folder: Path) -> list[BulkFile]:
        """Write everything, one file an arrangement or sums, for another store's `ingest`."""
        from storage.bulk import BulkWriter

        files = []
        for number, kept in enumerate(self.contents()):
            writer = BulkWriter(kept.spec, 0, 1, str(folder / f"rows-{number:04d}.sst"))
            if isinstance(kept, MemoryArrangement):
                for rows in kept.scan():
                    writer.add(rows)
            else:
                for keys, sums in kept.scan():
                    writer.add_sums(keys, sums)
            files.append(writer.finish())
        return files

    def copy_to(self, folder: Path) -> None:
        """Fail with StorageError state.io: there are no files."""
        raise StorageError("state.io", f'a state in memory cannot be copied to "{folder}"')

    def close(self) -> None:
        """Forget everything."""
        self._arrangements.clear()
        self._sums.clear()
        self._values.clear()
