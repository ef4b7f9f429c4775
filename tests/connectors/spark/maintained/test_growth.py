"""Oracle: the rule as it is documented, and the answer of one process.

Into how many buckets a view is cut as its state and its load grow."""

from __future__ import annotations

from random import Random

import pytest

from connectors.spark.maintained.driver import Driver, Limits
from connectors.spark.maintained.growth import BUSY_EPOCHS, Growth, GrowthLimits
from connectors.spark.maintained.layout import Layout
from connectors.spark.maintained.scheduler import InProcessScheduler
from connectors.spark.maintained.tasks import Figures
from tests.connectors.spark.maintained.test_moves import local_after
from tests.connectors.spark.maintained.test_skew import view
from tests.harness.buckets import MemoryStorage, TableSink, memory_folder
from tests.harness.tiers import count
from tests.property.plans import JOINS
from tests.property.test_buckets import EPOCHS, History

MIB = 1 << 20


def took(*seconds: float) -> list[Figures]:
    """The figures of an epoch of one level, whose tasks took so long."""
    return [Figures(0, group, "here", each, 0, 0) for group, each in enumerate(seconds)]


@pytest.mark.parametrize(
    ("nbytes", "buckets"), [({}, 4), ({0: 4 * MIB}, 4), ({0: 4 * MIB + 1}, 8), ({1: 65 * MIB}, 128)]
)
def test_large_buckets_are_split(nbytes: dict[int, int], buckets: int) -> None:
    growth = Growth(GrowthLimits(bucket_bytes=MIB))
    assert growth.buckets(Layout(view(), 4), nbytes, 1) == buckets


def test_busy_epochs_use_the_cores_that_there_are() -> None:
    layout = Layout(view(), 4)
    growth = Growth(GrowthLimits(busy_s=8.0))
    for _ in range(BUSY_EPOCHS - 1):
        growth.add(took(0.1, 1.5))
    assert growth.buckets(layout, {}, 12) == 4, "too few epochs to say"
    growth.add(took(1.5, 1.5))
    assert growth.buckets(layout, {}, 12) == 16
    assert growth.buckets(layout, {}, 4) == 4, "no core is idle"
    assert growth.buckets(Layout(view(), 16), {}, 12) == 16
    for _ in range(BUSY_EPOCHS):
        growth.add(took(0.5, 0.6, 0.7))
    assert growth.buckets(layout, {}, 12) == 4, "they are quick now"
    growth.add(took(20.0))
    assert growth.buckets(layout, {}, 12) == 16
    growth.forget()
    assert growth.buckets(layout, {}, 12) == 4


def test_more_buckets_are_made_when_they_are_configured() -> None:
    assert Growth(GrowthLimits(least=12)).buckets(Layout(view(), 4), {}, 1) == 16
    assert Growth(GrowthLimits(least=2)).buckets(Layout(view(), 4), {}, 1) == 4


@pytest.mark.parametrize("seed", range(count("TIDEMARK_TEST_BUCKET_GROWTH", 1, 6)))
def test_the_state_of_a_moved_view_decides_and_it_grows(seed: int) -> None:
    """Buckets begin at what the state needs, and are split by an epoch's first step."""
    history = History(Random(seed), JOINS)
    with memory_folder() as folder:
        local, rows = local_after(history, 4, folder / "one")
        sink = TableSink()
        sink.rows, sink.epoch, sink.position = +rows, 4, 4
        storage = MemoryStorage(f"growth-{seed}")
        scheduler = InProcessScheduler(str(folder / "tasks"), 2)

        def driver(bucket_bytes: int, buckets: int) -> Driver:
            limits = Limits(growth=GrowthLimits(bucket_bytes))
            moved = history.view(f"growth-{seed}")
            return Driver(moved, storage, scheduler, sink, buckets=buckets, limits=limits)

        first = driver(200, 1)
        first.start_moved(local.store, {"at": 4}, folder / "files", epoch=4)
        local.store.close()
        assert first.buckets > 1
        second = driver(100, 1)
        second.start()
        assert second.buckets == first.buckets, "as the state has it"
        for at in range(4, EPOCHS):
            second.step(history.batch(at, at + 1))
            assert sink.rows == history.rows[at + 1]
        assert second.buckets > first.buckets
        assert max(second.state_bytes().values()) <= 2 * 100 * second.buckets
