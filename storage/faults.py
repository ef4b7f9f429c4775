"""Map errors of RocksDB and the disk to StorageErrors with a code.

Invariant: damage that RocksDB detects always stops the read; no disk error leaves this package
without a code.
"""

from __future__ import annotations

import errno

from storage.errors import StorageError

REBUILD = (
    "check the disk (dmesg, smartctl); then restore a checkpoint"
    " (tidemark restore), or move the state directory away to rebuild every view"
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
    """Return the error with its code: state.disk_full, state.corrupt or state.io.

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
            "free space on the disk of the state directory; the service continues by itself",
        )
    if any(word in low for word in _BROKEN):
        return corrupt(f"{doing}: {text}")
    return StorageError("state.io", f"{doing}: {text}", "check the disk, and run tidemark doctor")


def corrupt(detail: str) -> StorageError:
    """Return the error for a damaged state."""
    return StorageError("state.corrupt", detail, REBUILD)
