"""Oracle: dictionaries of row to weight and of key to sums, for every store and every tuning."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.memory import MemoryStore
from storage.pages import Tuning
from storage.rocks import RocksStore, StoreBudget
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

TINY = Tuning(
    page_rows=4,
    page_heap_bytes=200,
    memory_rows=24,
    file_rows=64,
    fan=2,
    merge_pages=1,
    scan_pages=2,
)
SMALL = Tuning(page_rows=16, memory_rows=40, fan=3, fuel=4, merge_pages=2, scan_pages=3)
SHAPES = [
    ("i", (0,)),
    ("is", (0,)),
    ("sib", (0,)),
    ("ifbs", (3, 0)),
    ("fsb", ()),
    ("s", ()),
    ("isfb", (1, 2, 3)),
    ("i" * 70 + "s", (66, 70)),
]


class Stores:
    """Opens a store of one sort again and again on one directory."""

    def __init__(self, sort, path):
        self.sort = sort
        self.path = path
        self.store = None

    def open(self):
        if self.sort == "memory":
            self.store = self.store or MemoryStore()
            return self.store
        if self.store is not None:
            self.store.close()
        budget, tuning = {"tiny": (3000, TINY), "small": (60_000, SMALL), "rocks": (1 << 20, None)}[
            self.sort
        ]
        rest = StoreBudget(run_bytes=4000, ahead_bytes=1000) if self.sort == "tiny" else None
        self.store = RocksStore(self.path, cache_bytes=budget, tuning=tuning, budget=rest)
        return self.store

    def is_durable(self):
        return self.sort != "memory"


@pytest.fixture(params=["memory", "rocks", "small", "tiny"])
def stores(request, tmp_path):
    opened = Stores(request.param, tmp_path / "state")
    yield opened
    if opened.store is not None:
        opened.store.close()


@pytest.mark.parametrize(("kinds", "key"), SHAPES, ids=lambda shape: str(shape)[:12])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.whole)])
def test_arrangement_equals_dictionary(stores, kinds, key, seed):
    rng = random.Random(seed)
    spec = ArrangementSpec("scope/join/left", kinds, key)
    store = stores.open()
    arrangement = store.arrange(spec)
    kept = Counter()
    for epoch in range(20 if len(kinds) > 9 else 60):
        before = kept.copy()
        for _ in range(rng.randint(1, 3)):
            size = rng.choice([0, 1, 1, 2, 30, 90])
            if rng.random() < 0.04:
                arrangement.clear()
                kept.clear()
            arrangement.apply(delta_of(kinds, random_delta(rng, kinds, kept, size)))
            keys = [key_of(row, key) for row in rng.sample(list(kept), min(5, len(kept)))]
            keys += [key_of(random_row(rng, kinds, 12), key) for _ in range(3)]
            keys += keys[:2]
            check_lookup(arrangement, kept, keys[:1] if not key else keys, store.relieve)
        if epoch % 9 == 0:
            check_scan(arrangement, kept, store.relieve)
        if stores.is_durable() and epoch % 13 == 12:
            is_kept = rng.random() < 0.5
            if is_kept:
                store.commit()
            else:
                kept = before
            store = stores.open()
            arrangement = store.arrange(spec)
            check_scan(arrangement, kept)
        else:
            store.commit(sync=rng.random() < 0.2)
    for row in list(kept):
        arrangement.apply(delta_of(kinds, [(row, -kept.pop(row))]))
    check_scan(arrangement, kept)
    assert arrangement.row_count() <= 200


@pytest.mark.parametrize("key_kinds", ["i", "s", "fbs", ""])
@pytest.mark.parametrize("width", [1, 3])
def test_sums_equal_dictionary(stores, key_kinds, width):
    rng = random.Random(width)
    spec = SumsSpec("scope/aggregate/groups", key_kinds, width)
    store = stores.open()
    sums = store.arrange_sums(spec)
    kept = {}
    for epoch in range(80):
        keys = {random_row(rng, key_kinds, 40) for _ in range(rng.choice([1, 1, 5, 60]))}
        keys = sorted(keys, key=repr)
        vectors = np.array([[rng.randint(-2, 3) for _ in keys] for _ in range(width)])
        for at, key in enumerate(keys):
            if key in kept and epoch % 23 != 22 and rng.random() < 0.4:
                vectors[:, at] = -kept[key]
        if epoch % 23 == 22:
            sums.clear()
            kept = {}
        sums.add(columns_of(key_kinds, keys), vectors)
        for at, key in enumerate(keys):
            kept[key] = kept.get(key, 0) + vectors[:, at]
            if not kept[key].any():
                del kept[key]
        asked = [*keys[:4], *keys[:2], random_row(rng, key_kinds, 80)]
        check_sums(sums, kept, asked if key_kinds else asked[:1])
        store.commit()
        if stores.is_durable() and epoch % 17 == 16:
            store = stores.open()
            sums = store.arrange_sums(spec)
    assert sums.key_count() <= 4 * len(kept) + 10


def test_lookup_of_nothing_and_in_nothing(stores):
    store = stores.open()
    arrangement = store.arrange(ArrangementSpec("a", "is", (0,)))
    for count in (0, 3):
        index, rows = arrangement.lookup(columns_of("i", [(n,) for n in range(count)]))
        assert len(index) == 0
        assert rows.kinds == "is" and len(rows) == 0
    sums = store.arrange_sums(SumsSpec("s", "i", 2))
    assert sums.lookup(columns_of("i", [])).shape == (2, 0)
    assert list(arrangement.scan()) == [] and list(sums.scan()) == []
    arrangement.apply(delta_of("is", [((1, b"x"), 1), ((1, b"x"), -1)]))
    assert list(arrangement.scan()) == []


@pytest.mark.parametrize("key", [(0,), (1,), ()], ids=["one key", "keys", "no key"])
def test_rows_are_removed_while_they_are_scanned(stores, key):
    """Each chunk as soon as it has been yielded, in parts, while the store is relieved."""
    rng = random.Random(len(key))
    store = stores.open()
    arrangement, other = (store.arrange(ArrangementSpec(n, "iis", key)) for n in ("a", "b"))
    sums = store.arrange_sums(SumsSpec("s", "ii"[: len(key)], 1))
    kept, totals = Counter(), Counter()
    for _ in range(8):
        changes = [((7, rng.randrange(400), b"x"), rng.randint(1, 3)) for _ in range(120)]
        kept.update(dict(changes))
        totals.update(Counter(key_of(row, key) for row, _ in changes))
        for rows in (arrangement, other):
            rows.apply(delta_of("iis", list(dict(changes).items())))
    vectors = np.array([list(totals.values())], np.int64)
    sums.add(columns_of("ii"[: len(key)], list(totals)), vectors)
    if stores.is_durable():
        store.commit()
    scanned = []
    for delta in arrangement.scan():
        scanned += delta.rows()
        middle = len(delta) // 2
        for part in (delta.slice(0, middle), delta.slice(middle, len(delta))):
            arrangement.apply(part.negate())
            other.apply(part)
            store.relieve()
    assert len(scanned) == len(kept) and Counter(dict(scanned)) == kept
    assert list(arrangement.scan()) == []
    check_scan(other, Counter({row: 2 * weight for row, weight in kept.items()}))
    found = 0
    for columns, part in sums.scan():
        found += int(part.sum())
        sums.add(columns, -part)
        store.relieve()
    assert found == totals.total() and list(sums.scan()) == []


def test_many_rows_under_one_key(stores):
    """A key that spans many pages, in many runs, retracted bit by bit."""
    arrangement = stores.open().arrange(ArrangementSpec("hot", "ii", (0,)))
    kept = Counter()
    for start in range(0, 600, 50):
        changes = [((7, n), 1) for n in range(start, start + 50)]
        changes += [((7, n), -1) for n in range(max(start - 40, 0), start, 3) if (7, n) in kept]
        arrangement.apply(delta_of("ii", changes))
        kept.update(dict(changes))
        kept = Counter({row: weight for row, weight in kept.items() if weight})
        check_lookup(arrangement, kept, [(7,), (8,), (7,)])
    check_scan(arrangement, kept)


ROWS = st.tuples(
    st.one_of(st.none(), st.integers(-3, 3)),
    st.one_of(st.none(), st.binary(max_size=3)),
    st.one_of(st.none(), st.sampled_from([0.0, 1.5, float("inf")])),
    st.one_of(st.none(), st.booleans()),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.tuples(ROWS, st.integers(1, 2)), max_size=12), max_size=8), st.data())
def test_any_small_history(tmp_path_factory, batches, data):
    key = data.draw(st.sampled_from([(0,), (1,), (3, 2), ()]))
    spec = ArrangementSpec("any", "isfb", key)
    rocks = RocksStore(tmp_path_factory.mktemp("state"), cache_bytes=0, tuning=TINY)
    arrangements = [MemoryStore().arrange(spec), rocks.arrange(spec)]
    kept = Counter()
    for batch in batches:
        kept.update({})
        changes = list(batch)
        for row, weight in batch:
            kept[row] += weight
        for row in list(kept)[::2]:
            changes.append((row, -kept.pop(row)))
        for arrangement in arrangements:
            arrangement.apply(delta_of("isfb", changes))
        rocks.commit()
        asked = sorted({key_of(row, key) for row, _ in changes}, key=repr)
        for arrangement in arrangements:
            check_lookup(arrangement, kept, asked if key else [()])
            check_scan(arrangement, kept)
    rocks.close()


@pytest.mark.parametrize("is_last", [False, True])
def test_one_key_of_many_rows_comes_in_parts(stores, is_last):
    """Whatever part of them is on disk, in memory, or taken back; rows of keys around it stay."""
    store = stores.open()
    arrangement = store.arrange(ArrangementSpec("scope/join/right", "ii", (0,)))
    kept = Counter()
    asked = 10**6 if is_last else 5
    for start in range(0, 6000, 1500):
        rows = {(asked, n): 1 for n in range(start, start + 1500)}
        rows |= {(n, n): 1 for n in range(start, start + 50) if n != asked}
        rows |= {(asked, n): -1 for n in range(max(start - 200, 0), start)}
        arrangement.apply(delta_of("ii", list(rows.items())))
        kept.update(rows)
        store.commit()
    kept = +kept
    hot = sum(key == asked for key, _ in kept)
    for count in (1, 3):
        keys = columns_of("i", [(asked,)] * count + [(1,), (2,), (9**9,)])
        parts = []
        for index, rows in arrangement.lookup_parts(keys, 1000):
            parts += zip(index.tolist(), rows.rows(), strict=True)
            assert len(rows) <= 1000
            store.relieve()
        assert len(parts) == hot * count + 2
        wanted = {
            (n, row): weight
            for n in range(count)
            for row, weight in kept.items()
            if row[0] == asked
        }
        wanted |= {(count, (1, 1)): 1, (count + 1, (2, 2)): 1}
        assert {(n, row): weight for n, (row, weight) in parts} == wanted


@pytest.mark.parametrize("stores", ["rocks", "tiny"], indirect=True)
def test_two_that_ask_for_one_key_get_its_rows_together(stores):
    """The old and the new of a row meet the same rows: what reads the pairs sees both at once."""
    store = stores.open()
    arrangement = store.arrange(ArrangementSpec("scope/join/right", "ii", (0,)))
    arrangement.apply(delta_of("ii", [((key, n), 1) for key in range(40) for n in range(37)]))
    store.commit()
    for max_rows in (1, 50, 100, 300):
        asked = columns_of("i", [(key,) for key in range(40) for _ in range(2)])
        seen = Counter()
        for index, rows in arrangement.lookup_parts(asked, max_rows):
            pairs = Counter((at // 2, row) for at, (row, _) in zip(index, rows.rows(), strict=True))
            assert set(pairs.values()) == {2}
            seen.update(pairs)
        assert len(seen) == 40 * 37
