"""The writes of the open epoch, and reads that see them.

RocksDB is written once, at commit, with one batch: first the removals of ranges, then the puts.
Invariant: what was put and then removed within the epoch is in neither; a removed range that was
filled again holds just what was put since.
"""

from __future__ import annotations

from collections.abc import Sequence

from rocksdict import Rdict, WriteBatch, WriteOptions

from storage.store import StorageError


class WriteSet:
    """Puts and range removals over one database, in memory until `commit`."""

    def __init__(self, db: Rdict) -> None:
        self._db = db
        self._puts: dict[bytes, bytes | None] = {}
        self._ranges: list[tuple[bytes, bytes]] = []
        self._synced = WriteOptions()
        self._synced.sync = True
        self._plain = WriteOptions()

    def put(self, key: bytes, value: bytes | None) -> None:
        """Set a key; None removes it."""
        self._puts[key] = value

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
        return None if self.removes(key) else self._db.get(key)

    def read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values of keys whose range the epoch does not remove, or only before putting them."""
        values = [self._puts.get(key) for key in keys]
        absent = [i for i, value in enumerate(values) if value is None]
        if absent:
            for i, value in zip(absent, self._db.get([keys[i] for i in absent]), strict=True):  # type: ignore[arg-type]
                values[i] = value
        return values

    def scan(self, start: bytes, stop: bytes) -> list[bytes]:
        """The keys in [start, stop) as the open epoch has them, in order."""
        kept = [key for key in stored_keys(self._db, start, stop) if not self.removes(key)]
        keys = set(kept)
        for key, value in self._puts.items():
            if start <= key < stop:
                keys.discard(key) if value is None else keys.add(key)
        return sorted(keys)

    def commit(self, *, sync: bool) -> None:
        """Write all of it at once, or nothing. StorageError state.io if it cannot be written."""
        if self._puts or self._ranges:
            batch = WriteBatch(raw_mode=True)
            for start, stop in self._ranges:
                batch.delete_range(start, stop)
            for key, value in self._puts.items():
                if value is None:
                    batch.delete(key)
                else:
                    batch.put(key, value)
            try:
                self._db.write(batch, self._synced if sync else self._plain)
            except Exception as error:
                raise StorageError("state.io", f"commit failed: {error}") from error
            self._puts.clear()
            self._ranges.clear()
        elif sync:
            self._db.flush_wal(True)


def stored_keys(db: Rdict, start: bytes, stop: bytes) -> list[bytes]:
    """The committed keys in [start, stop), in order; leaves no iterator behind."""
    keys = []
    cursor = db.iter()
    cursor.seek(start)
    while cursor.valid():
        key = cursor.key()
        if key >= stop:
            break
        keys.append(key)
        cursor.next()
    return keys
