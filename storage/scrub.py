"""Read a whole state once and verify that it is undamaged.

Everything is verified when it is read, but some data is untouched for months. Nothing is changed,
and a service may be running on the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rocksdict import ReadOptions

from storage.copies import opened_to_read
from storage.errors import StorageError
from storage.faults import named
from storage.seal import Seal

# Files are removed while a running service merges: then they are listed again.
_TRIES = 5


@dataclass(frozen=True)
class Scrubbed:
    """What was read. values: how many; size_bytes: of them."""

    values: int
    size_bytes: int


def scrub(folder: Path) -> Scrubbed:
    """Read the database in `folder` completely; fail on any damage.

    RocksDB compares the checksums of all blocks; the seal detects missing commits and files.
    StorageError state.corrupt, state.io.
    """
    for _ in range(_TRIES - 1):
        try:
            return _read(folder)
        except StorageError as error:
            if "no such file" not in error.detail.lower():
                raise
    return _read(folder)


def _read(folder: Path) -> Scrubbed:
    seal = Seal(folder)
    seal.check_files()
    with opened_to_read(folder) as db:
        seal.check_commits(db)
        options = ReadOptions()
        options.fill_cache(False)  # pyright: ignore[reportCallIssue]
        cursor = db.iter(options)
        cursor.seek_to_first()
        values = size_bytes = 0
        while cursor.valid():
            values, size_bytes = values + 1, size_bytes + len(cursor.key()) + len(cursor.value())
            cursor.next()
        try:
            # The end, or a damaged block.
            cursor.status()
        except Exception as error:
            raise named(error, f'cannot read "{folder}"') from error
        del cursor
    return Scrubbed(values, size_bytes)
