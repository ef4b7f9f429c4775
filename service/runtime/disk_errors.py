"""Errors of a full or broken disk, from any source, as a temporary error with a code.

Invariant: a failed write is temporary. Nothing of it was confirmed, and it is retried from what is
durable. A file whose fsync failed is never considered durable: its writer exits and reads it again.
"""

from __future__ import annotations

import errno

from dataflow.errors import TemporaryError, TidemarkError
from storage.errors import StorageError
from storage.faults import named

LEAST_FREE_BYTES = 8 << 20
_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})
_WORDS = ("No space left on device", "Disk quota exceeded", "Input/output error")


def disk_error(error: BaseException, doing: str) -> TemporaryError | None:
    """Return the disk error behind `error`, also if a task or child reported it; None for others.

    >>> str(disk_error(OSError(errno.ENOSPC, "No space left on device"), "spooling"))
    'the disk is full [state.disk_full]'
    >>> disk_error(ValueError("no such thing"), "spooling") is None
    True
    """
    text = f"{error} {error.detail}" if isinstance(error, TidemarkError) else str(error)
    is_of_disk = isinstance(error, OSError) and error.errno in _DISK
    if isinstance(error, StorageError):
        is_of_disk = error.code in ("state.disk_full", "state.io")
    if not (is_of_disk or any(word in text for word in _WORDS)):
        return None
    found = named(error if isinstance(error, Exception) else Exception(text), doing)
    if found.code == "state.disk_full":
        what = "the disk is full"
    else:
        what = "the disk failed to read or write"
    return TemporaryError(found.code, what, detail=found.detail, hint=found.hint)


def no_space(free_bytes: int) -> str:
    """Return a warning if almost no disk space is left, else ""."""
    if free_bytes > LEAST_FREE_BYTES:
        return ""
    return f"{free_bytes >> 20} MiB are left on the disk of the state directory [state.disk_full]"
