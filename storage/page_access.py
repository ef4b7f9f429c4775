"""Reads from a page image by address, for the compiled loops over pages.

A page image is a stretch of memory in the form that `storage.layout` describes: a header of
HEADER words, then one array of words for each word of a row. Loops get its address, so that one
call visits the pages of all runs without Python in between. Invariant: the caller keeps every
image alive for the whole call; address 0 is a page that is not in memory.
"""

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

HEADER = 4
HASHES = 3
_COUNT_AT = 16


@intrinsic
def word_at(typing_context, address):
    """The uint64 at an int64 address."""

    def generate(context, builder, signature, arguments):
        pointer = context.get_value_type(types.uint64).as_pointer()
        return builder.load(builder.inttoptr(arguments[0], pointer))

    return types.uint64(types.int64), generate


@intrinsic
def byte_at(typing_context, address):
    """The uint8 at an int64 address."""

    def generate(context, builder, signature, arguments):
        pointer = context.get_value_type(types.uint8).as_pointer()
        return builder.load(builder.inttoptr(arguments[0], pointer))

    return types.uint8(types.int64), generate


@njit(nogil=True, cache=True, inline="always")
def row_count(address):
    """Rows of the image at an address."""
    return np.int64(word_at(np.int64(address + _COUNT_AT)))  # pyright: ignore


@njit(nogil=True, cache=True, inline="always")
def cell(address, rows, word, row):
    """One word of one row of an image of so many rows."""
    at = np.int64(address + 8 * (HEADER + word * rows + row))
    return word_at(at)  # pyright: ignore
