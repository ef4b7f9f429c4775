"""Sealed pages: page images as bytes with a checksum, and the cutting of rows into pages.

RocksDB stores a sealed page and searches read it, without a conversion between the two. Invariant:
the bytes of a page never change after `seal`; `verify` refuses any others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import xxhash
from tidemark_native import storage as kernels

from storage.errors import NegativeWeightError, StorageError
from storage.faults import corrupt
from storage.layout import HASHES, HEADER, MAGIC, VERSION, Layout

_CHECKED_FROM = 16
_SEALED_AT_ONCE = 64


@dataclass(frozen=True)
class Tuning:
    """Sizes and rates of the runs. The defaults are measured; tests force the rare paths.

    page_rows, page_heap_bytes: where a page is cut. memory_rows: rows of an arrangement that stay
    in memory (and in the log) before they become a run on disk. file_rows: from this number of rows
    on, the pages of a run get their own file. fan: this many neighbouring runs of like size are
    merged. page_growth, fan_growth: by how much pages may be longer, and runs on disk more, while
    the cached pages take less than nine tenths of the cache: if pages are not read again from disk,
    they need not be small, nor the runs few. fuel: rows merged for each row applied. merge_pages,
    scan_pages: pages of a run read in one step of a merge of `fan` runs, or of a scan.
    """

    page_rows: int = 256
    page_growth: int = 1
    page_heap_bytes: int = 1 << 18
    memory_rows: int = 65_536
    file_rows: int = 32_768
    fan: int = 4
    fan_growth: int = 1
    fuel: int = 6
    epoch_merge_rows: int = 8192
    merge_pages: int = 8
    scan_pages: int = 64

    def step_pages(self, pages: Sequence[int]) -> int:
        """Return how many pages of the longest run one step of a merge of such runs reads.

        In total that is as many as of `fan` runs of one length.
        """
        return max(self.merge_pages * self.fan * max(pages) // sum(pages), 1)


class Selection(NamedTuple):
    """Rows in order: hits int64[k, 4] (see `tidemark_native.storage`), totals int64[k, width]."""

    hits: np.ndarray
    totals: np.ndarray


class Page(NamedTuple):
    """A sealed page in memory. first: (key hash, row hash) of its first row."""

    sealed: bytes
    address: int
    rows: int
    first: tuple[int, int]


def address_of(buffer: bytes | np.ndarray) -> int:
    """Return the address of the bytes; valid as long as the caller keeps the buffer."""
    view = np.frombuffer(buffer, np.uint8) if isinstance(buffer, bytes) else buffer
    return view.__array_interface__["data"][0]


def _seal(
    layout: Layout, selection: Selection, bounds: np.ndarray, heap_ends: np.ndarray
) -> list[Page]:
    """Return pages of the rows from bounds[i] to bounds[i + 1]; heap_ends from `_heap_ends`."""
    rows, heap_bytes = np.diff(bounds), np.diff(heap_ends[bounds])
    ends = np.zeros(len(bounds), np.int64)
    np.cumsum(layout.image_words(rows, heap_bytes), out=ends[1:])
    images = np.empty(int(ends[-1]), np.uint64)
    kernels.write_pages(images, ends, bounds, selection, layout.byte_words, layout.header)
    memory = images.data.cast("B")
    pages = []
    for start, stop in pairwise(ends.tolist()):
        images[start + 1] = xxhash.xxh3_64_intdigest(memory[8 * start + _CHECKED_FROM : 8 * stop])
        pages.append(open_page(bytes(memory[8 * start : 8 * stop])))
    return pages


def _heap_ends(layout: Layout, hits: np.ndarray) -> np.ndarray:
    """Return int64[k + 1]: bytes of the strings of all rows before each hit, and of all."""
    if not len(layout.byte_words):
        return np.zeros(len(hits) + 1, np.int64)
    return kernels.heap_ends(hits, layout.byte_words)


def open_page(sealed: bytes) -> Page:
    """Return the page in these bytes, which were verified or just made."""
    words = np.frombuffer(sealed, np.uint64)
    rows = int(words[2]) & 0xFFFFFFFF
    first = (int(words[HEADER]), int(words[HEADER + rows]))
    return Page(sealed, words.__array_interface__["data"][0], rows, first)


def seal_whole(layout: Layout, selection: Selection) -> Page:
    """Return one page of the whole selection, of any size: a run in memory."""
    hits, totals = selection
    heap_bytes = int(_heap_ends(layout, hits)[-1]) if len(layout.byte_words) else 0
    image = np.empty(layout.image_words(len(hits), heap_bytes), np.uint64)
    kernels.write_page(image, hits, totals, layout.byte_words, layout.header)
    image[1] = xxhash.xxh3_64_intdigest(image.data.cast("B")[_CHECKED_FROM:])
    return open_page(image.tobytes())


def seal_few(layout: Layout, image: np.ndarray) -> Page | None:
    """Return one page of an unsorted image of one or two rows, which it may reorder.

    None if that is not all there is to do: the rows are equal, or one has no value left.
    """
    records = layout.records_of(image)
    rows = records.tolist()
    if not all(any(row[layout.value_at :]) for row in rows):
        return None
    if len(rows) == 2:
        first, second = ((int(image[HEADER + n]), *rows[n][:HASHES]) for n in range(2))
        if first == second:
            return None
        if first > second:
            image[HEADER], image[HEADER + 1] = second[0], first[0]
            records[:] = records[::-1].copy()
    image[1] = xxhash.xxh3_64_intdigest(image.data.cast("B")[_CHECKED_FROM:])
    return open_page(image.tobytes())


def cut(layout: Layout, selection: Selection, tuning: Tuning, growth: int = 1) -> Iterator[Page]:
    """Yield the selection as pages of like size.

    A page has at most growth times tuning.page_rows, fewer with long strings.
    """
    count = len(selection.hits)
    ends = _heap_ends(layout, selection.hits)
    page_rows = -(-count // max(-(-count // (growth * tuning.page_rows)), 1))
    bounds = [0]
    while bounds[-1] < count:
        start, stop = bounds[-1], min(bounds[-1] + page_rows, count)
        limit = ends[start] + tuning.page_heap_bytes
        if ends[stop] > limit:
            stop = max(int(np.searchsorted(ends, limit, "right")) - 1, start + 1)
        bounds.append(stop)
        if len(bounds) > _SEALED_AT_ONCE or stop == count:
            yield from _seal(layout, selection, np.array(bounds), ends)
            bounds = [stop]


def verify(sealed: bytes | None, layout: Layout, where: str) -> Page:
    """Return the page in bytes that were read back.

    StorageError state.corrupt: missing or changed; state.version: written by another one;
    state.mismatch: rows of another shape.
    """
    if sealed is None:
        raise corrupt(f"{where} is missing")
    if len(sealed) < 8 * HEADER or len(sealed) % 8:
        raise corrupt(f"{where} has {len(sealed)} bytes")
    magic, checksum, rows, shape = np.frombuffer(sealed, np.uint64, HEADER).tolist()
    if magic != MAGIC | VERSION and magic >> 16 == MAGIC >> 16:
        raise StorageError("state.version", f"{where} has format {magic & 0xFFFF}, not {VERSION}")
    actual = xxhash.xxh3_64_intdigest(memoryview(sealed)[_CHECKED_FROM:])
    if magic >> 16 != MAGIC >> 16 or checksum != actual or rows & 0xFFFFFFFF == 0:
        raise corrupt(f"{where} fails its checksum")
    if shape != layout.shape:
        raise StorageError("state.mismatch", f"{where} holds rows of another shape")
    return open_page(sealed)


def order_rows(layout: Layout, image: np.ndarray) -> Selection:
    """Return the rows of an unsorted image in order, equal ones summed, zeros removed."""
    hashes = layout.hashes_of(image)
    order = np.argsort(hashes)
    rows, totals = kernels.resolve_order(order, hashes, layout.records_of(image), layout.value_at)
    return Selection(kernels.hits_of(address_of(image), rows), totals)


def below_zero(name: str, layout: Layout, selection: Selection) -> NegativeWeightError | None:
    """Return the error of an arrangement, if a row of the selection has a negative weight."""
    totals = selection.totals
    if not len(totals) or totals.min() >= 0:
        return None
    at = int(np.argmin(totals[:, 0]))
    row = tuple(column.to_list()[0] for column in layout.columns(selection.hits[at : at + 1]))
    return NegativeWeightError(name, repr(row), int(totals[at, 0]))
