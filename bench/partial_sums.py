"""`python -m bench.partial_sums [--rows N]`: what crosses the exchange below an aggregate, and its
CPU.

An aggregate in buckets without Spark, over updates of random orders: of all rows, of a group with
half of them, and of groups of a few rows each. Three ways: rows cross as they are; consolidated;
added up by group, which is how views are maintained. Printed as the table of decision 34.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast
from unittest.mock import patch

import numpy as np

from connectors.pages import decode_delta
from connectors.spark.frame import Row
from connectors.spark.maintained import layout
from connectors.spark.maintained.driver import Batch, Driver
from connectors.spark.maintained.layout import MaintainedView
from connectors.spark.maintained.runtime import storage_below
from connectors.spark.maintained.scheduler import InProcessScheduler, Work
from connectors.spark.maintained.tasks import STATES
from connectors.spark.segment import Segment
from dataflow.changes import Changes
from dataflow.delta import KIND_BYTES, Column
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import ColumnRef
from dataflow.plan.nodes import Aggregate, AggregateCall, Scan
from dataflow.schema import Field, Relation, RelationName
from dataflow.sql.lower.lowering import lower
from dataflow.types import INT8, NUMERIC

BUCKETS, CORES, EPOCHS, CHANGES = 4, 2, 6, 100_000
GROUPS = 20_000
WAYS = ("rows", "consolidated", "sums")
FIELDS = (
    Field("id", INT8, False),
    Field("customer", INT8),
    Field("amount", INT8),
    Field("price", NUMERIC),
)
ORDERS = Relation(RelationName("source", "public", "orders"), 1, FIELDS, (0,))
# By name: the column of the groups, the column that is summed, the part of rows in one group.
SHAPES = {
    "all rows, sum(bigint)": ((), 2, 0.0),
    "all rows, sum(numeric)": ((), 3, 0.0),
    "half of the rows in a group, sum(bigint)": ((1,), 2, 0.5),
    "half of the rows in a group, sum(numeric)": ((1,), 3, 0.5),
    f"{GROUPS:,} even groups, sum(bigint)": ((1,), 2, 0.0),
    f"{GROUPS:,} even groups, sum(numeric)": ((1,), 3, 0.0),
}


def main(arguments: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=300_000)
    rows = parser.parse_args(arguments).rows
    print("| aggregate | " + " | ".join(WAYS) + " |")
    print("|---|" + "---|" * len(WAYS))
    for shape in SHAPES:
        found = []
        for way in WAYS:
            with tempfile.TemporaryDirectory() as folder, _way(way):
                count, nbytes, cpu = measure(shape, rows, Path(folder))
            found.append(f"{count:,} rows, {nbytes / 1e6:.2f} MB, {cpu:.0f} ms")
        print(f"| {shape} | " + " | ".join(found) + " |", flush=True)
    return 0


class _Counting(InProcessScheduler):
    """Counts the rows and bytes for the aggregate of the last epoch."""

    def run(self, work: Work) -> Sequence[Row]:
        self.rows = self.nbytes = 0
        return super().run(cast(Work, _Counted(work, self)))


class _Counted:
    def __init__(self, work: Work, counts: _Counting) -> None:
        self._work = work
        self._counts = counts

    def __getattr__(self, name: str):
        return getattr(self._work, name)

    def run(self, step: int, group: int, rows, folder: str):
        for row in self._work.run(step, group, rows, folder):
            if row[0] >= 0:
                self._counts.nbytes += len(row[2])
                self._counts.rows += len(decode_delta(row[2]))
            yield row


def measure(shape: str, rows: int, folder: Path) -> tuple[int, int, float]:
    """Return rows and bytes that cross in an epoch, and its least milliseconds of CPU."""
    groups, summed, skew = SHAPES[shape]
    orders = Scan(ORDERS, tuple(range(len(FIELDS))), FIELDS)
    calls = (
        AggregateCall("count", None, False, None, Field("n", INT8)),
        AggregateCall(
            "sum", ColumnRef(summed, FIELDS[summed].type), False, None, Field("s", NUMERIC)
        ),
    )
    keys = tuple(ColumnRef(c, FIELDS[c].type) for c in groups)
    fields = (*(FIELDS[c] for c in groups), *(call.field for call in calls))
    nodes = lower(Aggregate(orders, keys, calls, fields))
    columns = {ORDERS.name: (0, 1, 2, 3)}
    view = MaintainedView(folder.name, nodes, "v1", (ORDERS,), columns, NoEvaluator)
    scheduler = _Counting(str(folder / "caches"), CORES)
    driver = Driver(
        view, storage_below(str(folder), "shared"), scheduler, _NoSink(), buckets=BUCKETS
    )
    driver.start()
    draw = np.random.default_rng(1)
    driver.step(Batch({}, [_changes(draw, np.arange(rows), Changes.INSERT, skew)]))
    spent = []
    for _ in range(EPOCHS):
        ids = draw.choice(rows, CHANGES, replace=False)
        batch = Batch({}, [_changes(draw, ids, Changes.NEW, skew)])
        started = time.process_time()
        driver.step(batch)
        spent.append(1000 * (time.process_time() - started))
    STATES.close()
    return scheduler.rows, scheduler.nbytes, min(spent)


def _changes(draw: np.random.Generator, ids: np.ndarray, kind: int, skew: float) -> Changes:
    n = len(ids)
    customers = np.where(draw.random(n) < skew, 0, draw.integers(0, GROUPS, n))
    prices = [f"{cents / 100:.2f}" for cents in draw.integers(0, 1_000_000, n).tolist()]
    columns = (ids, customers, draw.integers(0, 1_000_000, n))
    cells = (*map(Column, columns), Column.of(KIND_BYTES, prices))
    return Changes(ORDERS, np.full(n, kind, np.uint8), cells)


class _NoSink:
    def __init__(self) -> None:
        self._epoch = 0

    def commit(self) -> str:
        """See EpochSink."""
        return ""

    def progress(self) -> int:
        return self._epoch

    def apply(self, epoch) -> None:
        self._epoch = epoch.epoch


@contextmanager
def _way(way: str) -> Iterator[None]:
    if way == "sums":
        yield
        return
    pages = Segment.pages

    def consolidated(self, deltas):
        ports = self._stage.outputs
        fed = {p.producer: deltas[p.producer].consolidate() for p in ports}
        return pages(self, {**deltas, **fed})

    with patch.object(layout, "is_additive", lambda _: False):
        if way == "rows":
            yield
            return
        with patch.object(Segment, "pages", consolidated):
            yield


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
