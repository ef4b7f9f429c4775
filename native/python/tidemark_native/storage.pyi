"""Loops over columns, page images and filters.

Rows of pages are named by hits: int64[k, 4] of (index, page address, row, record address). A column
of byte strings is (offsets int64[n + 1], data uint8). An empty `valid` means no NULLs.
"""

from typing import Any, TypeAlias

from numpy import bool_, dtype, int64, ndarray, uint8, uint64

_Ints: TypeAlias = ndarray[Any, dtype[int64]]
_Words: TypeAlias = ndarray[Any, dtype[uint64]]
_Bytes: TypeAlias = ndarray[Any, dtype[uint8]]
# A column may have no bytes; what a kernel is called for has them.
_Data: TypeAlias = _Bytes | None
_Bools: TypeAlias = ndarray[Any, dtype[bool_]]
_Pages: TypeAlias = tuple[_Words, _Ints, _Bytes, _Ints]

def mix_fixed(hashes: _Words, values: _Words, valid: _Bools) -> None: ...
def mix_bytes(
    hashes: _Words, offsets: _Ints, data: _Data, valid: _Bools, seeds: _Words
) -> None: ...
def take_bytes(offsets: _Ints, data: _Data, index: _Ints) -> tuple[_Ints, _Bytes]: ...
def equal_bytes(
    left_offsets: _Ints,
    left_data: _Data,
    left_index: _Ints,
    right_offsets: _Ints,
    right_data: _Data,
    right_index: _Ints,
    out: _Bools,
) -> None: ...
def group_hashes(first: _Words, second: _Words) -> tuple[_Ints, _Ints]: ...
def sum_by_group(group: _Ints, weights: _Ints, groups: int) -> _Ints: ...
def bisect_runs(
    values: _Ints, low: _Ints, high: _Ints, sought: _Ints, is_after: _Bools
) -> _Ints: ...
def pack_bytes(offsets: _Ints, base: int, out: _Words) -> None: ...
def hash_rows(
    image: _Words, rows: int, key: _Ints, masks: int, is_bytes: _Bools, seeds: _Words
) -> None: ...
def resolve_order(
    order: _Ints, hashes: _Words, records: _Words, value_at: int
) -> tuple[_Ints, _Ints]: ...
def hits_of(address: int, rows: _Ints) -> _Ints: ...
def gather_words(hits: _Ints, start: int, count: int) -> _Words: ...
def gather_bytes(hits: _Ints, packed: _Words) -> tuple[_Ints, _Bytes]: ...
def heap_ends(hits: _Ints, columns: _Ints) -> _Ints: ...
def write_page(out: _Words, hits: _Ints, totals: _Ints, columns: _Ints, header: _Words) -> None: ...
def write_pages(
    out: _Words,
    ends: _Ints,
    bounds: _Ints,
    selection: tuple[_Ints, _Ints],
    columns: _Ints,
    header: _Words,
) -> None: ...
def may_contain(address: int, h: int) -> bool: ...
def filter_of(address: int) -> _Words: ...
def page_bound(first: _Words, first_row: _Words, h: int, r: int) -> int: ...
def merge(
    segments: _Ints, starts: _Ints, window: _Words, value_at: int, width: int
) -> tuple[_Ints, _Ints]: ...
def probe(
    hashes: _Words,
    starts: _Ints,
    pages: _Pages,
    memory: _Ints,
    value_at: int,
    width: int,
    most: int,
) -> tuple[_Ints, _Ints, _Ints, int]: ...
