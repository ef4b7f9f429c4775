"""Column and Delta: rows in columns with signed weights, the one form that moves and is stored.

A Delta is a Z-set: row -> weight, and deltas add. A column is one of four physical kinds (KIND_*):
int64, float64, bool, or bytes (int64 offsets and uint8 data); only dataflow knows its SQL type.
Invariant: a NULL slot holds zero bits (or an empty string), so equal rows are equal bits and can be
compared and hashed as bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pickle import PickleBuffer
from typing import Any

import numpy as np
from tidemark_native import storage as kernels

from storage.kinds import KIND_BOOL, KIND_BYTES, KIND_FLOAT, KIND_INT

_NO_MASK = np.empty(0, np.bool_)
_DTYPES = {KIND_INT: np.int64, KIND_FLOAT: np.float64, KIND_BOOL: np.bool_}
_KINDS = {"i": KIND_INT, "f": KIND_FLOAT, "b": KIND_BOOL}
_BUFFER_PROTOCOL = 5
_SEED_FIRST = 0x7469_6465
_SEED_SECOND = 0x6D61_726B
SEEDS = (_SEED_FIRST, _SEED_SECOND)
_SEED_PAIR = np.array(SEEDS, np.uint64)


class Column:
    """One column of n rows.

    values: int64[n], float64[n] or bool[n]; for bytes the int64 offsets[n + 1] into `data`.
    valid: bool[n], False = NULL; None when no row is NULL.
    data: uint8 bytes of a KIND_BYTES column, else None.
    """

    __slots__ = ("data", "valid", "values")

    def __init__(
        self, values: np.ndarray, valid: np.ndarray | None = None, data: np.ndarray | None = None
    ) -> None:
        self.values = values
        self.valid = valid
        self.data = data

    def __len__(self) -> int:
        return len(self.values) if self.data is None else len(self.values) - 1

    @property
    def kind(self) -> str:
        """The physical kind: one of KIND_INT, KIND_FLOAT, KIND_BOOL, KIND_BYTES."""
        return KIND_BYTES if self.data is not None else _KINDS[self.values.dtype.kind]

    @staticmethod
    def of(kind: str, items: Iterable[Any]) -> Column:
        """Build from Python values (int, float, bool, str or bytes; None = NULL).

        >>> Column.of("s", ["a", None, "bc"]).to_list()
        [b'a', None, b'bc']
        """
        items = list(items)
        mask = np.fromiter((x is not None for x in items), np.bool_, len(items))
        valid = None if mask.all() else mask
        if kind == KIND_BYTES:
            parts = [_encode(x) for x in items]
            offsets = np.zeros(len(items) + 1, np.int64)
            np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=offsets[1:])
            return Column(offsets, valid, np.frombuffer(b"".join(parts), np.uint8))
        filled = [0 if x is None else x for x in items]
        return Column(np.array(filled, dtype=_DTYPES[kind]), valid)

    @staticmethod
    def empty(kind: str) -> Column:
        """Return a column of no rows."""
        if kind == KIND_BYTES:
            return Column(np.zeros(1, np.int64), None, np.empty(0, np.uint8))
        return Column(np.empty(0, _DTYPES[kind]))

    @staticmethod
    def nulls(kind: str, n: int) -> Column:
        """Return a column of n NULLs."""
        valid = np.zeros(n, np.bool_)
        if kind == KIND_BYTES:
            return Column(np.zeros(n + 1, np.int64), valid, np.empty(0, np.uint8))
        return Column(np.zeros(n, _DTYPES[kind]), valid)

    @staticmethod
    def concat(columns: Sequence[Column]) -> Column:
        """Return the rows of all columns, in order; at least one column, all of one kind."""
        if len(columns) == 1:
            return columns[0]
        valid = None
        if any(c.valid is not None for c in columns):
            valid = np.concatenate([c.mask() for c in columns])
        if columns[0].data is None:
            return Column(np.concatenate([c.values for c in columns]), valid)
        offsets, parts, end = [np.zeros(1, np.int64)], [], 0
        for column in columns:
            start, stop = int(column.values[0]), int(column.values[-1])
            offsets.append(column.values[1:] + (end - start))
            parts.append(column.data[start:stop])  # type: ignore[index]
            end += stop - start
        return Column(np.concatenate(offsets), valid, np.concatenate(parts))

    def mask(self) -> np.ndarray:
        """Return bool[n]: True where the row is not NULL."""
        return np.ones(len(self), np.bool_) if self.valid is None else self.valid

    def take(self, index: np.ndarray) -> Column:
        """Return the rows at int64 positions, in that order, repeats allowed."""
        valid = None
        if self.valid is not None:
            valid = self.valid[index]
            if valid.all():
                valid = None
        if self.data is None:
            return Column(self.values[index], valid)
        offsets, data = kernels.take_bytes(self.values, self.data, index)
        return Column(offsets, valid, data)

    def slice(self, start: int, stop: int) -> Column:
        """Return rows [start, stop) without copying."""
        valid = None if self.valid is None else self.valid[start:stop]
        if self.data is None:
            return Column(self.values[start:stop], valid)
        return Column(self.values[start : stop + 1], valid, self.data)

    def to_list(self) -> list[Any]:
        """Return Python values: int, float, bool, bytes; None for NULL."""
        if self.data is None:
            items = self.values.tolist()
        else:
            raw, ends = self.data.tobytes(), self.values.tolist()
            items = [raw[a:b] for a, b in pairwise(ends)]
        if self.valid is None:
            return items
        return [x if ok else None for x, ok in zip(items, self.valid.tolist(), strict=True)]

    def texts(self) -> list[str | None]:
        """Return Python strings of a bytes column; None for NULL."""
        return [None if x is None else x.decode() for x in self.to_list()]

    def nbytes(self) -> int:
        """Return the bytes of the buffers that this column points into."""
        valid = 0 if self.valid is None else self.valid.nbytes
        return self.values.nbytes + valid + (0 if self.data is None else self.data.nbytes)


def hash_columns(columns: Sequence[Column], n: int, seed: int = _SEED_FIRST) -> np.ndarray:
    """Return uint64[n]: a stable hash of each row. NULLs hash alike; no columns, one value.

    Equal bits give equal hashes, so callers normalize keys first (1.50 = 1.5, -0.0 = 0.0). Part of
    the format on disk.
    """
    return _hashed(columns, n, np.array([seed], np.uint64))[0]


def row_hashes(columns: Sequence[Column], n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two independent uint64[n] hashes: 128 bits that identify a row."""
    first, second = _hashed(columns, n, _SEED_PAIR)
    return first, second


def _hashed(columns: Sequence[Column], n: int, seeds: np.ndarray) -> np.ndarray:
    hashes = np.empty((len(seeds), n), np.uint64)
    hashes[:] = seeds.reshape(-1, 1)
    for column in columns:
        valid = _NO_MASK if column.valid is None else column.valid
        if column.data is not None:
            kernels.mix_bytes(hashes, column.values, column.data, valid, seeds)
        elif column.values.dtype == np.bool_:
            kernels.mix_fixed(hashes, column.values.astype(np.uint64), valid)
        else:
            kernels.mix_fixed(hashes, np.ascontiguousarray(column.values).view(np.uint64), valid)
    return hashes


def group_rows(columns: Sequence[Column], n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (group int64[n], first int64[groups]): equal rows share a group; each group's first
    row.
    """
    return kernels.group_hashes(*row_hashes(columns, n))


def equal_rows(
    left: Sequence[Column], left_index: np.ndarray, right: Sequence[Column], right_index: np.ndarray
) -> np.ndarray:
    """Return bool[k]: left row left_index[i] equals right row right_index[i] bitwise,
    NULL = NULL.
    """
    out = np.ones(len(left_index), np.bool_)
    for a, b in zip(left, right, strict=True):
        if a.valid is not None or b.valid is not None:
            out &= a.mask()[left_index] == b.mask()[right_index]
        if a.data is not None and b.data is not None:
            kernels.equal_bytes(a.values, a.data, left_index, b.values, b.data, right_index, out)
        elif a.values.dtype == np.float64:
            out &= a.values.view(np.int64)[left_index] == b.values.view(np.int64)[right_index]
        else:
            out &= a.values[left_index] == b.values[right_index]
    return out


class Delta:
    """Rows with weights: columns of n rows each and int64 weights[n].

    Producers return consolidated deltas (each row once, no zero weight) unless they say otherwise.
    Immutable by convention: nobody writes into another's buffers.
    """

    __slots__ = ("columns", "weights")

    def __init__(self, columns: Sequence[Column], weights: np.ndarray) -> None:
        self.columns = tuple(columns)
        self.weights = weights

    def __len__(self) -> int:
        return len(self.weights)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the bare buffers: epochs are stored with their deltas, and arrays take much
        longer.
        """
        if protocol < _BUFFER_PROTOCOL:
            return super().__reduce_ex__(protocol)
        columns = [(c.kind, _bare(c.values), _bare(c.valid), _bare(c.data)) for c in self.columns]
        return _restored, (columns, _bare(self.weights))

    @property
    def kinds(self) -> str:
        """The physical kinds of the columns, one letter each."""
        return "".join(c.kind for c in self.columns)

    @staticmethod
    def empty(kinds: Sequence[str]) -> Delta:
        """Return a delta of no rows."""
        return Delta([Column.empty(k) for k in kinds], np.empty(0, np.int64))

    @staticmethod
    def of(kinds: Sequence[str], rows: Iterable[tuple[Any, ...]], weights: Any = 1) -> Delta:
        """Build from Python rows; weights is one int for all rows, or one for each.

        >>> Delta.of("is", [(1, "a"), (2, None)], [1, -1]).rows()
        [((1, b'a'), 1), ((2, None), -1)]
        """
        rows = list(rows)
        columns = [Column.of(k, [row[i] for row in rows]) for i, k in enumerate(kinds)]
        if isinstance(weights, int):
            return Delta(columns, np.full(len(rows), weights, np.int64))
        return Delta(columns, np.array(list(weights), np.int64))

    @staticmethod
    def concat(deltas: Sequence[Delta]) -> Delta:
        """Return all rows of all deltas, not consolidated; at least one delta, equal kinds."""
        if len(deltas) > 1:
            deltas = [d for d in deltas if len(d)] or list(deltas[:1])
        if len(deltas) == 1:
            return deltas[0]
        columns = [Column.concat(parts) for parts in zip(*(d.columns for d in deltas), strict=True)]
        return Delta(columns, np.concatenate([d.weights for d in deltas]))

    def take(self, index: np.ndarray) -> Delta:
        """Return the rows at int64 positions."""
        return Delta([c.take(index) for c in self.columns], self.weights[index])

    def slice(self, start: int, stop: int) -> Delta:
        """Return rows [start, stop) without copying."""
        return Delta([c.slice(start, stop) for c in self.columns], self.weights[start:stop])

    def filter(self, keep: np.ndarray) -> Delta:
        """Return the rows where bool[n] keep is True."""
        return self if keep.all() else self.take(np.flatnonzero(keep))

    def negate(self) -> Delta:
        """Return the same rows with opposite weights."""
        return Delta(self.columns, -self.weights)

    def weighted(self, weights: np.ndarray) -> Delta:
        """Return the same rows with other weights."""
        return Delta(self.columns, weights)

    def project(self, index: Sequence[int]) -> Delta:
        """Return the columns at these positions; not consolidated."""
        return Delta([self.columns[i] for i in index], self.weights)

    def consolidate(self) -> Delta:
        """Return each row once, with the sum of its weights; rows that sum to zero are removed."""
        n = len(self)
        if n == 0 or (n == 1 and self.weights[0] != 0):
            return self
        group, representative = kernels.group_hashes(*row_hashes(self.columns, n))
        if len(representative) == n:
            return self.filter(self.weights != 0)
        weights = kernels.sum_by_group(group, self.weights, len(representative))
        keep = np.flatnonzero(weights)
        return Delta([c.take(representative[keep]) for c in self.columns], weights[keep])

    def rows(self) -> list[tuple[tuple[Any, ...], int]]:
        """Return [(row, weight)] in Python values, for tests and small deltas."""
        if not self.columns:
            return [((), int(w)) for w in self.weights]
        values = zip(*(c.to_list() for c in self.columns), strict=True)
        return list(zip(values, self.weights.tolist(), strict=True))

    def nbytes(self) -> int:
        """Return the bytes of the buffers of all columns and the weights."""
        return sum(c.nbytes() for c in self.columns) + self.weights.nbytes


def _encode(item: Any) -> bytes:
    if item is None:
        return b""
    return item.encode() if isinstance(item, str) else bytes(item)


def _bare(array: np.ndarray | None) -> PickleBuffer | None:
    return None if array is None else PickleBuffer(np.ascontiguousarray(array).data)


def _restored(columns: Sequence[tuple[str, Any, Any, Any]], weights: Any) -> Delta:
    """Return the delta of pickled buffers, without copying them."""
    out = []
    for kind, values, valid, data in columns:
        mask = None if valid is None else np.frombuffer(valid, np.bool_)
        heap = None if data is None else np.frombuffer(data, np.uint8)
        out.append(Column(np.frombuffer(values, _DTYPES.get(kind, np.int64)), mask, heap))
    return Delta(out, np.frombuffer(weights, np.int64))
