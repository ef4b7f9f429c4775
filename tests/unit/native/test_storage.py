"""Oracle: digests of what the kernels' predecessors in another language made of the same inputs,
and the published hashes of package xxhash. Pages, hashes and filters are formats on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import xxhash
from tidemark_native import storage as kernels

from dataflow.errors import InvariantError
from storage.delta import SEEDS, Column
from storage.layout import HEADER, Layout

MASK = (1 << 64) - 1
NONE = np.zeros(0, np.bool_)
_SEEDS = np.array(SEEDS, np.uint64)
_ROWS = np.uint64(0xFFFFFFFF)
_LAYOUT = Layout("isi", [0], 1)
# (rows of a page, different keys).
SIZES = ((1, 1), (10, 3), (500, 40), (4000, 900), (1500, 2))


def strings(
    random: np.random.Generator, n: int, valid: np.ndarray | int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Offsets, of which the first is not 0, and bytes; none where not valid."""
    offsets = np.full(n + 1, 3, np.int64)
    offsets[1:] += np.cumsum(random.integers(0, 70, n) * valid)
    return offsets, random.integers(0, 256, offsets[-1], dtype=np.uint8)


def of_columns(random: np.random.Generator) -> Iterator[np.ndarray]:
    for n in (0, 1, 5, 100, 3000):
        values = random.integers(0, 2**63, n).astype(np.uint64)
        offsets, data = strings(random, n)
        for valid in (random.random(n) < 0.8, NONE):
            for rows in (1, 2, 3):
                hashes = np.full((rows, n), 7, np.uint64)
                kernels.mix_fixed(hashes, values, valid)
                kernels.mix_bytes(hashes, offsets, data, valid, np.arange(rows).astype(np.uint64))
                yield hashes
        index = random.integers(0, max(n, 1), n)
        yield from kernels.take_bytes(offsets, data, index)
        equal = np.ones(n, np.bool_)
        kernels.equal_bytes(offsets, data, index, offsets, data, np.arange(n), equal)
        yield equal
        first = random.integers(0, n // 3 + 1, n).astype(np.uint64) * np.uint64(2**61 + 5)
        group, representative = kernels.group_hashes(first, first >> np.uint64(3))
        yield group
        yield representative
        weights = random.integers(-3, 4, (n, 2))
        yield kernels.sum_by_group(group, weights[:, 1], len(representative))
        values = np.sort(random.integers(0, 50, n))
        ends = np.sort(random.integers(0, n + 1, (2, n)), axis=0)
        sought = random.integers(-1, 52, n)
        yield kernels.bisect_runs(values, ends[0], ends[1], sought, random.random(n) < 0.5)


def page(random: np.random.Generator, rows: int, keys: int) -> Iterator[np.ndarray]:
    """A sorted page, last, and what was asked on the way."""
    valid = random.random(rows) < 0.9
    offsets, data = strings(random, rows, valid)
    columns = [
        Column(random.integers(0, keys, rows)),
        Column(offsets, valid, data),
        Column(random.integers(-5, 5, rows)),
    ]
    image = _LAYOUT.image(columns, random.integers(-2, 3, (1, rows)))
    yield image
    hashes, records = _LAYOUT.hashes_of(image), _LAYOUT.records_of(image)
    order = np.argsort(hashes, kind="stable")
    found, totals = kernels.resolve_order(order, hashes, records, _LAYOUT.value_at)
    yield totals
    hits = kernels.hits_of(image.ctypes.data, found)
    words = kernels.gather_words(hits, 0, _LAYOUT.stride)
    # Of equal rows any one may stand for all: their strings lie in different places.
    words[_LAYOUT.column_at + 1] &= _ROWS
    yield words[: _LAYOUT.value_at]
    yield from kernels.gather_bytes(hits, kernels.gather_words(hits, _LAYOUT.column_at + 1, 1)[0])
    yield one_page(hits, totals)


def one_page(hits: np.ndarray, totals: np.ndarray) -> np.ndarray:
    ends = kernels.heap_ends(hits, _LAYOUT.byte_words)
    out = np.full(int(_LAYOUT.image_words(len(hits), int(ends[-1]))), 9, np.uint64)
    kernels.write_page(out, hits, totals, _LAYOUT.byte_words, _LAYOUT.header)
    return out


def rows_of(image: np.ndarray) -> int:
    return int(image[2] & _ROWS)


def split(image: np.ndarray, rows: int) -> list[np.ndarray]:
    """The page as pages of so many rows."""
    hits = kernels.hits_of(image.ctypes.data, np.arange(rows_of(image)))
    totals = kernels.gather_words(hits, _LAYOUT.value_at, 1).view(np.int64).reshape(-1, 1)
    starts = range(0, len(hits), rows)
    return [one_page(hits[a : a + rows].copy(), totals[a : a + rows].copy()) for a in starts]


def of_hits(hits: np.ndarray, totals: np.ndarray) -> Iterator[np.ndarray]:
    """What hits name, without their addresses."""
    yield hits[:, [0, 2]]
    yield kernels.gather_words(hits, 0, _LAYOUT.column_at)
    yield totals


def of_pages(random: np.random.Generator) -> Iterator[np.ndarray]:
    for rows, keys in SIZES:
        images = []
        for _ in range(4):
            *asked, image = page(random, rows, keys)
            yield from asked
            yield image
            if rows_of(image):
                images.append(image)
                yield kernels.filter_of(image.ctypes.data)
        yield from of_runs(random, images)


def of_runs(random: np.random.Generator, images: list[np.ndarray]) -> Iterator[np.ndarray]:
    pages, starts = [], [0]
    for image in images:
        pages += split(image, 37)
        starts.append(len(pages))
    known = np.unique(np.concatenate([_LAYOUT.hashes_of(image) for image in images]))
    others = random.integers(0, 2**63, 40).astype(np.uint64) * np.uint64(2)
    sought = np.sort(np.concatenate([known, others, known[:3]]))
    first = np.array([image[HEADER] for image in pages], np.uint64)
    filters = [kernels.filter_of(image.ctypes.data) for image in pages]
    of_filters = np.array([words.ctypes.data for words in filters], np.int64)
    memory = np.array([image.ctypes.data for image in images[:2]], np.int64)
    addresses = np.array([image.ctypes.data for image in pages], np.int64)
    ends, value_at = np.array(starts), _LAYOUT.value_at
    for share in (0.0, 0.2):
        touched = np.zeros(len(pages), np.uint8)
        there = np.where(random.random(len(pages)) < share, 0, addresses)
        known_pages = first, there, touched, of_filters
        hits, totals, missing, done = kernels.probe(
            sought, ends, known_pages, memory, value_at, 1, 10**6
        )
        yield touched
        yield missing
        if not len(missing):
            assert done == len(sought)
            yield from of_hits(hits, totals)
            some = kernels.probe(sought, ends, known_pages, memory, value_at, 1, 50)
            covered = int(np.searchsorted(hits[:, 0], some[3]))
            assert np.array_equal(some[0], hits[:covered])
            assert np.array_equal(some[1], totals[:covered])
    for window in ([0, 0, 0, 0, 0], [2**62, 5, 2**63, 0, 1]):
        bounds = np.array(window, np.uint64)
        hits, totals = kernels.merge(addresses, ends, bounds, value_at, 1)
        yield from of_hits(hits, totals)


def digest(results: Iterator[np.ndarray]) -> str:
    found = hashlib.sha256()
    for result in results:
        found.update(f"{result.dtype} {result.shape} ".encode())
        found.update(np.ascontiguousarray(result).tobytes())
    return found.hexdigest()[:32]


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (of_columns, "eaa743d5f6d69b6ba72e569f90bcc027"),
        (of_pages, "d0cae4a45065e8a172c5eb91703a5005"),
    ],
)
def test_results_are_those_of_before(
    make: Callable[[np.random.Generator], Iterator[np.ndarray]], wanted: str
) -> None:
    assert digest(make(np.random.Generator(np.random.PCG64(7)))) == wanted


def splitmix(x: int) -> int:
    z = (x + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


@pytest.mark.parametrize("size", [*range(70), 300])
def test_bytes_are_hashed_as_published(size: int) -> None:
    data = np.arange(size, dtype=np.uint8)
    hashes = np.full((2, 1), 11, np.uint64)
    kernels.mix_bytes(hashes, np.array([0, size]), data, NONE, _SEEDS)
    for seed, found in zip(SEEDS, hashes[:, 0].tolist(), strict=True):
        wanted = xxhash.xxh64_intdigest(data.tobytes(), seed)
        assert found == splitmix((11 * 0x9E3779B185EBCA87 + wanted) & MASK)


def test_what_cannot_be_becomes_an_error_that_names_the_kernel() -> None:
    """Never a panic, and never a read outside of an array."""
    with pytest.raises(InvariantError, match=r"storage\.take_bytes: .*out of"):
        kernels.take_bytes(np.array([0, 9]), np.zeros(3, np.uint8), np.array([0]))
    with pytest.raises(InvariantError, match="the page is in memory"):
        kernels.hits_of(0, np.array([1]))


def test_arrays_of_other_kinds_are_refused() -> None:
    words = np.zeros((2, 4), np.uint64)
    with pytest.raises(TypeError, match="side by side"):
        kernels.mix_fixed(words[:, ::2], np.zeros(2, np.uint64), NONE)
    with pytest.raises(TypeError):
        kernels.mix_fixed(words, np.zeros(4, np.int64), NONE)  # type: ignore[arg-type]
    words.flags.writeable = False
    with pytest.raises(TypeError, match="written"):
        kernels.mix_fixed(words, np.zeros(4, np.uint64), NONE)


def test_what_is_read_may_lie_apart_or_unaligned() -> None:
    texts = np.array([0, 1, 3]), np.frombuffer(b"abb", np.uint8)
    offsets, data = kernels.take_bytes(*texts, np.array([0, 1])[::-1])
    assert (offsets.tolist(), data.tobytes()) == ([0, 2, 3], b"bba")
    index = np.frombuffer(b"x" + np.array([1, 1]).tobytes(), np.uint8)[1:].view(np.int64)
    assert kernels.take_bytes(*texts, index)[1].tobytes() == b"bbbb"
