"""Convert columns to and from PostgreSQL's bulk text forms: COPY streams and array literals.

Nothing here knows tables. Invariant: whatever bytes a value or a name contains, PostgreSQL reads
that value or name, never SQL. The session has standard_conforming_strings = on.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np
from tidemark_native import replication

from dataflow.delta import Column
from dataflow.types import SqlType
from dataflow.values import from_text, to_text

CHUNK_ROWS = 16_384
CHUNK_BYTES = 4 << 20
SPOOL_BYTES = 32 << 20

_NO_MASK = np.empty(0, np.bool_)
_HEX = np.frombuffer(b"".join(b"%02x" % i for i in range(256)), np.uint8).reshape(256, 2)


def texts_of(types: Sequence[SqlType], columns: Sequence[Column]) -> list[Column]:
    """Return each column in PostgreSQL's text form."""
    return [to_text(t, c) for t, c in zip(types, columns, strict=True)]


def uuid_texts(first: np.ndarray, second: np.ndarray) -> Column:
    """Return a bytes column of 32 hex digits each from two uint64[n]: uuid input without dashes."""
    n = len(first)
    raw = np.empty((n, 2), ">u8")
    raw[:, 0], raw[:, 1] = first, second
    offsets = np.arange(n + 1, dtype=np.int64) * 32
    return Column(offsets, None, _HEX[raw.view(np.uint8)].reshape(-1))


def letter_texts(letters: np.ndarray) -> Column:
    """Return a bytes column of one-letter texts from uint8[n]."""
    return Column(np.arange(len(letters) + 1, dtype=np.int64), None, letters)


def array_literal(texts: Column) -> bytes:
    """Return a quoted array literal of a bytes column."""
    mask = _NO_MASK if texts.valid is None else texts.valid
    return replication.array_literal(texts.values, texts.data, mask).tobytes()


def copy_lines(texts: Sequence[Column], n: int) -> np.ndarray:
    """Return uint8: n lines of COPY's text format from bytes columns of n rows."""
    if not texts:
        return np.full(n, ord("\n"), np.uint8)
    sizes = np.zeros(n, np.int64)
    masks = [_NO_MASK if c.valid is None else c.valid for c in texts]
    for column, mask in zip(texts, masks, strict=True):
        replication.add_sizes(sizes, column.values, column.data, mask)
    ends = np.cumsum(sizes)
    out = np.empty(int(ends[-1]) if n else 0, np.uint8)
    at = ends - sizes
    for k, (column, mask) in enumerate(zip(texts, masks, strict=True)):
        delimiter = ord("\n") if k == len(texts) - 1 else ord("\t")
        replication.put_values(out, at, column.values, column.data, mask, delimiter)
    return out


def split_copy(types: Sequence[SqlType], data: np.ndarray) -> list[Column]:
    """Return columns of the given types from uint8 whole lines of COPY's text format.

    ValueError when a line has another number of values.
    """
    starts, ends, torn = replication.split_lines(data, len(types))
    if torn >= 0:
        raise ValueError(f"line {torn} of the COPY stream does not have {len(types)} values")
    columns = []
    for k, type in enumerate(types):
        offsets, values, valid = replication.gather_values(data, starts[k], ends[k])
        texts = Column(offsets, None if valid.all() else valid, values)
        columns.append(from_text(type, texts))
    return columns


class ChunkReader:
    """The file that psycopg2's copy_expert reads from: an iterator of byte chunks, one at a time.

    failure: the iterator's exception; PostgreSQL reports it as a cancelled statement.
    """

    def __init__(self, chunks: Iterator[np.ndarray]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")
        self.failure: Exception | None = None

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; b"" at the end."""
        while not self._rest:
            try:
                chunk = next(self._chunks, None)
            except Exception as error:
                self.failure = error
                raise
            if chunk is None:
                return b""
            self._rest = memoryview(chunk.data)
        part, self._rest = self._rest[:size], self._rest[size:]
        return part.tobytes()


def copy_out(cursor: Any, query: str, types: Sequence[SqlType]) -> Iterator[list[Column]]:
    """Yield rows of a query in chunks of columns, spooled to disk when they are many."""
    with tempfile.SpooledTemporaryFile(SPOOL_BYTES) as spool:
        cursor.copy_expert(f"COPY ({query}) TO STDOUT", spool)
        spool.seek(0)
        yield from (split_copy(types, lines) for lines in _whole_lines(spool))


class Enough(Exception):
    """Enough bytes have arrived; the session can only be closed."""


class FirstRows:
    """The first rows of a COPY: as many as fit into max_bytes, but at least one.

    is_whole: there were no more. Memory is bounded by max_bytes and one row.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lines: list[bytes] = []
        self._bytes = 0
        self.is_whole = True

    def copy_out(self, cursor: Any, query: str, types: Sequence[SqlType]) -> list[Column] | None:
        """Return the columns of the rows; None without any. May leave the session mid-statement."""
        try:
            cursor.copy_expert(f"COPY ({query}) TO STDOUT", self)
        except Enough:
            self.is_whole = False
        lines, self._lines = b"".join(self._lines), []
        return split_copy(types, np.frombuffer(lines, np.uint8)) if lines else None

    def write(self, line: bytes) -> None:
        """Take one row, as PostgreSQL sends it."""
        if self._lines and self._bytes + len(line) > self._max_bytes:
            raise Enough
        self._lines.append(line)
        self._bytes += len(line)


def _whole_lines(file: IO[bytes]) -> Iterator[np.ndarray]:
    begun: list[bytes] = []
    while block := file.read(CHUNK_BYTES):
        end = block.rfind(b"\n") + 1
        if not end:
            begun.append(block)
            continue
        lines = np.frombuffer(b"".join([*begun, block[:end]]), np.uint8)
        begun = [block[end:]]
        yield lines
