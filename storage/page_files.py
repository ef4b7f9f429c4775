"""Pages of long runs as files that RocksDB ingests whole.

A page that is put the ordinary way is written three times: to the write log, to memory, and from
there to a file. A run is named only once all of its pages are stored, so they need no log. They go
to their own file, which is ingested before the commit that names the run. Invariant: a crash leaves
either a file here, which the next start removes, or pages without a run.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

from rocksdict import IngestExternalFileOptions, Options, Rdict, SstFileWriter

from storage.faults import named

# Over all databases of the process: a late release must not remove another's file.
_NUMBERS = itertools.count(1)


class PageFile:
    """Keys, ascending, with their values; part of the database after `finish`."""

    def __init__(self, db: Rdict, path: Path, options: Options) -> None:
        self._db = db
        self._path = path
        self._writer: SstFileWriter | None = SstFileWriter(options)
        try:
            self._writer.open(str(path))
        except Exception as error:
            raise named(error, f'cannot create "{path}"') from error
        self._is_empty = True

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key greater than all earlier ones. StorageError state.io, state.disk_full."""
        assert self._writer is not None
        try:
            self._writer[key] = value
        except Exception as error:
            raise named(error, f'cannot write "{self._path}"') from error
        self._is_empty = False

    def finish(self) -> None:
        """Make the file durable and part of the database. StorageError state.io,
        state.disk_full.
        """
        writer, self._writer = self._writer, None
        if writer is None or self._is_empty:
            self._path.unlink(missing_ok=True)
            return
        take = IngestExternalFileOptions()
        take.set_move_files(True)
        try:
            writer.finish()
            self._db.ingest_external_file([str(self._path)], take)
        except Exception as error:
            raise named(error, f'cannot ingest "{self._path}"') from error

    def discard(self) -> None:
        """Remove the file, unless it is already part of the database."""
        if self._writer is not None:
            self._writer = None
            self._path.unlink(missing_ok=True)


class PageFiles:
    """Makes page files in a folder beside the database's own, on the same file system."""

    def __init__(self, db: Rdict, folder: Path, options: Options) -> None:
        self._db = db
        self._folder = folder
        self._options = options
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise named(error, f'cannot create "{folder}"') from error

    def open(self) -> PageFile:
        """Return a new page file."""
        return PageFile(self._db, self._folder / f"{next(_NUMBERS)}.sst", self._options)
