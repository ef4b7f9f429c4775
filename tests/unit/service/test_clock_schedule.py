"""Oracle: a view of now() must tick once it is in an engine, whatever was asked before.

The engines are the product's: one that steps views itself, and one whose view is in buckets, whose
tasks run in this process. The clock's machine is set by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.clock.source import RELATION, ClockFeed, ClockSource
from connectors.sink import SinkTable
from connectors.spark.maintained.scheduler import InProcessScheduler
from connectors.spark.maintained.tasks import STATES
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import ColumnRef
from dataflow.plan.nodes import Filter, Plan, Scan, ThresholdFilter, ViewPlan
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import BOOL, INT4, TIMESTAMPTZ
from service.engine.bucket_engine import BucketEngine
from service.engine.bucket_views import BucketParts, BucketViews
from service.engine.definition import View, ViewDefinition
from service.engine.engine import Engine
from service.engine.live_views import LiveViews
from service.ingest.clock_schedule import ClockSchedule
from storage.memory import MemoryStore
from storage.rocks import RocksStore
from storage.store import Store
from tests.harness.buckets import MemoryStorage
from tests.harness.moving_clock import SetMachine

SOURCE, CLOCK = "source", "clock"
SECOND_US = 1_000_000
FIELDS = (Field("id", INT4, False), Field("at", TIMESTAMPTZ), Field("is_good", BOOL))
EVENTS = Relation(RelationName(SOURCE, "public", "events"), 1, FIELDS, (0,))
AT = Field("at", TIMESTAMPTZ, False)
NOW = Relation(RelationName(CLOCK, CLOCK, RELATION), 0, (AT,), is_single=True)
ROWS = Scan(EVENTS, (0, 1, 2), FIELDS)
COMING = ThresholdFilter(ROWS, Scan(NOW, (0,), (AT,)), ColumnRef(1, TIMESTAMPTZ), ">")
# Its rows are others at each tick.
SHOWN = Scan(NOW, (0,), (AT,))
STANDING = Filter(ROWS, ColumnRef(2, BOOL))


def definition(name: str, root: Plan) -> ViewDefinition:
    table = SinkTable("public", name, root.fields, (0,))
    return ViewDefinition(name, table, name, ViewPlan(root, (0,)))


class Clocked:
    """An engine, a clock's feed, and what tells it when to tick."""

    def __init__(self, store: Store, engine: Engine) -> None:
        self.store, self.engine = store, engine
        engine.positions.begin(SOURCE, 0)
        self.machine = SetMachine(1_800_000_000 * SECOND_US)
        source = ClockSource(CLOCK, 1.0, [NOW], self.machine)
        positions = {RELATION: source.start_position(NOW).position}
        self.feed: ClockFeed = source.open_feed([NOW], positions, {}, lambda: None)
        self._schedule = ClockSchedule(engine)

    def ticks(self) -> bool:
        """Whether the clock moves now that some seconds have passed."""
        self._schedule.plan(CLOCK, self.feed)
        self.machine.us += 5 * SECOND_US
        self._schedule.plan(CLOCK, self.feed)
        return self.feed.poll(1) is not None

    def join(self, name: str, root: Plan) -> ViewDefinition:
        """A view that was built becomes live."""
        found = definition(name, root)
        self.engine.add(View(found, self.store, NoEvaluator()))
        self.engine.commit(None, written=0)
        return found


@pytest.fixture(params=["local", "buckets"])
def clocked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Clocked]:
    if request.param == "local":
        store: Store = MemoryStore()
        yield Clocked(store, Engine(store, NoEvaluator(), SOURCE))
        return
    store = RocksStore(tmp_path / "state")
    parts = BucketParts(
        storage=lambda name: MemoryStorage(f"{tmp_path}/{name}"),
        scheduler=InProcessScheduler(str(tmp_path / "caches"), 2),
        evaluator=lambda _: NoEvaluator,
        buckets=2,
        folder=tmp_path / "moves",
    )
    buckets = BucketViews(store, parts)
    yield Clocked(store, BucketEngine(store, NoEvaluator(), SOURCE, buckets=buckets))
    store.close()
    STATES.close()


def test_a_clock_ticks_for_a_view_that_joins(clocked: Clocked) -> None:
    """While it was built, no view of the engine read the clock."""
    assert not clocked.ticks()
    found = clocked.join("shown", SHOWN)
    assert clocked.ticks()
    clocked.engine.remove(found.name)
    clocked.engine.commit(None, written=0)
    assert not clocked.ticks()
    # Resumed, or back from another runtime.
    clocked.join("shown", SHOWN)
    assert clocked.ticks()


def test_whatever_changes_the_views_changes_their_version() -> None:
    views, seen = LiveViews(), set[int]()
    one, two = definition("one", STANDING), definition("two", STANDING)

    def is_new() -> bool:
        is_seen = views.version in seen
        seen.add(views.version)
        return not is_seen

    assert is_new()
    views[one.name] = one
    assert is_new()
    views[one.name] = definition("one", COMING)
    assert is_new()
    views.update({two.name: two})
    assert is_new()
    assert views.pop(one.name).name == one.name and is_new()
    views.setdefault(one.name, one)
    assert is_new() and list(views) == [two.name, one.name]
    del views[one.name]
    assert is_new()
    views.clear()
    assert is_new() and not views
    seen.add(LiveViews().version)
    assert LiveViews().version not in seen
