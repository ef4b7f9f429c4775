"""The bounded reader: everything from outside is read through it, within limits.

A few bytes can stand for gigabytes once they are decompressed, and an answer may never end.
Invariant: what is held of an answer never exceeds its bounds by more than one block, whatever its
sender says about its length or encoding.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from connectors.outside.deadline import Deadline

# Bytes that are decompressed at a time.
BLOCK_BYTES = 64 << 10
# A small text may be compressed to anything; a ratio counts above this size.
_FREE_BYTES = 1 << 20
_GZIP_OR_ZLIB, _RAW = zlib.MAX_WBITS | 32, -zlib.MAX_WBITS


class OverLimitError(Exception):
    """What was received exceeds a limit; the text names it. A boundary makes an error of it."""


@dataclass(frozen=True)
class Bounds:
    """Limits of one answer, message or file.

    out_bytes: of its content, decompressed. in_bytes: as it was sent; 0 for a block more than
    out_bytes. ratio: bytes of content for each byte that was sent. line_bytes: of one line. count:
    of fields, headers, elements or other parts.
    """

    out_bytes: int
    in_bytes: int = 0
    ratio: int = 200
    line_bytes: int = 1 << 20
    count: int = 10_000


# Of what somebody else says about a failure.
ERROR_BODY = Bounds(out_bytes=16 << 10, in_bytes=16 << 10)


class Meter:
    """Counts what one answer has had. OverLimitError: it has had more than its bounds allow.

    >>> Meter(Bounds(out_bytes=10)).add(out_bytes=11)
    Traceback (most recent call last):
    connectors.outside.bounded.OverLimitError: it has more than 10 bytes
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.in_bytes = 0
        self.out_bytes = 0
        self.count = 0

    def add(self, *, in_bytes: int = 0, out_bytes: int = 0, count: int = 0) -> None:
        """Count what came: bytes as they were sent, bytes of content, parts."""
        own = self.bounds
        self.in_bytes += in_bytes
        self.out_bytes += out_bytes
        self.count += count
        if self.in_bytes > (own.in_bytes or own.out_bytes + BLOCK_BYTES):
            raise OverLimitError(f"more than {own.in_bytes or own.out_bytes:,} bytes were sent")
        if self.out_bytes > own.out_bytes:
            raise OverLimitError(f"it has more than {own.out_bytes:,} bytes")
        if self.out_bytes > _FREE_BYTES and self.out_bytes > own.ratio * max(1, self.in_bytes):
            raise OverLimitError(f"it is compressed more than {own.ratio} times")
        if self.count > own.count:
            raise OverLimitError(f"it has more than {own.count:,} parts")


class _Unpacker(Protocol):
    """Decompresses one stream in blocks."""

    def feed(self, part: bytes) -> Iterator[bytes]:
        """Yield what a part decompresses to, in blocks of bounded size."""
        ...

    def end(self) -> Iterator[bytes]:
        """Yield the rest. ValueError, zlib.error: the stream is not whole."""
        ...


class _Plain:
    def feed(self, part: bytes) -> Iterator[bytes]:
        for start in range(0, len(part), BLOCK_BYTES):
            yield part[start : start + BLOCK_BYTES]

    def end(self) -> Iterator[bytes]:
        return iter(())


class _Inflater:
    """gzip with all its members, or zlib; a server may send "deflate" without zlib's head."""

    def __init__(self, *, may_be_raw: bool) -> None:
        self._inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._may_be_raw = may_be_raw
        self._has_begun = False

    def feed(self, part: bytes) -> Iterator[bytes]:
        while part:
            if self._inflate.eof:
                # Another member; zeros after the last one are padding.
                part = part.lstrip(b"\0")
                if not part:
                    return
                self._inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
            found = self._block(part)
            part = self._inflate.unconsumed_tail or self._inflate.unused_data
            if found:
                yield found

    def _block(self, part: bytes) -> bytes:
        try:
            found = self._inflate.decompress(part, BLOCK_BYTES)
        except zlib.error:
            if self._has_begun or not self._may_be_raw:
                raise
            self._inflate = zlib.decompressobj(_RAW)
            found = self._inflate.decompress(part, BLOCK_BYTES)
        self._has_begun = True
        return found

    def end(self) -> Iterator[bytes]:
        while self._has_begun and not self._inflate.eof:
            found = self._inflate.decompress(b"", BLOCK_BYTES)
            if not found:
                raise ValueError("the compressed stream is not whole")
            yield found


_UNPACKERS: dict[str, Callable[[], _Unpacker]] = {
    "": _Plain,
    "identity": _Plain,
    "gzip": lambda: _Inflater(may_be_raw=False),
    "x-gzip": lambda: _Inflater(may_be_raw=False),
    "deflate": lambda: _Inflater(may_be_raw=True),
}
# What a client says that it understands.
ENCODINGS = "gzip, deflate"


def unpacked(
    parts: Iterable[bytes], encoding: str, meter: Meter, deadline: Deadline | None = None
) -> Iterator[bytes]:
    """Yield the content of an answer in blocks of at most BLOCK_BYTES, within the meter's bounds.

    encoding: of the content: "", "identity", "gzip" or "deflate". OverLimitError; LateError;
    ValueError: the encoding is unknown, or the stream is not whole; zlib.error.

    >>> b"".join(unpacked([zlib.compress(b"abc")], "deflate", Meter(Bounds(out_bytes=3))))
    b'abc'
    """
    make = _UNPACKERS.get(encoding.strip().lower())
    if make is None:
        raise ValueError(f"the content encoding {encoding[:40]!r} is not understood")
    unpacker = make()
    for part in parts:
        if deadline is not None:
            deadline.check()
        meter.add(in_bytes=len(part))
        for block in unpacker.feed(part):
            meter.add(out_bytes=len(block))
            yield block
    for block in unpacker.end():
        meter.add(out_bytes=len(block))
        yield block


def begin_of(parts: Iterable[bytes], most: int) -> bytes:
    """Return the first bytes of an answer, for an error that quotes it; the rest is not read."""
    found = bytearray()
    for part in parts:
        found += part[: most - len(found)]
        if len(found) >= most:
            break
    return bytes(found)


def lines(parts: Iterable[bytes], meter: Meter) -> Iterator[bytes]:
    r"""Yield the lines of blocks without their ends (LF). OverLimitError: one is too long.

    >>> list(lines([b"a\nb", b"c"], Meter(Bounds(out_bytes=9))))
    [b'a', b'bc']
    """
    most, rest = meter.bounds.line_bytes, bytearray()
    for part in parts:
        rest += part
        if b"\n" in part:
            *whole, left = bytes(rest).split(b"\n")
            rest = bytearray(left)
            for line in whole:
                _check_line(line, most)
                yield line
        _check_line(rest, most)
    if rest:
        yield bytes(rest)


def _check_line(line: bytes | bytearray, most: int) -> None:
    if len(line) > most:
        raise OverLimitError(f"a line has more than {most:,} bytes")
