"""Transactions between the replication stream and the decoder, in bounded memory.

The payloads of a transaction that outgrows its memory limit go to an unlinked temporary file. They
come back in chunks, which `chunks_of` cuts to the decoder's limit. Invariant: a transaction is seen
whole or not at all.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np

from storage.reserve import TEMPORARY

_BLOCK_BYTES = 1 << 20
# The cost of a payload beyond its own bytes while it waits as a Python object.
_OBJECT_BYTES = 64


@dataclass(frozen=True)
class StreamLimits:
    """Limits of a stream.

    queue_bytes: what may wait for poll before reading stops. spill_bytes: what one transaction may
    keep in memory. chunk_rows, chunk_bytes: what is decoded at a time. status_s: the interval of
    status messages, 0: as often as the server requires. liveness_timeout_s: how long the server may
    leave a probe unanswered before it counts as lost. is_foreign: the server is somebody else's:
    transactions on disk may not take its last space (storage/reserve.py), and a large one is
    decoded as a whole before any of it is handed out.
    """

    queue_bytes: int = 64 << 20
    spill_bytes: int = 32 << 20
    chunk_rows: int = 20_000
    chunk_bytes: int = 16 << 20
    status_s: float = 0.0
    liveness_timeout_s: float = 60.0
    is_foreign: bool = False


class Transaction:
    """The payloads of one transaction. end and commit_us are set once it is complete.

    relations: the payloads that describe tables; they are in the transaction too. truncated: the
    tables that it truncates.
    """

    __slots__ = (
        "_file",
        "_is_reserved",
        "_payloads",
        "_spill_bytes",
        "commit_us",
        "end",
        "relations",
        "rows",
        "size_bytes",
        "truncated",
        "xid",
    )

    def __init__(
        self, spill_bytes: int, payloads: list[bytes] | None = None, *, is_reserved: bool = False
    ) -> None:
        self._payloads = payloads or []
        self._is_reserved = is_reserved
        self.size_bytes = 0
        self.rows = 0
        self.end = 0
        self.commit_us = 0
        self.xid = 0
        self.relations: list[bytes] = []
        self.truncated: set[int] = set()
        self._spill_bytes = spill_bytes
        self._file: IO[bytes] | None = None

    def add(self, payload: bytes) -> None:
        """Append a payload; size_bytes is what stays in memory."""
        self._payloads.append(payload)
        if payload[:1] == b"R":
            self.relations.append(payload)
        self.size_bytes += len(payload) + _OBJECT_BYTES
        if self.size_bytes > self._spill_bytes:
            self._spill()

    def chunks(self, *, is_kept: bool = False) -> Iterator[list[bytes]]:
        """Yield all payloads in order, a block of the file at a time. Can be read once, or again
        after a reading that is_kept.
        """
        if self._file is not None:
            self._spill()
            self._file.seek(0)
            yield from _read_chunks(self._file)
            if not is_kept:
                self.close()
        elif self._payloads:
            payloads = self._payloads
            if not is_kept:
                self._payloads = []
            yield payloads

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _spill(self) -> None:
        if self._file is None:
            # Closed in close(); unlinked from the start, so it never outlives the process.
            self._file = tempfile.TemporaryFile(prefix="tidemark-")  # noqa: SIM115
        if self._is_reserved:
            TEMPORARY.take(self.size_bytes)
        for payload in self._payloads:
            self._file.write(len(payload).to_bytes(4, "big"))
            self._file.write(payload)
        self._payloads = []
        self.size_bytes = 0


def _read_chunks(file: IO[bytes]) -> Iterator[list[bytes]]:
    rest, lacking = b"", 0
    # Read a payload of many blocks in one piece: adding up blocks would copy it for each.
    while block := file.read(max(_BLOCK_BYTES, lacking)):
        rest = rest + block if rest else block
        payloads, at, lacking = [], 0, 0
        while at + 4 <= len(rest):
            end = at + 4 + int.from_bytes(rest[at : at + 4], "big")
            if end > len(rest):
                lacking = end - len(rest)
                break
            payloads.append(rest[at + 4 : end])
            at = end
        rest = rest[at:]
        if payloads:
            yield payloads


def chunks_of(
    transactions: Sequence[Transaction],
    max_payloads: int,
    max_bytes: int,
    *,
    is_kept: bool = False,
) -> Iterator[list[bytes]]:
    """Yield the payloads of all transactions in order, up to both limits, but at least one.

    is_kept: they can be read again.
    """
    waiting: list[bytes] = []
    waiting_bytes = 0
    for transaction in transactions:
        for payloads in transaction.chunks(is_kept=is_kept):
            rest = payloads
            while rest:
                size_bytes = sum(map(len, rest))
                count = min(len(rest), max_payloads - len(waiting))
                if waiting_bytes + size_bytes > max_bytes:
                    ends = np.cumsum(np.fromiter(map(len, rest), np.int64, len(rest)))
                    fitting = int(np.searchsorted(ends, max_bytes - waiting_bytes, "right"))
                    count = min(count, max(fitting, 0 if waiting else 1))
                    size_bytes = int(ends[count - 1]) if count else 0
                waiting += rest[:count]
                waiting_bytes += size_bytes
                rest = rest[count:]
                if rest:
                    yield waiting
                    waiting, waiting_bytes = [], 0
    if waiting:
        yield waiting
