"""Snapshot parts that are read from their source once and stored in files.

An interrupted backfill finds its finished parts again. If they are older than the rest, rows under
keys that changed since are left out of all parts. Those rows are read again by key, in the newest
snapshot (decision 22). Invariant: a file exists only if its part was read to the end; it holds the
part's rows and rejected records, in order.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import xxhash

from connectors.feed_source import REJECTED_KINDS
from connectors.pages import decode_delta, encode_delta
from connectors.shuffle_storage import Exchange
from connectors.source import SnapshotPart
from dataflow.delta import Delta, row_hashes
from dataflow.errors import InvariantError, TemporaryError

_MAGIC = b"TMkp0002"
_FRAME = struct.Struct("<cqQ")  # kind, bytes, checksum
_ROWS, _REJECTED, _END = b"D", b"R", b"E"
_READ_BYTES = 16 << 20
FOLDER, RUNS = "parts", "run"


@dataclass(frozen=True)
class Progress:
    """Progress of a backfill: snapshot parts read, Spark tasks, rows and bytes so far.

    parts_reused: how many parts an earlier run had read already.
    """

    parts_done: int
    parts_total: int
    rows: int = 0
    bytes: int = 0
    tasks_done: int = 0
    tasks_total: int = 0
    parts_reused: int = 0


OnProgress = Callable[[Progress], None]


class KeySet:
    """Keys of a relation; positions: their column numbers in the rows that parts read."""

    def __init__(self, keys: Delta, positions: Sequence[int]) -> None:
        self.keys = keys
        self._positions = tuple(positions)
        first, second = row_hashes(keys.columns, len(keys))
        self._first = np.unique(first)
        self._pairs = set(zip(first.tolist(), second.tolist(), strict=True))

    def __reduce__(self) -> tuple[type, tuple]:
        # What follows from the keys is not pickled.
        return KeySet, (self.keys, self._positions)

    def __len__(self) -> int:
        return len(self.keys)

    def has(self, rows: Delta) -> np.ndarray:
        """Return bool[n]: True if a row's key is one of these, compared bit for bit."""
        first, second = row_hashes([rows.columns[i] for i in self._positions], len(rows))
        found = np.isin(first, self._first)
        # Half of the hash nearly always decides, and few rows match: compare those one by one.
        for at in np.flatnonzero(found).tolist():
            found[at] = (int(first[at]), int(second[at])) in self._pairs
        return found


class CachedPartition:
    """A part whose rows are stored in a file of the exchange after the first read.

    file_name: the file's name. replaced: keys whose rows another part reads. is_cached: an earlier
    run has read the part. Picklable.
    """

    def __init__(
        self,
        part: SnapshotPart,
        exchange: Exchange,
        file_name: str,
        *,
        replaced: KeySet | None = None,
        is_cached: bool = False,
    ) -> None:
        self.name = part.name
        self.file_name = file_name
        self.is_cached = is_cached
        self._part = part
        self._exchange = exchange
        self._replaced = replaced
        self._rejected: Delta | None = None

    def read(self) -> Iterator[Delta]:
        """Yield rows of weight 1 with the requested columns, in chunks of bounded size."""
        file = self._found()
        for rows in self._read_source() if file is None else self._read_file(file):
            if self._replaced is not None:
                rows = rows.filter(~self._replaced.has(rows))
            if len(rows):
                yield rows

    def rejected(self) -> Delta:
        """Return the records that `read` rejected, after it is exhausted: rows of
        REJECTED_KINDS.
        """
        return Delta.empty(REJECTED_KINDS) if self._rejected is None else self._rejected

    def __repr__(self) -> str:
        return f"CachedPartition({self._part!r}, {self.file_name})"

    def _read_source(self) -> Iterator[Delta]:
        self._rejected = None
        with self._exchange.draft(self.file_name) as draft, draft.open("wb") as file:
            file.write(_MAGIC)
            count = 0
            for rows in self._part.read():
                count += len(rows)
                _put(file, _ROWS, encode_delta(rows))
                yield rows
            self._rejected = rejected_of(self._part)
            if self._rejected is not None:
                _put(file, _REJECTED, encode_delta(self._rejected))
            _put(file, _END, json.dumps({"name": self.name, "rows": count}).encode())
            file.flush()
            # Sync before the rename: after a machine crash the file must be whole or absent.
            os.fsync(file.fileno())

    def _found(self) -> BinaryIO | None:
        """Return the stored file, if any; checked at read time, as a lost task may have finished
        it.
        """
        try:
            file = self._exchange.open(self.file_name)
        except FileNotFoundError:
            return None
        except TemporaryError as error:
            if error.code == "backfill.unauthentic":
                self._invalidate()
            raise
        if file.read(len(_MAGIC)) == _MAGIC:
            return file
        # From an earlier version, or found torn: read the part from its source again.
        file.close()
        return None

    def _read_file(self, file: BinaryIO) -> Iterator[Delta]:
        with file:
            count = 0
            while True:
                kind, content = self._frame(file)
                if kind == _END:
                    if json.loads(content) != {"name": self.name, "rows": count}:
                        raise self._torn("it belongs to another part")
                    return
                found = self._decoded(content)
                if kind == _REJECTED:
                    self._rejected = found
                else:
                    count += len(found)
                    yield found

    def _frame(self, file: BinaryIO) -> tuple[bytes, bytes]:
        head = file.read(_FRAME.size)
        if len(head) < _FRAME.size:
            raise self._torn("it ends too early")
        kind, size, check = _FRAME.unpack(head)
        content = _read(file, size)
        if len(content) != size or check != _check_of(kind, content):
            raise self._torn("it fails its checksum")
        return kind, content

    def _decoded(self, content: bytes) -> Delta:
        try:
            return decode_delta(content)
        except InvariantError as error:
            raise self._torn(str(error)) from error

    def _invalidate(self) -> None:
        """Make the next attempt read the part from its source."""
        self._exchange.put(self.file_name, b"")

    def _torn(self, why: str) -> TemporaryError:
        self._invalidate()
        what = f'the stored part "{self.file_name}" is damaged'
        return TemporaryError(
            "backfill.torn", what, detail=why, hint="no action needed: it is read again"
        )


def rejected_of(part: SnapshotPart) -> Delta | None:
    """Return what a part rejected while it was read; None for a source that rejects nothing."""
    ask = getattr(part, "rejected", None)
    found = None if ask is None else ask()
    return found if found is not None and len(found) else None


def is_cached(part: SnapshotPart) -> bool:
    """Return True if an earlier run has already read the part."""
    return isinstance(part, CachedPartition) and part.is_cached


def file_name_of(generation: int, relation: str, part: str) -> str:
    """Return the file name of a part, as read in a backfill's n-th snapshot."""
    digest = hashlib.sha256(f"{relation}\n{part}".encode()).hexdigest()
    return f"{FOLDER}/{generation}/{digest[:40]}"


def _put(file: BinaryIO, kind: bytes, content: bytes) -> None:
    file.write(_FRAME.pack(kind, len(content), _check_of(kind, content)))
    file.write(content)


def _read(file: BinaryIO, size: int) -> bytes:
    """Return up to `size` bytes; a damaged size must not allocate all memory."""
    parts = []
    while size > 0 and (part := file.read(min(size, _READ_BYTES))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _check_of(kind: bytes, content: bytes) -> int:
    return xxhash.xxh3_64_intdigest(content, seed=kind[0])
