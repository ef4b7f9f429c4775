"""Oracle: `apply` of the same rows; a bulk load must leave the same state behind."""

import pickle
import random
from collections import Counter

import numpy as np
import pytest

from storage.bulk import BulkWriter, partition_of, partition_rows, read_file
from storage.delta import Column, Delta, hash_columns
from storage.errors import NegativeWeightError, StorageError
from storage.memory import MemoryStore
from storage.pages import Tuning
from storage.rocks import RocksStore
from storage.store import ArrangementSpec, SumsSpec
from tests.unit.storage.oracle import (
    check_lookup,
    check_scan,
    check_sums,
    columns_of,
    delta_of,
    key_of,
    random_delta,
    random_row,
)

KINDS = "isfb"
TUNING = Tuning(page_rows=16, memory_rows=50, fan=3, merge_pages=2)
PARTITIONS = 5


def write_rows(spec, kept, directory, partitions=PARTITIONS):
    """Files of all partitions; each partition gets its rows in two deltas, with a detour."""
    rows = list(kept)
    columns = [columns_of(spec.kinds, rows)[at] for at in spec.key]
    owners = partition_rows(columns, len(rows), partitions).tolist()
    files = []
    for partition in range(partitions):
        writer = BulkWriter(spec, partition, partitions, str(directory / f"{partition}.sst"))
        own = [(row, kept[row]) for row, at in zip(rows, owners, strict=True) if at == partition]
        writer.add(delta_of(spec.kinds, [(row, weight + 1) for row, weight in own]))
        writer.add(delta_of(spec.kinds, [(row, -1) for row, _ in own]))
        files.append(pickle.loads(pickle.dumps(writer.finish())))
    return files


@pytest.mark.parametrize("key", [(0,), (1, 3), ()])
@pytest.mark.parametrize("tuning", [None, TUNING])
def test_bulk_load_equals_apply(tmp_path, key, tuning):
    rng = random.Random(3)
    spec = pickle.loads(pickle.dumps(ArrangementSpec("view/join/right", KINDS, key)))
    kept = Counter({random_row(rng, KINDS, 300): rng.randint(1, 3) for _ in range(3000)})
    files = write_rows(spec, kept, tmp_path)
    assert sum(file.rows for file in files) == len(kept)
    copy = MemoryStore()
    copy.arrange(spec)
    copy.ingest([file for file in files if file.pages])
    check_scan(copy.arrange(spec), kept)
    store = RocksStore(tmp_path / "state", cache_bytes=30_000, tuning=tuning)
    arrangement = store.arrange(spec)
    store.ingest(files)
    for _ in range(2):
        for _ in range(10):
            changes = random_delta(rng, KINDS, kept, 40)
            arrangement.apply(delta_of(KINDS, changes))
            keys = [key_of(row, key) for row, _ in changes[:5]]
            check_lookup(arrangement, kept, keys if key else [()])
        check_scan(arrangement, kept)
        assert abs(arrangement.row_count() - len(kept)) < 40
        store.commit()
        store.close()
        store = RocksStore(tmp_path / "state", cache_bytes=30_000, tuning=tuning)
        arrangement = store.arrange(spec)
        check_scan(arrangement, kept)
    store.close()


@pytest.mark.parametrize("cache_bytes", [1 << 24, 20_000])
def test_a_state_is_written_as_a_file_of_its_rows(tmp_path, cache_bytes):
    """From several runs, in memory and on disk; of an empty state there is no file."""
    rng = random.Random(7)
    rows, sums = ArrangementSpec("a", KINDS, (1,)), SumsSpec("b", "is", 2)
    store = RocksStore(tmp_path / "from", cache_bytes, TUNING)
    arrangement, added = store.arrange(rows), store.arrange_sums(sums)
    kept: Counter = Counter()
    totals: dict = {}
    for _ in range(30):
        arrangement.apply(delta_of(KINDS, random_delta(rng, KINDS, kept, 40)))
        keys = sorted({(rng.randrange(200), b"%d" % rng.randrange(3)) for _ in range(40)})
        values = np.array([[rng.randint(-2, 2) for _ in keys] for _ in range(2)], np.int64)
        added.add(columns_of("is", keys), values)
        for key, value in zip(keys, values.T.tolist(), strict=True):
            totals[key] = [a + b for a, b in zip(totals.get(key, [0, 0]), value, strict=True)]
        store.commit()
    assert len(arrangement.runs.run_rows()) > 1
    empty = ArrangementSpec("c", "i", (0,))
    store.arrange(empty)
    files = [
        store.write_file(spec, str(tmp_path / f"{at}.sst"))
        for at, spec in enumerate((rows, sums, empty))
    ]
    assert [file.rows for file in files] == [len(kept), sum(map(any, totals.values())), 0]
    store.close()
    other = RocksStore(tmp_path / "to", cache_bytes, TUNING)
    other.arrange(rows), other.arrange_sums(sums), other.arrange(empty)
    other.ingest(files)
    check_scan(other.arrange(rows), kept)
    found = other.arrange_sums(sums).lookup(columns_of("is", list(totals)))
    assert found.T.tolist() == list(totals.values())
    other.close()


@pytest.mark.parametrize("cache_bytes", [1 << 24, 40_000])
def test_what_was_ingested_is_brought_into_memory(tmp_path, cache_bytes):
    """By commits as large as what they bring, and as far as there is space: nothing that a search
    has read leaves for it."""
    specs = [ArrangementSpec(f"{n}/left", KINDS, (0,)) for n in range(3)]
    scanned = ArrangementSpec("scanned", KINDS, (0,), is_searched=False)
    rng = random.Random(5)
    kept = Counter({random_row(rng, KINDS, 300): 1 for _ in range(3000)})
    store = RocksStore(tmp_path / "state", cache_bytes, Tuning(page_rows=16))
    files = []
    for number, spec in enumerate([*specs, scanned]):
        store.arrange(spec)
        folder = tmp_path / f"files{number}"
        folder.mkdir()
        files += write_rows(spec, kept, folder)
    store.ingest(files)
    # The first is in use, the second goes while its pages are being read.
    arrangement = store.arrange(specs[0])
    check_lookup(arrangement, kept, [key_of(row, (0,)) for row in list(kept)[:20]])
    read = store.cache.pages_read
    assert read > 0 and store.warm(3)
    store.drop(specs[1].name)
    used = store.cache.used_bytes
    store.commit()
    assert store.cache.used_bytes == used
    other = store.arrange(ArrangementSpec("other", "ii", (0,), is_searched=False))
    other.apply(Delta.of("ii", [(n, n) for n in range(40)]))
    store.commit()
    assert store.cache.used_bytes > used or cache_bytes <= 40_000
    for _ in range(40):
        store.warm(64)
    assert not store.warm(1)
    assert store.cache.used_bytes <= cache_bytes
    check_lookup(arrangement, kept, [key_of(row, (0,)) for row in kept])
    assert (store.cache.pages_read == read) == (cache_bytes > 40_000)
    check_scan(store.arrange(specs[2]), kept)
    check_scan(store.arrange(scanned), kept)
    store.close()


def test_ingest_is_durable_without_a_commit(tmp_path):
    spec = ArrangementSpec("a", KINDS, (0,))
    rng = random.Random(4)
    kept = Counter({random_row(rng, KINDS, 50): 1 for _ in range(200)})
    store = RocksStore(tmp_path / "state")
    store.arrange(spec)
    store.put("epoch", b"1")
    store.ingest(write_rows(spec, kept, tmp_path))
    store.close()
    store = RocksStore(tmp_path / "state")
    check_scan(store.arrange(spec), kept)
    assert store.get("epoch") is None
    store.drop("a")
    with pytest.raises(StorageError, match=r"state\.mismatch.*open epoch"):
        store.arrange(spec)
        store.ingest(write_rows(spec, kept, tmp_path))
    store.commit()
    store.ingest(write_rows(spec, kept, tmp_path))
    check_scan(store.arrange(spec), kept)
    store.close()


def test_sums_bulk_load(tmp_path):
    spec = SumsSpec("sums", "s", 2)
    keys = [(b"%d" % n,) for n in range(500)] + [(None,)]
    sums = {key: np.array([n, -n], np.int64) for n, key in enumerate(keys, 1)}
    columns = columns_of("s", keys)
    vectors = np.array(list(sums.values()), np.int64).T
    owners = partition_rows(columns, len(keys), 3)
    files = []
    for partition in range(3):
        own = np.flatnonzero(owners == partition)
        writer = BulkWriter(spec, partition, 3, str(tmp_path / f"{partition}.sst"))
        writer.add_sums([columns[0].take(own)], vectors[:, own])
        files.append(writer.finish())
    assert sum(v.shape[1] for file in files for _, v in read_file(file, spec)) == len(keys)
    store = RocksStore(tmp_path / "state", tuning=TUNING)
    store.arrange_sums(spec)
    store.ingest(files)
    loaded = store.arrange_sums(spec)
    check_sums(loaded, sums, keys)
    loaded.add(columns, -vectors)
    check_sums(loaded, {}, keys[:3])
    store.close()


def test_partitions_are_ranges_of_the_key_hash():
    columns = [Column.of("i", range(10_000))]
    hashes = np.sort(hash_columns(columns, 10_000))
    owners = partition_of(hashes, 7)
    assert (np.diff(owners) >= 0).all()
    assert sorted(set(owners.tolist())) == list(range(7))
    assert np.bincount(partition_rows(columns, 10_000, 7)).min() > 1200
    assert partition_rows([], 3, 7).tolist() == [int(partition_rows([], 1, 7)[0])] * 3


def test_what_a_writer_refuses(tmp_path):
    spec = ArrangementSpec("a", "i", (0,))
    wrong = 1 - int(partition_rows([Column.of("i", [1])], 1, 2)[0])
    writer = BulkWriter(spec, wrong, 2, str(tmp_path / "wrong.sst"))
    writer.add(delta_of("i", [((1,), 1)]))
    with pytest.raises(StorageError, match=r"state\.mismatch"):
        writer.finish()
    writer = BulkWriter(spec, 0, 1, str(tmp_path / "negative.sst"))
    writer.add(delta_of("i", [((1,), -1)]))
    with pytest.raises(NegativeWeightError):
        writer.finish()


def test_what_ingest_refuses(tmp_path):
    spec = ArrangementSpec("a", "i", (0,))
    kept = Counter({(n,): 1 for n in range(50)})
    store = RocksStore(tmp_path / "state")
    files = write_rows(spec, kept, tmp_path, 1)
    with pytest.raises(StorageError, match=r"state\.mismatch.*unknown"):
        store.ingest(files)
    store.arrange(ArrangementSpec("a", "ii", (0,)))
    with pytest.raises(StorageError, match=r"state\.mismatch.*shape"):
        store.ingest(files)
    store.close()
    store = RocksStore(tmp_path / "state")
    arrangement = store.arrange(spec)
    arrangement.apply(delta_of("i", [((7,), 1)]))
    with pytest.raises(StorageError, match=r"state\.mismatch.*not empty"):
        store.ingest(write_rows(spec, kept, tmp_path, 1))
    check_scan(arrangement, Counter({(7,): 1}))
    store.close()
