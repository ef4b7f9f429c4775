"""Oracle: rows counted by hand, and the rows of a join as a plain loop finds them.

Which keys are spread, where their rows go, and what the driver makes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import orjson
import pytest

from connectors.spark.maintained import files, skew, tasks
from connectors.spark.maintained.bases import rows_of
from connectors.spark.maintained.bucket_state import BucketState
from connectors.spark.maintained.driver import Batch, Driver, Limits
from connectors.spark.maintained.files import EpochInput, Manifest
from connectors.spark.maintained.layout import Layout, MaintainedView
from connectors.spark.maintained.output import CommittedEpoch
from connectors.spark.maintained.scheduler import InProcessScheduler
from connectors.spark.maintained.skew import HEAVY_ROWS, KeyCounts, KeyReport
from connectors.spark.maintained.tasks import STATES
from connectors.spark.routing import JoinRouting
from dataflow.delta import Column, Delta
from dataflow.errors import InvariantError, TidemarkError
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import ColumnRef
from dataflow.operators.joins.spreading import padded_sides, spread_sides
from dataflow.plan.nodes import Join, Plan, Scan, SemiJoin
from dataflow.schema import Field, Relation, RelationName
from dataflow.sql.lower.lowering import lower
from dataflow.types import INT8
from storage.delta import hash_columns
from storage.rocks import RocksStore
from tests.harness.buckets import MemoryStorage, TableSink, memory_folder

ORDER_FIELDS = (Field("id", INT8, False), Field("customer", INT8))
CUSTOMER_FIELDS = (Field("id", INT8, False), Field("region", INT8))
ORDERS = Relation(RelationName("s", "public", "orders"), 1, ORDER_FIELDS, (0,))
CUSTOMERS = Relation(RelationName("s", "public", "customers"), 2, CUSTOMER_FIELDS, (0,))
BUCKETS, LEAST = 4, 200
LEFT, RIGHT = 0, 1


def joined(kind: str = "inner") -> Plan:
    """Orders with their customers."""
    orders, customers = Scan(ORDERS, (0, 1), ORDER_FIELDS), Scan(CUSTOMERS, (0, 1), CUSTOMER_FIELDS)
    keys = (ColumnRef(1, INT8),), (ColumnRef(0, INT8),)
    if kind in ("semi", "anti", "not in"):
        return SemiJoin(kind, orders, customers, *keys, None)
    return Join(kind, orders, customers, *keys, None, ORDER_FIELDS + CUSTOMER_FIELDS)


def view(kind: str = "inner") -> MaintainedView:
    """The join as a view."""
    columns = {ORDERS.name: (0, 1), CUSTOMERS.name: (0, 1)}
    nodes = lower(joined(kind))
    return MaintainedView("skew", nodes, "v1", (ORDERS, CUSTOMERS), columns, NoEvaluator)


def rows(*columns: object, weight: int = 1) -> Delta:
    """Rows of whole columns, each an array or one value of all."""
    arrays = np.broadcast_arrays(*(np.asarray(c, np.int64) for c in columns))
    n = len(arrays[0])
    return Delta([Column(a.copy()) for a in arrays], np.full(n, weight, np.int64))


def hash_of(customer: int) -> int:
    """The hash of a key."""
    return int(hash_columns([Column(np.array([customer], np.int64))], 1)[0])


def stage_of_join(layout: Layout) -> int:
    """The number of the stage of the join."""
    (number,) = (s.number for level in layout.levels for s in level if s.routing is not None)
    return number


# --- where rows go --------------------------------------------------------------------------------


def test_rows_of_a_spread_key_go_by_row_and_those_it_meets_everywhere() -> None:
    routing = JoinRouting((LEFT,), [(LEFT, hash_of(7))])
    spread, other = rows(np.arange(4000), 7), rows(np.arange(4000), 8)
    found = dict(routing.positions(spread.columns, (1,), 4000, BUCKETS, LEFT))
    assert sorted(np.concatenate(list(found.values())).tolist()) == list(range(4000))
    assert min(map(len, found.values())) > 800, "all buckets have about as many"
    again = dict(routing.positions(spread.take(found[2]).columns, (1,), len(found[2]), 4, LEFT))
    assert list(again) == [2], "a retraction goes where its row went"
    assert len(dict(routing.positions(other.columns, (1,), 4000, BUCKETS, LEFT))) == 1
    copied = dict(routing.positions(spread.columns, (1,), 4000, BUCKETS, RIGHT))
    assert [len(at) for at in copied.values()] == [4000] * BUCKETS
    once = [
        routing.counted_once(np.full(5, hash_of(7), np.uint64), RIGHT, BUCKETS, b).all()
        for b in range(BUCKETS)
    ]
    assert sum(once) == 1, "of all copies one counts"


def test_rows_with_a_null_key_go_by_row_or_nowhere() -> None:
    n = 4000
    key = Column(np.zeros(n, np.int64), valid=np.arange(n) % 4 == 0)
    columns = [Column(np.arange(n)), key]
    routing = JoinRouting((LEFT,), [(LEFT, int(hash_columns([key], n)[1]))])
    padded = dict(routing.positions(columns, (1,), n, BUCKETS, LEFT))
    assert sorted(np.concatenate(list(padded.values())).tolist()) == list(range(n))
    assert min(map(len, padded.values())) > 600
    dropped = np.concatenate([at for _, at in routing.positions(columns, (1,), n, BUCKETS, RIGHT)])
    assert sorted(dropped.tolist()) == list(range(0, n, 4))


def test_which_inputs_may_be_spread() -> None:
    found = {}
    for kind in ("inner", "left", "right", "full", "semi", "anti", "not in"):
        found[kind] = spread_sides(joined(kind)), padded_sides(joined(kind))
    assert found == {
        "inner": ((0, 1), ()),
        "left": ((0,), (0,)),
        "right": ((1,), (1,)),
        "full": ((), (0, 1)),
        "semi": ((0,), ()),
        "anti": ((0,), (0,)),
        "not in": ((), None),
    }
    number = stage_of_join(Layout(view("left"), BUCKETS))
    Layout(view("left"), BUCKETS, ((number, LEFT, 1),))
    for wrong in ((number, RIGHT, 1), (0, LEFT, 1), (99, LEFT, 1)):
        with pytest.raises(InvariantError, match=r"spark\.exchange"):
            Layout(view("left"), BUCKETS, (wrong,))


# --- the rule -------------------------------------------------------------------------------------


def decided(
    layout: Layout, left: int, right: int, keys: dict[int, tuple[int, int]], least: int = LEAST
) -> set[tuple[int, int]]:
    """(input, key) of what is spread after one report."""
    counts = KeyCounts(least)
    counts.add([KeyReport(stage_of_join(layout), (left, right), keys)])
    return {(side, hash) for _, side, hash in counts.spread(layout)}


def test_a_key_is_spread_that_has_as_many_rows_as_a_bucket() -> None:
    layout = Layout(view(), BUCKETS)
    assert decided(layout, 900, 100, {1: (250, 0), 2: (249, 0)}) == {(LEFT, 1)}
    assert decided(layout, 100, 900, {1: (0, 250)}) == {(RIGHT, 1)}
    assert decided(layout, 100, 99, {1: (100, 0)}) == set(), "too few rows to say"
    assert decided(layout, 900, 100, {1: (400, 100)}) == {(LEFT, 1)}
    assert decided(layout, 900, 101, {1: (400, 101)}) == set(), "its copies are as much work"
    assert decided(Layout(view(), 1), 900, 100, {1: (900, 0)}) == set()
    only_left = Layout(view("left"), BUCKETS)
    assert decided(only_left, 500, 500, {1: (0, 500)}) == set()
    assert decided(only_left, 500, 500, {1: (500, 0)}) == {(LEFT, 1)}


def test_a_spread_key_stays_and_a_rare_one_makes_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skew, "MAX_KEYS", 2)
    number = stage_of_join(Layout(view(), BUCKETS))
    spread = ((number, LEFT, 1), (number, LEFT, 2))
    layout = Layout(view(), BUCKETS, spread)

    def after(keys: dict[int, tuple[int, int]]) -> list[int]:
        counts = KeyCounts(LEAST)
        counts.add([KeyReport(number, (1000, 0), keys)])
        return [hash for _, _, hash in counts.spread(layout)]

    assert after({}) == [1, 2], "what is rare is not gathered for its own sake"
    assert after({3: (300, 0), 1: (100, 0), 2: (31, 0)}) == [1, 3]
    assert after({3: (300, 0), 1: (100, 0), 2: (32, 0)}) == [1, 2], "all are still in use"
    assert after({3: (300, 0), 4: (400, 0), 1: (1, 0)}) == [3, 4]
    assert after({3: (300, 0), 4: (400, 0), 1: (100, 0)}) == [1, 4], "the largest one first"
    assert after({1: (0, 900)}) == [1, 2], "nor spread the other way"


def test_older_rows_count_less() -> None:
    layout = Layout(view(), BUCKETS)
    number, counts = stage_of_join(layout), KeyCounts(LEAST)
    counts.add([KeyReport(number, (1_000_000, 0), {})])
    assert counts.spread(layout) == ()
    reports = 0
    while not counts.spread(layout):
        counts.add([KeyReport(number, (100, 0), {5: (100, 0)})])
        reports += 1
    assert 3 < reports < 10
    quiet = KeyCounts(LEAST)
    quiet.add([KeyReport(number, (1000, 0), {5: (500, 0)})])
    assert quiet.spread(layout) == quiet.spread(layout) == ((number, LEFT, 5),)


def test_counts_of_bounded_size_find_the_frequent_keys() -> None:
    draw = np.random.default_rng(3)
    counts = skew._Counts(64)
    total, hot = 0, np.uint64(2**63 + 5)
    for _ in range(50):
        hashes = draw.integers(0, 2**62, 1000).astype(np.uint64)
        hashes[:300] = hot
        counts.add(hashes, 1000)
        total += 300
        assert len(counts.hashes) <= 64
    found = int(counts.of(np.array([hot], np.uint64))[0])
    assert total - counts.rows / 64 <= found <= total
    assert counts.frequent().tolist() == [int(hot)]


def test_copied_rows_are_counted_once() -> None:
    """Over all buckets: 30 rows of the spread input, and 8 customers of which one is copied."""
    plain = Layout(view("left"), BUCKETS)
    layout = Layout(view("left"), BUCKETS, ((stage_of_join(plain), LEFT, hash_of(7)),))
    stage = layout.cut.stages[stage_of_join(layout)]
    assert stage.routing is not None
    given = {LEFT: rows(np.arange(30), 7), RIGHT: rows(np.arange(8), 1)}
    counts, reports = KeyCounts(1), []
    for bucket in range(BUCKETS):
        parts = {}
        for side, delta in given.items():
            at = dict(stage.routing.positions(delta.columns, (1 - side,), len(delta), 4, side))
            parts[side] = delta.take(at.get(bucket, np.zeros(0, np.int64)))
        report = skew.count_rows(layout, stage, bucket, [parts])
        assert report is not None
        reports.append(report)
    counts.add(reports)
    assert [sum(r.rows[side] for r in reports) for side in (LEFT, RIGHT)] == [30, 8]
    assert [sum(r.keys.get(hash_of(7), (0, 0))[s] for r in reports) for s in (0, 1)] == [30, 1]
    for plan in ("full", "not in"):
        other = Layout(view(plan), BUCKETS)
        for stages in other.levels:
            assert not any(skew.count_rows(other, stage, 0, [given]) for stage in stages)


# --- a view ---------------------------------------------------------------------------------------


class Shown(TableSink):
    """Notes which epochs have only moved state."""

    def __init__(self) -> None:
        super().__init__()
        self.moves: list[int] = []

    def apply(self, epoch: CommittedEpoch) -> None:
        """See EpochSink."""
        super().apply(epoch)
        if epoch.is_move:
            assert not len(epoch.rows)
            self.moves.append(epoch.epoch)


class Views:
    """Drivers of one view over one storage."""

    def __init__(self, folder: Path, name: str, kind: str = "inner") -> None:
        self.folder, self.view, self.sink = folder, view(kind), Shown()
        self.storage = MemoryStorage(f"skew-{name}")

    def driver(self, least: int = LEAST) -> Driver:
        """Another driver, over the same caches."""
        found = self.made(least)
        found.start()
        return found

    def made(self, least: int = LEAST) -> Driver:
        """A driver that has not started."""
        scheduler = InProcessScheduler(str(self.folder / "caches"), 2)
        limits = Limits(heavy_rows=least)
        return Driver(self.view, self.storage, scheduler, self.sink, buckets=BUCKETS, limits=limits)


@pytest.fixture
def folder() -> Iterator[Path]:
    with memory_folder() as found:
        yield found
    tasks._layout_of.cache_clear()


def batch(orders: Delta | None = None, customers: Delta | None = None) -> Batch:
    """What an epoch reads."""
    given = {ORDERS.name: orders, CUSTOMERS.name: customers}
    return Batch({}, rows={name: delta for name, delta in given.items() if delta is not None})


def rows_in_buckets(number: int, role: str) -> list[Counter]:
    """The rows of a state of the join in each bucket."""
    found: dict[int, Counter] = {}
    states: list[BucketState] = [s for ss in STATES._open.values() for s in ss.values()]
    for state in states:
        for spec, _ in state.specs.get(number, ()):
            if spec.name.endswith(f"/{role}"):
                held = found.setdefault(state.bucket, Counter())
                for columns, values in rows_of(state.store, spec):
                    held.update(dict(Delta(columns, values[0]).rows()))
    return [found.get(bucket, Counter()) for bucket in range(BUCKETS)]


def hot(count: int) -> Delta:
    """Orders of which half are of customer 7."""
    ids = np.arange(count)
    return rows(ids, np.where(ids % 2, 7, ids % 101))


def test_a_hot_key_is_spread_by_an_epoch_of_its_own(folder: Path) -> None:
    views = Views(folder, "hot")
    driver = views.driver()
    number = stage_of_join(driver.layout)
    customers = rows(np.arange(101), np.arange(101) % 5)
    driver.step(batch(hot(1000), customers))
    assert (driver.spread, views.sink.moves) == ((), [])
    before = rows_in_buckets(number, "left")
    assert max(map(len, before)) > 500
    driver.step(batch(rows(np.arange(1000, 1010), 7)))
    assert (driver.spread, views.sink.moves) == (((number, LEFT, hash_of(7)),), [2])
    assert sum(f.restored for f in driver.figures if f.level == 0) == 0, "they have not moved"
    after, copies = rows_in_buckets(number, "left"), rows_in_buckets(number, "right")
    assert sum(map(len, after)) == 1010 and max(map(len, after)) < 350
    assert [held[7, 2] for held in copies] == [1] * BUCKETS
    assert sum(map(len, copies)) == 101 + BUCKETS - 1
    # The customer changes: all its orders follow, from all buckets.
    driver.step(batch(None, Delta.concat([rows([7], [2], weight=-1), rows([7], [9])])))
    assert Counter(row[3] for row in views.sink.rows if row[1] == 7) == {9: 515}
    # Another driver goes on with it, and no key is spread or gathered for nothing.
    STATES.close()
    again = views.driver()
    for start in (1010, 1020):
        again.step(batch(rows(np.arange(start, start + 10), 7)))
    assert again.spread == driver.spread and views.sink.moves == [2]
    assert len(views.sink.rows) == 1030


def test_in_a_left_join_rows_with_a_null_key_are_in_all_buckets(folder: Path, monkeypatch) -> None:
    views, stepped = Views(folder, "null", "left"), Counter()
    counted = skew.count_rows

    def counting(layout, stage, bucket, slices):
        stepped[bucket] += sum(len(inputs.get(LEFT, ())) for inputs in slices)
        return counted(layout, stage, bucket, slices)

    monkeypatch.setattr("connectors.spark.maintained.bucket_state.count_rows", counting)
    driver = views.driver()
    n = 2000
    without = Column(np.zeros(n, np.int64), valid=np.zeros(n, np.bool_))
    orders = Delta([Column(np.arange(n)), without], np.ones(n, np.int64))
    driver.step(batch(orders, rows([1], [1])))
    assert len(views.sink.rows) == n and min(stepped[b] for b in range(BUCKETS)) > n // 8
    driver.step(batch(orders.negate()))
    assert len(views.sink.rows) == 0 and driver.spread == ()


def test_keys_are_spread_when_the_state_is_moved_in(folder: Path) -> None:
    views = Views(folder, "moved-in")
    first = Views(folder / "other", "moved-in-first")
    driver = first.driver(HEAVY_ROWS)
    driver.step(batch(hot(1000), rows(np.arange(101), 1)))
    (folder / "files").mkdir()
    store = RocksStore(folder / "one")
    exported = driver.export(folder / "files")
    for specs in driver.layout.specs.values():
        for spec, _ in specs:
            store.arrange(spec)
    store.ingest(exported)
    views.sink.rows, views.sink.epoch = first.sink.rows, 1
    moved = views.made()
    moved.start_moved(store, {}, folder / "local", epoch=1)
    store.close()
    number = stage_of_join(moved.layout)
    assert moved.spread == ((number, LEFT, hash_of(7)),)
    STATES.close()
    moved.step(batch(rows(np.arange(1000, 1004), 7)))
    assert max(map(len, rows_in_buckets(number, "left"))) < 350
    assert len(views.sink.rows) == 1004


def test_a_rival_s_epoch_is_run_before_a_key_is_spread(folder: Path) -> None:
    """The batch of an earlier position is then not used."""
    views = Views(folder, "rival")
    driver = views.driver()
    driver.step(batch(hot(1000), rows(np.arange(101), 1)))
    rival = Views(folder / "rival", "rival").driver(HEAVY_ROWS)
    rival._sink.epoch = 1  # type: ignore[attr-defined]
    given = {ORDERS.name: rows(np.arange(1000, 1100), 7)}
    rival._fixed(Batch({"at": 1}, rows=given))
    found = driver.step(Batch({"at": 2}, rows={ORDERS.name: rows([5000], [7])}))
    assert found == {"at": 1}
    assert len(driver.spread) == 1 and views.sink.moves == [3]
    assert len(views.sink.rows) == 1100
    driver.step(Batch({"at": 2}, rows={ORDERS.name: rows([5000], [7])}))
    assert len(views.sink.rows) == 1101


def test_documents_of_before_have_no_spread_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = EpochInput(3, "b", 4, {}), Manifest(3, "b", 1, 4, {})
    monkeypatch.setattr(
        files, "asdict", lambda d: {k: v for k, v in asdict(d).items() if k != "spread"}
    )
    monkeypatch.setattr(files, "_VERSION", 2)
    older = [document.encode() for document in documents]
    monkeypatch.undo()
    for document, content in zip(documents, older, strict=True):
        found, _ = type(document).decode(content)
        assert (found.epoch, found.spread) == (3, [])
    newer = Manifest(3, "b", 1, 4, {}, spread=((2, 0, 2**64 - 1),)).encode()
    assert Manifest.decode(newer)[0].spread == [[2, 0, 2**64 - 1]]
    monkeypatch.setattr(files, "_VERSION", 2)
    with pytest.raises(TidemarkError, match=r"spark\.damaged_file"):
        Manifest.decode(newer)


def test_reports_are_json() -> None:
    report = KeyReport(3, (10, 5), {2**64 - 1: (4, 0)})
    assert KeyReport.from_facts(orjson.loads(orjson.dumps(report.facts()))) == report
