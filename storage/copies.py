"""A copy of a whole state at one commit, made while the state is written.

RocksDB tables never change, so they are linked, not copied. Invariant: a copy holds every commit up
to one, and nothing of a later one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rocksdict import AccessType, Checkpoint, Options, Rdict

from storage.faults import named
from storage.write_set import stored


def copy_database(db: Rdict, folder: Path) -> None:
    """Copy the database into a folder that does not exist yet; from any thread.

    Memory is flushed to tables first, which blocks nobody; only linking the rest blocks writers for
    a moment. StorageError state.io, state.disk_full.
    """
    try:
        db.flush()
        Checkpoint(db).create_checkpoint(str(folder))
    except Exception as error:
        raise named(error, f'cannot copy the state to "{folder}"') from error


@contextmanager
def opened_to_read(folder: Path) -> Iterator[Rdict]:
    """Open a database read-only: a copy, or one that another process writes.

    StorageError state.corrupt, state.io.
    """
    try:
        db = Rdict(str(folder), Options(raw_mode=True), access_type=AccessType.read_only())
    except Exception as error:
        raise named(error, f'cannot open "{folder}"') from error
    try:
        yield db
    finally:
        db.close()


def value_in_copy(folder: Path, key: bytes) -> bytes | None:
    """Return a value of a copy, without changing it. StorageError state.corrupt, state.io."""
    with opened_to_read(folder) as db:
        return stored(db, key)
