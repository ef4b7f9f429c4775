"""`python -m bench.scale_out [--rows N]`: a model of epochs on many executors.

Measured here, in one process: the tasks of epochs over 64 buckets, each by itself, what the driver
does beside them, and the bytes that cross each exchange. Modelled from these: a Spark with so many
executors. What is assumed is in `Assumed`, and stands beside the figures. Once all customers have
as many orders, and once a few have most. Printed, and written to a file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.buckets import BUCKETED, WORKERS, Load, build_join, in_buckets, run_epoch
from bench.buckets import FIGURES as OF_BUCKETS
from bench.record import stamp
from connectors.spark.frame import Row
from connectors.spark.maintained.scheduler import InProcessScheduler, Work
from connectors.spark.maintained.tasks import STATES, Figures
from dataflow.changes import Changes
from service.engine.bucket_engine import BucketEngine
from storage.rocks import RocksStore

FIGURES = Path(__file__).parent / "scale_out.json"
BUCKETS = 64
EXECUTORS = (1, 4, 16, 64)
SIZES = (100_000, 1_000_000)
SKEWS = {"even": 0.0, "skewed": 1.0}
EPOCHS = 4


@dataclass(frozen=True)
class Assumed:
    """What is not measured here.

    dispatch_s: the driver's time to start a task, one after the other. link_bytes_s: of each
    machine, in each direction. stage_s: from the end of a stage to the first task of the next.
    """

    dispatch_s: float = 0.002
    link_bytes_s: float = 125e6
    stage_s: float = 0.02


@dataclass(frozen=True)
class Epoch:
    """A measured epoch. tasks: seconds by level and bucket. exchanged: bytes by level that a task
    of the bucket gets. driver_s: beside the tasks. moved_bytes: from and to the driver."""

    tasks: Sequence[Sequence[float]]
    exchanged: Sequence[Sequence[int]]
    driver_s: float
    moved_bytes: int


class MeasuredScheduler(InProcessScheduler):
    """Counts the bytes of the rows that a task passes on, by level and task that gets them."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder, BUCKETS)
        self.exchanged: list[list[int]] = []
        self.run_s = 0.0

    def run(self, work: Work) -> Sequence[Row]:
        """See Scheduler."""
        started = time.perf_counter()
        counted = _Counted(work)
        rows = super().run(counted)
        self.exchanged = counted.exchanged
        self.run_s = time.perf_counter() - started
        return rows


class _Counted:
    """A work whose rows are counted on their way."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.steps, self.groups = work.steps, work.groups
        self.exchanged = [[0] * work.groups for _ in range(work.steps + 1)]
        self.group_of = work.group_of

    def run(self, step: int, group: int, rows: Any, folder: str) -> list[Row]:
        """See Work."""
        found = list(self._work.run(step, group, rows, folder))
        for slot, _, page in found:
            self.exchanged[step + 1][self._work.group_of(slot, group)] += len(page)
        return found


def main(arguments: list[str]) -> int:
    """Measure, model, print, and write the file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args(arguments).rows
    assumed = Assumed()
    figures: dict[str, Any] = {**stamp(), "rows": rows, "assumed": asdict(assumed)}
    for name, skew in SKEWS.items():
        with tempfile.TemporaryDirectory() as folder:
            measured = measure(rows, skew, Path(folder))
        figures[name] = {
            str(size): {str(n): modelled(epoch, n, assumed) for n in EXECUTORS}
            for size, epoch in measured.items()
        }
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    print("\n".join(section()))
    return 0


def measure(rows: int, skew: float, folder: Path) -> dict[int, Epoch]:
    """Return an epoch of each size, the one of least task time of several."""
    store, load = RocksStore(folder / "state", 512 << 20), Load(rows, skew)
    scheduler = MeasuredScheduler(str(folder / "caches"))
    engine = in_buckets(store, scheduler, folder, BUCKETS)
    try:
        build_join(engine, store, load.first())
        found = {}
        for size in SIZES:
            if size <= rows:
                spent = [_measured(engine, scheduler, load.update(size)) for _ in range(EPOCHS)]
                found[size] = min(spent[1:], key=lambda e: sum(map(sum, e.tasks)))
        return found
    finally:
        STATES.close()
        store.close()


def _measured(engine: BucketEngine, scheduler: MeasuredScheduler, changes: Changes) -> Epoch:
    wall_ms, _ = run_epoch(engine, changes)
    by_level: dict[int, list[Figures]] = {}
    for figure in engine.task_figures():
        by_level.setdefault(figure.level, []).append(figure)
    tasks = [
        [f.seconds for f in sorted(by_level[level], key=lambda f: f.group)]
        for level in sorted(by_level)
    ]
    given = len(changes) * sum(column.values.itemsize for column in changes.columns)
    return Epoch(
        tasks,
        scheduler.exchanged[1:-1],
        wall_ms / 1000 - scheduler.run_s,
        given + sum(scheduler.exchanged[-1]),
    )


def modelled(epoch: Epoch, executors: int, assumed: Assumed) -> dict[str, float]:
    """Return the seconds of an epoch on so many executors of one core, and its parts.

    Buckets are spread as `Job.buckets_of` does it: contiguous ones to each task, a task to each
    executor. A stage ends with its last task.
    """
    bounds = [(e * BUCKETS // executors, (e + 1) * BUCKETS // executors) for e in range(executors)]
    tasks_s = moved_s = 0.0
    for level, seconds in enumerate(epoch.tasks):
        tasks_s += max(sum(seconds[first:end]) for first, end in bounds)
        if level:
            got = epoch.exchanged[level - 1]
            most = max(sum(got[first:end]) for first, end in bounds)
            moved_s += most * (executors - 1) / executors / assumed.link_bytes_s
    stages = len(epoch.tasks)
    spark_s = stages * (assumed.stage_s + executors * assumed.dispatch_s)
    driver_s = epoch.driver_s + epoch.moved_bytes / assumed.link_bytes_s
    parts = {"tasks": tasks_s, "exchange": moved_s, "Spark": spark_s, "driver": driver_s}
    return {"all": sum(parts.values()), **parts}


def section() -> list[str]:
    """Return the lines of RESULTS.md."""
    if not FIGURES.exists():
        return []
    figures = json.loads(FIGURES.read_text())
    assumed = Assumed(**figures["assumed"])
    lines = [
        "",
        "## A model of many executors",
        "",
        f"`python -m bench.scale_out`: {figures['date']}, revision {figures['revision']}, load of "
        f"the machine {figures['load']}. **Not measured on a cluster.** The view of the section "
        f"above over {figures['rows']:,} orders in {BUCKETS} buckets; its tasks, the driver's work "
        "and the exchanged bytes are measured in one process. Assumed: executors of one core as "
        f"fast as this one, links of {assumed.link_bytes_s * 8 / 1e9:.0f} Gbit/s, "
        f"{assumed.stage_s * 1000:.0f} ms between stages, {assumed.dispatch_s * 1000:.0f} ms of "
        f"the driver for each task{_compared()}. Skewed: customers by Zipf's law, exponent "
        f"{SKEWS['skewed']:.0f}. Seconds of an epoch: all (slowest tasks + exchange + Spark + "
        "driver).",
        "",
        "| changes | keys | " + " | ".join(f"{n} executors" for n in EXECUTORS) + " |",
        "|---|---|" + "---|" * len(EXECUTORS),
    ]
    for size in map(str, SIZES):
        for name in SKEWS:
            if size in figures[name]:
                cells = [_cell(figures[name][size][str(n)]) for n in EXECUTORS]
                lines.append(f"| {int(size):,} | {name} | " + " | ".join(cells) + " |")
    return lines


def _compared() -> str:
    """Return what a real Spark's fixed cost is beside the assumed one."""
    if not OF_BUCKETS.exists():
        return ""
    figures = json.loads(OF_BUCKETS.read_text())
    fixed_ms = figures[WORKERS]["10"]["wall_ms"] - figures[BUCKETED]["10"]["wall_ms"]
    return f" (two real workers that share two cores with the driver: {fixed_ms:.0f} ms an epoch)"


def _cell(found: dict[str, float]) -> str:
    parts = " + ".join(f"{found[part]:.2f}" for part in ("tasks", "exchange", "Spark", "driver"))
    return f"**{found['all']:.2f}** ({parts})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
