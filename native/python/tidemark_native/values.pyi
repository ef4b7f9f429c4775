"""Loops between PostgreSQL's text and physical columns.

Parsers take (offsets int64[n + 1], data uint8) of texts and return (values, row): row is the first
one that is not of the type, or -1, and values of NULLs and from that row on are 0. Printers return
(offsets, data). An empty `valid` means no NULLs. Days and microseconds count from 2000-01-01.
"""

from typing import Any, TypeAlias

from numpy import bool_, dtype, float64, int64, ndarray, uint8

_Ints: TypeAlias = ndarray[Any, dtype[int64]]
_Floats: TypeAlias = ndarray[Any, dtype[float64]]
_Bytes: TypeAlias = ndarray[Any, dtype[uint8]]
# A column may have no bytes; what a kernel is called for has them.
_Data: TypeAlias = _Bytes | None
_Bools: TypeAlias = ndarray[Any, dtype[bool_]]
_Texts: TypeAlias = tuple[_Ints, _Bytes]

FLOAT_WIDTH: int

def parse_ints(
    offsets: _Ints, data: _Data, valid: _Bools, low: int, high: int
) -> tuple[_Ints, int]:
    """Return decimal integers from low to high."""

def print_ints(values: _Ints, valid: _Bools) -> _Texts: ...
def parse_fixed(offsets: _Ints, data: _Data, valid: _Bools, scale: int) -> tuple[_Ints, int]:
    """Return numeric texts as value * 10^scale, NaN as the greatest int64; no digit may be lost."""

def print_fixed(values: _Ints, valid: _Bools, scale: int) -> _Texts: ...
def parse_bools(offsets: _Ints, data: _Data, valid: _Bools) -> tuple[_Bools, int]: ...
def print_bools(values: _Bools, valid: _Bools) -> _Texts: ...
def parse_floats(offsets: _Ints, data: _Data, valid: _Bools) -> tuple[_Floats, _Bools]:
    """Return (values, marks): a marked row needs the slow, exact path."""

def print_floats(values: _Floats, valid: _Bools, is_single: bool) -> tuple[_Bytes, _Ints, _Bools]:
    """Return (slots uint8[n, FLOAT_WIDTH], lengths, marks); a marked row is left to the caller."""

def join_slots(slots: _Bytes, lengths: _Ints) -> _Texts: ...
def parse_dates(offsets: _Ints, data: _Data, valid: _Bools) -> tuple[_Ints, int]: ...
def print_dates(values: _Ints, valid: _Bools) -> _Texts: ...
def parse_times(offsets: _Ints, data: _Data, valid: _Bools) -> tuple[_Ints, int]: ...
def print_times(values: _Ints, valid: _Bools) -> _Texts: ...
def parse_stamps(offsets: _Ints, data: _Data, valid: _Bools, has_zone: bool) -> tuple[_Ints, int]:
    """Return microseconds; with has_zone an offset from UTC must follow the time."""

def print_stamps(values: _Ints, valid: _Bools, has_zone: bool) -> _Texts:
    """Return timestamps; with has_zone in UTC, "+00"."""

def days_of(year: int, month: int, day: int) -> int:
    """Return days since 2000-01-01 of a date, year 0 being 1 BC."""
