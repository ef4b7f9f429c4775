"""Loops over the sequence of a window: bounds by value, sums of floats, best rows.

Frames are low, high int64[pieces, n], neither decreasing within a piece. As in PostgreSQL, sums of
floats go from the first row of a frame to its last, in double (or single) precision.
"""

from typing import Any, TypeAlias

from numpy import bool_, dtype, float64, int64, ndarray

_Ints: TypeAlias = ndarray[Any, dtype[int64]]
_Floats: TypeAlias = ndarray[Any, dtype[float64]]
_Bools: TypeAlias = ndarray[Any, dtype[bool_]]

def range_ends(values: _Ints, first: _Ints, last: _Ints, distance: int, is_low: bool) -> _Ints:
    """Return int64[n]: the bound among the rows of [first, last), in the order of int64 values, of
    the row's own value plus a distance: the first row not below it, or (is_low False) after the
    last row not above it."""

def sum_floats(
    values: _Floats, valid: _Bools, low: _Ints, high: _Ints, is_single: bool
) -> tuple[_Floats, _Ints, _Bools]:
    """Return (float64[n] sums, int64[n] counts of valid rows, bool[n] overflowed)."""

def average_floats(
    values: _Floats, valid: _Bools, low: _Ints, high: _Ints
) -> tuple[_Floats, _Ints, _Bools]:
    """Like sum_floats, with averages; overflow as in float8_accum, squares included."""

def best_rows(positions: _Ints, valid: _Bools, low: _Ints, high: _Ints) -> _Ints:
    """Return int64[n]: the position of the greatest rank in each range, the last of equal ones; -1
    where no row is valid. low, high int64[n]: one piece."""

def tiles(begin: _Ints, end: _Ints, buckets: _Ints, valid: _Bools) -> tuple[_Ints, _Bools]:
    """Return (int64[n] ntile numbers, 0 for NULL; bool[n] rows of a bucket count below 1)."""

def running_floats(
    values: _Floats, valid: _Bools, origin: _Ints, base: _Floats, kind: int
) -> _Floats:
    """Return sums of floats from each sequence's origin on, resumed from its base.

    origin int64[n]: of each row the first row of its sequence that counts. base float64[4, n]: at
    that row total, squares, count and 1 for an overflow before it. kind: 0 sums, 1 sums in single
    precision, 2 averages. Returns float64[4, n]: the same after each row.
    """
