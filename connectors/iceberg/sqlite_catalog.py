"""The connection to an SQL catalog in a file of SQLite.

The file is others' too: its schema could run code of theirs in each statement. Invariant: exactly
the path that was checked is opened, no other file is attached, no extension is loaded, and no
trigger or view of the file runs.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from pathlib import PurePath

from connectors import netguard
from connectors.objects.open_folder import open_nearest, real_path
from dataflow.errors import SourceError

# Of one connection, which is used for one statement or two.
_DEADLINE_S = 60.0
# Of a text or a row; the catalog's are below 3,000.
_VALUE_BYTES = 1 << 20
_ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_INSERT,
    sqlite3.SQLITE_UPDATE,
    sqlite3.SQLITE_DELETE,
    sqlite3.SQLITE_TRANSACTION,
    sqlite3.SQLITE_CREATE_TABLE,
    sqlite3.SQLITE_CREATE_INDEX,
    sqlite3.SQLITE_FUNCTION,
}
# What says which tables there are.
_PRAGMAS = ("table_info", "table_xinfo", "read_uncommitted")


def connect(path: str) -> sqlite3.Connection:
    """Open the catalog at an absolute path. OSError, sqlite3.Error; SourceError path.forbidden."""
    folder, missing = open_nearest(PurePath(path).parent)
    try:
        real = os.path.join(real_path(folder, PurePath(path).parent), *missing)
        name = PurePath(path).name
        netguard.check_opened_sink(os.path.join(real, name), path)
        if missing:
            raise FileNotFoundError(f'the folder of the catalog "{path}" does not exist')
        _require_plain(name, folder, path)
        found = sqlite3.connect(os.path.join(real, name))
        try:
            _confine(found)
            _require_same(folder, real, path)
            _require_plain(name, folder, path)
        except BaseException:
            found.close()
            raise
        return found
    finally:
        os.close(folder)


def _confine(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _VALUE_BYTES)
    ends = time.monotonic() + _DEADLINE_S
    connection.set_progress_handler(lambda: int(time.monotonic() > ends), 100_000)
    connection.set_authorizer(_authorize)


def _authorize(
    action: int, first: str | None, _: str | None, __: str | None, within: str | None
) -> int:
    """See sqlite3.Connection.set_authorizer. within: the trigger or view that asks, if any."""
    is_allowed = action in _ALLOWED or (action == sqlite3.SQLITE_PRAGMA and first in _PRAGMAS)
    return sqlite3.SQLITE_OK if is_allowed and within is None else sqlite3.SQLITE_DENY


def _require_plain(name: str, folder: int, path: str) -> None:
    """Refuse a catalog that is a link or a device. SourceError path.forbidden."""
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise _moved(path, "it is a link or a device")


def _require_same(folder: int, real: str, path: str) -> None:
    """Refuse a folder that was replaced while the file in it was opened."""
    if not os.path.samestat(os.fstat(folder), os.stat(real)):
        raise _moved(path, "its folder was replaced while it was opened")


def _moved(path: str, detail: str) -> SourceError:
    return SourceError(
        "path.forbidden",
        f'the catalog "{path}" is no plain file of its folder',
        detail=detail,
        hint="name the file itself, in a folder that no one else can write to",
    )
