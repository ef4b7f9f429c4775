"""The outbox: epochs that the sink may not have yet, kept in the state until it has them.

An epoch's small deltas stand in its own entry; parts that were too much for memory stand beside
it and are written ahead of the commit. Invariant: parts count only with the entry of their epoch,
which the epoch's commit writes; parts without one are left-overs of a crash and are removed.
Epochs that some sink lacks may be many: what is kept in memory of each is its size. The newest
that all have stay for a while: a standby that takes over for the sink may lack them.
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
# Spared epochs are read when the state is opened.
_MOST_SPARED = 4_000


@dataclass(frozen=True)
class StoredParts:
    """The parts of one epoch in the store, readable from any thread until they are forgotten."""

    store: Store
    epoch: int
    count: int
    rows: Mapping[SinkTable, int]
    nbytes: int = 0

    def __iter__(self) -> Iterator[SinkPart]:
        for number in range(self.count):
            stored = self.store.get(_part_key(self.epoch, number))
            if stored is None:
                what = f"part {number} of epoch {self.epoch} is not in the outbox"
                raise InvariantError("state.outbox_gap", what)
            yield decode_part(stored)

    def close(self) -> None:
        """Nothing to do: they are kept until `Outbox.forget`."""


@dataclass(frozen=True)
class _Kept:
    """An epoch in the store: its number, its parts, and all that it takes in bytes. until: what
    this one and all before it took; follows: where it brings a sink that was set back."""

    number: int
    parts: int
    nbytes: int
    until: int
    follows: int | None


class Outbox:
    """Epochs by number, in one store. spare_bytes: what epochs that every sink has may take."""

    def __init__(self, store: Store, spare_bytes: int = 0) -> None:
        self._store = store
        self._spare_bytes = spare_bytes
        self._kept: deque[_Kept] = deque()
        self._turns: deque[int] = deque()
        self._turn = 0
        for _, stored in store.items(_EPOCH):
            self._keep(self._decoded(stored), len(stored))
        known = {kept.number for kept in self._kept}
        for key, _ in store.items(_PART):
            if int(key[len(_PART) :].split("/")[0]) not in known:
                store.put(key, None)

    def put(self, epoch: SinkEpoch) -> None:
        """Keep an epoch; part of the open epoch. Its later parts are the stored ones from now."""
        number, count, size, parts = epoch.progress.epoch, 0, 0, None
        if epoch.later is not None:
            rows: dict[SinkTable, int] = {}
            for part in epoch.later:
                for table, delta in part.deltas:
                    rows[table] = rows.get(table, 0) + len(delta)
                stored = encode_part(part)
                self._store.put_ahead(_part_key(number, count), stored)
                count, size = count + 1, size + len(stored)
                # Each part leaves holes of its size behind.
                self._store.relieve()
            parts = Later(count, size, rows)
        failpoint("outbox.put.parts")
        stored = encode_epoch(epoch, parts)
        self._store.put(_epoch_key(number), stored)
        if parts is not None:
            epoch.later = StoredParts(self._store, number, count, rows, size)
        self._keep(epoch, len(stored))

    def forget(self, written: int) -> None:
        """Remove what all sinks have, up to epoch `written`, but for the newest of it; part of the
        open epoch."""
        while self._turns and self._turns[0] <= written:
            self._turn = self._turns.popleft()
        while self._kept and self._kept[0].number <= written and not self._is_spared(written):
            self._forget_first()

    def clear(self) -> None:
        """Remove all; part of the open epoch."""
        while self._kept:
            self._forget_first()
        self._turns.clear()
        self._turn = 0

    def _is_spared(self, written: int) -> bool:
        """Whether the first epoch may be sent once more, or stands where the sink may be then."""
        first = self._kept[0]
        if first.number < self._turn or written - first.number >= _MOST_SPARED:
            return False
        newest = self._kept[min(written - first.number, len(self._kept) - 1)]
        return newest.until - first.until + first.nbytes <= self._spare_bytes

    def _forget_first(self) -> None:
        failpoint("outbox.trim.before")
        kept = self._kept.popleft()
        self._store.put(_epoch_key(kept.number), None)
        for part in range(kept.parts):
            self._store.put(_part_key(kept.number, part), None)

    def read(self, after: int, newest: int) -> list[SinkEpoch]:
        """What leads a sink from epoch `after` to `newest`, in order, none missing.

        InvariantError state.outbox_gap.
        """
        first, found = after + 1, [kept for kept in self._kept if kept.number > after]
        for place, kept in enumerate(found):
            if kept.follows == after:
                first, found = kept.number, found[place:]
                break
        numbers = [kept.number for kept in found]
        is_led_astray = any(kept.follows not in (None, after) for kept in found)
        if is_led_astray or numbers != list(range(first, newest + 1)):
            raise InvariantError(
                "state.outbox_gap",
                f"the sink is at epoch {after} and the outbox holds {numbers}",
                hint="the sink was set back: its tables are compared with what they should show",
            )
        return [self._decoded(self._stored(number)) for number in numbers]

    def find(self, number: int) -> SinkEpoch | None:
        """A committed epoch, None when it is not kept; from any thread."""
        stored = self._store.get(_epoch_key(number))
        return None if stored is None else self._decoded(stored)

    def nbytes(self, after: int) -> int:
        """What the epochs after number `after` take on disk."""
        return sum(kept.nbytes for kept in self._kept if kept.number > after)

    def _stored(self, number: int) -> bytes:
        return self._store.get(_epoch_key(number)) or b""

    def _keep(self, entry: SinkEpoch, size: int) -> None:
        number, later = entry.progress.epoch, entry.later
        stored = later if isinstance(later, StoredParts) else None
        count, size = (stored.count, size + stored.nbytes) if stored else (0, size)
        until = size + (self._kept[-1].until if self._kept else 0)
        follows = None if entry.returns is None else entry.returns.follows
        self._kept.append(_Kept(number, count, size, until, follows))
        if entry.is_non_idempotent:
            self._turns.append(number)

    def _decoded(self, stored: bytes) -> SinkEpoch:
        epoch, later = decode_epoch(stored)
        if later is not None:
            number, (count, nbytes, rows) = epoch.progress.epoch, later
            epoch.later = StoredParts(self._store, number, count, rows, nbytes)
        return epoch


def _epoch_key(epoch: int) -> str:
    return f"{_EPOCH}{epoch:020d}"


def _part_key(epoch: int, part: int) -> str:
    return f"{_PART}{epoch:020d}/{part:06d}"
