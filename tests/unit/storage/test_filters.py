"""Oracle: the keys that were put; and the count of pages read, for keys that were not."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tidemark_native.storage import filter_of, may_contain

from storage.bulk import BulkWriter, partition_rows
from storage.delta import Column, Delta, hash_columns
from storage.errors import StorageError
from storage.filters import decode_group, encode_group
from storage.layout import Layout
from storage.pages import Tuning, address_of, order_rows, seal_whole
from storage.rocks import RocksStore
from storage.runs import arrangement_range
from storage.store import ArrangementSpec
from storage.write_set import stored_keys

SPEC = ArrangementSpec("a", "ii", (0,))
TUNING = Tuning(page_rows=32, memory_rows=100, fan=4)
BUDGET_BYTES = 1 << 20
COUNT = 30_000


def delta(keys: range, copies: int = 1) -> Delta:
    """`copies` rows for each key."""
    return Delta.of("ii", [(key, copy) for key in keys for copy in range(copies)])


def hashes(keys: range) -> np.ndarray:
    """Their key hashes."""
    return hash_columns([Column.of("i", list(keys))], len(keys))


@pytest.mark.parametrize("copies", [1, 5])
def test_a_filter_denies_no_key_of_its_page_and_most_others(copies):
    layout = Layout("ii", (0,), 1)
    rows = delta(range(400), copies)
    image = layout.image(rows.columns, rows.weights.reshape(1, -1))
    page = seal_whole(layout, order_rows(layout, image))
    one = filter_of(page.address)
    assert len(one) - 1 == 400 * 12 // 64, "the size follows the keys, not the rows"
    assert all(may_contain(address_of(one), h) for h in hashes(range(400)))
    others = hashes(range(1000, 21_000))
    let_through = sum(may_contain(address_of(one), h) for h in others)
    assert let_through < 0.006 * len(others)


def test_a_group_of_filters_is_stored_as_one_value_and_checked():
    layout = Layout("ii", (0,), 1)
    filters = []
    for size in (1, 7, 300):
        rows = delta(range(size))
        image = layout.image(rows.columns, rows.weights.reshape(1, -1))
        filters.append(filter_of(seal_whole(layout, order_rows(layout, image)).address))
    stored = encode_group(filters)
    addresses = decode_group(stored, 3, "here")
    assert all(may_contain(addresses[2], h) for h in hashes(range(300)))
    assert sum(may_contain(addresses[1], h) for h in hashes(range(100, 300))) < 20
    changed = bytearray(stored)
    changed[-1] ^= 1
    for wrong in (bytes(changed), stored[:-8], b"", None):
        with pytest.raises(StorageError, match=r"state\.corrupt.*here"):
            decode_group(wrong, 3, "here")
    with pytest.raises(StorageError, match=r"state\.corrupt.*here"):
        decode_group(stored, 2, "here")


def filled(path, budget_bytes: int = BUDGET_BYTES) -> RocksStore:
    """A store with COUNT even keys in several runs, opened again so that no page is in memory."""
    store = RocksStore(path, budget_bytes, TUNING)
    keys = list(range(0, 2 * COUNT, 2))
    random.Random(1).shuffle(keys)
    for at in range(0, COUNT, 1000):
        store.arrange(SPEC).apply(Delta.of("ii", [(key, 0) for key in keys[at : at + 1000]]))
        store.commit()
    assert len(store.arrange(SPEC).runs.run_rows()) > 2
    store.close()
    return RocksStore(path, budget_bytes, TUNING)


def pages_read(store: RocksStore, keys: range) -> tuple[int, int]:
    """(pages that the lookup of these keys reads, rows found)."""
    arrangement = store.arrange(SPEC)
    before = store.cache.pages_read
    _, rows = arrangement.lookup([Column.of("i", list(keys))])
    return store.cache.pages_read - before, len(rows)


def test_absent_keys_cost_no_page_and_present_ones_about_one(tmp_path):
    store = filled(tmp_path)
    runs = len(store.arrange(SPEC).runs.run_rows())
    read, found = pages_read(store, range(1, 401, 2))
    assert found == 0 and read <= 0.05 * 200 * runs
    read, found = pages_read(store, range(0, 200, 2))
    assert found == 100 and read <= 100 + 0.05 * 100 * runs
    store.close()


def test_without_memory_for_filters_every_run_is_read(tmp_path):
    store = filled(tmp_path, 10_000)
    assert store.cache.filter_bytes == 0
    read, found = pages_read(store, range(1, 401, 2))
    assert found == 0 and read > 200
    assert store.cache.used_bytes <= 10_000
    store.close()


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_bulk_load_brings_its_filters(tmp_path, partitions):
    rows = delta(range(0, 2 * COUNT, 2), 2)
    owners = partition_rows(rows.columns[:1], len(rows), partitions)
    files = []
    for partition in range(partitions):
        path = str(tmp_path / f"{partition}.sst")
        writer = BulkWriter(SPEC, partition, partitions, path, TUNING)
        writer.add(rows.take(np.flatnonzero(owners == partition)))
        files.append(writer.finish())
    store = RocksStore(tmp_path / "state", BUDGET_BYTES, TUNING)
    store.arrange(SPEC)
    store.ingest(files)
    for _ in range(2):
        read, found = pages_read(store, range(1, 401, 2))
        assert found == 0 and read <= 10
        read, found = pages_read(store, range(0, 200, 2))
        assert found == 200 and read <= 130
        store.close()
        store = RocksStore(tmp_path / "state", BUDGET_BYTES, TUNING)
    store.drop("a")
    store.commit()
    assert stored_keys(store._db, b"p", b"q") == []
    store.close()


def test_a_changed_filter_is_refused_on_open(tmp_path):
    store = filled(tmp_path)
    start, stop = arrangement_range(b"p", store.arrange(SPEC).runs.identity)
    key = next(key for key in stored_keys(store._db, start, stop) if key.endswith(b"f"))
    stored = bytearray(store._db[key] or b"")
    stored[20] ^= 1
    store._db[key] = bytes(stored)
    store.close()
    store = RocksStore(tmp_path, BUDGET_BYTES, TUNING)
    with pytest.raises(StorageError, match=r"state\.corrupt.*filter of run"):
        store.arrange(SPEC)
    store.close()
