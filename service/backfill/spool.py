"""A file of source batches that a view in the building must replay.

The pipeline writes it while streaming. It is read in order once the view's snapshot is complete,
and searched for changed keys when an interrupted build continues. Invariant: a batch is written to
the file, as far as the kernel is concerned, before the epoch that contains it is committed. So
after a kill the first `count` batches, which the state counts, are there.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import xxhash

from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.delta import Delta
from dataflow.errors import TidemarkError
from dataflow.schema import Relation, RelationName
from service.engine.encoding.frames import decode_batch, encode_batch
from service.runtime.runtime import RUNTIME, Runtime

_FRAME = struct.Struct("<qQ")  # bytes, checksum
FILE = "changes-3.spool"
_MAX_PENDING = 64


class Spool:
    """A queue on disk, which stores only changes of the given relations.

    count: the number of its batches, read or not. One thread appends; `changed_keys` may be called
    from another.
    """

    def __init__(
        self, path: Path, relations: Iterable[RelationName], runtime: Runtime = RUNTIME
    ) -> None:
        self._path = path
        self._runtime = runtime
        path.touch()
        self._file = path.open("r+b", buffering=1 << 20)
        self._relations = frozenset(relations)
        self._lock = threading.Lock()
        self._read_at = 0
        self._write_at = 0
        self.count = 0

    def restore(self, count: int) -> bool:
        """Restore exactly the first `count` batches of an earlier process, all unread.

        Return False if there are fewer or one is damaged: then the spool is empty.
        """
        at = found = 0
        while found < count and (content := self._content(at)) is not None:
            at += _FRAME.size + len(content)
            found += 1
        is_whole = found == count
        self._write_at = at if is_whole else 0
        self.count = count if is_whole else 0
        self._read_at = 0
        self._file.truncate(self._write_at)
        return is_whole

    def append(self, batch: SourceBatch) -> None:
        """Add a batch; one without changes of our relations still carries its position."""
        changes = [c for c in batch.changes if c.relation.name in self._relations]
        content = encode_batch(replace(batch, changes=changes))
        with self._lock:
            self._file.seek(self._write_at)
            self._file.write(_FRAME.pack(len(content), xxhash.xxh3_64_intdigest(content)))
            self._file.write(content)
            self._file.flush()
            self._write_at = self._file.tell()
            self.count += 1

    def pop(self) -> SourceBatch | None:
        """Return the oldest unread batch; None if there is none."""
        if self._read_at == self._write_at:
            return None
        batch, self._read_at = self._load(self._read_at)
        return batch

    def rewind(self) -> None:
        """Read from the first batch again."""
        self._read_at = 0

    def changed_keys(self, relation: Relation, most: int) -> Delta | None:
        """Return all keys of a relation's changes, each once, in the columns of relation.key.

        None if they are more than `most` or unknown: the table was truncated, or the key's type
        changed since.
        """
        pending: list[Delta] = []
        for batch in self._all():
            for change in batch.changes:
                if change.relation.name != relation.name:
                    continue
                columns = _key_columns(change.relation, relation)
                if columns is None or (change.kinds == Changes.TRUNCATE).any():
                    return None
                pending.append(_keys_of(change, columns))
            if len(pending) >= _MAX_PENDING:
                pending = [_distinct(pending)]
                if len(pending[0]) > most:
                    return None
        kinds = "".join(relation.fields[i].type.physical for i in relation.key)
        found = _distinct([Delta.empty(kinds), *pending])
        return None if len(found) > most else found

    def sync(self) -> None:
        """Sync the file to disk."""
        with self._lock:
            self._file.flush()
        self._runtime.force(self._file.fileno())

    def close(self) -> None:
        """Close the file, which stays."""
        self._file.close()

    def _all(self) -> Iterator[SourceBatch]:
        at, end = 0, self._write_at
        while at < end:
            batch, at = self._load(at)
            yield batch

    def _load(self, at: int) -> tuple[SourceBatch, int]:
        with self._lock:
            content = self._content(at)
        if content is None:
            raise TidemarkError(
                "state.corrupt",
                f'changes that a view needs are damaged in "{self._path}"',
                detail=f"at byte {at}",
                hint="check the disk; then drop the view and create it again",
            )
        return decode_batch(content), at + _FRAME.size + len(content)

    def _content(self, at: int) -> bytes | None:
        """Return the batch that begins there; None if it is incomplete or damaged."""
        self._file.seek(at)
        head = self._file.read(_FRAME.size)
        if len(head) < _FRAME.size:
            return None
        length, check = _FRAME.unpack(head)
        content = self._file.read(length) if 0 <= length <= self._path.stat().st_size else b""
        is_whole = len(content) == length and check == xxhash.xxh3_64_intdigest(content)
        return content if is_whole else None


def _key_columns(then: Relation, now: Relation) -> list[int] | None:
    """Return the key's columns in an earlier form of the table; None if the key was another one.

    A column is identified by its number, which a rename does not change; by its name if there are
    no numbers.
    """
    has_numbers = bool(then.numbers and now.numbers)
    before, after = (
        list(r.numbers) if has_numbers else [field.name for field in r.fields] for r in (then, now)
    )
    columns = {known: column for column, known in enumerate(before)}
    found = [columns.get(after[i]) for i in now.key]
    key = [column for column in found if column is not None]
    types = [then.fields[column].type for column in key]
    return key if types == [now.fields[i].type for i in now.key] else None


def _keys_of(changes: Changes, key: Sequence[int]) -> Delta:
    """Return the reported keys; if an update did not send a value, use its old row."""
    columns = [changes.columns[i] for i in key]
    is_reported = np.ones(len(changes), np.bool_)
    for column in columns:
        is_reported &= column.mask()
    return Delta(columns, np.ones(len(changes), np.int64)).filter(is_reported)


def _distinct(keys: list[Delta]) -> Delta:
    found = Delta.concat(keys).consolidate()
    return Delta(found.columns, np.ones(len(found), np.int64))
