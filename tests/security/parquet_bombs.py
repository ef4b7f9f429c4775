"""Parquet files of a few bytes that stand for much, written page by page.

https://github.com/apache/parquet-format: a footer in Thrift's compact protocol describes columns; a
column is pages, each after a header. Whatever a header says can be written here.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
MB = 1 << 20
# Encodings, and types of pages.
PLAIN, RLE, DELTA_BYTE_ARRAY, DICTIONARY = 0, 3, 7, 8
BYTE_ARRAY, FIXED, INT64 = 6, 7, 2
_ZSTD = 6

Value = tuple[int, Any]


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def zigzag(number: int) -> bytes:
    return varint(number << 1 if number >= 0 else (-number << 1) - 1)


def thrift(value: Value) -> bytes:
    """A value of a type: numbers, texts, lists of values of one type, structures by number."""
    kind, content = value
    if kind in (I32, I64):
        return zigzag(content)
    if kind == BINARY:
        return varint(len(content)) + content
    if kind == LIST:
        head = bytes([0xF0 | content[0][0]]) + varint(len(content))
        return head + b"".join(map(thrift, content))
    return b"".join(bytes([one[0]]) + zigzag(n) + thrift(one) for n, one in content.items()) + b"\0"


def structure(**numbers: Any) -> Value:
    return STRUCT, {int(name[1:]): value for name, value in numbers.items()}


def plain(*values: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


def runs(*pairs: tuple[int, int], width: int = 1) -> bytes:
    """Levels or indices as (how often, value)."""
    size = (width + 7) // 8
    return b"".join(varint(n << 1) + value.to_bytes(size, "little") for n, value in pairs)


def with_length(levels: bytes) -> bytes:
    return struct.pack("<I", len(levels)) + levels


def page(content: bytes, values: int, encoding: int, size: int | None = None) -> bytes:
    """A data page of the first version. size: what its header says."""
    own = structure(_1=(I32, values), _2=(I32, encoding), _3=(I32, RLE), _4=(I32, RLE))
    return _page(0, content, {5: own}, size)


def page_v2(
    levels: tuple[bytes, bytes], content: bytes, values: int, rows: int, encoding: int
) -> bytes:
    """A data page of the second version. levels: of repetition and definition."""
    own = structure(
        _1=(I32, values),
        _2=(I32, 0),
        _3=(I32, rows),
        _4=(I32, encoding),
        _5=(I32, len(levels[1])),
        _6=(I32, len(levels[0])),
    )
    packed, before = _packed(content), b"".join(levels)
    sizes = {2: (I32, len(before) + len(content)), 3: (I32, len(before) + len(packed))}
    return thrift((STRUCT, {1: (I32, 3), **sizes, 8: own})) + before + packed


def dictionary(*values: bytes, count: int | None = None, size: int | None = None) -> bytes:
    own = structure(_1=(I32, len(values) if count is None else count), _2=(I32, PLAIN))
    return _page(2, plain(*values), {7: own}, size)


def _page(type: int, content: bytes, own: Mapping[int, Value], size: int | None) -> bytes:
    return _with_header(type, _packed(content), len(content) if size is None else size, own)


def _with_header(type: int, packed: bytes, size: int, own: Mapping[int, Value]) -> bytes:
    sizes = {2: (I32, size), 3: (I32, len(packed))}
    return thrift((STRUCT, {1: (I32, type), **sizes, **own})) + packed


def _packed(content: bytes) -> bytes:
    return pa.Codec("zstd").compress(content, asbytes=True)


@dataclass
class Chunk:
    """A column. values: with NULLs, as the footer says. path: of a list, if it is one."""

    content: bytes
    values: int
    type: int = BYTE_ARRAY
    length: int = 0
    is_list: bool = False
    is_optional: bool = False
    name: bytes = b"x"
    lies: Mapping[int, Value] = field(default_factory=dict)

    def schema(self) -> list[Value]:
        own = {1: (I32, self.type), **({2: (I32, self.length)} if self.length else {})}
        if not self.is_list:
            own |= {3: (I32, int(self.is_optional)), 4: (BINARY, self.name)}
            return [(STRUCT, own)]
        return [
            structure(_3=(I32, 0), _4=(BINARY, self.name), _5=(I32, 1), _6=(I32, 3)),
            structure(_3=(I32, 2), _4=(BINARY, b"list"), _5=(I32, 1)),
            (STRUCT, own | {3: (I32, 0), 4: (BINARY, b"element")}),
        ]

    def described(self, start: int) -> Value:
        path = [self.name, b"list", b"element"] if self.is_list else [self.name]
        own: dict[int, Value] = {
            1: (I32, self.type),
            2: (LIST, [(I32, PLAIN), (I32, RLE)]),
            3: (LIST, [(BINARY, part) for part in path]),
            4: (I32, _ZSTD),
            5: (I64, self.values),
            6: (I64, len(self.content)),
            7: (I64, len(self.content)),
            9: (I64, start),
            **self.lies,
        }
        return structure(_2=(I64, start), _3=(STRUCT, own))


def parquet(chunks: Sequence[Chunk], rows: int) -> bytes:
    """A file of one row group."""
    content, described = b"PAR1", []
    schema = [structure(_4=(BINARY, b"schema"), _5=(I32, len(chunks)))]
    for chunk in chunks:
        described.append(chunk.described(len(content)))
        schema += chunk.schema()
        content += chunk.content
    group = structure(_1=(LIST, described), _2=(I64, len(content)), _3=(I64, rows))
    footer = thrift(structure(_1=(I32, 1), _2=(LIST, schema), _3=(I64, rows), _4=(LIST, [group])))
    return content + footer + struct.pack("<I", len(footer)) + b"PAR1"


def repeated(value: bytes, rows: int) -> bytes:
    """One value of a dictionary, many times."""
    indices = bytes([1]) + runs((rows, 0))
    return parquet([Chunk(dictionary(value) + page(indices, rows, DICTIONARY), rows)], rows)


def repeated_late(value: bytes, rows: int) -> bytes:
    """NULLs and plain values before the pages that repeat a long one, and after them."""
    some = 1000
    nulls = page(with_length(runs((some, 0))) + bytes([1]), some, DICTIONARY)
    short = page(with_length(runs((some, 1))) + plain(b"short") * some, some, PLAIN)
    levels = with_length(runs((rows, 1)))
    long = page(levels + bytes([1]) + runs((rows, 0)), rows, DICTIONARY)
    content = dictionary(value) + nulls + short + long + short
    count = rows + 3 * some
    return parquet([Chunk(content, count, is_optional=True)], count)


def repeated_v2(value: bytes, rows: int) -> bytes:
    levels = b"", runs((rows, 1))
    own = page_v2(levels, bytes([1]) + runs((rows, 0)), rows, rows, DICTIONARY)
    return parquet([Chunk(dictionary(value) + own, rows, is_optional=True)], rows)


def continued(value: bytes, rows: int, pages: int = 1) -> bytes:
    """Values that each continue the one before: without a byte of their own."""
    each = rows // pages
    body = _same(value, each)
    return parquet([Chunk(page(body, each, DELTA_BYTE_ARRAY) * pages, each * pages)], each * pages)


def _same(value: bytes, count: int) -> bytes:
    """Prefixes 0, n, n ...; rests n, 0, 0 ...: as differences n, 0 ... and -n, 0 ..."""
    block, width = 128, len(value).bit_length()

    def lengths(first: int, second: int) -> bytes:
        out = varint(block) + varint(1) + varint(count) + zigzag(first)
        least = min(second - first, 0)
        for n in range(0, count - 1, block):
            if n:
                out += zigzag(0) + b"\0"
                continue
            bits = sum(
                ((second - first if k == 0 else 0) - least) << k * width
                for k in range(min(block, count - 1))
            )
            out += zigzag(least) + bytes([width]) + bits.to_bytes(block * width // 8, "little")
        return out

    return lengths(0, len(value)) + lengths(len(value), 0) + value


def listed(values: int, value: bytes = b"v") -> bytes:
    """One row with a list of a value of a dictionary, many times."""
    levels = runs((1, 0), (values - 1, 1)), runs((values, 1))
    body = with_length(levels[0]) + with_length(levels[1]) + bytes([1]) + runs((values, 0))
    content = dictionary(value) + page(body, values, DICTIONARY)
    return parquet([Chunk(content, values, is_list=True)], 1)


def listed_v2(values: int) -> bytes:
    levels = runs((1, 0), (values - 1, 1)), runs((values, 1))
    own = page_v2(levels, bytes([1]) + runs((values, 0)), values, 1, DICTIONARY)
    return parquet([Chunk(dictionary(b"v") + own, values, is_list=True)], 1)


def listed_in_pages(values: int, pages: int) -> bytes:
    """One row whose list goes on in the next pages."""
    each = values // pages

    def part(first: int) -> bytes:
        levels = runs((1, first), (each - 1, 1))
        body = with_length(levels) + with_length(runs((each, 1)))
        return page(body + bytes([1]) + runs((each, 0)), each, DICTIONARY)

    content = dictionary(b"v") + part(0) + part(1) * (pages - 1)
    return parquet([Chunk(content, each * pages, is_list=True)], 1)


def listed_rows(rows: int, each: int, value: bytes) -> bytes:
    """Lists of a long value."""
    levels = runs(*[(1, 0), (each - 1, 1)] * rows), runs((rows * each, 1))
    count = rows * each
    body = with_length(levels[0]) + with_length(levels[1]) + bytes([1]) + runs((count, 0))
    content = dictionary(value) + page(body, count, DICTIONARY)
    return parquet([Chunk(content, count, is_list=True)], rows)


def fixed(length: int, rows: int) -> bytes:
    """NULLs of a type of fixed length: each takes all its bytes."""
    body = with_length(runs((rows, 0))) + b"\1"
    content = page(body, rows, PLAIN)
    return parquet([Chunk(content, rows, FIXED, length, is_optional=True)], rows)


def _long(megabytes: int) -> tuple[bytes, int]:
    """A plain value in frames, which a decompressor joins, and its size with its length."""
    frames = _packed(bytes(MB)) * megabytes
    return _packed(struct.pack("<I", megabytes * MB)) + frames, megabytes * MB + 4


def long_page(megabytes: int) -> bytes:
    """A page of one plain value."""
    packed, size = _long(megabytes)
    own = structure(_1=(I32, 1), _2=(I32, PLAIN), _3=(I32, RLE), _4=(I32, RLE))
    return parquet([Chunk(_with_header(0, packed, size, {5: own}), 1)], 1)


def long_dictionary(megabytes: int) -> bytes:
    packed, size = _long(megabytes)
    own = structure(_1=(I32, 1), _2=(I32, PLAIN))
    pages = _with_header(2, packed, size, {7: own})
    pages += page(b"\1" + runs((1, 0)), 1, DICTIONARY)
    return parquet([Chunk(pages, 1)], 1)


def many_dictionaries(columns: int, bytes: int) -> bytes:
    """A row of many long values."""
    own = dictionary(b"a" * bytes) + page(b"\1" + runs((1, 0)), 1, DICTIONARY)
    chunks = [Chunk(own, 1, name=b"c%d" % n) for n in range(columns)]
    return parquet([Chunk(own, 1), *chunks], 1)


def many_pages(columns: int, megabytes: int) -> bytes:
    """Columns of empty texts, each with a long page."""
    rows = megabytes * MB // 4
    own = structure(_1=(I32, rows), _2=(I32, PLAIN), _3=(I32, RLE), _4=(I32, RLE))
    packed = _packed(bytes(MB)) * megabytes
    pages = _with_header(0, packed, megabytes * MB, {5: own})
    return parquet([Chunk(pages, rows, name=b"c%d" % n) for n in range(columns)], rows)


def false_dictionary(count: int) -> bytes:
    """A dictionary that says it has more values than bytes."""
    own = dictionary(b"a", count=count) + page(b"\1" + runs((9, 0)), 9, DICTIONARY)
    return parquet([Chunk(own, 9)], 9)


def false_size(size: int) -> bytes:
    """A page that says it is larger than it is."""
    return parquet([Chunk(page(plain(b"a"), 1, PLAIN, size), 1)], 1)


def wide_footer(columns: int) -> bytes:
    """Columns without a page."""
    return parquet([Chunk(b"", 0, INT64, name=b"%d" % n) for n in range(columns)], 0)
