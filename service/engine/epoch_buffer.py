"""The sink changes of one epoch, added up chunk by chunk in bounded memory.

Deltas of one view are added. What exceeds the memory budget goes to an unlinked temporary file,
partitioned by a hash of each row's key in the sink. Invariant: all rows of one key are in one
bucket, so a consolidated bucket is final, and buckets apply in any order. If the file is damaged,
nothing of the epoch is committed. The file ends with the process, so pickle is safe: no other
version reads it.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Collection, Iterator, Sequence
from typing import IO, NamedTuple

import numpy as np
import xxhash

from connectors.sink import SinkPart, SinkTable
from dataflow.delta import Column, Delta, hash_columns
from dataflow.errors import TemporaryError
from dataflow.schema import RelationName

_BITS = 6
_BUCKETS = 1 << _BITS
_MAX_DEPTH = 6
# Applying a part needs several times its size: it gets this fraction of the budget.
_PART_FRACTION = 4
# A view, and True for its error rows.
Owner = tuple[SinkTable, bool]


class _Segment(NamedTuple):
    """Rows of an owner in the file, and the xxh3 hash of their bytes."""

    owner: Owner
    start: int
    size: int
    check: int


class EpochBuffer:
    """Deltas of views and their error rows. budget_bytes: limit of what is in memory.

    depth: how many buckets contain this one; each level partitions by further bits of the hash.
    """

    def __init__(self, budget_bytes: int, depth: int = 0) -> None:
        self._budget_bytes = budget_bytes
        self._depth = depth
        self._waiting: dict[Owner, list[Delta]] = {}
        self._waiting_bytes = 0
        self._segments: list[list[_Segment]] = []
        self._file: IO[bytes] | None = None

    @property
    def rows(self) -> dict[SinkTable, int]:
        """Return the views with changes; row counts are known only once the parts are read."""
        found = [*self._waiting, *(segment.owner for rows in self._segments for segment in rows)]
        return dict.fromkeys((table for table, is_errors in found if not is_errors), 0)

    @property
    def is_spilled(self) -> bool:
        """Return True if some of it is on disk."""
        return self._file is not None

    def add(self, table: SinkTable, delta: Delta, *, is_errors: bool = False) -> None:
        """Add a delta of a view's rows, or of its error rows."""
        if len(delta):
            self._add((table, is_errors), delta)

    def _add(self, owner: Owner, delta: Delta) -> None:
        self._waiting.setdefault(owner, []).append(delta)
        self._waiting_bytes += delta.nbytes()
        if self._waiting_bytes > self._budget_bytes:
            self._resolve()
            if self._waiting_bytes > self._budget_bytes // 2:
                self._spill()

    def leave_out(self, views: Collection[RelationName]) -> None:
        """Drop the changes of these views."""
        for owner in list(self._waiting):
            if owner[0].relation in views:
                del self._waiting[owner]
        self._segments = [
            [s for s in rows if s.owner[0].relation not in views] for rows in self._segments
        ]

    def take(self) -> SinkPart:
        """Return what is in memory, consolidated; empty if all is on disk."""
        if self.is_spilled:
            return SinkPart([])
        self._resolve()
        return _part({owner: deltas[0] for owner, deltas in self._waiting.items()})

    def __iter__(self) -> Iterator[SinkPart]:
        """Yield everything in consolidated parts; nothing may be added meanwhile."""
        if not self.is_spilled:
            part = self.take()
            if part.deltas or part.errors is not None:
                yield part
            return
        self._spill()
        for rows in self._joined_buckets():
            yield from self._bucket(rows)

    def close(self) -> None:
        """Drop everything and close the file."""
        self._waiting, self._waiting_bytes, self._segments = {}, 0, []
        if self._file is not None:
            self._file.close()
            self._file = None

    def _resolve(self) -> None:
        """Consolidate what is in memory."""
        for owner, deltas in list(self._waiting.items()):
            delta = added_up(deltas)
            if len(delta):
                self._waiting[owner] = [delta]
            else:
                del self._waiting[owner]
        self._waiting_bytes = sum(d[0].nbytes() for d in self._waiting.values())

    def _spill(self) -> None:
        """Move everything in memory to the file, bucket by bucket."""
        if self._file is None:
            # Closed in close(); unlinked from the start, so that nothing outlives us.
            self._file = tempfile.TemporaryFile(prefix="tidemark-")  # noqa: SIM115
            self._segments = [[] for _ in range(_BUCKETS)]
        self._resolve()
        self._file.seek(0, 2)
        for owner, deltas in self._waiting.items():
            self._spill_delta(self._file, owner, deltas[0])
        self._waiting, self._waiting_bytes = {}, 0

    def _spill_delta(self, file: IO[bytes], owner: Owner, delta: Delta) -> None:
        buckets = _buckets_of(owner, delta, self._depth)
        order = np.argsort(buckets, kind="stable")
        bounds = np.searchsorted(buckets[order], np.arange(_BUCKETS + 1))
        for bucket in np.flatnonzero(np.diff(bounds)).tolist():
            rows = delta.take(order[bounds[bucket] : bounds[bucket + 1]])
            stored = pickle.dumps(rows, protocol=pickle.HIGHEST_PROTOCOL)
            check = xxhash.xxh3_64_intdigest(stored)
            self._segments[bucket].append(_Segment(owner, file.tell(), len(stored), check))
            file.write(stored)

    def _joined_buckets(self) -> Iterator[list[_Segment]]:
        """Yield neighbouring buckets together, as many as fit into a part."""
        max_bytes = self._budget_bytes // _PART_FRACTION
        waiting: list[_Segment] = []
        for rows in self._segments:
            if waiting and sum(s.size for s in (*waiting, *rows)) > max_bytes:
                yield waiting
                waiting = []
            waiting = waiting + rows
        if waiting:
            yield waiting

    def _bucket(self, rows: Sequence[_Segment]) -> Iterator[SinkPart]:
        """Yield the rows of some buckets; partition them again if they exceed a part."""
        inner = EpochBuffer(self._budget_bytes, self._depth + 1)
        part_bytes = self._budget_bytes // _PART_FRACTION
        is_small = sum(segment.size for segment in rows) <= part_bytes or self._depth == _MAX_DEPTH
        try:
            for segment in rows:
                delta = self._read(segment)
                if is_small:
                    inner._waiting.setdefault(segment.owner, []).append(delta)
                else:
                    inner._add(segment.owner, delta)
            if not is_small and not inner.is_spilled:
                inner._resolve()
                if inner._waiting_bytes > part_bytes:
                    inner._spill()
            yield from inner
        finally:
            inner.close()

    def _read(self, segment: _Segment) -> Delta:
        """Return a segment's rows. TemporaryError state.spill_damaged."""
        assert self._file is not None
        self._file.seek(segment.start)
        stored = self._file.read(segment.size)
        if len(stored) != segment.size or xxhash.xxh3_64_intdigest(stored) != segment.check:
            raise TemporaryError(
                "state.spill_damaged",
                "the temporary file of a large epoch is damaged",
                detail=f"{segment.size} bytes at {segment.start}, in {tempfile.gettempdir()}",
                hint="the epoch is retried automatically; if this error repeats, check the disk",
            )
        return pickle.loads(stored)


def added_up(deltas: Sequence[Delta]) -> Delta:
    """Return the sum of consolidated deltas; a single one is already consolidated."""
    return deltas[0] if len(deltas) == 1 else Delta.concat(deltas).consolidate()


def _buckets_of(owner: Owner, delta: Delta, depth: int) -> np.ndarray:
    """Return int64[n]: the bucket of each row, by its key in the sink, or by the whole row."""
    table, is_errors = owner
    columns = delta.columns
    if table.key and not is_errors:
        columns = tuple(columns[i] for i in table.key)
    hashes = hash_columns(columns, len(delta)) >> np.uint64(64 - _BITS * (depth + 1))
    return (hashes & np.uint64(_BUCKETS - 1)).astype(np.int64)


def _part(deltas: dict[Owner, Delta]) -> SinkPart:
    rows = [(table, delta) for (table, is_errors), delta in deltas.items() if not is_errors]
    errors = [delta for (_, is_errors), delta in deltas.items() if is_errors]
    # Error rows begin with the name of their view, so those of different views never coincide.
    return SinkPart(rows, Delta.concat(errors) if errors else None)


def named(table: SinkTable, found: Delta) -> Delta:
    """Return the error rows of one view with its name as the first column."""
    title, n = table.title.encode(), len(found)
    offsets = np.arange(n + 1, dtype=np.int64) * len(title)
    name = Column(offsets, None, np.frombuffer(title * n, np.uint8))
    return Delta((name, *found.columns), found.weights)
