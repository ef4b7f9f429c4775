"""A Parquet file of somebody else, read in batches whose size in memory is known before.

A column chunk of 500 bytes can stand for gigabytes. So the number of rows of each batch follows
from what the pages claim (parquet_pages.py), and a page is checked before Arrow decodes it.
Invariant: what Arrow reads of a column is what was checked, and a batch with its pages is not
larger than the limits here, but for one row.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from connectors.formats.parquet_pages import Leaf, Page, leaf_of, pages_of
from connectors.outside.bounded import OverLimitError

# Of the values of a batch, of one row, and of the pages that are decoded at a time.
BATCH_BYTES, MOST_ROW_BYTES, MOST_OPEN_BYTES = 32 << 20, 64 << 20, 512 << 20
MOST_LIST_VALUES = 1_000_000
# The end of a file, which describes its columns.
MOST_FOOTER_BYTES = 16 << 20
_TAIL_BYTES = 8
# An element of a list, while it is an object.
_ELEMENT_BYTES, _COPIES = 128, 4
_FIRST_ROWS = 32
_BLOCK_BYTES = 1 << 20
# All plain pages that are not measured together.
_UNMEASURED_BYTES = 32 << 20


class ParquetInput:
    """One file. options: of Arrow's reader.

    pa.ArrowException, OSError: it is malformed or cannot be read. OverLimitError: it stands for
    too much.
    """

    def __init__(self, file: IO[bytes] | pa.NativeFile, **options: Any) -> None:
        self._tee = _Tee(file)
        self._check_footer()
        self.parquet = pq.ParquetFile(
            self._tee, buffer_size=_BLOCK_BYTES, pre_buffer=False, **options
        )

    def names(self) -> list[str]:
        """Return the names of its columns. UnicodeDecodeError: one is not UTF-8."""
        return list(map(str, self.parquet.schema_arrow.names))

    def group_rows(self) -> list[int]:
        """Return the number of rows of each row group."""
        metadata = self.parquet.metadata
        return [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]

    def batches(
        self, names: Sequence[str], groups: Sequence[int], most_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of columns in row groups, in batches of at most most_rows rows."""
        paths = [self.parquet.schema.column(n).path for n in range(len(self.parquet.schema))]
        chosen = [n for n, path in enumerate(paths) if _is_among(path, names)]
        rows = _FIRST_ROWS
        for group in groups:
            first, columns = 0, self._columns(group, chosen)
            rows = _fitting(columns, first, min(2 * rows, most_rows))
            batches = self.parquet.iter_batches(
                rows, row_groups=[group], columns=list(names), use_threads=False
            )
            while (batch := next(batches, None)) is not None:
                yield batch
                first += batch.num_rows
                rows = _fitting(columns, first, min(2 * rows, most_rows))
                # Of the next batch, not of all.
                self.parquet.reader.set_batch_size(rows)
            self._tee.open_chunks([])

    def _check_footer(self) -> None:
        """Refuse a description of columns that is very long: it is decoded as a whole."""
        tail = self._tee.direct(max(0, self._tee.size_bytes - _TAIL_BYTES), _TAIL_BYTES)
        if int.from_bytes(tail[:4], "little") > MOST_FOOTER_BYTES and tail[4:] == b"PAR1":
            raise OverLimitError(f"its footer is larger than {MOST_FOOTER_BYTES >> 20} MB")

    def _columns(self, group: int, chosen: Sequence[int]) -> list[_Column]:
        exact_above = _UNMEASURED_BYTES // max(1, len(chosen))
        size = self._tee.size_bytes
        leaves = [leaf_of(self.parquet, group, n, size, exact_above) for n in chosen]
        chunks = self._tee.open_chunks([(leaf.start, leaf.end) for leaf in leaves])
        return [_Column(leaf, chunk) for leaf, chunk in zip(leaves, chunks, strict=True)]


def _is_among(path: str, names: Sequence[str]) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in names)


def _fitting(columns: Sequence[_Column], first: int, rows: int) -> int:
    """Return how many rows from `first` on fit into a batch, at most `rows`."""
    while True:
        most = BATCH_BYTES if rows > 1 else MOST_ROW_BYTES
        found = 0
        for column in columns:
            found += column.batch_bytes(first, rows, most - found)
            if found > most:
                break
        if sum(column.open_bytes for column in columns) > MOST_OPEN_BYTES:
            raise OverLimitError(f"its pages need more than {MOST_OPEN_BYTES >> 20} MB at a time")
        if found <= most:
            return rows
        if rows == 1:
            raise OverLimitError(f"row {first + 1} of a row group has more than {most >> 20} MB")
        rows = max(1, min(rows // 2, rows * BATCH_BYTES // found))


class _Column:
    """A column of a row group. open_bytes: what its pages need at a time, so far."""

    def __init__(self, leaf: Leaf, chunk: _Chunk) -> None:
        self.open_bytes = 0
        self._leaf, self._chunk = leaf, chunk
        self._walk = pages_of(leaf, chunk.inspect)
        # With the number of rows before the first that it has a part of, and before its end.
        self._pages: deque[tuple[Page, int, int]] = deque()
        self._begun = 0
        self._is_through = False
        # Arrow knows the end of a row by the begin of the next one.
        self._ahead = 1 if leaf.most_repetition else 0
        # Values of lists and structures are objects and JSON before they are a column.
        self._copies = _COPIES if "." in leaf.path else 1
        self._level_bytes = leaf.width + (_ELEMENT_BYTES if leaf.most_repetition else 0)

    def batch_bytes(self, first: int, rows: int, most: int) -> int:
        """Return at most how many bytes some rows are, or a part of it that is more than `most`."""
        while self._pages and self._pages[0][2] <= first:
            self._pages.popleft()
        found, n = 0, 0
        while found <= most and (n < len(self._pages) or self._has_more(first + rows)):
            page, start, end = self._pages[n]
            there = max(0, min(end, first + rows) - max(start, first))
            levels = min(page.levels, there * page.longest)
            content = min(page.content_bytes, levels * page.value_bytes)
            found += content * (self._copies if rows > 1 else 1) + levels * self._level_bytes
            n += 1
        return found

    def _has_more(self, end: int) -> bool:
        """Take the next page, if Arrow may read it for the rows before `end`."""
        if self._is_through or self._begun >= end + self._ahead:
            return False
        page = next(self._walk, None)
        if page is None:
            self._is_through = True
            self._chunk.end_inspection()
            return False
        if page.longest > MOST_LIST_VALUES:
            path = self._leaf.path[:100]
            raise OverLimitError(f'a row has more than {MOST_LIST_VALUES:,} values of "{path}"')
        self._pages.append((page, self._begun - page.is_continued, self._begun + page.rows))
        self._begun += page.rows
        self.open_bytes = max(self.open_bytes, page.open_bytes)
        return True


class _Chunk:
    """The bytes of a column chunk between the pages that are checked and those that are decoded.

    Both are read once, in their order, so what lies between is what is held.
    """

    def __init__(self, tee: _Tee, start: int) -> None:
        self._tee = tee
        self._held, self._at = bytearray(), start
        self._inspected: float = start
        self._read = start

    def inspect(self, at: int, size: int) -> bytes:
        """Return bytes to check; those before them are not checked again."""
        self._inspected = max(self._inspected, at)
        self._forget()
        found = self._bytes(at, size)
        if self._tee.held_bytes() > MOST_OPEN_BYTES:
            raise OverLimitError(f"its pages need more than {MOST_OPEN_BYTES >> 20} MB at a time")
        return found

    @property
    def held_bytes(self) -> int:
        """How much is held."""
        return len(self._held)

    def end_inspection(self) -> None:
        """Note that nothing more is checked."""
        self._inspected = float("inf")
        self._forget()

    def read(self, at: int, size: int) -> bytes:
        """Return bytes to decode."""
        if at < self._at:
            return self._tee.direct(at, size)
        found = self._bytes(at, size)
        self._read = max(self._read, at + len(found))
        self._forget()
        return found

    def _bytes(self, at: int, size: int) -> bytes:
        while (missing := at + size - self._at - len(self._held)) > 0:
            more = self._tee.direct(self._at + len(self._held), max(missing, _BLOCK_BYTES))
            if not more:
                break
            self._held += more
        return bytes(self._held[at - self._at : at - self._at + size])

    def _forget(self) -> None:
        passed = int(min(self._inspected, self._read)) - self._at
        if passed > 0:
            passed = min(passed, len(self._held))
            del self._held[:passed]
            self._at += passed


class _Tee(io.RawIOBase):
    """The file as Arrow reads it. size_bytes: of all of it."""

    def __init__(self, file: IO[bytes] | pa.NativeFile) -> None:
        super().__init__()
        self._file, self._at = file, 0
        self._chunks: list[_Chunk] = []
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.size_bytes = file.seek(0, io.SEEK_END)

    def open_chunks(self, bounds: Sequence[tuple[int, int]]) -> list[_Chunk]:
        """Return the column chunks that are read next."""
        chunks = [_Chunk(self, start) for start, _ in bounds]
        order = sorted(range(len(bounds)), key=lambda n: bounds[n])
        self._chunks = [chunks[n] for n in order]
        self._starts, self._ends = ([bounds[n][side] for n in order] for side in (0, 1))
        return chunks

    def held_bytes(self) -> int:
        """Return how much all column chunks hold."""
        return sum(chunk.held_bytes for chunk in self._chunks)

    def direct(self, at: int, size: int) -> bytes:
        """Read the file."""
        self._file.seek(at)
        parts = []
        while size > 0 and (part := self._file.read(size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size_bytes}[whence]
        self._at = start + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        size = self.size_bytes - self._at if size < 0 else size
        n = bisect_right(self._starts, self._at) - 1
        if n >= 0 and self._at < self._ends[n]:
            found = self._chunks[n].read(self._at, size)
        else:
            found = self.direct(self._at, size)
        self._at += len(found)
        return found
