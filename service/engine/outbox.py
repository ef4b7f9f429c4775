"""The outbox: epochs that a sink may lack, stored in the state until every sink has them.

An epoch's small deltas are in its own entry. Parts too large for memory are separate entries,
written before the commit. Invariant: a part counts only together with the entry of its epoch, which
the epoch's commit writes; parts without one remain from a crash and are removed. Many epochs may
wait for a sink, so memory holds only their sizes. The newest epochs that every sink has are
retained for a while: a standby that takes over for the sink may lack them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from connectors.sink import SinkEpoch, SinkPart, SinkTable
from dataflow.errors import InvariantError
from service.engine.encoding.frames import (
    Later,
    decode_epoch,
    decode_part,
    encode_epoch,
    encode_part,
)
from storage.failpoints import failpoint
from storage.store import Store

_EPOCH = "outbox/"
_PART = "outbox-part/"
# Retained epochs are read when the state is opened.
_MAX_RETAINED = 4_000


@dataclass(frozen=True)
class StoredParts:
    """The parts of one epoch in the store, readable from any thread until they are removed."""

    store: Store
    epoch: int
    count: int
    rows: Mapping[SinkTable, int]
    nbytes: int = 0

    def __iter__(self) -> Iterator[SinkPart]:
        for number in range(self.count):
            stored = self.store.get(_part_key(self.epoch, number))
            if stored is None:
                what = f"the outbox lacks part {number} of epoch {self.epoch}"
                raise InvariantError("state.outbox_gap", what)
            yield decode_part(stored)

    def close(self) -> None:
        """Do nothing: `Outbox.forget` removes them."""


@dataclass(frozen=True)
class _Entry:
    """An epoch in the store.

    - parts: how many
    - nbytes: of the epoch with its parts
    - until: bytes of this epoch and all before it
    - follows: for a sink rewind, the epoch that the sink must be at
    """

    number: int
    parts: int
    nbytes: int
    until: int
    follows: int | None


class Outbox:
    """Epochs by number, in one store. spare_bytes: limit of retained epochs that every sink has."""

    def __init__(self, store: Store, spare_bytes: int = 0) -> None:
        self._store = store
        self._spare_bytes = spare_bytes
        self._entries: deque[_Entry] = deque()
        self._unrepeatable: deque[int] = deque()
        self._newest_unrepeatable = 0
        for _, stored in store.items(_EPOCH):
            self._append(self._decoded(stored), len(stored))
        stored_numbers = {entry.number for entry in self._entries}
        for key, _ in store.items(_PART):
            if int(key[len(_PART) :].split("/")[0]) not in stored_numbers:
                store.put(key, None)

    def put(self, epoch: SinkEpoch) -> None:
        """Store an epoch, as part of the open epoch; its later parts then come from the store."""
        number, count, size, parts = epoch.progress.epoch, 0, 0, None
        if epoch.rows.later is not None:
            rows: dict[SinkTable, int] = {}
            for part in epoch.rows.later:
                for table, delta in part.deltas:
                    rows[table] = rows.get(table, 0) + len(delta)
                stored = encode_part(part)
                self._store.put_ahead(_part_key(number, count), stored)
                count, size = count + 1, size + len(stored)
                # Each part leaves holes of its size in memory.
                self._store.relieve()
            parts = Later(count, size, rows)
        failpoint("outbox.put.parts")
        stored = encode_epoch(epoch, parts)
        self._store.put(_epoch_key(number), stored)
        if parts is not None:
            epoch.rows.later = StoredParts(self._store, number, count, rows, size)
        self._append(epoch, len(stored))

    def forget(self, written: int) -> None:
        """Remove epochs up to `written`, which every sink has, except the retained newest ones.

        Part of the open epoch.
        """
        while self._unrepeatable and self._unrepeatable[0] <= written:
            self._newest_unrepeatable = self._unrepeatable.popleft()
        while (
            self._entries and self._entries[0].number <= written and not self._is_retained(written)
        ):
            self._forget_first()

    def clear(self) -> None:
        """Remove all epochs; part of the open epoch."""
        while self._entries:
            self._forget_first()
        self._unrepeatable.clear()
        self._newest_unrepeatable = 0

    def _is_retained(self, written: int) -> bool:
        """Return True if the first epoch may be sent again, or a rewound sink may be at it."""
        first = self._entries[0]
        if first.number < self._newest_unrepeatable or written - first.number >= _MAX_RETAINED:
            return False
        newest = self._entries[min(written - first.number, len(self._entries) - 1)]
        return newest.until - first.until + first.nbytes <= self._spare_bytes

    def _forget_first(self) -> None:
        failpoint("outbox.trim.before")
        entry = self._entries.popleft()
        self._store.put(_epoch_key(entry.number), None)
        for part in range(entry.parts):
            self._store.put(_part_key(entry.number, part), None)

    def read(self, after: int, newest: int) -> list[SinkEpoch]:
        """Return the epochs that lead a sink from `after` to `newest`, in order, none missing.

        InvariantError state.outbox_gap.
        """
        first, found = after + 1, [entry for entry in self._entries if entry.number > after]
        for index, entry in enumerate(found):
            if entry.follows == after:
                first, found = entry.number, found[index:]
                break
        numbers = [entry.number for entry in found]
        has_wrong_start = any(entry.follows not in (None, after) for entry in found)
        if has_wrong_start or numbers != list(range(first, newest + 1)):
            raise InvariantError(
                "state.outbox_gap",
                f"the sink is at epoch {after}, but the outbox contains {numbers}",
                hint="the sink was rewound: its tables are compared and repaired",
            )
        return [self._decoded(self._stored(number)) for number in numbers]

    def find(self, number: int) -> SinkEpoch | None:
        """Return a committed epoch, or None if it is no longer stored; from any thread."""
        stored = self._store.get(_epoch_key(number))
        return None if stored is None else self._decoded(stored)

    def nbytes(self, after: int) -> int:
        """Return the bytes on disk of the epochs after number `after`."""
        return sum(entry.nbytes for entry in self._entries if entry.number > after)

    def _stored(self, number: int) -> bytes:
        return self._store.get(_epoch_key(number)) or b""

    def _append(self, epoch: SinkEpoch, size: int) -> None:
        number, later = epoch.progress.epoch, epoch.rows.later
        stored = later if isinstance(later, StoredParts) else None
        count, size = (stored.count, size + stored.nbytes) if stored else (0, size)
        until = size + (self._entries[-1].until if self._entries else 0)
        follows = None if epoch.repair is None else epoch.repair.follows
        self._entries.append(_Entry(number, count, size, until, follows))
        if epoch.is_non_idempotent:
            self._unrepeatable.append(number)

    def _decoded(self, stored: bytes) -> SinkEpoch:
        epoch, later = decode_epoch(stored)
        if later is not None:
            number, (count, nbytes, rows) = epoch.progress.epoch, later
            epoch.rows.later = StoredParts(self._store, number, count, rows, nbytes)
        return epoch


def _epoch_key(epoch: int) -> str:
    return f"{_EPOCH}{epoch:020d}"


def _part_key(epoch: int, part: int) -> str:
    return f"{_PART}{epoch:020d}/{part:06d}"
