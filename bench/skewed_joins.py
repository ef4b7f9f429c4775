"""`python -m bench.skewed_joins [--rows N]`: a join of which half of the rows have one key.

Orders with customers, below an aggregate by region, in buckets without Spark: once with all rows of
a key in one bucket, once with the frequent key spread over the buckets, which is how views are
maintained. Both have the same rows and changes, epoch by epoch in turn. CPU is that of the join's
bucket with most of it, and of all its buckets; the least of several epochs of a kind counts. State
is that of the join in the shared storage, after both have written it again. Printed, and written to
a file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from bench.record import stamp
from connectors.spark.frame import Row
from connectors.spark.maintained.driver import Batch, Driver, Limits
from connectors.spark.maintained.layout import MaintainedView
from connectors.spark.maintained.runtime import storage_below
from connectors.spark.maintained.scheduler import InProcessScheduler, Work
from connectors.spark.maintained.skew import HEAVY_ROWS
from connectors.spark.maintained.tasks import STATES
from dataflow.changes import Changes
from dataflow.delta import Column
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import ColumnRef
from dataflow.plan.nodes import Aggregate, AggregateCall, Join, Scan
from dataflow.schema import Field, Relation, RelationName
from dataflow.sql.lower.lowering import lower
from dataflow.types import INT8, NUMERIC

FIGURES = Path(__file__).parent / "skewed_joins.json"
BUCKETS, EPOCHS, CHANGES, CUSTOMERS, HOT = 4, 6, 100_000, 20_000, 7
WAYS = {"by key": 1 << 62, "spread": HEAVY_ROWS}
ORDERS_CHANGE, HOT_CHANGES = f"{CHANGES:,} orders change", "the frequent customer changes"
ORDER_FIELDS = (Field("id", INT8, False), Field("customer", INT8), Field("amount", INT8))
CUSTOMER_FIELDS = (Field("id", INT8, False), Field("region", INT8))
ORDERS = Relation(RelationName("source", "public", "orders"), 1, ORDER_FIELDS, (0,))
CUSTOMERS_TABLE = Relation(RelationName("source", "public", "customers"), 2, CUSTOMER_FIELDS, (0,))


def main(arguments: list[str]) -> int:
    """Measure, print, and write the file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args(arguments).rows
    figures: dict[str, Any] = {**stamp(), "rows": rows, "parts": BUCKETS, "epochs": EPOCHS}
    with tempfile.TemporaryDirectory() as folder:
        figures |= measure(rows, Path(folder))
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    print("\n".join(section()))
    return 0


def measure(rows: int, folder: Path) -> dict[str, dict[str, Any]]:
    """Return by way: by kind of epoch [milliseconds of CPU of the largest bucket, of all], and
    "state" [megabytes of the largest bucket, of all]."""
    draw = np.random.default_rng(1)
    ways = {name: _Way(folder / name.replace(" ", "_"), least) for name, least in WAYS.items()}
    regions = draw.integers(0, 40, CUSTOMERS)
    first = [
        _changes(CUSTOMERS_TABLE, Changes.INSERT, np.arange(CUSTOMERS), regions),
        _changes(ORDERS, Changes.INSERT, np.arange(rows), *_values(draw, rows)),
    ]
    for way in ways.values():
        way.step(first)
    for number in range(EPOCHS):
        ids = draw.choice(rows, min(CHANGES, rows), replace=False)
        orders = _changes(ORDERS, Changes.NEW, ids, *_values(draw, len(ids)))
        hot = _changes(CUSTOMERS_TABLE, Changes.NEW, np.array([HOT]), np.array([number]))
        for way in ways.values():
            way.measure(ORDERS_CHANGE, [orders])
            way.measure(HOT_CHANGES, [hot])
    found = {name: way.figures() for name, way in ways.items()}
    STATES.close()
    return found


def _values(draw: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    customers = np.where(draw.random(count) < 0.5, HOT, draw.integers(0, CUSTOMERS, count))
    return customers, draw.integers(0, 1000, count)


def _changes(relation: Relation, kind: int, *values: np.ndarray) -> Changes:
    kinds = np.full(len(values[0]), kind, np.uint8)
    return Changes(relation, kinds, tuple(map(Column, values)))


class _Way:
    """A driver of the view. least_rows: see HEAVY_ROWS."""

    def __init__(self, folder: Path, least_rows: int) -> None:
        self._scheduler = _Timing(str(folder / "caches"), BUCKETS)
        self.driver = Driver(
            _view(folder.name),
            storage_below(str(folder), "shared"),
            self._scheduler,
            _NoSink(),
            buckets=BUCKETS,
            limits=Limits(heavy_rows=least_rows),
        )
        self.driver.start()
        (stage,) = (s for level in self.driver.layout.levels for s in level if s.routing)
        self._level = stage.level
        self._spent: dict[str, list[tuple[float, float]]] = {}

    def step(self, changes: Sequence[Changes]) -> None:
        """Run an epoch."""
        self.driver.step(Batch({}, changes))

    def measure(self, kind: str, changes: Sequence[Changes]) -> None:
        """Run an epoch of a kind; note the milliseconds of the join's buckets."""
        self.step(changes)
        spent = [1000 * s for (step, _), s in self._scheduler.spent.items() if step == self._level]
        self._spent.setdefault(kind, []).append((max(spent), sum(spent)))

    def figures(self) -> dict[str, Any]:
        """Return what `measure` says."""
        found: dict[str, Any] = {
            kind: [min(some) for some in zip(*spent, strict=True)]
            for kind, spent in self._spent.items()
        }
        self.driver.split(BUCKETS)
        sizes = [
            nbytes / 1e6
            for key, nbytes in self.driver._newest.base_bytes.items()
            if key.startswith(f"{self._level}-")
        ]
        return {**found, "state": [max(sizes), sum(sizes)], "keys": len(self.driver.spread)}


def _view(name: str) -> MaintainedView:
    orders = Scan(ORDERS, (0, 1, 2), ORDER_FIELDS)
    customers = Scan(CUSTOMERS_TABLE, (0, 1), CUSTOMER_FIELDS)
    keys = (ColumnRef(1, INT8),), (ColumnRef(0, INT8),)
    joined = Join("inner", orders, customers, *keys, None, ORDER_FIELDS + CUSTOMER_FIELDS)
    calls = (
        AggregateCall("count", None, False, None, Field("n", INT8)),
        AggregateCall("sum", ColumnRef(2, INT8), False, None, Field("total", NUMERIC)),
    )
    fields = (CUSTOMER_FIELDS[1], *(call.field for call in calls))
    nodes = lower(Aggregate(joined, (ColumnRef(4, INT8),), calls, fields))
    columns = {ORDERS.name: (0, 1, 2), CUSTOMERS_TABLE.name: (0, 1)}
    return MaintainedView(name, nodes, "v1", (ORDERS, CUSTOMERS_TABLE), columns, NoEvaluator)


class _Timing(InProcessScheduler):
    """Notes the CPU seconds of each task of the last work, by step and group."""

    spent: dict[tuple[int, int], float]

    def run(self, work: Work) -> Sequence[Row]:
        """See Scheduler."""
        self.spent = {}
        return super().run(cast(Work, _Timed(work, self.spent)))


class _Timed:
    def __init__(self, work: Work, spent: dict[tuple[int, int], float]) -> None:
        self._work = work
        self._spent = spent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    def run(self, step: int, group: int, rows: Any, folder: str) -> list[Row]:
        started = time.process_time()
        found = list(self._work.run(step, group, rows, folder))
        self._spent[step, group] = time.process_time() - started
        return found


class _NoSink:
    def __init__(self) -> None:
        self._epoch = 0

    def commit(self) -> str:
        """See EpochSink."""
        return ""

    def progress(self) -> int:
        return self._epoch

    def apply(self, epoch: Any) -> None:
        self._epoch = epoch.epoch


def section() -> list[str]:
    """Return the lines of RESULTS.md."""
    if not FIGURES.exists():
        return []
    figures = json.loads(FIGURES.read_text())
    ways = list(WAYS)
    lines = [
        "",
        "## Skewed keys of joins that Spark maintains",
        "",
        f"`python -m bench.skewed_joins`: {figures['date']}, revision {figures['revision']}, load "
        f"of the machine {figures['load']}. A join of {figures['rows']:,} orders, half of one "
        f"customer, with customers below an aggregate by region, {figures['parts']} buckets, "
        f"without Spark. Of the join: its largest bucket / all its buckets, CPU the least of "
        f"{figures['epochs']} epochs. By key: without spreading; spread: "
        f"{figures['spread']['keys']} key spread over the buckets.",
        "",
        "| of the join | " + " | ".join(ways) + " |",
        "|---|" + "---|" * len(ways),
    ]
    for kind, unit in ((ORDERS_CHANGE, "ms"), (HOT_CHANGES, "ms"), ("state", "MB")):
        cells = [" / ".join(f"{x:.1f}" for x in figures[way][kind]) + f" {unit}" for way in ways]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
