"""Check write logs and manifests before RocksDB reads them: some damage makes it loop forever.

Both are blocks of 32 KiB that hold records: checksum (4 bytes), length (2), kind (1), content. A
record kind of recycled logs, which ours never are, keeps RocksDB in a loop (measured with 9.8:
kinds 5 to 8 and 11, at any position). RocksDB reports all other damage itself.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_BLOCK = 32 << 10
_HEADER = struct.Struct("<IHB")
_ENDLESS = frozenset({5, 6, 7, 8, 11})


def endless_at(path: Path) -> int | None:
    """Return where in the file RocksDB would loop; None if it would not."""
    size = path.stat().st_size
    if not size:
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        at = 0
        while at + _HEADER.size <= size:
            end = at - at % _BLOCK + _BLOCK
            if at + _HEADER.size > end:
                at = end
                continue
            _, length, kind = _HEADER.unpack_from(content, at)
            if kind in _ENDLESS:
                return at
            after = at + _HEADER.size + length
            # A length that does not fit ends the block, and so do the zeros after the last record.
            at = end if after > end or (kind == 0 and length == 0) else after
    return None
