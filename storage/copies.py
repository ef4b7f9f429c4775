"""A copy of a whole state, as of one commit, made while it is written.

Tables never change, so that they are linked, not copied. Invariant: a copy holds every commit up
to some one, and nothing of a later one.
"""

from __future__ import annotations

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


def value_in_copy(folder: Path, key: bytes) -> bytes | None:
    """A value of a copy, which stays as it is. StorageError state.corrupt, state.io."""
    try:
        db = Rdict(str(folder), Options(raw_mode=True), access_type=AccessType.read_only())
    except Exception as error:
        raise named(error, f'cannot open the copy "{folder}"') from error
    try:
        return stored(db, key)
    finally:
        db.close()
