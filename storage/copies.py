"""A copy of a whole state, as of one commit, made while it is written.

Tables never change, so that they are linked, not copied. Invariant: a copy holds every commit up
to some one, and nothing of a later one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rocksdict import AccessType, Checkpoint, Options, Rdict

from storage.faults import named
from storage.write_set import stored


def copy_database(db: Rdict, folder: Path) -> None:
    """Make a copy in a folder that is not there yet; from any thread.

    What is in memory is brought to tables first, which nobody waits for; only the links that are
    left hold up the others for a moment. StorageError state.io, state.disk_full.
    """
    try:
        db.flush()
        Checkpoint(db).create_checkpoint(str(folder))
    except Exception as error:
        raise named(error, f'cannot copy the state to "{folder}"') from error


@contextmanager
def opened_to_read(folder: Path) -> Iterator[Rdict]:
    """A database that stays as it is, a copy or one that is written meanwhile.

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
    """A value of a copy, which stays as it is. StorageError state.corrupt, state.io."""
    with opened_to_read(folder) as db:
        return stored(db, key)
