"""Loads, stores and copies at addresses, for compiled loops over bytes.

Little-endian and unaligned, as on all supported machines. Invariant: the caller keeps the memory of
an address alive, and stays within it.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic


def _loader(result):
    def generate(context, builder, signature, arguments):
        pointer = context.get_value_type(result).as_pointer()
        return builder.load(builder.inttoptr(arguments[0], pointer), align=1)

    return result(types.int64), generate


@intrinsic
def word_at(typing_context, address):
    """Return the uint64 at an int64 address."""
    return _loader(types.uint64)


@intrinsic
def half_at(typing_context, address):
    """Return the uint32 at an int64 address."""
    return _loader(types.uint32)


@intrinsic
def byte_at(typing_context, address):
    """Return the uint8 at an int64 address."""
    return _loader(types.uint8)


def _storer(value):
    def generate(context, builder, signature, arguments):
        pointer = context.get_value_type(value).as_pointer()
        builder.store(arguments[1], builder.inttoptr(arguments[0], pointer), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, value), generate


@intrinsic
def set_word(typing_context, address, value):
    """Store a uint64 at an int64 address."""
    return _storer(types.uint64)


@intrinsic
def set_half(typing_context, address, value):
    """Store a uint32 at an int64 address."""
    return _storer(types.uint32)


@intrinsic
def set_byte(typing_context, address, value):
    """Store a uint8 at an int64 address."""
    return _storer(types.uint8)


@intrinsic
def _move(typing_context, target, source, size):
    def generate(context, builder, signature, arguments):
        byte = context.get_value_type(types.uint8).as_pointer()
        to = builder.inttoptr(arguments[0], byte)
        cgutils.raw_memcpy(builder, to, builder.inttoptr(arguments[1], byte), arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@njit(nogil=True, cache=True, inline="always")
def copy_bytes(target, source, size):
    """Copy size bytes between addresses that do not overlap; short ones without a call."""
    if size > 16:
        _move(target, source, size)  # pyright: ignore
    elif size >= 8:
        low = word_at(np.int64(source))  # pyright: ignore
        high = word_at(np.int64(source + size - 8))  # pyright: ignore
        set_word(np.int64(target), low)  # pyright: ignore
        set_word(np.int64(target + size - 8), high)  # pyright: ignore
    elif size >= 4:
        low = half_at(np.int64(source))  # pyright: ignore
        high = half_at(np.int64(source + size - 4))  # pyright: ignore
        set_half(np.int64(target), low)  # pyright: ignore
        set_half(np.int64(target + size - 4), high)  # pyright: ignore
    else:
        for at in range(size):
            set_byte(np.int64(target + at), byte_at(np.int64(source + at)))  # pyright: ignore


@njit(nogil=True, cache=True, inline="always")
def equal_at(left, right, size):
    """Return True if size bytes at two addresses are the same."""
    at = 0
    while at + 8 <= size:
        if word_at(np.int64(left + at)) != word_at(np.int64(right + at)):  # pyright: ignore
            return False
        at += 8
    while at < size:
        if byte_at(np.int64(left + at)) != byte_at(np.int64(right + at)):  # pyright: ignore
            return False
        at += 1
    return True


@njit(nogil=True, cache=True, inline="always")
def address_of(array):
    """Return the int64 address of the first item of a contiguous array."""
    return np.int64(array.ctypes.data)


@intrinsic
def fetch_ahead(typing_context, address):
    """Prefetch the cache line at an int64 address, which need not be valid."""

    def generate(context, builder, signature, arguments):
        byte = context.get_value_type(types.uint8).as_pointer()
        number = context.get_value_type(types.int32)
        function_type = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        prefetch = cgutils.get_or_insert_function(
            builder.module, function_type, "llvm.prefetch.p0i8"
        )
        read, keep, cache = ir.Constant(number, 0), ir.Constant(number, 3), ir.Constant(number, 1)
        builder.call(prefetch, [builder.inttoptr(arguments[0], byte), read, keep, cache])
        return context.get_dummy_value()

    return types.void(types.int64), generate
