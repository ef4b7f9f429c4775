"""Scans for record boundaries: lines, CSV records, elements of a JSON array.

Every scan takes a block of bytes from the start of a record and returns the records that end in it,
at most `limit`. The rest after the last one is scanned again together with the next block.
"""

from typing import Any, TypeAlias

from numpy import dtype, int64, ndarray, uint8

_Ints: TypeAlias = ndarray[Any, dtype[int64]]
_Bytes: TypeAlias = ndarray[Any, dtype[uint8]]
# A column may have no bytes; what a kernel is called for has them.
_Data: TypeAlias = _Bytes | None

FIRST: int
AFTER: int
NEXT: int
ENDED: int

def csv_records(
    data: _Data, delimiter: int, quote: int, escape: int, limit: int
) -> tuple[_Ints, int, int]:
    """Scan CSV records (RFC 4180).

    quote: a byte, or -1 for none. escape: the byte before a quote that does not close; it equals
    the quote if quotes are doubled. A quote opens only at the start of a value. Returns (int64[n,
    3] of start, end without the line end, lines before it in the block; where the next record
    starts; lines before that).
    """

def json_elements(
    data: _Data, in_list: bool, state: int, is_last: bool, limit: int
) -> tuple[_Ints, int, int, int]:
    """Scan values of a JSON array (in_list: after its "[") or consecutive values.

    Returns (int64[n, 2] of start and end; where the rest starts; state; -1 or where the text is not
    JSON). state: FIRST, AFTER, NEXT or ENDED, before the rest.
    """
