"""Reads from a page image by address, for the compiled loops over pages.

`storage.layout` describes the image: a header of HEADER words, the key hashes of all rows, one
record a row, and the heap. Loops get addresses, so that one call visits the pages of all runs
without Python in between. Invariant: the caller keeps every image alive for the whole call; address
0 is a page that is not in memory.
"""

import numpy as np
from numba import njit

from storage.raw_memory import word_at

HEADER = 4
# Words at the start of a record: two hashes of the whole row.
HASHES = 2
_SHAPE_AT = 16
_ROWS = np.uint64(0xFFFFFFFF)


@njit(nogil=True, cache=True, inline="always")
def row_count(address):
    """Return the number of rows of the image at an address."""
    return np.int64(word_at(np.int64(address + _SHAPE_AT)) & _ROWS)  # pyright: ignore


@njit(nogil=True, cache=True, inline="always")
def key_hash(address, row):
    """Return the key hash of one row of an image."""
    return word_at(np.int64(address + 8 * (HEADER + row)))  # pyright: ignore


@njit(nogil=True, cache=True, inline="always")
def record_at(address, row):
    """Return the address of the record of one row of an image."""
    shape = word_at(np.int64(address + _SHAPE_AT))  # pyright: ignore
    rows = np.int64(shape & _ROWS)
    stride = np.int64(shape >> np.uint64(32))
    return np.int64(address + 8 * (HEADER + rows + row * stride))


@njit(nogil=True, cache=True, inline="always")
def word_of(record, word):
    """Return one word of the record at an address."""
    return word_at(np.int64(record + 8 * word))  # pyright: ignore
