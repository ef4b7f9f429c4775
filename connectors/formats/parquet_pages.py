"""What the pages of a column chunk in a Parquet file claim, from their headers.

https://github.com/apache/parquet-format: a chunk is a dictionary page, if any, and data pages, each
after a header in Thrift's compact protocol. A page of a few bytes can stand for any number of
values: it repeats a long one of its dictionary, or continues the one before it.
Invariant: a page is larger than neither what its header says nor the limits here, and headers are
understood as Arrow understands them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tidemark_native import formats

from connectors.outside.bounded import OverLimitError

# Of one page, decompressed; some writers put a whole column of a row group into one.
MOST_PAGE_BYTES = 128 << 20
MOST_DICTIONARY_BYTES = 64 << 20
# Of a page whose lengths are decoded together.
MOST_DELTA_VALUES = 16 << 20
_HEADER_BYTES = (256, 16 << 10, 1 << 20, 16 << 20)
# Bytes by which chunks of old writers are longer than they say (PARQUET-816).
_PADDING = 100
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_BYTE_ARRAY, _FIXED = "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_PLAIN_DICTIONARY, _BIT_PACKED, _DELTA_BINARY, _DELTA_LENGTH, _DELTA_BYTES, _RLE_DICTIONARY = (
    *(2, 4, 5, 6, 7, 8),
)
# Of the entry of a dictionary, in Arrow's memory.
_ENTRY_BYTES = 16

ReadAt = Callable[[int, int], bytes]


@dataclass(frozen=True)
class Page:
    """A data page. levels: values with NULLs. rows: that begin in it. is_continued: its first level
    belongs to a row before it. content_bytes: of all its values, value_bytes: of the longest one.
    longest: levels of the longest row so far that it has a part of. open_bytes: what the column
    needs while the page is read.
    """

    levels: int
    rows: int
    is_continued: bool
    content_bytes: int
    value_bytes: int
    longest: int
    open_bytes: int


@dataclass(frozen=True)
class Leaf:
    """A column of values in a row group. exact_above: byte arrays in plain pages larger than this
    are measured.
    """

    path: str
    type: str
    length: int
    most_definition: int
    most_repetition: int
    codec: str
    start: int
    end: int
    values: int
    exact_above: int

    @property
    def width(self) -> int:
        """Bytes that every value takes, also a NULL."""
        return self.length if self.type == _FIXED else _WIDTHS.get(self.type, 8)


def leaf_of(
    parquet: pq.ParquetFile, group: int, column: int, file_bytes: int, exact_above: int
) -> Leaf:
    """Return a column of a row group."""
    described = parquet.schema.column(column)
    chunk = parquet.metadata.row_group(group).column(column)
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
        start = chunk.dictionary_page_offset
    if start < 0 or chunk.total_compressed_size < 0:
        raise pa.ArrowInvalid(f'column "{described.path[:100]}" begins nowhere')
    return Leaf(
        described.path,
        described.physical_type,
        described.length,
        described.max_definition_level,
        described.max_repetition_level,
        chunk.compression,
        start,
        min(start + chunk.total_compressed_size + _PADDING, file_bytes),
        chunk.num_values,
        exact_above,
    )


def pages_of(leaf: Leaf, read_at: ReadAt) -> Iterator[Page]:
    """Yield the data pages of a chunk. OverLimitError; pa.ArrowInvalid: a page is malformed."""
    return _Walk(leaf, read_at).pages()


@dataclass(frozen=True)
class _Header:
    """Of a page; numbers are -1 where it says none. level_encodings, level_bytes: of repetition and
    definition levels, in the first and the second version of pages.
    """

    type: int
    bytes: int
    packed_bytes: int
    values: int
    encoding: int
    level_encodings: tuple[int, int]
    level_bytes: tuple[int, int]
    is_packed: bool


class _Walk:
    def __init__(self, leaf: Leaf, read_at: ReadAt) -> None:
        self._leaf, self._read_at = leaf, read_at
        self._dictionary_bytes = self._longest_entry = 0
        self._open_levels = 0

    def pages(self) -> Iterator[Page]:
        at, seen, leaf = self._leaf.start, 0, self._leaf
        while at < leaf.end and seen < leaf.values:
            head = self._read_at(at, min(_HEADER_BYTES[0], leaf.end - at))
            if not head:
                return
            header, size = self._header(at, head)
            at += size
            if header.packed_bytes < 0 or header.packed_bytes > leaf.end - at:
                raise self._broken("a page is longer than its column")
            if header.bytes < 0:
                raise self._broken("a page has a negative size")
            most = MOST_DICTIONARY_BYTES if header.type == _DICTIONARY else MOST_PAGE_BYTES
            if max(header.bytes, header.packed_bytes) > most:
                raise self._over(f"has a page of more than {most >> 20} MB")
            if header.type == _DICTIONARY:
                self._take_dictionary(header, at)
            elif header.type in (_DATA, _DATA_V2):
                if header.values < 0:
                    raise self._broken("a page has a negative number of values")
                seen += header.values
                yield self._page(header, at)
            at += header.packed_bytes

    def _header(self, at: int, head: bytes) -> tuple[_Header, int]:
        for most in _HEADER_BYTES:
            if len(head) < most:
                head = self._read_at(at, min(most, self._leaf.end - at))
            try:
                return _read_header(head)
            except IndexError:
                if len(head) < most:
                    break
            except ValueError as error:
                raise self._broken(f"the header of a page is malformed: {error}") from None
        raise self._broken("the header of a page is not whole")

    def _take_dictionary(self, header: _Header, at: int) -> None:
        width = 4 if self._leaf.type == _BYTE_ARRAY else max(1, self._leaf.width)
        if not 0 <= header.values * width <= header.bytes * (8 if width == 1 else 1):
            raise self._broken("a dictionary has more values than bytes")
        entry_bytes = header.values * _ENTRY_BYTES if self._leaf.type == _BYTE_ARRAY else 0
        self._dictionary_bytes = header.bytes * 2 + entry_bytes
        if self._leaf.type == _BYTE_ARRAY:
            data = self._unpacked(self._read_at(at, header.packed_bytes), header.bytes)
            self._longest_entry = max(self._longest_entry, self._longest(data))

    def _longest(self, data: np.ndarray) -> int:
        found = formats.longest_plain(data)
        if found is None:
            raise self._broken("a value is longer than its page")
        return found[1]

    def _page(self, header: _Header, at: int) -> Page:
        rows, longest, is_continued = header.values, 1, False
        if self._leaf.most_repetition:
            rows, longest, is_continued = self._rows(header, at)
        content, value = self._lengths(header, at)
        open_bytes = header.bytes + header.packed_bytes + self._dictionary_bytes
        if header.encoding in (_DELTA_BINARY, _DELTA_LENGTH, _DELTA_BYTES):
            if header.values > MOST_DELTA_VALUES:
                raise self._over(f"has a page of more than {MOST_DELTA_VALUES:,} values")
            open_bytes += 8 * header.values
        return Page(header.values, rows, is_continued, content, value, longest, open_bytes)

    def _lengths(self, header: _Header, at: int) -> tuple[int, int]:
        """Return the bytes of all values beyond Leaf.width, and of the longest one."""
        encoding = header.encoding
        if encoding != _DELTA_BYTES:
            if self._leaf.type != _BYTE_ARRAY:
                return 0, 0
            if encoding in (_PLAIN_DICTIONARY, _RLE_DICTIONARY):
                return header.values * self._longest_entry, self._longest_entry
            if header.bytes <= self._leaf.exact_above:
                # Not known to a row, but all together are not longer than the page.
                return header.bytes, -(-header.bytes // max(1, header.values))
        values = self._parts(header, at)[1]
        if encoding not in (_DELTA_LENGTH, _DELTA_BYTES):
            return header.bytes, self._longest(values)
        total, longest, end = self._packed(values, 0, header)
        if encoding == _DELTA_LENGTH:
            return header.bytes, longest
        # Each is a part of the value before it, which may be that of another page, and a rest.
        added, rest, _ = self._packed(values, end, header)
        return total + added, longest + rest

    def _packed(self, data: np.ndarray, at: int, header: _Header) -> tuple[int, int, int]:
        found = formats.packed_lengths(data, at, header.values)
        if found is None:
            raise self._broken("the lengths of a page's values are malformed")
        return found[1:]

    def _rows(self, header: _Header, at: int) -> tuple[int, int, bool]:
        levels, _, is_bits = self._parts(header, at)
        width = self._leaf.most_repetition.bit_length()
        found = formats.list_rows(levels, width, header.values, self._open_levels, is_bits)
        if found is None:
            raise self._broken("the levels of a page are not whole")
        rows, longest, self._open_levels, is_first = found
        return rows, longest, header.values > 0 and not is_first

    def _parts(self, header: _Header, at: int) -> tuple[np.ndarray, np.ndarray, bool]:
        """Return repetition levels, values in their encoding, and whether the levels are
        BIT_PACKED.
        """
        raw = self._read_at(at, header.packed_bytes)
        if header.type == _DATA_V2:
            repetition, skip = header.level_bytes[0], sum(header.level_bytes)
            if min(header.level_bytes) < 0 or skip > min(header.bytes, len(raw)):
                raise self._broken("the levels of a page are longer than it")
            levels, values = np.frombuffer(raw[:repetition], np.uint8), raw[skip:]
            if header.is_packed:
                return levels, self._unpacked(values, header.bytes - skip), False
            return levels, np.frombuffer(values, np.uint8), False
        data, first = self._unpacked(raw, header.bytes), np.empty(0, np.uint8)
        most = (self._leaf.most_repetition, self._leaf.most_definition)
        for n, encoding in enumerate(header.level_encodings):
            if not most[n]:
                continue
            start, size = 4, int.from_bytes(data[:4].tobytes(), "little")
            if encoding == _BIT_PACKED:
                start, size = 0, -(-header.values * most[n].bit_length() // 8)
            first = data[start : start + size] if n == 0 else first
            data = data[start + size :]
        return first, data, header.level_encodings[0] == _BIT_PACKED

    def _unpacked(self, packed: bytes, size: int) -> np.ndarray:
        try:
            found = _unpack(self._leaf.codec, packed, size)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._broken(f"a page cannot be decompressed: {str(error)[:100]}") from None
        return np.frombuffer(found, np.uint8)

    def _broken(self, what: str) -> pa.ArrowInvalid:
        return pa.ArrowInvalid(f'column "{self._leaf.path[:100]}": {what}')

    def _over(self, what: str) -> OverLimitError:
        return OverLimitError(f'column "{self._leaf.path[:100]}" {what}')


def _unpack(codec: str, packed: bytes, size: int) -> Any:
    if codec == "UNCOMPRESSED" or not size:
        return packed[:size]
    if codec in ("LZ4", "UNKNOWN"):
        return _unpack_lz4(packed, size)
    return pa.Codec(codec.lower()).decompress(packed, decompressed_size=size)


def _unpack_lz4(packed: bytes, size: int) -> bytes:
    """Decompress LZ4 as Arrow does: in the frames of Hadoop if they fit, else as one block."""
    codec, found, at = pa.Codec("lz4_raw"), b"", 0
    while at + 8 <= len(packed):
        expected, length = struct.unpack_from(">II", packed, at)
        at += 8
        if length > len(packed) - at or expected > size - len(found):
            break
        try:
            found += codec.decompress(packed[at : at + length], expected, asbytes=True)
        except (pa.ArrowException, OSError):
            break
        at += length
    if at == len(packed) and len(found) == size:
        return found
    return codec.decompress(packed, size, asbytes=True)


_BOOLS, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = (
    (1, 2),
    *range(3, 14),
)
_MOST_DEPTH = 64
_Fields = dict[tuple[int, int], Any]


class _Compact:
    """Reads Thrift's compact protocol. IndexError: the bytes end early."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def fields(self, depth: int = 0) -> _Fields:
        """Return the fields of a structure that are numbers, truths and structures by (number,
        type).
        """
        if depth > _MOST_DEPTH:
            raise ValueError("it is too deep")
        found: _Fields = {}
        number = 0
        while kind := self._byte():
            delta, kind = kind >> 4, kind & 15
            if kind == 0:
                break
            number = number + delta if delta else self._zigzag()
            if kind in _BOOLS:
                found[number, 1] = kind == 1
            elif kind in (_I16, _I32, _I64):
                found[number, kind] = self._zigzag()
            elif kind == _STRUCT:
                found[number, kind] = self.fields(depth + 1)
            else:
                self._skip(kind, depth + 1)
        return found

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _varint(self) -> int:
        found = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found
        raise ValueError("a number is too long")

    def _zigzag(self) -> int:
        found = self._varint()
        return found >> 1 ^ -(found & 1)

    def _jump(self, size: int) -> None:
        if size < 0 or self.at + size > len(self.data):
            raise IndexError
        self.at += size

    def _skip(self, kind: int, depth: int) -> None:
        if depth > _MOST_DEPTH:
            raise ValueError("it is too deep")
        if kind in (*_BOOLS, _BYTE):
            # Of a list or map; a field of a truth has it in its type.
            self._jump(1)
        elif kind in (_I16, _I32, _I64):
            self._varint()
        elif kind in (_DOUBLE, _UUID):
            self._jump(8 if kind == _DOUBLE else 16)
        elif kind == _BINARY:
            self._jump(self._varint())
        elif kind == _STRUCT:
            self.fields(depth + 1)
        elif kind in (_LIST, _SET):
            head = self._byte()
            count = self._varint() if head >> 4 == 15 else head >> 4
            self._skip_each(count, (head & 15,), depth)
        elif kind == _MAP:
            if count := self._varint():
                kinds = self._byte()
                self._skip_each(count, (kinds >> 4, kinds & 15), depth)
        else:
            raise ValueError(f"unknown type {kind}")

    def _skip_each(self, count: int, kinds: tuple[int, ...], depth: int) -> None:
        if count > len(self.data) - self.at:
            raise IndexError
        for _ in range(count):
            for kind in kinds:
                self._skip(kind, depth + 1)


def _read_header(head: bytes) -> tuple[_Header, int]:
    """Return a page's header and its size. IndexError: it is longer."""
    reader = _Compact(head)
    fields = reader.fields()

    def number(found: _Fields, at: int) -> int:
        return _as_int32(found.get((at, _I32), -1))

    type = number(fields, 1)
    own = fields.get(({_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}.get(type, 0), _STRUCT), {})
    return _Header(
        type,
        number(fields, 2),
        number(fields, 3),
        number(own, 1),
        number(own, 4 if type == _DATA_V2 else 2),
        (number(own, 4), number(own, 3)),
        (number(own, 6), number(own, 5)),
        own.get((7, 1), True),
    ), reader.at


def _as_int32(value: int) -> int:
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)
