"""Bytes of a file as its format wants them: unpacked, in blocks.

Invariant: a file that breaks off or is corrupt ends in UnreadableFile, never in a short file.
"""

from __future__ import annotations

import gzip
import tempfile
import zlib
from typing import IO

BLOCK_BYTES = 2 << 20
# A packed Parquet file is unpacked into memory up to here, and onto disk above.
SPOOL_BYTES = 32 << 20
_GZIP_MAGIC = b"\x1f\x8b"


class UnreadableFile(Exception):
    """The file cannot be read, or not on from here: the reason for people."""


class ByteStream:
    """An open file, unpacked where it is packed.

    compression: "auto" (by its first two bytes), "gzip" or "none". file: seekable, at its start;
    it is closed by whoever opened it.
    """

    def __init__(self, file: IO[bytes], compression: str) -> None:
        self.file = file
        self.is_packed = compression == "gzip"
        if compression == "auto":
            self.is_packed = read_whole(file, 2) == _GZIP_MAGIC
            file.seek(0)
        self._inner: IO[bytes] = (
            gzip.GzipFile(fileobj=file, mode="rb") if self.is_packed else file  # type: ignore[assignment]
        )

    def seek(self, offset: int) -> None:
        """Go on from here; in a packed file only from its start."""
        self._inner.seek(offset)

    def read(self, size: int = BLOCK_BYTES) -> bytes:
        """The next bytes, exactly `size` of them but at the end; b"" there."""
        try:
            return read_whole(self._inner, size)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UnreadableFile(f"the gzip stream is broken: {error}") from None

    def seekable(self) -> IO[bytes]:
        """A file that can be sought in: itself, or a copy of what is packed in it."""
        if not self.is_packed:
            return self.file
        spool = tempfile.SpooledTemporaryFile(SPOOL_BYTES)  # noqa: SIM115
        while block := self.read():
            spool.write(block)
        spool.seek(0)
        return spool


def read_whole(file: IO[bytes], size: int) -> bytes:
    """As many bytes as asked for, but at the end of the file."""
    parts, left = [], size
    while left:
        part = file.read(left)
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
