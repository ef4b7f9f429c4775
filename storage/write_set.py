"""The writes of the open epoch, and reads that see them.

RocksDB is written at commit, with one batch: first the range removals, then the puts. Only data
without meaning before the commit names it (pages of a run, parts of an epoch) may be written ahead,
so that a large epoch does not fill the memory. Invariant: a key that was put and then removed
within the epoch is in neither; a removed range that was filled again holds only the later puts.
"""

from __future__ import annotations

from collections.abc import Sequence

from rocksdict import Rdict, RdictIter, ReadOptions, WriteBatch, WriteOptions

from storage.faults import named
from storage.seal import Seal

# Keys with a common prefix are in the same ranges: a range removes an arrangement or a run.
_PREFIX_BYTES = 13


class WriteSet:
    """Puts and range removals over one database, in memory until `commit`.

    seal: numbers the commits. ahead_bytes: how much of the data that may be written ahead is
    buffered.
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
        """Write ahead what is allowed, except ranges that the commit will first remove."""
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
        """Remove all keys in [start, stop), including those put in this epoch."""
        for key in [k for k in self._puts if start <= k < stop]:
            del self._puts[key]
        self._ranges.append((start, stop))

    def removes(self, key: bytes) -> bool:
        """Return True if the open epoch removes the range of the key."""
        return any(start <= key < stop for start, stop in self._ranges)

    def get(self, key: bytes) -> bytes | None:
        """Return the value as the open epoch sees it."""
        if key in self._puts:
            return self._puts[key]
        return None if self.removes(key) else stored(self._db, key)

    def read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return values of keys whose range the epoch does not remove, or only before putting them.

        They bypass RocksDB's cache.
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
        """Return the keys in [start, stop) as the open epoch sees them, in order."""
        stored_now = [key for key in stored_keys(self._db, start, stop) if not self.removes(key)]
        keys = set(stored_now)
        for key, value in self._puts.items():
            if start <= key < stop:
                keys.discard(key) if value is None else keys.add(key)
        return sorted(keys)

    def commit(self, *, sync: bool) -> None:
        """Write everything atomically. StorageError state.io, state.disk_full."""
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
                self._seal.observe()
        elif sync:
            self.sync()

    def sync(self) -> None:
        """Wait until every commit so far is durable. StorageError state.io, state.disk_full."""
        try:
            self._db.flush_wal(True)
        except Exception as error:
            raise named(error, "cannot sync the state to disk") from error
        self._seal.observe()


def stored(db: Rdict, key: bytes) -> bytes | None:
    """Return a committed value. StorageError state.corrupt, state.io."""
    try:
        return db.get(key)
    except Exception as error:
        raise named(error, "cannot read a value") from error


def stored_keys(db: Rdict, start: bytes, stop: bytes) -> list[bytes]:
    """Return the committed keys in [start, stop), in order; closes its iterator.

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
    """Raise if an iterator ended because keys cannot be read, and not because there are no more."""
    try:
        cursor.status()
    except Exception as error:
        raise named(error, "cannot read keys") from error
