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

from storage.faults import corrupt

GROUP = 64


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
