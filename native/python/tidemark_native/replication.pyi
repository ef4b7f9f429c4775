"""Loops over what replication and COPY send, and what COPY and array literals are made of.

Columns are (offsets, data, valid); an empty `valid` means no NULLs. A walk finds for each used
column and row where the value starts and its length; NULL and UNCHANGED are negative lengths. A
reader returns (values, valid, number of NULLs) of one column of them. ValueError: the bytes are not
of the format, or end early.
"""

from typing import Any, TypeAlias

from numpy import bool_, dtype, int64, ndarray, uint8

_Ints: TypeAlias = ndarray[Any, dtype[int64]]
_Bytes: TypeAlias = ndarray[Any, dtype[uint8]]
# A column may have no bytes; what a kernel is called for has them.
_Data: TypeAlias = _Bytes | None
_Bools: TypeAlias = ndarray[Any, dtype[bool_]]

NULL: int
UNCHANGED: int

def heads(data: _Data, ends: _Ints) -> tuple[_Bytes, _Ints]:
    """Return the tag and the 32-bit word after it of each payload; -1 if it is too short."""

def walk_tuples(
    data: _Data, starts: _Ints, slots: _Ints, width: int
) -> tuple[_Ints, _Ints, _Bytes, _Bools]:
    """Walk the rows of insert, update and delete payloads of one relation.

    starts int64[m]: where each payload begins. slots int64[columns on the wire]: the number of the
    used column, or -1. Returns (starts int64[width, rows], lengths int64[width, rows], kinds
    uint8[rows], unchanged bool[width]: whether the column has UNCHANGED values). A value that an
    update omits is taken from its whole old row, if sent.
    """

def walk_copy(data: _Data, start: int, rows: int, width: int) -> tuple[_Ints, _Ints]:
    """Walk rows of COPY BINARY: (starts int64[width, rows], lengths int64[width, rows])."""

def gather_bytes(data: _Data, starts: _Ints, lengths: _Ints) -> tuple[_Ints, _Bytes, _Bools, int]:
    """Return (offsets, bytes, valid, number of NULLs) of the values at starts."""

def read_ints(data: _Data, starts: _Ints, lengths: _Ints) -> tuple[_Ints, _Bools, int]:
    """Read signed integers of 2, 4 or 8 bytes; NULL is 0."""

def read_bools(data: _Data, starts: _Ints, lengths: _Ints) -> tuple[_Bools, _Bools, int]: ...
def read_numerics(
    data: _Data, starts: _Ints, lengths: _Ints, scale: int, not_a_number: int
) -> tuple[_Ints, _Bools, int]:
    """Read numerics of up to 18 digits as value * 10^scale; NULL is 0."""

def add_sizes(sizes: _Ints, offsets: _Ints, data: _Data, valid: _Bools) -> None:
    """Add to sizes[i] the bytes of value i in a COPY line, with its delimiter."""

def put_values(
    out: _Bytes, at: _Ints, offsets: _Ints, data: _Data, valid: _Bools, delimiter: int
) -> None:
    """Write value i and the delimiter at out[at[i]:] and advance at[i] past them."""

def array_literal(offsets: _Ints, data: _Data, valid: _Bools) -> _Bytes:
    """Return '{"...",NULL,...}': an SQL literal, for standard_conforming_strings = on."""

def split_lines(data: _Data, columns: int) -> tuple[_Ints, _Ints, int]:
    """Return (starts, ends int64[columns, n], torn): the values of n whole COPY lines.

    torn is the first line with another number of values, or -1.
    """

def gather_values(data: _Data, starts: _Ints, ends: _Ints) -> tuple[_Ints, _Bytes, _Bools]:
    """Return (offsets, bytes, valid) of one column of split lines, unescaped."""
