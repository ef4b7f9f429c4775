"""Compiled loops from columns to record bytes: JSON values, Avro values, whole rows.

Each encoder takes a bytes column (offsets, data, valid; an empty `valid` means no NULLs) or plain
values. It returns (offsets, bytes) with one encoded value a row, so that rows are assembled by
copying. Sources: JSON is RFC 8259, Avro its specification 1.11 ("Binary Encoding"), `murmur2` the
default partitioner of Kafka's clients.
"""

import numpy as np
from numba import njit

_QUOTE, _BACKSLASH, _MINUS, _ZERO = 34, 92, 45, 48
_LETTER_I, _LETTER_N, _LETTER_U = 73, 78, 117
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_NULL = np.frombuffer(b"null", np.uint8)
_TRUE = np.frombuffer(b"true", np.uint8)
_FALSE = np.frombuffer(b"false", np.uint8)


def _escapes():
    """Return uint8[256]: 0 for a plain byte, 1 for \\u00XX, else the letter after a backslash."""
    found = np.zeros(256, np.uint8)
    found[:32] = 1
    for byte, letter in zip(b'\b\t\n\f\r"\\', b'btnfr"\\', strict=True):
        found[byte] = letter
    return found


_ESCAPES = _escapes()


@njit(nogil=True, cache=True)
def _put_bytes(out, at, source, start, stop):
    for j in range(start, stop):
        out[at] = source[j]
        at += 1
    return at


@njit(nogil=True, cache=True)
def json_texts(offsets, data, valid):
    """Encode JSON strings, or null."""
    n = offsets.shape[0] - 1
    nullable = valid.shape[0] > 0
    size = 6 * n
    for j in range(offsets[0], offsets[n]):
        letter = _ESCAPES[data[j]]
        size += 1 if letter == 0 else (6 if letter == 1 else 2)
    out = np.empty(size, np.uint8)
    ends = np.empty(n + 1, np.int64)
    ends[0] = 0
    k = 0
    for i in range(n):
        if nullable and not valid[i]:
            k = _put_bytes(out, k, _NULL, 0, 4)
            ends[i + 1] = k
            continue
        out[k] = _QUOTE
        k += 1
        for j in range(offsets[i], offsets[i + 1]):
            c = data[j]
            letter = _ESCAPES[c]
            if letter == 0:
                out[k] = c
                k += 1
                continue
            out[k] = _BACKSLASH
            if letter != 1:
                out[k + 1] = letter
                k += 2
                continue
            out[k + 1], out[k + 2], out[k + 3] = _LETTER_U, _ZERO, _ZERO
            out[k + 4], out[k + 5] = _HEX[c >> 4], _HEX[c & 15]
            k += 6
        out[k] = _QUOTE
        k += 1
        ends[i + 1] = k
    return ends, out[:k]


@njit(nogil=True, cache=True)
def json_plain(offsets, data, valid):
    """Copy texts that are JSON, or null; NaN and infinities, which JSON lacks, become strings."""
    n = offsets.shape[0] - 1
    nullable = valid.shape[0] > 0
    out = np.empty(offsets[n] - offsets[0] + 4 * n, np.uint8)
    ends = np.empty(n + 1, np.int64)
    ends[0] = 0
    k = 0
    for i in range(n):
        start, stop = offsets[i], offsets[i + 1]
        if nullable and not valid[i]:
            k = _put_bytes(out, k, _NULL, 0, 4)
            ends[i + 1] = k
            continue
        first = start + 1 if stop - start > 1 and data[start] == _MINUS else start
        is_word = start < stop and (data[first] == _LETTER_N or data[first] == _LETTER_I)
        if is_word:
            out[k] = _QUOTE
            k += 1
        k = _put_bytes(out, k, data, start, stop)
        if is_word:
            out[k] = _QUOTE
            k += 1
        ends[i + 1] = k
    return ends, out[:k]


@njit(nogil=True, cache=True)
def json_bools(values, valid):
    """Encode true, false or null."""
    n = values.shape[0]
    nullable = valid.shape[0] > 0
    out = np.empty(5 * n, np.uint8)
    ends = np.empty(n + 1, np.int64)
    ends[0] = 0
    k = 0
    for i in range(n):
        if nullable and not valid[i]:
            k = _put_bytes(out, k, _NULL, 0, 4)
        elif values[i]:
            k = _put_bytes(out, k, _TRUE, 0, 4)
        else:
            k = _put_bytes(out, k, _FALSE, 0, 5)
        ends[i + 1] = k
    return ends, out[:k]


@njit(nogil=True, cache=True)
def put_long(out, at, value):
    """Write an Avro int or long to out[at:] (zigzag, seven bits a byte); return the end."""
    rest = np.uint64((value << 1) ^ (value >> 63))
    while rest >= np.uint64(128):
        out[at] = np.uint8(rest & np.uint64(127)) | np.uint8(128)
        rest >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(rest)
    return at + 1


@njit(nogil=True, cache=True)
def avro_longs(values, valid, in_union):
    """Encode Avro ints and longs; in a union [null, T] each with its branch."""
    n = values.shape[0]
    nullable = valid.shape[0] > 0
    out = np.empty(11 * n, np.uint8)
    ends = np.empty(n + 1, np.int64)
    ends[0] = 0
    k = 0
    for i in range(n):
        is_null = nullable and not valid[i]
        if in_union:
            out[k] = 0 if is_null else 2
            k += 1
        if not is_null:
            k = put_long(out, k, values[i])
        ends[i + 1] = k
    return ends, out[:k]


@njit(nogil=True, cache=True)
def avro_fixed(raw, valid, in_union):
    """Encode Avro values of raw[n, width] bytes each: booleans, floats, doubles."""
    n, width = raw.shape
    nullable = valid.shape[0] > 0
    out = np.empty((width + 1) * n, np.uint8)
    ends = np.empty(n + 1, np.int64)
    ends[0] = 0
    k = 0
    for i in range(n):
        is_null = nullable and not valid[i]
        if in_union:
            out[k] = 0 if is_null else 2
            k += 1
        if not is_null:
            for j in range(width):
                out[k + j] = raw[i, j]
            k += width
        ends[i + 1] = k
    return ends, out[:k]


@njit(nogil=True, cache=True)
def avro_texts(offsets, data, valid, in_union):
    """Encode Avro strings: the length, then the bytes."""
    n = offsets.shape[0] - 1
    nullable = valid.shape[0] > 0
    out = np.empty(offsets[n] - offsets[0] + 11 * n, np.uint8)
    ends = np.empty(n + 1, np.int64)
    ends[0] = 0
    k = 0
    for i in range(n):
        is_null = nullable and not valid[i]
        if in_union:
            out[k] = 0 if is_null else 2
            k += 1
        if not is_null:
            k = put_long(out, k, offsets[i + 1] - offsets[i])
            k = _put_bytes(out, k, data, offsets[i], offsets[i + 1])
        ends[i + 1] = k
    return ends, out[:k]


@njit(nogil=True, cache=True)
def put_values(out, at, offsets, data):
    """Write value i to out[at[i]:] and move at[i] after it."""
    for i in range(at.shape[0]):
        at[i] = _put_bytes(out, at[i], data, offsets[i], offsets[i + 1])


@njit(nogil=True, cache=True)
def put_literal(out, at, literal):
    """Write the same bytes to each out[at[i]:] and move at[i] after them."""
    for i in range(at.shape[0]):
        at[i] = _put_bytes(out, at[i], literal, 0, literal.shape[0])


@njit(nogil=True, cache=True)
def murmur2(offsets, data):
    """Return int64[n]: MurmurHash2 of each value, made positive as Kafka's clients do."""
    n = offsets.shape[0] - 1
    found = np.empty(n, np.int64)
    mask, m = np.uint64(0xFFFFFFFF), np.uint64(0x5BD1E995)
    for i in range(n):
        start, length = offsets[i], offsets[i + 1] - offsets[i]
        h = np.uint64(0x9747B28C) ^ np.uint64(length)
        for word in range(length // 4):
            j = start + 4 * word
            k = np.uint64(0)
            for byte in range(4):
                k |= np.uint64(data[j + byte]) << np.uint64(8 * byte)
            k = (k * m) & mask
            k ^= k >> np.uint64(24)
            k = (k * m) & mask
            h = ((h * m) & mask) ^ k
        rest = length % 4
        j = start + length - rest
        if rest:
            for byte in range(rest):
                h ^= np.uint64(data[j + byte]) << np.uint64(8 * byte)
            h = (h * m) & mask
        h ^= h >> np.uint64(13)
        h = (h * m) & mask
        h ^= h >> np.uint64(15)
        found[i] = np.int64(h & np.uint64(0x7FFFFFFF))
    return found
