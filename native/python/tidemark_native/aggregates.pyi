"""Loops between numeric text and limbs, and from sums of limbs to text.

A number of up to 32 * L - 1 bits is L limbs to base 2^32: all but the last between 0 and 2^32, the
last one signed. Limbs of many rows add up in int64 without carrying; the sums are carried when they
are printed. All is exact, and text has numeric_out's digits; averages have the scale of numeric_div
(select_div_scale of numeric.c).
"""

from typing import Any, TypeAlias

from numpy import bool_, dtype, int64, ndarray, uint8

_Ints: TypeAlias = ndarray[Any, dtype[int64]]
_Bytes: TypeAlias = ndarray[Any, dtype[uint8]]
# A column may have no bytes; what a kernel is called for has them.
_Data: TypeAlias = _Bytes | None
_Bools: TypeAlias = ndarray[Any, dtype[bool_]]

def parse_limbs(
    offsets: _Ints, data: _Data, valid: _Bools, scale: int, limbs: int
) -> tuple[_Ints, _Bools, _Ints, int]:
    """Return numeric texts as units of 10^-scale: (int64[limbs, n], NaN bool[n], own scale
    int64[n], row).

    valid: bool[n], empty for no NULLs. row: the first one that does not fit, or -1.
    """

def print_limbs(
    sums: _Ints, scale: int, shown: _Ints, counts: _Ints, valid: _Bools, nan: _Bools
) -> tuple[_Ints, _Bytes]:
    """Return (offsets, bytes) of int64[limbs, n] sums of units of 10^-scale, as numeric prints
    them.

    shown int64[n] or [1]: the display scale of each, at most `scale`. counts int64[n]: what each
    sum is divided by; empty: by nothing. valid bool[n]; nan bool[n], empty for none.
    """
