"""`python -m bench.sealed_storage [--rows N] [--epochs N]`: the CPU of the MACs on the files of a
view in buckets.

Two views without Spark, over the same updates of random orders: one whose storage is sealed and
marked, as in a service, and one without. They take turns in each epoch, so the difference of a pair
is what the MACs, the digests and the mark cost. Then all local states are lost.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.partial_sums import ORDERS, _changes, _NoSink
from connectors.objects.folder_storage import FolderStorage
from connectors.objects.marked_storage import open_marked
from connectors.objects.sealed_storage import SealedStorage
from connectors.objects.shared_storage import SharedStorage
from connectors.objects.storage_mark import new_mark
from connectors.spark.maintained.driver import Batch, Driver
from connectors.spark.maintained.layout import MaintainedView
from connectors.spark.maintained.scheduler import InProcessScheduler
from connectors.spark.maintained.tasks import STATES
from dataflow.changes import Changes
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import ColumnRef
from dataflow.plan.nodes import Aggregate, AggregateCall, Scan
from dataflow.schema import Field
from dataflow.sql.lower.lowering import lower
from dataflow.types import INT8, NUMERIC

BUCKETS, CORES, CHANGES, WARM = 4, 2, 10_000, 5
KEY = b"a key of the benchmark, 32 bytes"


def main(arguments: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--epochs", type=int, default=60)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), given.rows, given.epochs)
    return 0


def measure(folder: Path, rows: int, epochs: int) -> None:
    """Print the CPU of an epoch of CHANGES updates without and with MACs, and their difference."""
    root = str(folder / "marked")
    marked = open_marked(root, new_mark(root, KEY), "view")
    storages: dict[str, SharedStorage] = {
        "without": FolderStorage(folder / "plain"),
        "with": SealedStorage(marked, KEY),
    }
    drivers = {name: _driver(name, storage, folder) for name, storage in storages.items()}
    draw = np.random.default_rng(1)
    first = [_changes(draw, np.arange(rows), Changes.INSERT, 0.0)]
    for driver in drivers.values():
        driver.step(Batch({}, first))
    spent: dict[str, list[float]] = {name: [] for name in drivers}
    for number in range(WARM + epochs):
        ids = draw.choice(rows, CHANGES, replace=False)
        batch = Batch({}, [_changes(draw, ids, Changes.NEW, 0.0)])
        for name in list(drivers)[:: 1 if number % 2 else -1]:
            started = time.process_time()
            drivers[name].step(batch)
            if number >= WARM:
                spent[name].append(1000 * (time.process_time() - started))
    before, after = (np.array(spent[name]) for name in ("without", "with"))
    low, middle, high = np.percentile(after - before, (25, 50, 75))
    print(f"an epoch of {CHANGES:,} updates, ms of CPU, {epochs} pairs:")
    print(f"median without {np.median(before):.1f}, with {np.median(after):.1f}")
    print(f"median difference {middle:.2f} (quartiles {low:.2f} to {high:.2f})")
    print(f"least without {before.min():.1f}, with {after.min():.1f}")
    _print_macs(storages["with"], sum(map(_stored_bytes, (folder / "marked").rglob("*"))), epochs)
    for name, storage in storages.items():
        STATES.close()
        driver = _driver(name, storage, folder / "again")
        started = time.process_time()
        driver.step(batch)
        print(f"{name}, after all local states were lost: {time.process_time() - started:.2f} s")
    STATES.close()


def _stored_bytes(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _print_macs(storage: SharedStorage, nbytes: int, epochs: int) -> None:
    """Print what the MACs alone take, for the bytes that an epoch has stored on average."""
    assert isinstance(storage, SealedStorage)
    content = bytes(nbytes // (WARM + epochs + 1))
    spent = []
    for _ in range(50):
        started = time.process_time()
        storage._sealed("log/000000000001/0-0-x", content)
        spent.append(1000 * (time.process_time() - started))
    print(f"the MACs of {len(content) / 1e6:.2f} MB, as an epoch has: {np.median(spent):.2f} ms")


def _driver(name: str, storage: SharedStorage, folder: Path) -> Driver:
    fields = ORDERS.fields
    calls = (
        AggregateCall("count", None, False, None, Field("n", INT8)),
        AggregateCall("max", ColumnRef(2, INT8), False, None, Field("most", INT8)),
        AggregateCall("sum", ColumnRef(3, NUMERIC), False, None, Field("s", NUMERIC)),
    )
    scan = Scan(ORDERS, tuple(range(len(fields))), fields)
    of_group = (ColumnRef(1, INT8),)
    nodes = lower(Aggregate(scan, of_group, calls, (fields[1], *(c.field for c in calls))))
    columns = {ORDERS.name: tuple(range(len(fields)))}
    view = MaintainedView(name, nodes, "v1", (ORDERS,), columns, NoEvaluator)
    scheduler = InProcessScheduler(str(folder / f"caches-{name}"), CORES)
    driver = Driver(view, storage, scheduler, _NoSink(), buckets=BUCKETS)
    driver.start()
    return driver


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
