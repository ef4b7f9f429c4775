"""Parts of a snapshot that are read from their source once: what was read is kept in files.

A backfill that is interrupted finds the finished ones again. Where they are older than the rest,
rows under the keys that have changed since are left out of all parts and read once more, by key,
in the newest snapshot (decision 22). Invariant: a file is there only when its part was read to
its end, and holds its rows and what was rejected, in order.
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
    """How far a backfill is: parts of snapshots read, tasks of Spark's run, rows and bytes so far.

    parts_kept: how many of them an earlier run had read already.
    """

    parts_done: int
    parts_total: int
    rows: int = 0
    bytes: int = 0
    tasks_done: int = 0
    tasks_total: int = 0
    parts_kept: int = 0


OnProgress = Callable[[Progress], None]


class KeySet:
    """Keys of a relation; places: where they stand in the columns that parts read."""

    def __init__(self, keys: Delta, places: Sequence[int]) -> None:
        self.keys = keys
        self._places = tuple(places)
        first, second = row_hashes(keys.columns, len(keys))
        self._first = np.unique(first)
        self._pairs = set(zip(first.tolist(), second.tolist(), strict=True))

    def __reduce__(self) -> tuple[type, tuple]:
        # What follows from the keys need not travel.
        return KeySet, (self.keys, self._places)

    def __len__(self) -> int:
        return len(self.keys)

    def has(self, rows: Delta) -> np.ndarray:
        """bool[n]: whether a row's key is one of these, bit for bit."""
        first, second = row_hashes([rows.columns[i] for i in self._places], len(rows))
        found = np.isin(first, self._first)
        # Half of the hash is right nearly always, and few rows are found: the rest one by one.
        for at in np.flatnonzero(found).tolist():
            found[at] = (int(first[at]), int(second[at])) in self._pairs
        return found


class CachedPartition:
    """A part whose rows are in a file of the exchange once they have been read.

    place: the file's name. replaced: keys whose rows are read by another part. is_kept: an
    earlier run has read it. Picklable.
    """

    def __init__(
        self,
        part: SnapshotPart,
        exchange: Exchange,
        place: str,
        *,
        replaced: KeySet | None = None,
        is_kept: bool = False,
    ) -> None:
        self.name = part.name
        self.place = place
        self.is_kept = is_kept
        self._part = part
        self._exchange = exchange
        self._replaced = replaced
        self._rejected: Delta | None = None

    def read(self) -> Iterator[Delta]:
        """Rows of weight 1 with the asked columns, in chunks of bounded size."""
        file = self._found()
        for rows in self._read_source() if file is None else self._read_file(file):
            if self._replaced is not None:
                rows = rows.filter(~self._replaced.has(rows))
            if len(rows):
                yield rows

    def rejected(self) -> Delta:
        """What `read` left out, once it is through: rows of REJECTED_KINDS."""
        return Delta.empty(REJECTED_KINDS) if self._rejected is None else self._rejected

    def __repr__(self) -> str:
        return f"KeptPart({self._part!r}, {self.place})"

    def _read_source(self) -> Iterator[Delta]:
        self._rejected = None
        with self._exchange.draft(self.place) as draft, draft.open("wb") as file:
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
            # It is put in place next: after a crash of the machine it must be whole, or not there.
            os.fsync(file.fileno())

    def _found(self) -> BinaryIO | None:
        """Looked up when it is read: a task of this run that was lost may have finished it."""
        try:
            file = self._exchange.open(self.place)
        except FileNotFoundError:
            return None
        except TemporaryError as error:
            if error.code == "backfill.unauthentic":
                self._give_up()
            raise
        if file.read(len(_MAGIC)) == _MAGIC:
            return file
        # Of an earlier version, or given up as torn: it is read from its source again.
        file.close()
        return None

    def _read_file(self, file: BinaryIO) -> Iterator[Delta]:
        with file:
            count = 0
            while True:
                kind, content = self._frame(file)
                if kind == _END:
                    if json.loads(content) != {"name": self.name, "rows": count}:
                        raise self._torn("it is that of another part")
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

    def _give_up(self) -> None:
        """The next try reads the part from its source."""
        self._exchange.put(self.place, b"")

    def _torn(self, why: str) -> TemporaryError:
        self._give_up()
        what = f'the kept part "{self.place}" is not as it was written'
        return TemporaryError("backfill.torn", what, detail=why, hint="it is read again")


def rejected_of(part: SnapshotPart) -> Delta | None:
    """What a part that has been read left out; None for a source that rejects nothing."""
    ask = getattr(part, "rejected", None)
    found = None if ask is None else ask()
    return found if found is not None and len(found) else None


def is_kept(part: SnapshotPart) -> bool:
    """Whether a part was read already by an earlier run."""
    return isinstance(part, CachedPartition) and part.is_kept


def place_of(generation: int, relation: str, part: str) -> str:
    """The name of the file of a part, as read in a backfill's n-th snapshot."""
    digest = hashlib.sha256(f"{relation}\n{part}".encode()).hexdigest()
    return f"{FOLDER}/{generation}/{digest[:40]}"


def _put(file: BinaryIO, kind: bytes, content: bytes) -> None:
    file.write(_FRAME.pack(kind, len(content), _check_of(kind, content)))
    file.write(content)


def _read(file: BinaryIO, size: int) -> bytes:
    """So many bytes, or what there is of them: a damaged size must not ask for all memory."""
    parts = []
    while size > 0 and (part := file.read(min(size, _READ_BYTES))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _check_of(kind: bytes, content: bytes) -> int:
    return xxhash.xxh3_64_intdigest(content, seed=kind[0])
