"""Damage to bytes, for tests of functions that read foreign ones."""

from __future__ import annotations

from random import Random

_EDGES = b'\x00\x01\x7f\x80\xff"\\\n'


def damaged(data: bytes, random: Random) -> bytes:
    """Return the bytes with one to three of them changed, lost, added, or the end cut off."""
    found = bytearray(data)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(found) + 1)
        what = random.randrange(4)
        if what == 0:
            del found[at:]
        elif what == 1:
            found[at : at + 1] = random.randbytes(1)
        elif what == 2:
            del found[at : at + 1]
        else:
            found.insert(at, random.choice(_EDGES))
    return bytes(found)
