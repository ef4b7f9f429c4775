"""Bytes of a file for its format: decompressed, in UTF-8, in blocks.

Invariant: a truncated or corrupt file ends in UnreadableFile, never in a short file. Nothing is
guessed. Undecodable text becomes invalid UTF-8, so that its record is rejected. A file whose byte
order mark contradicts the declared encoding is unreadable.
"""

from __future__ import annotations

import codecs
import gzip
import tempfile
import zlib
from typing import IO, Any

from storage.reserve import TEMPORARY

BLOCK_BYTES = 2 << 20
# A compressed Parquet file is decompressed into memory up to this size, and onto disk above.
SPOOL_BYTES = 32 << 20
_GZIP_MAGIC = b"\x1f\x8b"

UTF8 = "utf-8"
# Canonical names, as in Python's codecs, of encodings that tables are written in.
_KNOWN = {
    *("utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be", "ascii"),
    *(f"iso8859-{part}" for part in (*range(1, 12), *range(13, 17))),
    *(f"cp{page}" for page in range(1250, 1259)),
    *("cp437", "cp850", "cp852", "cp858", "cp866", "cp874", "cp932", "cp949", "koi8-r", "koi8-u"),
    *("mac-roman", "shift_jis", "euc_jp", "euc_kr", "gbk", "gb18030", "gb2312", "big5"),
}
# The longer mark first: that of UTF-32 starts with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, UTF8),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_MARK_BYTES = 4
_UNDECODABLE = "tidemark.undecodable"


class UnreadableFile(Exception):
    """The file cannot be read, or not further; the message is for people."""


class ByteStream:
    """An open file, decompressed if needed.

    compression: "auto" (by its first two bytes), "gzip" or "none". encoding: of its text, "" for
    unchanged bytes. file: seekable, at its start; the opener closes it.
    """

    def __init__(self, file: IO[bytes], compression: str, encoding: str = "") -> None:
        self.file = file
        self.encoding = encoding
        self.is_packed = compression == "gzip"
        if compression == "auto":
            self.is_packed = read_whole(file, 2) == _GZIP_MAGIC
            file.seek(0)
        self._inner: Any = gzip.GzipFile(fileobj=file, mode="rb") if self.is_packed else file
        if encoding:
            self._decide(encoding)

    @property
    def has_offsets(self) -> bool:
        """True if reading can resume at a byte offset of what was read."""
        return not self.is_packed and self._inner is self.file

    def _decide(self, encoding: str) -> None:
        decided = decided_encoding(encoding, self.read(_MARK_BYTES))
        self.seek(0)
        if decided != UTF8:
            self._inner = _RecodedFile(self._inner, decided)

    def seek(self, offset: int) -> None:
        """Continue from an offset; only from the start if there are no offsets."""
        self._inner.seek(offset)

    def read(self, size: int = BLOCK_BYTES) -> bytes:
        """Return the next `size` bytes, fewer only at the end; b"" there."""
        try:
            return read_whole(self._inner, size)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UnreadableFile(f"the gzip stream is corrupt: {error}") from None

    def seekable(self) -> IO[bytes]:
        """Return a seekable file: itself, or a decompressed copy."""
        if not self.is_packed:
            return self.file
        spool = tempfile.SpooledTemporaryFile(SPOOL_BYTES)  # noqa: SIM115
        while block := self.read():
            TEMPORARY.take(len(block))
            spool.write(block)
        spool.seek(0)
        return spool


def _keep_bad(error: UnicodeError) -> tuple[str, int]:
    """Keep half of a surrogate pair, which has no form in UTF-8."""
    return "\udcff", error.end if isinstance(error, UnicodeDecodeError) else 0


codecs.register_error(_UNDECODABLE, _keep_bad)


def canonical_encoding(name: str) -> str | None:
    """Return the name of a known encoding in any spelling; None for any other.

    >>> canonical_encoding("Latin1"), canonical_encoding("UTF16"), canonical_encoding("rot13")
    ('iso8859-1', 'utf-16', None)
    """
    try:
        found = codecs.lookup(name).name.removesuffix("-sig")
    except (LookupError, ValueError):
        return None
    return found if found in _KNOWN else None


def decided_encoding(declared: str, start: bytes) -> str:
    """Return the encoding of a file with this start.

    UTF-16 and UTF-32 without a byte order mark are little-endian. UnreadableFile: the mark
    contradicts the declared encoding.

    >>> decided_encoding("utf-16", bytes([254, 255])), decided_encoding("utf-16", b"i")
    ('utf-16-be', 'utf-16-le')
    """
    marked = next((name for mark, name in _MARKS if start.startswith(mark)), "")
    if marked and not marked.startswith(declared):
        usual = marked.removesuffix("-le").removesuffix("-be")
        reason = (
            f'its byte order mark is that of {usual}, not of {declared}; set encoding to "{usual}"'
        )
        raise UnreadableFile(reason)
    return marked or (f"{declared}-le" if declared in ("utf-16", "utf-32") else declared)


class _RecodedFile:
    """A file of any encoding as UTF-8; it is read from its start only."""

    def __init__(self, file: IO[bytes], encoding: str) -> None:
        self._file = file
        self._make = codecs.getincrementaldecoder(encoding)
        self.seek(0)

    def seek(self, offset: int) -> None:
        """Rewind; offset must be 0."""
        assert offset == 0
        self._file.seek(0)
        self._decoder = self._make(_UNDECODABLE)
        self._rest, self._is_through = b"", False

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; b"" at the end."""
        while not self._rest and not self._is_through:
            block = self._file.read(BLOCK_BYTES)
            self._is_through = not block
            text = self._decoder.decode(block, self._is_through)
            self._rest = text.encode(UTF8, "surrogatepass")
        found, self._rest = self._rest[:size], self._rest[size:]
        return found


def read_whole(file: IO[bytes], size: int) -> bytes:
    """Return exactly `size` bytes, fewer only at the end of the file."""
    parts, left = [], size
    while left:
        part = file.read(left)
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
