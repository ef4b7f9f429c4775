"""`python -m bench.cold [--rows 5000000]`: state four times larger than its memory, as JSON.

One side of a join, with five rows a key, is written in batches as a stream writes it. Random keys
are then looked up with a cache of a quarter of its bytes; reads bypass the page cache. The peer
stores the same rows as one RocksDB entry each, with a block cache of the same size plus its index
and filters. Counts of reads and CPU time hardly depend on other load; wall time does.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    SliceTransform,
    WriteBatch,
)

from bench.measure import in_child, machine, peak_rss_mb, percentile
from storage.delta import Column, Delta, hash_columns
from storage.pages import Tuning
from storage.rocks import RocksStore
from storage.store import ArrangementSpec

SPEC = ArrangementSpec("bench/join/left", "iis", (1,))
MATCHES = 5
TEXT_BYTES = 60
MEMORY_SHARE = 4
EPOCHS = 100
BATCHES = ((1, 200), (100, 40), (1_000, 12), (10_000, 5))


@dataclass(frozen=True)
class Shape:
    """Sizes of the written rows: how many keys, and rows a commit. page_rows 0: the product's
    default.
    """

    rows: int = 5_000_000
    batch_rows: int = 20_000
    page_rows: int = 0
    seed: int = 0
    keys: int = 1_000_000

    @property
    def tuning(self) -> Tuning:
        """Return the product's tuning, with another page size if given."""
        return replace(Tuning(), page_rows=self.page_rows) if self.page_rows else Tuning()


@dataclass(frozen=True)
class Probe:
    """The cost of looking up `keys` random keys: medians, and reads and rows a lookup."""

    keys: int
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    reads: float
    rows: float


@dataclass(frozen=True)
class Result:
    """One design with one memory budget. load_rows_s: rows a second during the load."""

    design: str
    state_mb: float
    budget_mb: float
    runs: list[int]
    load_rows_s: float
    worst_batch_ms: float
    probes: list[Probe]
    rss_mb: float


def main(arguments: list[str]) -> int:
    """Measure every design, each in a process of its own, and print one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m bench.cold", description=__doc__)
    parser.add_argument("--rows", type=int, default=Shape.rows)
    parser.add_argument("--page-rows", type=int, default=0, help="instead of the product's")
    parser.add_argument("--no-peer", action="store_true", help="leave out one entry a row")
    parser.add_argument("--folder", help="where the state is put, default the temporary folder")
    options = parser.parse_args(arguments)
    keys = max(options.rows // MATCHES, 1)
    shape = Shape(options.rows, page_rows=options.page_rows, keys=keys)
    results = list(in_child(measure_runs, shape, options.folder))
    if not options.no_peer:
        budget_mb = results[0].budget_mb
        results += in_child(measure_entries, shape, int(budget_mb * 2**20), options.folder)
    report = {"machine": machine(), "shape": asdict(shape), "results": list(map(asdict, results))}
    print(json.dumps(report, indent=1))
    return 0


def _done(result: Result) -> Result:
    """Return the result; print it to standard error at once, because a run takes minutes."""
    print(json.dumps(asdict(result)), file=sys.stderr, flush=True)
    return result


def batches(shape: Shape):
    """Return the rows in arrival order: (ids, keys, text of TEXT_BYTES each)."""
    rng = np.random.default_rng(shape.seed)
    for start in range(0, shape.rows, shape.batch_rows):
        count = min(shape.batch_rows, shape.rows - start)
        ids = np.arange(start, start + count)
        text = rng.integers(32, 127, TEXT_BYTES * count).astype(np.uint8)
        yield ids, rng.integers(0, shape.keys, count), text


def probe_all(lookup: Callable[[np.ndarray], int], reads: Callable[[], int], keys: int):
    """Look up batches of each size in turn, after as many that fill the cache."""
    rng = np.random.default_rng(1)
    out = []
    for count, repeats in BATCHES:
        times, found, cpu, read = [], 0, 0.0, 0
        for at in range(-max(repeats // 4, 2), repeats):
            keys_read = rng.integers(0, keys, count)
            read_before, cpu_before, started = reads(), time.process_time(), time.perf_counter()
            rows = lookup(keys_read)
            if at >= 0:
                times.append(1e3 * (time.perf_counter() - started))
                cpu += time.process_time() - cpu_before
                read += reads() - read_before
                found += rows
        p50, p99 = percentile(times, 0.5), percentile(times, 0.99)
        out.append(Probe(count, p50, p99, 1e3 * cpu / repeats, read / repeats, found / repeats))
    return out


def measure_runs(shape: Shape, folder: str | None) -> list[Result]:
    """Sorted columnar runs: the product's arrangement."""
    _warm_up()
    with TemporaryDirectory(prefix="tidemark-cold-", dir=folder) as path:
        store = RocksStore(Path(path) / "state", 256 << 20, shape.tuning)
        rows_s, worst_ms = _load(store, shape)
        state_bytes = _page_bytes(store)
        store.close()
        budget = state_bytes // MEMORY_SHARE
        results = []
        for design in ("runs, as written", "runs, once probed"):
            store = RocksStore(Path(path) / "state", budget, shape.tuning, direct_reads=True)
            arrangement = store.arrange(SPEC)

            def lookup(keys: np.ndarray, arrangement=arrangement, store=store) -> int:
                found = len(arrangement.lookup([Column(keys)])[1])
                store.commit()
                return found

            if results:
                rows_s, worst_ms = _resolve(store, shape, lookup)
            runs = arrangement.runs.run_rows()
            probes = probe_all(lookup, lambda store=store: store.cache.pages_read, shape.keys)
            figures = state_bytes / 2**20, budget / 2**20, runs, rows_s, worst_ms, probes
            results.append(_done(Result(design, *figures, peak_rss_mb())))
            store.close()
    return results


def _page_bytes(store: RocksStore) -> int:
    """Return the bytes of all runs' pages, from the row count and the bytes of pages in memory."""
    table = store.arrange(SPEC).runs._table
    held = [page for run in table.runs for page in run.buffers if page is not None]
    pages = sum(len(run.numbers) for run in table.runs)
    return sum(map(len, held)) * pages // max(len(held), 1)


def _load(store: RocksStore, shape: Shape) -> tuple[float, float]:
    """Write the rows; return (rows a second, the slowest batch in ms), commits included."""
    arrangement = store.arrange(SPEC)
    spent = worst = 0.0
    for ids, keys, text in batches(shape):
        offsets = np.arange(0, len(text) + 1, TEXT_BYTES)
        columns = [Column(ids), Column(keys), Column(offsets, None, text)]
        delta = Delta(columns, np.ones(len(ids), np.int64))
        started = time.perf_counter()
        arrangement.apply(delta)
        store.commit()
        took = time.perf_counter() - started
        spent += took
        worst = max(worst, took)
    return shape.rows / spent, 1e3 * worst


def _resolve(store: RocksStore, shape: Shape, lookup: Callable) -> tuple[float, float]:
    """Run EPOCHS epochs of 1,000 keys and 1,000 new rows, whose lookups pay for the merges.

    Return (rows written a second, the slowest epoch in ms); an epoch includes its lookup.
    """
    rng = np.random.default_rng(3)
    times = []
    for epoch in range(EPOCHS):
        some = replace(shape, rows=1_000, batch_rows=1_000, seed=shape.seed + 1 + epoch)
        _, apply_ms = _load(store, some)
        started = time.perf_counter()
        lookup(rng.integers(0, shape.keys, 1_000))
        times.append(apply_ms + 1e3 * (time.perf_counter() - started))
    return 1e6 * EPOCHS / sum(times), max(times)


def _warm_up() -> None:
    """Touch what the first use loads."""
    with TemporaryDirectory() as path:
        store = RocksStore(Path(path) / "state", 1 << 20, replace(Tuning(), memory_rows=1_000))
        _load(store, Shape(20_000, 500, keys=4_000))
        store.arrange(SPEC).lookup([Column(np.arange(100))])
        store.close()


def measure_entries(shape: Shape, budget: int, folder: str | None) -> list[Result]:
    """Return one RocksDB entry a row, key hash and row number as its key, as written and
    compacted."""
    with TemporaryDirectory(prefix="tidemark-cold-", dir=folder) as path:
        db = Rdict(path, _entry_options(budget))
        spent = worst = 0.0
        for ids, keys, text in batches(shape):
            hashes = hash_columns([Column(keys)], len(keys))
            order = np.argsort(hashes)
            stored = np.stack([hashes, ids.astype(np.uint64)], 1)[order].astype(">u8").tobytes()
            started = time.perf_counter()
            batch = WriteBatch(raw_mode=True)
            for at, row in enumerate(order.tolist()):
                value = text[TEXT_BYTES * row : TEXT_BYTES * (row + 1)].tobytes()
                batch.put(stored[16 * at : 16 * at + 16], value)
            db.write(batch)
            took = time.perf_counter() - started
            spent += took
            worst = max(worst, took)
        db.flush()
        results = []
        for design in ("an entry a row, as written", "an entry a row, compacted"):
            if results:
                db.compact_range(None, None)
            size = sum(file["size"] for file in db.live_files()) / 2**20
            probes = probe_all(_seek_all(db), lambda: 0, shape.keys)
            rows_s = shape.rows / spent
            figures = size, budget / 2**20, [], rows_s, 1e3 * worst, probes
            results.append(_done(Result(design, *figures, peak_rss_mb())))
        db.close()
    return results


def _entry_options(budget: int) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(64 << 20)
    options.set_max_background_jobs(2)
    options.set_use_direct_reads(True)
    options.set_compression_type(DBCompressionType.none())
    options.set_prefix_extractor(SliceTransform.create_fixed_prefix(8))
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(budget))
    blocks.set_bloom_filter(10, False)
    blocks.set_block_size(4096)
    options.set_block_based_table_factory(blocks)
    return options


def _seek_all(db: Rdict) -> Callable[[np.ndarray], int]:
    def lookup(keys: np.ndarray) -> int:
        hashes = np.sort(hash_columns([Column(keys)], len(keys))).astype(">u8").tobytes()
        options = ReadOptions()
        options.set_prefix_same_as_start(True)
        cursor = db.iter(options)
        found = 0
        for at in range(0, len(hashes), 8):
            prefix = hashes[at : at + 8]
            cursor.seek(prefix)
            while cursor.valid() and cursor.key().startswith(prefix):
                cursor.value()
                found += 1
                cursor.next()
        return found

    return lookup


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
