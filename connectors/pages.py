"""Pages: deltas as bytes, for files and for transfer between the tasks of a backfill.

A page describes itself: magic, version, rows, checksum, kinds, then the buffers of each column and
the weights, little-endian and 8-byte aligned. No pickle; decoding copies nothing. Invariant:
decode_delta(encode_delta(d)) has d's rows in d's order. A page with changed bytes is refused.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import xxhash

from dataflow.delta import KIND_BOOL, KIND_BYTES, KIND_FLOAT, Column, Delta
from dataflow.errors import InvariantError

_MAGIC = b"TMpg"
_VERSION = 2
_HEAD = struct.Struct("<4sHHqQ")  # magic, version, columns, rows, checksum
_FIXED = {KIND_FLOAT: np.dtype("<f8"), KIND_BOOL: np.dtype("?")}
_INT = np.dtype("<i8")
_BYTE = np.dtype("u1")
_PADDINGS = tuple(bytes(n) for n in range(8))
# Up to this size a page's buffers are joined first and hashed at once.
_SMALL_BYTES = 32 << 10


def encode_delta(delta: Delta) -> bytes:
    """Return one page with all rows."""
    return b"".join(page_parts(delta)[0])


def page_parts(delta: Delta) -> tuple[list[Any], int]:
    """Return the buffers of a page, to be joined, and their total bytes."""
    kinds = delta.kinds.encode()
    masks = [None if c.valid is None or c.valid.all() else c.valid for c in delta.columns]
    described = kinds + bytes(mask is not None for mask in masks)
    parts: list[Any] = [described, _PADDINGS[-(_HEAD.size + len(described)) % 8]]
    size = len(described) + len(parts[1])
    for column, mask in zip(delta.columns, masks, strict=True):
        if mask is not None:
            size += _put(parts, mask)
        if column.data is not None:
            start, stop = int(column.values[0]), int(column.values[-1])
            size += _put(parts, column.values - start)
            size += _put(parts, column.data[start:stop])
        else:
            size += _put(parts, column.values)
    size += _put(parts, delta.weights)
    seed = _seed(len(kinds), len(delta))
    if size <= _SMALL_BYTES:
        parts = [b"".join(parts)]
        check = xxhash.xxh3_64_intdigest(parts[0], seed=seed)
    else:
        hashed = xxhash.xxh3_64(seed=seed)
        for part in parts:
            hashed.update(part)
        check = hashed.intdigest()
    head = _HEAD.pack(_MAGIC, _VERSION, len(kinds), len(delta), check)
    return [head, *parts], _HEAD.size + size


def decode_delta(page: bytes | bytearray) -> Delta:
    """Return the rows of a page; the columns point into its bytes. InvariantError backfill.page."""
    if len(page) < _HEAD.size:
        raise InvariantError("backfill.page", f"a page has {len(page)} bytes")
    magic, version, count, rows, check = _HEAD.unpack_from(page)
    if magic != _MAGIC or version != _VERSION:
        raise InvariantError("backfill.page", f"a page begins with {page[:8]!r}")
    body = memoryview(page)[_HEAD.size :]
    if check != xxhash.xxh3_64_intdigest(body, seed=_seed(count, rows)):
        raise InvariantError("backfill.page", f"a page of {rows} rows fails its checksum")
    at = _HEAD.size
    kinds = page[at : at + count].decode()
    masked = page[at + count : at + 2 * count]
    reader = _Reader(page, at + 2 * count)
    columns = []
    for kind, is_masked in zip(kinds, masked, strict=True):
        valid = reader.take(np.dtype("?"), rows) if is_masked else None
        if kind == KIND_BYTES:
            offsets = reader.take(_INT, rows + 1)
            columns.append(Column(offsets, valid, reader.take(_BYTE, int(offsets[-1]))))
        else:
            columns.append(Column(reader.take(_FIXED.get(kind, _INT), rows), valid))
    return Delta(columns, reader.take(_INT, rows))


def _seed(columns: int, rows: int) -> int:
    """Return the start of the checksum, which covers the head."""
    return rows << 16 | columns


class _Reader:
    """Read buffers one after the other, each from the next multiple of 8."""

    def __init__(self, page: bytes | bytearray, at: int) -> None:
        self._page = page
        self._at = at

    def take(self, dtype: np.dtype, count: int) -> np.ndarray:
        """Return the next `count` values."""
        self._at += -self._at % 8
        out = np.frombuffer(self._page, dtype, count, self._at)
        self._at += out.nbytes
        return out


def _put(parts: list[Any], values: np.ndarray) -> int:
    """Add an array, without a copy if possible, padded to the next multiple of 8."""
    raw = np.ascontiguousarray(values)
    padding = _PADDINGS[-raw.nbytes % 8]
    parts.append(raw)
    if padding:
        parts.append(padding)
    return raw.nbytes + len(padding)
