"""Oracle: the contract in `storage.store`, clause by clause."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from storage import rocks
from storage.delta import Column, Delta
from storage.errors import NegativeWeightError, StorageError
from storage.memory import MemoryStore
from storage.pages import Tuning
from storage.rocks import RocksStore, StoreBudget
from storage.seal import Seal
from storage.store import ArrangementSpec, SumsSpec
from tests.unit.storage.oracle import check_scan, delta_of

SPEC = ArrangementSpec("v/join/left", "is", (0,))
SUMS = SumsSpec("v/agg/sums", "i", 2)


@pytest.fixture(params=["memory", "rocks"])
def store(request, tmp_path):
    made = MemoryStore() if request.param == "memory" else RocksStore(tmp_path / "state")
    yield made
    made.close()


def test_named_values(store):
    store.put("positions/a", b"1")
    store.put("positions/b", b"2")
    store.put("outbox/1", b"3")
    assert store.get("positions/a") == b"1"
    assert store.get("positions") is None
    store.commit()
    store.put("positions/a", None)
    store.put("positions/aé", b"")
    assert store.get("positions/a") is None
    assert list(store.items("positions/")) == [("positions/aé", b""), ("positions/b", b"2")]
    store.put("positions/b", b"4")
    store.commit(sync=True)
    store.sync()
    assert [key for key, _ in store.items("")] == ["outbox/1", "positions/aé", "positions/b"]
    assert store.get("positions/b") == b"4"


def test_same_name_other_shape(store):
    arrangement = store.arrange(SPEC)
    arrangement.apply(delta_of("is", [((1, b"a"), 1)]))
    check_scan(store.arrange(SPEC), Counter({(1, b"a"): 1}))
    store.arrange_sums(SUMS)
    for wrong in (
        ("v/join/left", "is", (1,)),
        ("v/join/left", "ii", (0,)),
        ("v/agg/sums", "i", ()),
    ):
        with pytest.raises(StorageError) as caught:
            store.arrange(ArrangementSpec(*wrong))
        assert caught.value.code == "state.mismatch"
    with pytest.raises(StorageError, match=r"state\.mismatch"):
        store.arrange_sums(SumsSpec("v/agg/sums", "i", 3))


def test_drop_removes_by_prefix(store):
    for name in ("v/a", "v/b", "w/a"):
        store.arrange(ArrangementSpec(name, "i", (0,))).apply(delta_of("i", [((1,), 1)]))
    store.commit()
    store.drop("v/")
    again = store.arrange(ArrangementSpec("v/a", "s", ()))
    check_scan(again, Counter())
    again.apply(delta_of("s", [((b"x",), 2)]))
    store.commit()
    check_scan(again, Counter({(b"x",): 2}))
    check_scan(store.arrange(ArrangementSpec("v/b", "i", (0,))), Counter())
    check_scan(store.arrange(ArrangementSpec("w/a", "i", (0,))), Counter({(1,): 1}))


def test_drop_of_arrangements_that_are_not_open(tmp_path):
    rows = [((n, b"x"), 1) for n in range(100)]
    store = RocksStore(tmp_path, tuning=Tuning(page_rows=8, memory_rows=30))
    store.arrange(SPEC).apply(delta_of("is", rows))
    store.arrange(SPEC).apply(delta_of("is", rows[:3]))
    store.commit()
    store.close()
    for is_committed in (False, True):
        store = RocksStore(tmp_path)
        store.drop("v")
        check_scan(store.arrange(SPEC), Counter())
        if is_committed:
            store.commit()
        store.close()
        store = RocksStore(tmp_path)
        assert sum(len(delta) for delta in store.arrange(SPEC).scan()) == 100 * (not is_committed)
        store.close()


def test_memory_refuses_a_negative_weight_at_once():
    arrangement = MemoryStore().arrange(SPEC)
    arrangement.apply(delta_of("is", [((1, b"a"), 2), ((2, None), 1)]))
    arrangement.apply(delta_of("is", [((1, b"a"), -2)]))
    with pytest.raises(NegativeWeightError, match=r'"v/join/left".*\(1, b\'a\'\) with weight -1'):
        arrangement.apply(delta_of("is", [((1, b"a"), -1)]))


@pytest.mark.parametrize("notice", ["lookup", "scan", "flush", "merge"])
def test_rocks_refuses_a_negative_weight(tmp_path, notice):
    tuning = Tuning(page_rows=8, memory_rows=50, fan=2, fuel=100)
    store = RocksStore(tmp_path, tuning=tuning)
    arrangement = store.arrange(SPEC)
    if notice == "merge":
        arrangement.apply(delta_of("is", [((n, b"y"), 1) for n in range(60)]))
    arrangement.apply(delta_of("is", [((1, b"a"), 2), ((2, None), 1)]))
    arrangement.apply(delta_of("is", [((1, b"a"), -3)]))
    with pytest.raises(NegativeWeightError, match=r"\(1, b'a'\) with weight -1") as caught:
        if notice == "lookup":
            arrangement.lookup([Column.of("i", [1])])
        elif notice == "scan":
            list(arrangement.scan())
        else:
            for n in range(3):
                rows = [((n * 60 + m, b"z"), 1) for m in range(60)]
                arrangement.apply(delta_of("is", rows))
    assert caught.value.code == "state.negative_weight"
    store.close()


def test_what_a_commit_finds_below_zero_is_reported_by_the_next_call(tmp_path):
    """A merge is nobody's step: the other arrangements' work is not lost with it."""
    store = RocksStore(tmp_path, budget=StoreBudget(run_bytes=0, ahead_bytes=0))
    spoilt, other = store.arrange(SPEC), store.arrange(replace(SPEC, name="v/other"))
    spoilt.apply(delta_of("is", [((1, b"a"), -1), ((2, b"b"), 1)]))
    other.apply(delta_of("is", [((1, b"a"), 1)]))
    store.commit()
    assert other.lookup([Column.of("i", [1])])[1].rows() == [((1, b"a"), 1)]
    with pytest.raises(NegativeWeightError, match=r"\(1, b'a'\) with weight -1"):
        spoilt.apply(delta_of("is", [((3, b"c"), 1)]))
    spoilt.clear()
    spoilt.apply(delta_of("is", [((3, b"c"), 1)]))
    store.close()


def test_damage_is_named_where_rocksdb_refuses_to_close_as_well(tmp_path, monkeypatch):
    class Damaged:
        def __init__(self, database):
            self._database = database

        def __getattr__(self, name):
            return getattr(self._database, name)

        def close(self):
            self._database.close()
            raise Exception("Corruption: block checksum mismatch")

    def found(*_):
        raise StorageError("state.corrupt", "commits", "restore")

    opened = rocks._open
    monkeypatch.setattr(rocks, "_open", lambda *given: Damaged(opened(*given)))
    monkeypatch.setattr(Seal, "check_commits", found)
    with pytest.raises(StorageError, match=r"state\.corrupt: commits"):
        RocksStore(tmp_path)
    monkeypatch.undo()
    RocksStore(tmp_path).close()


def test_one_service_at_a_time(tmp_path):
    store = RocksStore(tmp_path)
    with pytest.raises(StorageError, match=r"state\.locked"):
        RocksStore(tmp_path)
    code = f"from storage.rocks import RocksStore; RocksStore({str(tmp_path)!r})"
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert "state.locked" in other.stderr
    store.put("a", b"1")
    list(store.items(""))
    next(store.items(""))
    store.close()
    RocksStore(tmp_path).close()


@pytest.mark.parametrize("other", [b"tidemark 3", b"tidemark 999"])
def test_other_format_is_refused(tmp_path, other):
    store = RocksStore(tmp_path)
    store._db[b"f"] = other
    store.close()
    with pytest.raises(StorageError, match=rf"state\.version.*{other.decode()}.*tidemark 4"):
        RocksStore(tmp_path)


def test_deltas_that_share_buffers(store):
    """Slices and views of larger columns are taken as they are."""
    arrangement = store.arrange(SPEC)
    whole = Delta.of("is", [(n, b"v%d" % n if n % 3 else None) for n in range(100)])
    arrangement.apply(whole.slice(10, 20))
    arrangement.apply(whole.slice(90, 100))
    flipped = whole.take(np.arange(19, 14, -1)).negate()
    arrangement.apply(flipped)
    wanted = dict(whole.slice(10, 15).rows()) | dict(whole.slice(90, 100).rows())
    check_scan(arrangement, Counter(wanted))
