"""Transactions on their way from the replication stream to the decoder, in bounded memory.

Payloads of a transaction that outgrows its share of memory go to an unlinked temporary file and
come back in chunks. Invariant: a transaction is seen whole or not at all.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO

CHUNK_BYTES = 8 << 20
# What a payload costs beyond its own bytes while it waits as a Python object.
_OBJECT_BYTES = 48


class Transaction:
    """The payloads of one transaction. end and commit_us are known once it is complete."""

    __slots__ = ("_file", "_payloads", "_spill_bytes", "commit_us", "end", "rows", "size_bytes")

    def __init__(self, spill_bytes: int, payloads: list[bytes] | None = None) -> None:
        self._payloads = payloads or []
        self.size_bytes = 0
        self.rows = 0
        self.end = 0
        self.commit_us = 0
        self._spill_bytes = spill_bytes
        self._file: IO[bytes] | None = None

    def add(self, payload: bytes) -> None:
        """Append a payload; size_bytes is what stays in memory."""
        self._payloads.append(payload)
        self.size_bytes += len(payload) + _OBJECT_BYTES
        if self.size_bytes > self._spill_bytes:
            self._spill()

    def chunks(self) -> Iterator[list[bytes]]:
        """All payloads in order, some megabytes at a time. Can be read once."""
        if self._file is not None:
            self._spill()
            self._file.seek(0)
            yield from _read_chunks(self._file)
            self.close()
        elif self._payloads:
            yield self._payloads

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _spill(self) -> None:
        if self._file is None:
            # Closed in close(); unlinked from the start, so that nothing outlives us.
            self._file = tempfile.TemporaryFile(prefix="tidemark-")  # noqa: SIM115
        parts: list[bytes] = []
        for payload in self._payloads:
            parts.append(len(payload).to_bytes(4, "big"))
            parts.append(payload)
        self._file.write(b"".join(parts))
        self._payloads = []
        self.size_bytes = 0


def _read_chunks(file: IO[bytes]) -> Iterator[list[bytes]]:
    rest = b""
    while block := file.read(CHUNK_BYTES):
        rest += block
        payloads, at = [], 0
        while at + 4 <= len(rest):
            end = at + 4 + int.from_bytes(rest[at : at + 4], "big")
            if end > len(rest):
                break
            payloads.append(rest[at + 4 : end])
            at = end
        rest = rest[at:]
        if payloads:
            yield payloads
