"""Loops over numbers, timestamps and texts.

Numbers are int64 units with a scale for each row or one for all; NaN is the greatest int64. Words
are numerics too wide for that, of up to 160 bits: a sign (-1, 0, 1; NOT_A_NUMBER), the magnitude in
five limbs to base 2^32, least first, and the display scale: (int8[n], uint64[n, 5], int64[n]). Of
two operands, one row may stand for all. Results are exact, with the digits and scales of numeric.c;
where one does not fit, `fits` is False and the rest is undefined.

Texts are (offsets int64[n + 1], data uint8) in UTF-8. Days and microseconds count from 2000-01-01;
infinities pass through. An empty `valid` means no NULLs, except where it says bool[n].
"""

from typing import Any, TypeAlias

from numpy import bool_, dtype, int8, int64, ndarray, uint8, uint64

_Ints: TypeAlias = ndarray[Any, dtype[int64]]
_Signs: TypeAlias = ndarray[Any, dtype[int8]]
_Limbs: TypeAlias = ndarray[Any, dtype[uint64]]
_Bytes: TypeAlias = ndarray[Any, dtype[uint8]]
# A column may have no bytes; what a kernel is called for has them.
_Data: TypeAlias = _Bytes | None
_Bools: TypeAlias = ndarray[Any, dtype[bool_]]
_Texts: TypeAlias = tuple[_Ints, _Bytes]
_Words: TypeAlias = tuple[_Signs, _Limbs, _Ints]

ADD: int
SUBTRACT: int
MULTIPLY: int
NOT_A_NUMBER: int
ANY_RUN: int
ANY_ONE: int
YEAR: int
MONTH: int
DAY: int
QUARTER: int
DOW: int
ISODOW: int
DOY: int
WEEK: int
ISOYEAR: int
DECADE: int
CENTURY: int
MILLENNIUM: int

def parse_numbers(offsets: _Ints, data: _Data) -> tuple[_Ints, _Ints, bool]:
    """Return (units, scales, fits) of numeric text; an empty (NULL) string is 0."""

def format_numbers(units: _Ints, scales: _Ints, valid: _Bools) -> _Texts: ...
def rescale_numbers(units: _Ints, scales: _Ints, scale: int, valid: _Bools) -> tuple[_Ints, bool]:
    """Return (units brought to one scale exactly, fits). valid bool[n]: NULLs do not matter."""

def combine_numbers(
    operation: int, a: _Ints, a_scales: _Ints, b: _Ints, b_scales: _Ints
) -> tuple[_Ints, _Ints, bool]:
    """Return (units, scales, fits) of a + b (ADD), a - b (SUBTRACT) or a * b (MULTIPLY).

    There is one scale if both operands have one."""

def compare_numbers(a: _Ints, a_scales: _Ints, b: _Ints, b_scales: _Ints) -> _Signs:
    """Return the signs of a - b; NaN equals NaN and is above all."""

def round_numbers(
    units: _Ints, scales: _Ints, scale: int, is_half_up: bool, valid: _Bools
) -> tuple[_Ints, bool]:
    """Return (units, fits) at `scale` (0 to 18), rounded half away from zero or cut. valid
    bool[n]."""

def floor_or_ceil(units: _Ints, scales: _Ints, up: bool) -> _Ints:
    """Return units at scale 0, rounded down or up."""

def strip_numbers(units: _Ints, scales: _Ints) -> tuple[_Ints, _Ints]:
    """Return (units, scales[n]) without zeros at the end of the fraction."""

def words_of_units(units: _Ints, scales: _Ints) -> _Words: ...
def parse_words(offsets: _Ints, data: _Data) -> tuple[_Signs, _Limbs, _Ints, bool]:
    """Return (*words, fits) of numeric text; an empty (NULL) string is 0."""

def format_words(signs: _Signs, limbs: _Limbs, scales: _Ints, valid: _Bools) -> _Texts: ...
def combine_words(
    operation: int,
    a_signs: _Signs,
    a_limbs: _Limbs,
    a_scales: _Ints,
    b_signs: _Signs,
    b_limbs: _Limbs,
    b_scales: _Ints,
) -> tuple[_Signs, _Limbs, _Ints, bool]:
    """Return (*words, fits), as combine_numbers does."""

def compare_words(
    a_signs: _Signs,
    a_limbs: _Limbs,
    a_scales: _Ints,
    b_signs: _Signs,
    b_limbs: _Limbs,
    b_scales: _Ints,
) -> tuple[_Signs, bool]:
    """Return (signs of a - b, fits); NaN equals NaN and is above all."""

def divide_words(
    a_signs: _Signs,
    a_limbs: _Limbs,
    a_scales: _Ints,
    b_signs: _Signs,
    b_limbs: _Limbs,
    b_scales: _Ints,
) -> tuple[_Signs, _Limbs, _Ints, bool]:
    """Return (*words, fits) of a / b, 0 where b is 0, at the scale of select_div_scale."""

def round_words(
    signs: _Signs, limbs: _Limbs, scales: _Ints, scale: int, is_half_up: bool
) -> tuple[_Ints, bool]:
    """Return (int64 units at `scale` >= 0, rounded half away from zero or cut; fits)."""

def rank_keys(signs: _Signs, limbs: _Limbs, scales: _Ints, scale: int) -> tuple[_Ints, bool]:
    """Return (int64[6, n], fits): keys whose lexical order, first key first, is the numbers'.

    NaN is above all. scale: at least every number's own."""

def strip_words(signs: _Signs, limbs: _Limbs, scales: _Ints) -> tuple[_Limbs, _Ints]:
    """Return (limbs, scales) without zeros at the end of the fraction."""

def shift(stamps: _Ints, months: _Ints, days: _Ints, micros: _Ints) -> tuple[_Ints, _Bools]:
    """Return (timestamps plus intervals, one or n of either; bool[n] out of range)."""

def make_days(years: _Ints, months: _Ints, days: _Ints) -> tuple[_Ints, _Bools]:
    """Return (days of year, month, day, a negative year being BC; bool[n] no such date)."""

def fields(days: _Ints, which: int) -> _Ints:
    """Return a calendar field (YEAR to MILLENNIUM) of days that are not infinite."""

def truncate(stamps: _Ints, which: int) -> _Ints:
    """Return timestamps cut to YEAR, QUARTER, MONTH, WEEK or DAY."""

def compare_texts(
    a_offsets: _Ints, a_data: _Data, b_offsets: _Ints, b_data: _Data, is_blank_padded: bool
) -> _Signs:
    """Return the signs of the byte order of a against b."""

def differ(
    a_offsets: _Ints, a_data: _Data, b_offsets: _Ints, b_data: _Data, is_blank_padded: bool
) -> _Bools:
    """Return whether a and b are different strings."""

def blank(offsets: _Ints, data: _Data, valid: _Bools) -> _Texts:
    """Return the strings with those that are not valid (bool[n]) empty."""

def not_ascii(offsets: _Ints, data: _Data) -> _Bools:
    """Return whether each string holds a character beyond ASCII."""

def lengths(offsets: _Ints, data: _Data, is_blank_padded: bool) -> _Ints:
    """Return the characters of each string."""

def cut(offsets: _Ints, data: _Data, first: _Ints, stop: _Ints) -> _Texts:
    """Return characters [first, stop) of each string, from 0; first and stop have one or n rows."""

def trim(offsets: _Ints, data: _Data, unwanted: _Bools, at_left: bool, at_right: bool) -> _Texts:
    """Return strings without the leading or trailing bytes for which bool[256] `unwanted` is
    True."""

def join(a_offsets: _Ints, a_data: _Data, b_offsets: _Ints, b_data: _Data) -> _Texts:
    """Return a || b, row by row."""

def find(a_offsets: _Ints, a_data: _Data, b_offsets: _Ints, b_data: _Data) -> _Ints:
    """Return the character position (from 1) of b in a, 0 where it is not there."""

def match_like(offsets: _Ints, data: _Data, codes: _Ints) -> _Bools:
    """Return LIKE. codes: a byte to match, ANY_RUN for %, ANY_ONE for _."""

def pad_blank(offsets: _Ints, data: _Data, size: int) -> tuple[_Ints, _Bytes, _Bools]:
    """Return char(size): strings cut or padded with blanks to `size` characters, and which were too
    long: of those, more than blanks were cut."""

def change_case(offsets: _Ints, data: _Data, first: int, last: int, by: int) -> _Texts:
    """Return the strings, from offset 0 on, with the bytes first..last moved by `by`."""
