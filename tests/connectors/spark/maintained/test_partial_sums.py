"""Oracle: counts and sums by hand, and the number of rows that reach the stage of an aggregate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from connectors.pages import decode_delta
from connectors.spark.frame import Row
from connectors.spark.maintained import files, layout, tasks
from connectors.spark.maintained.driver import Batch, Driver
from connectors.spark.maintained.layout import Layout, MaintainedView
from connectors.spark.maintained.scheduler import InProcessScheduler, Work
from connectors.spark.maintained.tasks import STATES
from connectors.spark.stages import SUMS
from dataflow.delta import Column, Delta
from dataflow.errors import InvariantError, TidemarkError
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import ColumnRef
from dataflow.plan.nodes import Aggregate, AggregateCall, Scan
from dataflow.schema import Field, Relation, RelationName
from dataflow.sql.lower.lowering import lower
from dataflow.types import INT8, NUMERIC
from tests.harness.buckets import MemoryStorage, TableSink, memory_folder

FIELDS = (Field("id", INT8, False), Field("kind", INT8), Field("amount", INT8))
ORDERS = Relation(RelationName("s", "public", "orders"), 1, FIELDS, (0,))
BUCKETS, ROWS = 4, 1000
CALLS = (
    AggregateCall("count", None, False, None, Field("n", INT8)),
    AggregateCall("sum", ColumnRef(2, INT8), False, None, Field("s", NUMERIC)),
)


def view(groups: Sequence[int] = (), calls: Sequence[AggregateCall] = CALLS) -> MaintainedView:
    """An aggregate of orders."""
    scan = Scan(ORDERS, (0, 1, 2), FIELDS)
    keys = tuple(ColumnRef(g, INT8) for g in groups)
    fields = (*(FIELDS[g] for g in groups), *(call.field for call in calls))
    nodes = lower(Aggregate(scan, keys, tuple(calls), fields))
    columns = {ORDERS.name: (0, 1, 2)}
    return MaintainedView("sums", nodes, "v1", (ORDERS,), columns, NoEvaluator)


class Counting(InProcessScheduler):
    """Counts the rows that reach the last level."""

    rows = 0

    def run(self, work: Work) -> Sequence[Row]:
        self.rows = 0
        return super().run(cast(Work, _Counted(work, self)))


class _Counted:
    def __init__(self, work: Work, counting: Counting) -> None:
        self._work = work
        self._counting = counting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    def run(self, step: int, group: int, rows: Iterable[Row], folder: str) -> Iterator[Row]:
        for row in self._work.run(step, group, rows, folder):
            if row[0] >= 0:
                self._counting.rows += len(decode_delta(row[2]))
            yield row


def rows(numbers: Iterable[int], kind: int, amount: int, weight: int = 1) -> Delta:
    """Orders of one kind; the amount of each is so much above its id."""
    keys = np.array(list(numbers), np.int64)
    columns = (keys, np.full(len(keys), kind), keys + amount)
    return Delta(list(map(Column, columns)), np.full(len(keys), weight, np.int64))


def ids(count: int) -> int:
    """The sum of the first ids."""
    return count * (count - 1) // 2


def number(value: int) -> bytes:
    """A numeric as the sink gets it."""
    return str(value).encode()


class Views:
    """Drivers of one view over one storage, in a folder that can be lost."""

    def __init__(self, folder: Path, maintained: MaintainedView, name: str) -> None:
        self.folder, self.view, self.sink = folder, maintained, TableSink()
        self.storage = MemoryStorage(f"sums-{name}")
        self.counting = Counting(str(folder), 2)

    def driver(self) -> Driver:
        """Another driver, without any state at hand."""
        STATES.close()
        tasks._layout_of.cache_clear()
        for path in sorted(self.folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        found = Driver(self.view, self.storage, self.counting, self.sink, buckets=BUCKETS)
        found.start()
        return found

    def step(self, driver: Driver, *deltas: Delta) -> dict:
        """One epoch; the view's rows after it."""
        driver.step(Batch({}, rows={ORDERS.name: Delta.concat(deltas)} if deltas else {}))
        assert all(weight == 1 for weight in self.sink.rows.values())
        return {row[:-2]: row[-2:] for row in self.sink.rows}


@pytest.fixture
def folder() -> Iterator[Path]:
    with memory_folder() as found:
        yield found
    tasks._layout_of.cache_clear()


def test_of_all_rows_one_sum_a_bucket_crosses(folder: Path) -> None:
    views = Views(folder, view(), "all")
    driver = views.driver()
    assert views.step(driver) == {(): (0, None)}, "a global aggregate of nothing has its row"
    assert views.step(driver, rows(range(ROWS), 1, 5)) == {(): (ROWS, number(5 * ROWS + ids(ROWS)))}
    assert views.counting.rows <= BUCKETS
    changed = rows(range(900), 1, 5, -1), rows(range(900), 1, -7)
    assert views.step(driver, *changed) == {(): (ROWS, number(ids(ROWS) - 7 * 900 + 5 * 100))}
    assert views.counting.rows <= BUCKETS
    gone = rows(range(900), 1, -7, -1), rows(range(900, ROWS), 1, 5, -1)
    assert views.step(views.driver(), *gone) == {(): (0, None)}
    assert views.counting.rows <= BUCKETS


def test_of_a_large_group_one_sum_a_bucket_crosses(folder: Path) -> None:
    views = Views(folder, view((1,)), "large")
    driver = views.driver()
    small = [rows([ROWS + kind], kind, kind) for kind in range(2, 22)]
    found = views.step(driver, rows(range(ROWS), 1, 5), *small)
    assert found[1,] == (ROWS, number(5 * ROWS + ids(ROWS)))
    assert found[21,] == (1, number(ROWS + 42))
    assert views.counting.rows <= BUCKETS + len(small)
    assert views.step(driver, rows(range(ROWS), 1, 5, -1))[2,] == (1, number(ROWS + 4))
    assert views.counting.rows <= BUCKETS
    assert len(views.sink.rows) == len(small), "an empty group has no row"


def test_logs_of_rows_are_read_beside_logs_of_sums(folder: Path, monkeypatch) -> None:
    """As of before sums crossed: all documents have version 1, and all logs have rows."""
    views = Views(folder, view((1,)), "older")
    with monkeypatch.context() as older:
        older.setattr(layout, "additive_nodes", lambda _: set())
        older.setattr(files, "_VERSION", 1)
        driver = views.driver()
        views.step(driver, rows(range(ROWS), 1, 5))
        views.step(driver, rows(range(10), 1, 5, -1), rows(range(10), 2, 3))
        assert views.counting.rows == 20
    driver = views.driver()
    assert views.step(driver, rows(range(10, 100), 1, 5, -1)) == {
        (1,): (ROWS - 100, number(5 * (ROWS - 100) + ids(ROWS) - ids(100))),
        (2,): (10, number(30 + ids(10))),
    }
    assert views.counting.rows <= BUCKETS
    assert sum(f.replayed for f in driver.figures) > 0
    # The other way round it is refused: what is not known is not left out.
    with monkeypatch.context() as older:
        older.setattr(layout, "additive_nodes", lambda _: set())
        with pytest.raises(InvariantError, match=r"spark\.exchange"):
            views.step(views.driver(), rows([200], 1, 5, -1))
        older.setattr(files, "_VERSION", 1)
        with pytest.raises(TidemarkError, match=r"spark\.damaged_file"):
            views.driver()


def test_sums_are_not_listed_as_what_one_bucket_does() -> None:
    greatest = AggregateCall("max", ColumnRef(2, INT8), False, None, Field("m", INT8))
    distinct = AggregateCall("count", ColumnRef(1, INT8), True, None, Field("d", INT8))
    for calls, is_listed in ((CALLS, False), ([*CALLS, greatest], True), ([distinct], True)):
        found = Layout(view(calls=calls), BUCKETS)
        assert bool(found.single_stages()) == is_listed
        assert sum(stage.is_summed for stage in found.cut.stages) == (not is_listed)
    assert SUMS not in {port.tag for s in found.cut.stages for port in s.outputs}
