"""What a full or broken disk says, wherever it says it, as an error with a code.

Invariant: what a disk refuses is temporary: nothing of it was confirmed to anybody, and the same
is tried again, from what is on disk for certain. A file that could not be forced to disk is never
taken for one that was: who wrote it ends, and reads it anew.
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
    """The error of a disk that this one is, or that a task or child told of; None for others.

    >>> str(disk_error(OSError(errno.ENOSPC, "No space left on device"), "spooling"))
    'there is no room left on the disk [state.disk_full]'
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
        what = "there is no room left on the disk"
    else:
        what = "the disk does not read or write"
    return TemporaryError(found.code, what, detail=found.detail, hint=found.hint)


def no_space(free_bytes: int) -> str:
    """In words, when there is hardly any; else empty."""
    if free_bytes > LEAST_FREE_BYTES:
        return ""
    return f"{free_bytes >> 20} MiB are left on the disk of the state [state.disk_full]"
