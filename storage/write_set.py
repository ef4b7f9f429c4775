"""The writes of the open epoch, and reads that see them.

RocksDB is written at commit, with one batch: first the removals of ranges, then the puts. Only
what means nothing before the commit names it (pages of a run, parts of an epoch) may be written
ahead, so that a large epoch does not gather in memory. Invariant: what was put and then removed
within the epoch is in neither; a removed range that was filled again holds just what was put since.
"""

from __future__ import annotations

from collections.abc import Sequence

from rocksdict import Rdict, RdictIter, ReadOptions, WriteBatch, WriteOptions

from storage.faults import named
from storage.seal import Seal

# Keys that begin alike lie in the same ranges: what one removes is an arrangement or a run.
_PREFIX_BYTES = 13


class WriteSet:
    """Puts and range removals over one database, in memory until `commit`.

    seal: numbers the commits. ahead_bytes: how much of what may be written ahead waits in memory.
    """

    def __init__(self, db: Rdict, seal: Seal, ahead_bytes: int = 32 << 20) -> None:
        self._db = db
        self._seal = seal
        self._ahead_bytes = ahead_bytes
        self._ahead: list[bytes] = []
        self._waiting_bytes = 0
        self._puts: dict[bytes, bytes | None] = {}
        self._ranges: list[tuple[bytes, bytes]] = []
        self._synced = WriteOptions()
        self._synced.sync = True
        self._plain = WriteOptions()
        self._past_cache = ReadOptions()
        self._past_cache.fill_cache(False)  # pyright: ignore[reportCallIssue]

    def put(self, key: bytes, value: bytes | None) -> None:
        """Set a key; None removes it."""
        self._puts[key] = value

    def put_ahead(self, key: bytes, value: bytes) -> None:
        """Set a key that nothing committed names: it may be on disk before the commit."""
        self._puts[key] = value
        self._ahead.append(key)
        self._waiting_bytes += len(value)
        if self._waiting_bytes > self._ahead_bytes:
            self._write_ahead()

    def _write_ahead(self) -> None:
        """Write what may be, but for ranges that the commit will first remove."""
        is_removed: dict[bytes, bool] = {}
        batch = WriteBatch(raw_mode=True)
        for key in self._ahead:
            value = self._puts.get(key)
            prefix = key[:_PREFIX_BYTES]
            if prefix not in is_removed:
                is_removed[prefix] = self.removes(key)
            if value is not None and not is_removed[prefix]:
                batch.put(key, value)
                del self._puts[key]
        self._ahead, self._waiting_bytes = [], 0
        self._write(batch, self._plain)

    def _write(self, batch: WriteBatch, options: WriteOptions) -> None:
        try:
            self._db.write(batch, options)
        except Exception as error:
            raise named(error, "commit failed") from error

    def remove_range(self, start: bytes, stop: bytes) -> None:
        """Remove all keys in [start, stop), those put in this epoch too."""
        for key in [k for k in self._puts if start <= k < stop]:
            del self._puts[key]
        self._ranges.append((start, stop))

    def removes(self, key: bytes) -> bool:
        """Whether the open epoch removes the range that the key is in."""
        return any(start <= key < stop for start, stop in self._ranges)

    def get(self, key: bytes) -> bytes | None:
        """The value as the open epoch has it."""
        if key in self._puts:
            return self._puts[key]
        return None if self.removes(key) else stored(self._db, key)

    def read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values of keys whose range the epoch does not remove, or only before putting them.

        They pass by the cache of RocksDB.
        """
        values = [self._puts.get(key) for key in keys]
        absent = [i for i, value in enumerate(values) if value is None]
        if absent:
            for i, value in zip(absent, self._read([keys[i] for i in absent]), strict=True):
                values[i] = value
        return values

    def _read(self, keys: list[bytes]) -> list[bytes | None]:
        try:
            return self._db.get(keys, read_opt=self._past_cache)  # type: ignore[return-value]
        except Exception as error:
            raise named(error, "cannot read pages") from error

    def scan(self, start: bytes, stop: bytes) -> list[bytes]:
        """The keys in [start, stop) as the open epoch has them, in order."""
        kept = [key for key in stored_keys(self._db, start, stop) if not self.removes(key)]
        keys = set(kept)
        for key, value in self._puts.items():
            if start <= key < stop:
                keys.discard(key) if value is None else keys.add(key)
        return sorted(keys)

    def commit(self, *, sync: bool) -> None:
        """Write all of it at once, or nothing. StorageError state.io, state.disk_full."""
        if self._puts or self._ranges:
            batch = WriteBatch(raw_mode=True)
            self._seal.mark(batch)
            for start, stop in self._ranges:
                batch.delete_range(start, stop)
            for key, value in self._puts.items():
                if value is None:
                    batch.delete(key)
                else:
                    batch.put(key, value)
            self._write(batch, self._synced if sync else self._plain)
            self._puts.clear()
            self._ranges.clear()
            self._ahead, self._waiting_bytes = [], 0
            if sync:
                self._seal.look()
        elif sync:
            self.sync()

    def sync(self) -> None:
        """Wait until every commit so far is on disk. StorageError state.io, state.disk_full."""
        try:
            self._db.flush_wal(True)
        except Exception as error:
            raise named(error, "cannot force the state to disk") from error
        self._seal.look()


def stored(db: Rdict, key: bytes) -> bytes | None:
    """A committed value. StorageError state.corrupt, state.io."""
    try:
        return db.get(key)
    except Exception as error:
        raise named(error, "cannot read a value") from error


def stored_keys(db: Rdict, start: bytes, stop: bytes) -> list[bytes]:
    """The committed keys in [start, stop), in order; leaves no iterator behind.

    StorageError state.corrupt, state.io.
    """
    keys = []
    cursor = db.iter()
    cursor.seek(start)
    while cursor.valid():
        key = cursor.key()
        if key >= stop:
            break
        keys.append(key)
        cursor.next()
    check_cursor(cursor)
    return keys


def check_cursor(cursor: RdictIter) -> None:
    """An iterator ends where there are no more keys, and also where they cannot be read."""
    try:
        cursor.status()
    except Exception as error:
        raise named(error, "cannot read keys") from error
