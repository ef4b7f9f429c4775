"""Filters: a few bits a key that rule out pages for a key, without reading the pages.

A filter belongs to one page: a word with its number of bits, then the bits (Bloom 1970, with one
stepped hash as in Kirsch and Mitzenmacher 2006). Filters of up to GROUP neighbouring pages are
stored as one value. Invariant: a filter never denies a key that its page holds. About three in a
thousand other keys pass, which costs a page read and no more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash
from numba import njit

from storage.faults import corrupt
from storage.page_access import key_hash, row_count
from storage.raw_memory import word_at

GROUP = 64
_BITS_A_KEY = 12
_PROBES = 8
_LOW = np.uint64(0xFFFFFFFF)


@njit(nogil=True, cache=True, inline="always")
def _bit(h, probe, bits):
    """Return which of `bits` bits a key hash sets at one probe; its top bits are alike
    in a page.
    """
    start = h & _LOW
    step = ((h >> np.uint64(16)) & _LOW) | np.uint64(1)
    return (((start + np.uint64(probe) * step) & _LOW) * bits) >> np.uint64(32)


@njit(nogil=True, cache=True)
def may_contain(address, h):
    """Return True if the page of the filter at this address may hold key hash h."""
    bits = word_at(address)  # pyright: ignore
    for probe in range(_PROBES):
        bit = _bit(h, probe, bits)
        word = word_at(np.int64(address + 8 + 8 * np.int64(bit >> np.uint64(6))))  # pyright: ignore
        if (word >> (bit & np.uint64(63))) & np.uint64(1) == 0:
            return False
    return True


@njit(nogil=True, cache=True)
def filter_of(address):
    """Return uint64[1 + words]: the filter of the page image at this address."""
    rows = row_count(address)
    keys = 1
    for row in range(1, rows):
        keys += key_hash(address, row) != key_hash(address, row - 1)
    words = (keys * _BITS_A_KEY + 63) // 64
    out = np.zeros(1 + words, np.uint64)
    bits = np.uint64(64 * words)
    out[0] = bits
    for row in range(rows):
        h = key_hash(address, row)
        if row > 0 and h == key_hash(address, row - 1):
            continue
        for probe in range(_PROBES):
            bit = _bit(h, probe, bits)
            out[1 + np.int64(bit >> np.uint64(6))] |= np.uint64(1) << (bit & np.uint64(63))
    return out


def encode_group(filters: Sequence[np.ndarray]) -> bytes:
    """Return the filters of neighbouring pages as one value."""
    body = b"".join(each.tobytes() for each in filters)
    return xxhash.xxh3_64_intdigest(body).to_bytes(8, "little") + body


def decode_group(stored: bytes | None, count: int, where: str) -> list[int]:
    """Return the addresses of `count` filters in a stored value, which the caller keeps alive.

    StorageError state.corrupt: missing or changed.
    """
    if stored is not None and len(stored) % 8 == 0 and len(stored) > 8:
        words = np.frombuffer(stored, np.uint64)
        base = words.__array_interface__["data"][0]
        if int(words[0]) == xxhash.xxh3_64_intdigest(memoryview(stored)[8:]):
            addresses, at = [], 1
            while at < len(words):
                addresses.append(base + 8 * at)
                at += 1 + int(words[at]) // 64
            if len(addresses) == count:
                return addresses
    raise corrupt(f"{where} fails its checksum")
