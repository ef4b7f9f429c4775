"""Loops over the row images of a binary log: where each value is, and its bytes."""

from typing import Any, TypeAlias

from numpy import bool_, dtype, int64, ndarray, uint8

_Ints: TypeAlias = ndarray[Any, dtype[int64]]
_Bytes: TypeAlias = ndarray[Any, dtype[uint8]]
# A column may have no bytes; what a kernel is called for has them.
_Data: TypeAlias = _Bytes | None
_Bools: TypeAlias = ndarray[Any, dtype[bool_]]

def walk(
    data: _Data,
    begin: int,
    end: int,
    widths: _Ints,
    present: _Bools,
    slots: _Ints,
    starts: _Ints,
    lengths: _Ints,
    image: int,
) -> int:
    """Find the values of the images in data[begin:end]; return the number of images before `end`.

    widths: bytes of each value; minus the bytes of its length if that varies. present: bool[2,
    columns], the columns of an image, by turns (an update has two images a row). slots:
    int64[columns], where a column is in starts and lengths (int64[images, slots]), or -1; a length
    is -1 for NULL, -2 for a value that the image does not have. image: number of the first one;
    those beyond starts are only counted. -1: the event is broken.
    """

def gather(data: _Data, starts: _Ints, lengths: _Ints) -> tuple[_Ints, _Bytes]:
    """Return (offsets, bytes) of values; one of negative length is empty."""

def hexed(offsets: _Ints, data: _Data) -> tuple[_Ints, _Bytes]:
    """Return (offsets, bytes) of the values in PostgreSQL's form of bytea, \\x0123."""
