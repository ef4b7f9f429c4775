"""Layout: how rows of given columns are stored in a page image.

An image is uint64 words, in this order. A header (magic and version, checksum, rows with the words
of a record, shape). The key hashes of all rows in one array, for searching. A record for each row,
read as a whole: two row hashes, NULL bits of 64 columns each, the columns, and last the additive
values (one weight, or the sums). The heap of all byte strings. A column is its 8 bytes, or start <<
32 | length, start in bytes from the start of the image. Invariant: equal rows have equal hashes,
and rows with equal hashes (128 bits) count as equal. Part of the format on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash
from tidemark_native import storage as kernels

from storage.delta import SEEDS, Column
from storage.errors import StorageError
from storage.kinds import KIND_BOOL, KIND_BYTES, KIND_FLOAT
from storage.store import ArrangementSpec, SumsSpec

VERSION = 2
HEADER = 4  # words
HASHES = 2  # words at the start of a record: two hashes of the whole row
MAGIC = 0x5469_6465_6D6B << 16  # "Tidemk", then 16 bits of version
IMAGE_LIMIT_BYTES = 1 << 30
_SEEDS = np.array(SEEDS, np.uint64)
_ROWS = np.uint64(0xFFFFFFFF)


class Layout:
    """Word positions for rows of `kinds` with `width` additive values.

    key: the columns whose hash sorts and finds the rows.
    """

    def __init__(self, kinds: str, key: Sequence[int], width: int) -> None:
        columns = len(kinds)
        self.kinds = kinds
        self.key = np.array(key, np.int64)
        self.width = width
        self.masks = (columns + 63) // 64
        self.column_at = HASHES + self.masks
        self.value_at = self.column_at + columns
        self.stride = self.value_at + width
        self.row_bytes = 8 * (self.stride + 1)
        self.is_bytes = np.array([k == KIND_BYTES for k in kinds], np.bool_)
        self.byte_columns = np.flatnonzero(self.is_bytes)
        self.byte_words = self.byte_columns + self.column_at
        text = f"{kinds}|{','.join(map(str, key))}|{width}"
        self.shape = xxhash.xxh3_64_intdigest(text.encode())
        self.header = np.array([MAGIC | VERSION, self.stride << 32, self.shape], np.uint64)

    @staticmethod
    def of(spec: ArrangementSpec | SumsSpec) -> Layout:
        """Return the layout of an arrangement (one weight a row) or of sums (the key is
        the row).
        """
        if isinstance(spec, ArrangementSpec):
            return Layout(spec.kinds, spec.key, 1)
        return Layout(spec.key_kinds, range(len(spec.key_kinds)), spec.width)

    def heap_bytes(self, columns: Sequence[Column]) -> int:
        """Return the bytes of all byte strings in these columns."""
        ends = (columns[c].values for c in self.byte_columns.tolist())
        return sum(int(v[-1] - v[0]) for v in ends)

    def image_bytes(self, columns: Sequence[Column], rows: int) -> int:
        """Return about how many bytes an image of n rows with these columns takes."""
        return self.row_bytes * rows + self.heap_bytes(columns)

    def image_words(self, rows: Any, heap_bytes: Any) -> Any:
        """Return the words of an image of so many rows; of ints or of arrays."""
        return HEADER + (self.stride + 1) * rows + (heap_bytes + 7) // 8

    def image(self, columns: Sequence[Column], values: np.ndarray) -> np.ndarray:
        """Return an unsorted, unsealed image of n rows: columns, and int64[width, n] values."""
        n = values.shape[1]
        heap_bytes = self.heap_bytes(columns)
        at = 8 * HEADER + self.row_bytes * n
        if at + heap_bytes >= 1 << 32:
            raise StorageError("state.format", f"{at + heap_bytes} bytes in one image")
        image = self.blank(n, heap_bytes)
        records = self.records_of(image)
        heap = image.view(np.uint8)
        records[:, HASHES : self.column_at] = 0
        for c, column in enumerate(columns):
            out = records[:, self.column_at + c]
            if column.data is not None:
                start, stop = int(column.values[0]), int(column.values[-1])
                kernels.pack_bytes(column.values, at, out)
                heap[at : at + stop - start] = column.data[start:stop]
                at += stop - start
            elif column.values.dtype == np.bool_:
                out[:] = column.values
            else:
                out[:] = column.values.view(np.uint64)
            if column.valid is not None:
                nulls = (~column.valid).astype(np.uint64) << np.uint64(c % 64)
                records[:, HASHES + c // 64] |= nulls
        records[:, self.value_at :] = values.T.view(np.uint64)
        kernels.hash_rows(image, n, self.key, self.masks, self.is_bytes, _SEEDS)
        return image

    def blank(self, rows: int, heap_bytes: int) -> np.ndarray:
        """Return an image with its header but no rows yet; the padding of the heap is zero."""
        image = np.empty(self.image_words(rows, heap_bytes), np.uint64)
        image[0] = MAGIC | VERSION
        image[1] = 0
        image[2] = self.stride << 32 | rows
        image[3] = self.shape
        if heap_bytes % 8:
            image[-1] = 0
        return image

    def hashes_of(self, image: np.ndarray) -> np.ndarray:
        """Return uint64[rows]: the key hashes of an image, as a view."""
        return image[HEADER : HEADER + int(image[2] & _ROWS)]

    def records_of(self, image: np.ndarray) -> np.ndarray:
        """Return uint64[rows, stride]: the records of an image, as a view."""
        rows = int(image[2] & _ROWS)
        start = HEADER + rows
        return image[start : start + self.stride * rows].reshape(rows, self.stride)

    def values_of(self, image: np.ndarray) -> np.ndarray:
        """Return int64[width, rows]: the additive values, as a view."""
        return self.records_of(image)[:, self.value_at :].view(np.int64).T

    def columns(self, hits: np.ndarray) -> list[Column]:
        """Return the columns of rows named by hits, as `tidemark_native.storage` describes them."""
        if not self.kinds:
            return []
        words = kernels.gather_words(hits, HASHES, self.masks + len(self.kinds))
        nulls = [int(np.bitwise_or.reduce(mask)) for mask in words[: self.masks]]
        out = []
        for c, kind in enumerate(self.kinds):
            word = words[self.masks + c]
            valid = None
            if nulls[c // 64] >> (c % 64) & 1:
                valid = (words[c // 64] >> np.uint64(c % 64)) & np.uint64(1) == 0
            if kind == KIND_BYTES:
                offsets, heap = kernels.gather_bytes(hits, word)
                out.append(Column(offsets, valid, heap))
            elif kind == KIND_BOOL:
                out.append(Column(word.astype(np.bool_), valid))
            else:
                out.append(Column(word.view(np.float64 if kind == KIND_FLOAT else np.int64), valid))
        return out
