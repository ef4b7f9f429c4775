"""Compiled loops over raw column buffers: hashing, gathering, comparing, consolidating.

Each takes plain numpy arrays, releases the GIL and allocates only its result. Hashes are stable
across processes and versions, because they are part of the format on disk: splitmix64 for
fixed-width values (Steele, Lea, Flood 2014), XXH64 for bytes (the published specification).
"""

import numpy as np
from numba import njit

from storage.raw_memory import address_of, byte_at, copy_bytes, equal_at, half_at, word_at

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_NULL = np.uint64(0x6E756C6C6E756C6C)


@njit(nogil=True, cache=True, inline="always")
def _rotl(x, r):
    return (x << np.uint64(r)) | (x >> np.uint64(64 - r))


@njit(nogil=True, cache=True, inline="always")
def splitmix(x):
    """Finalize one uint64 so that every input bit reaches every output bit."""
    z = x + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _M1
    z = (z ^ (z >> np.uint64(27))) * _M2
    return z ^ (z >> np.uint64(31))


@njit(nogil=True, cache=True, inline="always")
def _round(acc, lane):
    return _rotl(acc + lane * _P2, 31) * _P1


@njit(nogil=True, cache=True, inline="always")
def _merge(acc, lane):
    return (acc ^ _round(np.uint64(0), lane)) * _P1 + _P4


@njit(nogil=True, cache=True)
def xxh64(start, size, seed):
    """Return XXH64 of size bytes at an address, with a uint64 seed."""
    at = np.int64(start)
    end = at + size
    if size >= 32:
        a = seed + _P1 + _P2
        b = seed + _P2
        c = seed
        d = seed - _P1
        while at + 32 <= end:
            a = _round(a, word_at(at))  # pyright: ignore
            b = _round(b, word_at(np.int64(at + 8)))  # pyright: ignore
            c = _round(c, word_at(np.int64(at + 16)))  # pyright: ignore
            d = _round(d, word_at(np.int64(at + 24)))  # pyright: ignore
            at += 32
        h = _rotl(a, 1) + _rotl(b, 7) + _rotl(c, 12) + _rotl(d, 18)
        h = _merge(_merge(_merge(_merge(h, a), b), c), d)
    else:
        h = seed + _P5
    h += np.uint64(size)
    while at + 8 <= end:
        h = _rotl(h ^ _round(np.uint64(0), word_at(at)), 27) * _P1 + _P4  # pyright: ignore
        at += 8
    if at + 4 <= end:
        h = _rotl(h ^ (np.uint64(half_at(at)) * _P1), 23) * _P2 + _P3  # pyright: ignore
        at += 4
    while at < end:
        h = _rotl(h ^ (np.uint64(byte_at(at)) * _P5), 11) * _P1  # pyright: ignore
        at += 1
    h = (h ^ (h >> np.uint64(33))) * _P2
    h = (h ^ (h >> np.uint64(29))) * _P3
    return h ^ (h >> np.uint64(32))


@njit(nogil=True, cache=True, inline="always")
def fold(h, x):
    """Fold the hash of one more value into the hash of a row; `mix_*` do this for columns."""
    return splitmix(h * _P1 + x)


@njit(nogil=True, cache=True, inline="always")
def fold_null(h):
    """Fold a NULL by another factor, so that no value equals it under both seeds of a row."""
    return splitmix(h * _P2 + _NULL)


@njit(nogil=True, cache=True)
def mix_fixed(hashes, values, valid):
    """Fold one fixed-width column (bits as uint64) into uint64[k, n] hashes, one row a seed.

    An empty `valid` means no NULLs.
    """
    nullable = valid.shape[0] > 0
    for i in range(hashes.shape[1]):
        if nullable and not valid[i]:
            for s in range(hashes.shape[0]):
                hashes[s, i] = fold_null(hashes[s, i])
        else:
            mixed = splitmix(values[i])
            for s in range(hashes.shape[0]):
                hashes[s, i] = fold(hashes[s, i], mixed)


@njit(nogil=True, cache=True)
def mix_bytes(hashes, offsets, data, valid, seeds):
    """Fold one column of byte strings into uint64[k, n] hashes, one row for each of the seeds.

    An empty `valid` means no NULLs.
    """
    nullable = valid.shape[0] > 0
    base = address_of(data)
    for i in range(hashes.shape[1]):
        start = offsets[i]
        size = offsets[i + 1] - start
        for s in range(hashes.shape[0]):
            if nullable and not valid[i]:
                hashes[s, i] = fold_null(hashes[s, i])
            else:
                hashes[s, i] = fold(hashes[s, i], xxh64(base + start, size, seeds[s]))


@njit(nogil=True, cache=True)
def take_bytes(offsets, data, index):
    """Gather byte strings by row index: (new offsets int64[len(index) + 1], new data uint8)."""
    out_offsets = np.empty(index.shape[0] + 1, np.int64)
    total = np.int64(0)
    out_offsets[0] = 0
    for k in range(index.shape[0]):
        i = index[k]
        total += offsets[i + 1] - offsets[i]
        out_offsets[k + 1] = total
    out = np.empty(total, np.uint8)
    source = address_of(data)
    target = address_of(out)
    for k in range(index.shape[0]):
        start = offsets[index[k]]
        at = out_offsets[k]
        copy_bytes(target + at, source + start, out_offsets[k + 1] - at)
    return out_offsets, out


@njit(nogil=True, cache=True)
def equal_bytes(left_offsets, left_data, left_index, right_offsets, right_data, right_index, out):
    """Clear out[k] where string left_index[k] differs from string right_index[k]."""
    left = address_of(left_data)
    right = address_of(right_data)
    for k in range(left_index.shape[0]):
        i = left_index[k]
        j = right_index[k]
        a = left_offsets[i]
        b = right_offsets[j]
        size = left_offsets[i + 1] - a
        if size != right_offsets[j + 1] - b or not equal_at(left + a, right + b, size):
            out[k] = False


@njit(nogil=True, cache=True)
def group_hashes(first, second):
    """Number the distinct 128-bit hashes by first appearance.

    Returns (group int64[n], representative int64[groups]): the group of each row and the first
    row of each group.
    """
    n = first.shape[0]
    size = 16
    while size < 2 * n:
        size *= 2
    mask = np.uint64(size - 1)
    slots = np.full(size, -1, np.int64)
    group = np.empty(n, np.int64)
    representative = np.empty(n, np.int64)
    count = 0
    for i in range(n):
        at = first[i] & mask
        while True:
            g = slots[at]
            if g < 0:
                slots[at] = count
                representative[count] = i
                group[i] = count
                count += 1
                break
            r = representative[g]
            if first[r] == first[i] and second[r] == second[i]:
                group[i] = g
                break
            at = (at + np.uint64(1)) & mask
    return group, representative[:count]


@njit(nogil=True, cache=True)
def sum_by_group(group, weights, groups):
    """Sum int64 weights by group number: int64[groups]."""
    out = np.zeros(groups, np.int64)
    for i in range(group.shape[0]):
        out[group[i]] += weights[i]
    return out


@njit(nogil=True, cache=True)
def bisect_runs(values, low, high, sought, is_after):
    """Return int64[n]: where each sought value would be in values[low:high], which ascends.

    values int64[m]; low, high, sought int64[n]; is_after bool[n]: after equal values, else before.
    """
    out = np.empty(sought.shape[0], np.int64)
    for i in range(sought.shape[0]):
        begin, end = low[i], high[i]
        while begin < end:
            middle = (begin + end) >> 1
            value = values[middle]
            if value < sought[i] or (value == sought[i] and is_after[i]):
                begin = middle + 1
            else:
                end = middle
        out[i] = begin
    return out
