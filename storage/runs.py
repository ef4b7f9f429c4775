"""A run on disk, the table of all runs of one arrangement, and their storage keys.

A run is an immutable sequence of pages in row order. Its page numbers and the first row identity of
each page stay in memory; pages come and go through the page cache. Invariant: a run exists if and
only if its directory entry does; pages without one are garbage and are removed on open.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import xxhash

from storage.faults import corrupt
from storage.filters import GROUP, decode_group

PAGE, RUN, LOG = b"p", b"r", b"l"
BULK_RUN = 0
_DIRECTORY = struct.Struct("<QIIqqQ")


def arrangement_range(kind: bytes, identity: int) -> tuple[bytes, bytes]:
    """Return the keys of one kind (PAGE, RUN, LOG) of an arrangement: [start, stop)."""
    start = kind + identity.to_bytes(8, "big")
    return start, start + b"\xff" * 16


def run_key(identity: int, run: int) -> bytes:
    """Return the key of a run's directory."""
    return struct.pack(">cQI", RUN, identity, run)


def page_key(identity: int, run: int, number: int) -> bytes:
    """Return the key of a page. Numbers of a run ascend in row order but need not be dense."""
    return struct.pack(">cQIQ", PAGE, identity, run, number)


def filter_key(identity: int, run: int, last: int) -> bytes:
    """Return the key of the filters of the group of pages that ends with number `last`."""
    return page_key(identity, run, last) + b"f"


def run_pages(identity: int, run: int) -> tuple[bytes, bytes]:
    """Return the keys of all pages and filters of a run: [start, stop)."""
    start = struct.pack(">cQI", PAGE, identity, run)
    return start, start + b"\xff" * 10


def log_key(identity: int, sequence: int) -> bytes:
    """Return the key of the delta of one apply, until it is part of a run."""
    return struct.pack(">cQQ", LOG, identity, sequence)


class Run:
    """The directory of a run, and those of its pages that are in memory.

    numbers, first, first_row: uint64[pages]. rows: entries, retractions included. net: entries that
    add less those that remove. age orders the runs of an arrangement in time. reads: rows of the
    pages that searches had to read from it since it was opened or written. searched: keys that the
    arrangement's searches had looked for before. The page cache owns
    buffers, addresses, touched, groups (the stored filters) and filters, int64[pages] with the
    address of each page's filter, 0 if it is not in memory.
    """

    __slots__ = (
        "addresses",
        "age",
        "buffers",
        "filters",
        "first",
        "first_row",
        "groups",
        "identity",
        "net",
        "numbers",
        "reads",
        "rows",
        "searched",
        "touched",
    )

    def __init__(self, identity: int, age: int, counts: tuple[int, int], numbers: np.ndarray):
        self.identity = identity
        self.age = age
        self.rows, self.net = counts
        self.reads = self.searched = 0
        self.numbers = numbers
        self.first = np.empty(len(numbers), np.uint64)
        self.first_row = np.empty(len(numbers), np.uint64)
        self.buffers: list[bytes | None] = [None] * len(numbers)
        self.addresses = np.zeros(len(numbers), np.int64)
        self.touched = np.zeros(len(numbers), np.uint8)
        self.filters = np.zeros(len(numbers), np.int64)
        self.groups: list[bytes] = []

    def group_keys(self, identity: int) -> list[bytes]:
        """Return the keys of the filters of all pages in an arrangement: one for each group."""
        return [filter_key(identity, self.identity, int(self.numbers[at])) for at in self._ends()]

    def _ends(self) -> list[int]:
        """Return the last page of each group."""
        group = self.numbers // np.uint64(GROUP)
        return [*np.flatnonzero(group[1:] != group[:-1]).tolist(), len(group) - 1]

    def take_filters(self, groups: Sequence[bytes | None]) -> None:
        """Use these stored filters, one value a group. StorageError state.corrupt."""
        start = 0
        for stored, end in zip(groups, self._ends(), strict=True):
            where = f"filter of run {self.identity}"
            self.filters[start : end + 1] = decode_group(stored, end + 1 - start, where)
            start = end + 1
        self.groups = [stored for stored in groups if stored is not None]

    def encode(self) -> bytes:
        """Return the directory entry."""
        parts = (self.numbers, self.first, self.first_row)
        body = b"".join(part.tobytes() for part in parts)
        check = xxhash.xxh3_64_intdigest(body)
        pages = len(self.numbers)
        return _DIRECTORY.pack(check, self.identity, pages, self.rows, self.net, self.age) + body

    @staticmethod
    def decode(entry: bytes | None) -> Run:
        """Return the run of a directory entry. StorageError state.corrupt."""
        if entry is None or len(entry) < _DIRECTORY.size:
            raise corrupt("a run directory is truncated")
        check, identity, pages, rows, net, age = _DIRECTORY.unpack_from(entry)
        body = entry[_DIRECTORY.size :]
        if len(body) != 24 * pages or check != xxhash.xxh3_64_intdigest(body):
            raise corrupt(f"directory of run {identity} fails its checksum")
        numbers, first, first_row = np.frombuffer(body, np.uint64).reshape(3, pages)
        run = Run(identity, age, (rows, net), numbers)
        run.first[:] = first
        run.first_row[:] = first_row
        return run


class RunTable:
    """The runs of one arrangement, oldest first, and flat arrays over all their pages."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.replace(0, 0, [])

    def replace(self, start: int, stop: int, runs: Sequence[Run]) -> None:
        """Replace runs[start:stop] by these runs."""
        self.runs[start:stop] = runs
        self.starts = np.zeros(len(self.runs) + 1, np.int64)
        np.cumsum([len(run.numbers) for run in self.runs], out=self.starts[1:])
        pages = int(self.starts[-1])
        first = np.empty(pages, np.uint64)
        addresses = np.empty(pages, np.int64)
        touched = np.empty(pages, np.uint8)
        filters = np.empty(pages, np.int64)
        at = 0
        for run in self.runs:
            end = at + len(run.numbers)
            first[at:end] = run.first
            addresses[at:end] = run.addresses
            touched[at:end] = run.touched
            filters[at:end] = run.filters
            run.addresses = addresses[at:end]
            run.touched = touched[at:end]
            at = end
        self.pages = (first, addresses, touched, filters)

    def locate(self, page: int) -> tuple[Run, int]:
        """Return the run, and the page within it, of a position in the flat arrays."""
        number = int(np.searchsorted(self.starts, page, "right")) - 1
        return self.runs[number], page - int(self.starts[number])


def tracks_of(runs: Sequence[Run]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the first rows of the pages of each run, as `merge_policy.windows` takes them."""
    return [(run.first, run.first_row) for run in runs]
