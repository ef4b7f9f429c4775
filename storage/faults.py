"""What RocksDB and the disk under it say, as errors with a code.

Invariant: nothing that was read goes on when RocksDB says that it is not what was written; no
error of a disk leaves this folder without its code.
"""

from __future__ import annotations

import errno

from storage.errors import StorageError

REBUILD = (
    "see what the disk says of itself (dmesg, smartctl); then bring back a checkpoint"
    " (tidemark restore), or move the state directory away: every view is rebuilt"
)
_FULL = (
    "no space left",
    "nospace",
    "disk quota exceeded",
    "file too large",
    "file size limit",
    "out of space",
    "max allowed space",
)
_FULL_NUMBERS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_BROKEN = ("corruption", "checksum mismatch", "no such file")


def named(error: Exception, doing: str) -> StorageError:
    """The error with its code: state.disk_full, state.corrupt or state.io.

    >>> named(Exception("IO error: No space left on device: While appending"), "commit").code
    'state.disk_full'
    """
    if isinstance(error, StorageError):
        return error
    text = " ".join(filter(None, (str(error), getattr(error, "detail", ""))))
    low = text.lower()
    if getattr(error, "errno", None) in _FULL_NUMBERS or any(word in low for word in _FULL):
        return StorageError(
            "state.disk_full",
            f"{doing}: {text}",
            "make room on the disk of the state directory: the service goes on by itself",
        )
    if any(word in low for word in _BROKEN):
        return corrupt(f"{doing}: {text}")
    return StorageError("state.io", f"{doing}: {text}", "check the disk, and see tidemark doctor")


def corrupt(detail: str) -> StorageError:
    """The refusal of a state that is not what was written."""
    return StorageError("state.corrupt", detail, REBUILD)
