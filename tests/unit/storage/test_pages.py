"""Oracle: a page read back is the page sealed, any other bytes are refused; the cache keeps
within its budget; hashes in pages are those of `storage.delta`."""

import random
import struct

import numpy as np
import pytest
import xxhash

from storage.delta import SEEDS, Column, Delta, hash_columns
from storage.errors import StorageError
from storage.layout import MAGIC, VERSION, Layout
from storage.merge_policy import EVERYTHING, choose_merge
from storage.page_cache import PageCache
from storage.page_reader import merged
from storage.pages import Tuning, cut, order_rows, seal_few, seal_whole, verify
from storage.rocks import RocksStore
from storage.store import ArrangementSpec
from storage.write_set import stored_keys
from tests.unit.storage.oracle import delta_of, random_row

KINDS = "isfb"


def delta(count, seed=0):
    rng = random.Random(seed)
    return Delta.of(KINDS, [random_row(rng, KINDS, 1 << 20) for _ in range(count)])


def sealed(layout, rows):
    image = layout.image(rows.columns, rows.weights.reshape(1, -1))
    return seal_whole(layout, order_rows(layout, image)), image


@pytest.mark.parametrize("key", [(0,), (2, 1), ()])
def test_hashes_are_those_of_the_columns(key):
    rows = delta(200)
    layout = Layout(KINDS, key, 1)
    image = layout.image(rows.columns, rows.weights.reshape(1, -1))
    records = layout.records_of(image)
    keys = hash_columns([rows.columns[c] for c in key], 200)
    assert (layout.hashes_of(image) == keys).all()
    assert (records[:, 0] == hash_columns(rows.columns, 200, SEEDS[0])).all()
    assert (records[:, 1] == hash_columns(rows.columns, 200, SEEDS[1])).all()


@pytest.mark.parametrize("key", [(0,), (2, 1), ()])
@pytest.mark.parametrize("width", [1, 3])
def test_one_or_two_rows_are_sealed_as_any_others(key, width):
    """Whichever comes first, of one key or not, equal or without a value left."""
    layout, rng, few = Layout(KINDS, key, width), random.Random(7), 0
    for _ in range(600):
        rows = Delta.of(KINDS, [random_row(rng, KINDS, 3) for _ in range(rng.choice([1, 2]))])
        if len(rows) == 2 and rng.random() < 0.3:
            # Two rows of one key.
            same = np.array([0, 0])
            rows = Delta([*(c.take(same) for c in rows.columns[:3]), rows.columns[3]], rows.weights)
        values = np.array([[rng.choice([-1, 0, 1, 2]) for _ in rows.weights] for _ in range(width)])
        # What is selected lies in the image.
        image = layout.image(rows.columns, values)
        whole = order_rows(layout, image)
        page = seal_few(layout, layout.image(rows.columns, values))
        if page is None:
            assert len(whole.hits) < len(rows)
            continue
        few += 1
        expected = verify(seal_whole(layout, whole).sealed, layout, "whole")
        found = verify(page.sealed, layout, "few")
        assert (found.rows, found.first) == (expected.rows, expected.first)
        left, right = (merged(layout, [[p.address]], EVERYTHING) for p in (found, expected))
        del image
        assert (left.totals == right.totals).all()
        for a, b in zip(layout.columns(left.hits), layout.columns(right.hits), strict=True):
            assert a.to_list() == b.to_list()
    assert few > 100


def test_order_and_cut():
    rows = Delta.concat([delta(300, 1), delta(300, 1), delta(50, 2).negate()])
    layout = Layout(KINDS, (0,), 1)
    image = layout.image(rows.columns, rows.weights.reshape(1, -1))
    selection = order_rows(layout, image)
    assert len(selection.hits) == len(rows.consolidate())
    limits = Tuning(page_rows=64, page_heap_bytes=500)
    pages = list(cut(layout, selection, limits))
    assert sum(page.rows for page in pages) == len(selection.hits)
    hashes = []
    for page in pages:
        assert page.rows <= 64
        image = np.frombuffer(page.sealed, np.uint64)
        heap_bytes = len(page.sealed) - 32 - layout.row_bytes * page.rows
        assert heap_bytes <= 507 or page.rows == 1
        rows = layout.records_of(image)[:, :2].tolist()
        hashes += zip(layout.hashes_of(image).tolist(), map(tuple, rows), strict=True)
    assert hashes == sorted(set(hashes))


def test_a_changed_page_is_refused():
    layout = Layout(KINDS, (0,), 1)
    page, _ = sealed(layout, delta(40))
    assert verify(page.sealed, layout, "here").rows == 40
    for at in (8, 16, 24, 100, len(page.sealed) - 9):
        changed = bytearray(page.sealed)
        changed[at] ^= 1
        with pytest.raises(StorageError, match=r"state\.corrupt.*here"):
            verify(bytes(changed), layout, "here")
    for short in (None, b"", page.sealed[:24], page.sealed[:-8], page.sealed[:-1]):
        with pytest.raises(StorageError, match=r"state\.corrupt"):
            verify(short, layout, "here")
    with pytest.raises(StorageError, match=r"state\.mismatch"):
        verify(page.sealed, Layout(KINDS, (1,), 1), "here")
    later = struct.pack("<Q", MAGIC | VERSION + 1) + page.sealed[8:]
    with pytest.raises(StorageError, match=r"state\.version"):
        verify(later, layout, "here")
    assert xxhash.xxh3_64_intdigest(page.sealed[16:]) == struct.unpack_from("<Q", page.sealed, 8)[0]


def test_a_corrupt_page_on_disk_is_noticed_by_lookup_and_scan(tmp_path):
    spec = ArrangementSpec("a", "i", (0,))
    tuning = Tuning(page_rows=32, memory_rows=10)
    store = RocksStore(tmp_path, tuning=tuning)
    store.arrange(spec).apply(delta_of("i", [((n,), 1) for n in range(200)]))
    store.commit()
    key = stored_keys(store._db, b"p", b"q")[2]
    page = bytearray(store._db[key])
    page[-1] ^= 255
    store._db[key] = bytes(page)
    store.close()
    store = RocksStore(tmp_path, tuning=tuning)
    arrangement = store.arrange(spec)
    with pytest.raises(StorageError, match=r'state\.corrupt.*"a"'):
        list(arrangement.scan())
    with pytest.raises(StorageError, match=r'state\.corrupt.*"a"'):
        arrangement.lookup([Column.of("i", range(200))])
    store.close()


@pytest.mark.parametrize("budget", [0, 20_000, 200_000])
def test_the_cache_keeps_its_budget(tmp_path, budget):
    tuning = Tuning(page_rows=64, memory_rows=300, fan=2, merge_pages=2)
    store = RocksStore(tmp_path, cache_bytes=budget, tuning=tuning)
    arrangement = store.arrange(ArrangementSpec("a", "is", (0,)))
    rng = random.Random(1)
    merged = 0
    for at in range(40):
        arrangement.apply(delta_of("is", [((at * 200 + n, b"x" * 20), 1) for n in range(200)]))
        runs = arrangement.runs
        held = sum(len(b) for run in runs._table.runs for b in run.buffers if b is not None)
        held += sum(len(group) for run in runs._table.runs for group in run.groups)
        assert held == store.cache.used_bytes - store.cache.reserved_bytes
        assert store.cache.used_bytes <= budget
        keys = [rng.randrange(at * 200 + 200) for _ in range(600)]
        index, rows = arrangement.lookup([Column.of("i", keys)])
        assert sorted(index.tolist()) == list(range(600))
        assert rows.columns[0].values.tolist() == [keys[at] for at in index.tolist()]
        assert store.cache.used_bytes <= budget
        store.commit()
        merged += len(runs.run_rows()) < at // 2
    assert merged > 20
    assert len(store.cache._entries) <= 2 * sum(len(r.first) for r in runs._table.runs) + 200
    store.close()


def test_stores_share_a_cache_and_give_it_back(tmp_path):
    tuning = Tuning(page_rows=64, memory_rows=300, file_rows=100, fan=2, merge_pages=1, fuel=1)
    cache = PageCache(0)
    cache.resize(300_000)
    stores = [RocksStore(tmp_path / str(at), cache, tuning) for at in range(2)]
    arranged = [store.arrange(ArrangementSpec("a", "is", (0,))) for store in stores]
    for at in range(15):
        for number, arrangement in enumerate(arranged):
            rows = [((at * 400 + n, b"%d" % number * 20), 1) for n in range(400)]
            arrangement.apply(delta_of("is", rows))
            stores[number].commit()
        assert cache.used_bytes <= 300_000
    is_merging = any(a.runs._merging is not None for a in arranged)
    assert is_merging and cache.used_bytes > 200_000, "the test was to fill the cache"
    for number, arrangement in enumerate(arranged):
        _, rows = arrangement.lookup([Column.of("i", list(range(6000)))])
        assert {text for (_, text), _ in rows.rows()} == {b"%d" % number * 20}
        assert len(rows) == 6000
    stores[0].close()
    held = sum(len(b) for run in arranged[1].runs._table.runs for b in run.buffers if b is not None)
    assert held <= cache.used_bytes - cache.reserved_bytes < held + 20_000
    cache.resize(-299_000)
    assert cache.used_bytes <= max(1000, cache.filter_bytes + cache.reserved_bytes)
    stores[1].close()
    assert cache.used_bytes == cache.reserved_bytes == cache.filter_bytes == 0


def test_merges_keep_runs_few_and_steps_bounded(tmp_path):
    """Sizes alone: with 50,000 rows in, runs stay logarithmic and the choice is neighbours only."""
    sizes: list[int] = []
    most = 0
    for _ in range(2000):
        sizes.append(16)
        chosen = choose_merge(sizes, 4)
        if chosen:
            start, stop = chosen
            assert stop - start >= 4
            sizes[start:stop] = [sum(sizes[start:stop])]
        most = max(most, len(sizes))
    assert most <= 20
    assert sum(sizes) == 32_000
