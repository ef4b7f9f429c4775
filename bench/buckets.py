"""`python -m bench.buckets [--rows N]`: epochs of a view by what maintains it.

A join below an aggregate: in one process, in buckets without Spark, in buckets by the tasks of a
local Spark with two cores, of a standalone master with two workers of one core, and of a Spark
Connect server with two cores. All have the same operators, changes and stores on disk, one after
the other in this run. CPU is that of this process and of all its children, so also of the JVMs; the
least of several epochs of each size counts, after so many small ones that the JVMs have compiled
what they run. Then the local states are lost, and the next epoch restores them. Printed, and
written to a file.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.record import stamp
from connectors.sink import SinkTable
from connectors.source import SourceBatch
from connectors.spark.maintained.runtime import new_scheduler, new_session, storage_below
from connectors.spark.maintained.scheduler import InProcessScheduler, Scheduler
from connectors.spark.maintained.tasks import STATES
from connectors.spark.session import LazySession
from dataflow.changes import Changes
from dataflow.delta import Column
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import ColumnRef
from dataflow.plan.nodes import Aggregate, AggregateCall, Join, Scan, ViewPlan
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import INT8, NUMERIC
from service.engine.bucket_engine import BucketEngine
from service.engine.bucket_views import BucketParts, BucketViews
from service.engine.engine import Engine, View, ViewDefinition
from service.engine.replay import Replay
from storage.rocks import RocksStore
from tests.connectors.spark.clusters import HOST, connect_server, standalone

FIGURES = Path(__file__).parent / "buckets.json"
SOURCE = "source"
SIZES = (10, 10_000, 100_000, 1_000_000)
EPOCHS = 8
# Of the largest size.
FEW_EPOCHS = 4
WARMING = 60
BUCKETS, CORES = 4, 2
CUSTOMERS = 20_000
CACHES, SHARED = "caches", "shared"
ONE, BUCKETED, LOCAL, WORKERS = "one process", "buckets", "Spark local[2]", "Spark, two workers"
CONNECT = "Spark Connect"
RUNTIMES = (ONE, BUCKETED, LOCAL, WORKERS, CONNECT)

ORDER_FIELDS = (Field("id", INT8, False), Field("customer", INT8), Field("amount", INT8))
CUSTOMER_FIELDS = (Field("id", INT8, False), Field("region", INT8))
ORDERS = Relation(RelationName(SOURCE, "public", "orders"), 1, ORDER_FIELDS, (0,))
CUSTOMERS_TABLE = Relation(RelationName(SOURCE, "public", "customers"), 2, CUSTOMER_FIELDS, (0,))


def main(arguments: list[str]) -> int:
    """Measure, print, and write the file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args(arguments).rows
    figures: dict[str, Any] = {**stamp(), "rows": rows, "parts": BUCKETS, "cores": CORES}
    for runtime in RUNTIMES:
        with tempfile.TemporaryDirectory() as folder:
            figures[runtime] = measure(runtime, rows, Path(folder))
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    print("\n".join(section()))
    return 0


def measure(runtime: str, rows: int, folder: Path) -> dict[str, dict[str, float]]:
    """Return by epoch size the milliseconds of an epoch: wall and CPU.

    And for buckets "restored", the first epoch after all local states were lost, with the megabytes
    of the shared storage.
    """
    store = RocksStore(folder / "state", 512 << 20)
    changes = Load(rows)
    with _engine(runtime, store, folder) as engine:
        build_join(engine, store, changes.first())
        for _ in range(0 if runtime == ONE else WARMING):
            run_epoch(engine, changes.update(SIZES[0]))
        found = {}
        for size in SIZES:
            if size > rows:
                break
            count = EPOCHS if size < SIZES[-1] else FEW_EPOCHS
            spent = [run_epoch(engine, changes.update(size)) for _ in range(count)]
            # The first of a size loads what the others find.
            wall, cpu = (min(values[1:]) for values in zip(*spent, strict=True))
            found[str(size)] = {"wall_ms": wall, "cpu_ms": cpu}
        if runtime == BUCKETED:
            found["restored"] = _restored(engine, changes, folder)
    store.close()
    return found


def _restored(engine: Engine, changes: Load, folder: Path) -> dict[str, float]:
    STATES.close()
    shutil.rmtree(folder / CACHES)
    wall, cpu = run_epoch(engine, changes.update(SIZES[0]))
    assert STATES.restored
    nbytes = sum(file.stat().st_size for file in (folder / SHARED).rglob("*") if file.is_file())
    return {"wall_ms": wall, "cpu_ms": cpu, "mb": nbytes / 1e6}


class Load:
    """The rows of the tables, and updates of random ones.

    skew: of the customers of orders, by Zipf's law with this exponent; 0 draws all equally often.
    """

    def __init__(self, rows: int, skew: float = 0) -> None:
        self._rows = rows
        self._draw = np.random.default_rng(1)
        weights = np.arange(1, CUSTOMERS + 1, dtype=float) ** -skew
        self._share = weights / weights.sum()

    def first(self) -> Iterator[list[Changes]]:
        """All rows, in parts."""
        regions = self._draw.integers(0, 40, CUSTOMERS)
        yield [_inserted(CUSTOMERS_TABLE, np.arange(CUSTOMERS), regions)]
        for begin in range(0, self._rows, 50_000):
            ids = np.arange(begin, min(begin + 50_000, self._rows))
            yield [_inserted(ORDERS, ids, *self._values(len(ids)))]

    def update(self, count: int) -> Changes:
        """So many updates of different orders."""
        ids = self._draw.choice(self._rows, count, replace=False)
        columns = tuple(map(Column, (ids, *self._values(count))))
        return Changes(ORDERS, np.full(count, Changes.NEW, np.uint8), columns)

    def _values(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        draw = self._draw
        customers = draw.choice(CUSTOMERS, count, p=self._share)
        return customers, draw.integers(0, 1000, count)


def _inserted(relation: Relation, *values: np.ndarray) -> Changes:
    kinds = np.full(len(values[0]), Changes.INSERT, np.uint8)
    return Changes(relation, kinds, tuple(map(Column, values)))


@contextmanager
def _engine(runtime: str, store: RocksStore, folder: Path) -> Iterator[Engine]:
    if runtime == ONE:
        yield Engine(store, NoEvaluator(), SOURCE)
    elif runtime == BUCKETED:
        try:
            yield in_buckets(store, InProcessScheduler(str(folder / CACHES), CORES), folder)
        finally:
            STATES.close()
    elif runtime == LOCAL:
        with _session(f"local[{CORES}]", {}) as session:
            yield in_buckets(store, new_scheduler(session, folder / CACHES), folder)
    elif runtime == CONNECT:
        with connect_server(folder) as url, _session(url, {}) as session:
            yield in_buckets(store, new_scheduler(session, folder / CACHES), folder)
    else:
        at = {"spark.driver.host": HOST, "spark.driver.bindAddress": HOST}
        settings = {**at, "spark.executor.memory": "512m"}
        with standalone(folder) as url, _session(url, settings) as session:
            yield in_buckets(store, new_scheduler(session, folder / CACHES), folder)


@contextmanager
def _session(master: str, settings: dict[str, str]) -> Iterator[LazySession]:
    session = new_session(master, settings)
    try:
        yield session
    finally:
        session.stop()


def in_buckets(
    store: RocksStore, scheduler: Scheduler, folder: Path, buckets: int = BUCKETS
) -> BucketEngine:
    """Return an engine over a store whose view is maintained in so many buckets."""

    def storage(name: str) -> Any:
        return storage_below(str(folder / SHARED), name)

    def evaluator(_: ViewDefinition) -> Callable[[], NoEvaluator]:
        return NoEvaluator

    parts = BucketParts(storage, scheduler, evaluator, buckets, folder / "moves")
    return BucketEngine(store, NoEvaluator(), SOURCE, buckets=BucketViews(store, parts))


def build_join(engine: Engine, store: RocksStore, rows: Iterator[list[Changes]]) -> None:
    """Build the view of all rows, and make it live."""
    orders = Scan(ORDERS, (0, 1, 2), ORDER_FIELDS)
    customers = Scan(CUSTOMERS_TABLE, (0, 1), CUSTOMER_FIELDS)
    keys = (ColumnRef(1, INT8),), (ColumnRef(0, INT8),)
    joined = Join("inner", orders, customers, *keys, None, ORDER_FIELDS + CUSTOMER_FIELDS)
    calls = (
        AggregateCall("count", None, False, None, Field("n", INT8)),
        AggregateCall("sum", ColumnRef(2, INT8), False, None, Field("total", NUMERIC)),
    )
    fields = (CUSTOMER_FIELDS[1], *(call.field for call in calls))
    plan = Aggregate(joined, (ColumnRef(4, INT8),), calls, fields)
    table = SinkTable("public", "spent", plan.fields, (0,))
    view = View(ViewDefinition("spent", table, "", ViewPlan(plan, (0,))), store, NoEvaluator())
    view.dataflow.seed()
    replay = Replay(view, 200_000)
    for changes in rows:
        for _ in replay.take(changes):
            store.relieve()
    store.commit()
    engine.positions.begin(SOURCE, 1)
    engine.add(view)
    epoch = engine.announce(view, engine.gather(), None, token=None)
    engine.commit(epoch, written=epoch.progress.epoch)


def run_epoch(engine: Engine, changes: Changes) -> tuple[float, float]:
    """Step and commit one epoch; return milliseconds, wall and CPU."""
    batch = SourceBatch(engine.position + 1, [changes], 1, len(changes))
    started, spent = time.perf_counter(), _cpu_s()
    epoch = engine.step(batch)
    engine.commit(epoch, written=epoch.progress.epoch)
    found = 1000 * (time.perf_counter() - started), 1000 * (_cpu_s() - spent)
    assert sum(len(delta) for _, delta in epoch.rows.deltas) > 0
    return found


def _cpu_s() -> float:
    """CPU seconds of this process and of its children."""
    own = psutil.Process()
    total = time.process_time()
    for child in own.children(recursive=True):
        times = child.cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
    return total


def section() -> list[str]:
    """Return the lines of RESULTS.md."""
    if not FIGURES.exists():
        return []
    figures = json.loads(FIGURES.read_text())
    runtimes = [runtime for runtime in RUNTIMES if runtime in figures]
    lines = [
        "",
        "## Views that Spark maintains",
        "",
        f"`python -m bench.buckets`: {figures['date']}, revision {figures['revision']}, load of "
        f"the machine {figures['load']}. A join of {figures['rows']:,} orders with customers below "
        f"an aggregate by region, {figures['parts']} buckets, {figures['cores']} cores. "
        f"Milliseconds of an epoch of updates, wall / CPU of all processes, the least of "
        f"{EPOCHS - 1} ({FEW_EPOCHS - 1} of the largest), after {WARMING} small ones.",
        "",
        "| changes | " + " | ".join(runtimes) + " |",
        "|---|" + "---|" * len(runtimes),
    ]
    for size in SIZES:
        if str(size) not in figures[ONE]:
            break
        cells = []
        for runtime in runtimes:
            found = figures[runtime][str(size)]
            cells.append(f"{found['wall_ms']:.0f} / {found['cpu_ms']:.0f}")
        lines.append(f"| {size:,} | " + " | ".join(cells) + " |")
    lost = figures[BUCKETED]["restored"]
    lines += [
        "",
        f"After all local states were lost, an epoch of {SIZES[0]} changes in buckets took "
        f"{lost['wall_ms'] / 1000:.2f} s, {lost['cpu_ms'] / 1000:.2f} s of CPU: the shared storage "
        f"had {lost['mb']:.0f} MB.",
    ]
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
