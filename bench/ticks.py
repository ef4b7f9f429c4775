"""`python -m bench.ticks [--rows N]`: the cost of a moving now(), while rows wait and at a tick.

One view, `WHERE at > now() - interval '7 days'`, over rows that expire one after another, in an
engine with a store on disk. The idle cost is that of the clock's schedule, polled as often as a
pipeline polls it. Figures are CPU time of this process, the minimum of several runs; printed, and
written to a file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.record import stamp
from connectors.clock.source import ClockSource
from connectors.sink import SinkTable
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.delta import Column, Delta
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import Call, ColumnRef, Literal
from dataflow.plan.nodes import Project, Scan, ThresholdFilter, ViewPlan
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import EPOCH_2000_US, INT4, INTERVAL, TIMESTAMPTZ
from service.engine.engine import Engine, View, ViewDefinition
from service.ingest.clock_schedule import ClockSchedule
from storage.rocks import RocksStore

FIGURES = Path(__file__).parent / "ticks.json"
DUE_ROWS = (1, 100, 10_000)
POLLS_A_SECOND = 50
ROUNDS = 5
WEEK_US = 7 * 86_400_000_000
SECOND_US = 1_000_000

AT, ID = Field("at", TIMESTAMPTZ), Field("id", INT4, False)
EVENTS = Relation(RelationName("source", "public", "events"), 7, (ID, AT), (0,))
CLOCK = Relation(RelationName("clock", "clock", "now"), 8, (ID, AT), (0,), is_single=True)


def main(arguments: list[str]) -> int:
    """Measure, print, and write the file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args(arguments).rows
    with tempfile.TemporaryDirectory() as folder:
        figures = {
            **stamp(),
            "rows": rows,
            **measure(rows, Path(folder)),
        }
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    print(report(figures))
    return 0


def measure(rows: int, folder: Path) -> dict[str, Any]:
    """Return milliseconds of CPU: of an idle second, of planning a tick, of a tick by its expired
    rows.
    """
    store = RocksStore(folder, 512 << 20)
    engine = Engine(store, NoEvaluator(), "source")
    now_us = time.time_ns() // 1000
    now = now_us - now_us % SECOND_US - EPOCH_2000_US
    # The next row is due in two hours: a day of them, then the others.
    first = now - WEEK_US + 7_200 * SECOND_US
    _join(engine, store, first + np.arange(rows, dtype=np.int64) * SECOND_US, now)
    feed = ClockSource("clock", 1.0, [CLOCK]).open_feed(
        [CLOCK], {"now": {"us": now + EPOCH_2000_US}}, {}, lambda: None
    )
    schedule = ClockSchedule(engine)
    schedule.plan("clock", feed)

    def idle() -> None:
        for _ in range(POLLS_A_SECOND):
            schedule.plan("clock", feed)
            assert feed.poll(100) is None

    found: dict[str, Any] = {
        "idle": _least(idle),
        "plan": _least(lambda: ClockSchedule(engine).plan("clock", feed)),
    }
    feed.close()
    at = first + WEEK_US - SECOND_US
    _tick(engine, at)
    for due in DUE_ROWS:
        spent = []
        for _ in range(ROUNDS):
            at += due * SECOND_US
            started = time.process_time()
            assert _tick(engine, at) == due
            spent.append(time.process_time() - started)
        found[f"due {due}"] = min(spent) * 1000
    store.close()
    return found


def _join(engine: Engine, store: RocksStore, at: np.ndarray, now: int) -> None:
    scan = Scan(EVENTS, (0, 1), EVENTS.fields)
    clock = Scan(CLOCK, (1,), (AT,))
    bound = Call("-", (ColumnRef(0, TIMESTAMPTZ), Literal("7 days", INTERVAL)), TIMESTAMPTZ)
    threshold = Project(clock, (bound,), (Field("threshold", TIMESTAMPTZ),))
    plan = ThresholdFilter(scan, threshold, ColumnRef(1, TIMESTAMPTZ, "at"), ">")
    table = SinkTable("public", "recent", plan.fields, (0,))
    view = View(ViewDefinition("recent", table, "", ViewPlan(plan, (0,))), store, NoEvaluator())
    view.dataflow.seed()
    ids = np.arange(len(at), dtype=np.int64)
    loaded = {
        CLOCK.name: [Delta.of("ii", [(1, now)]).project(_columns(view, CLOCK))],
        EVENTS.name: [
            Delta(
                [Column(ids[i : i + 50_000]), Column(at[i : i + 50_000])],
                np.ones(len(ids[i : i + 50_000]), np.int64),
            ).project(_columns(view, EVENTS))
            for i in range(0, len(ids), 50_000)
        ],
    }
    for name, deltas in loaded.items():
        for delta in deltas:
            view.tables[name].load(delta)
            view.step({name: view.needed(name, delta)})
    engine.add(view)
    store.commit()


def _columns(view: View, relation: Relation) -> tuple[int, ...]:
    return next(h.columns for h in view.locations if h.relation.name == relation.name)


def _tick(engine: Engine, at: int) -> int:
    """Move the clock; return how many rows expired."""
    columns = (Column(np.ones(1, np.int64)), Column(np.array([at], np.int64)))
    changes = Changes(CLOCK, np.array([Changes.UPSERT], np.uint8), columns)
    batch = SourceBatch(engine.epoch + 1, [changes], 1, 1, source="clock")
    epoch = engine.step(batch)
    engine.commit(epoch, written=epoch.progress.epoch)
    return sum(len(delta) for _, delta in epoch.rows.deltas)


def _least(work: Callable[[], None]) -> float:
    """Return the minimum CPU time of several runs, in milliseconds."""
    spent = []
    for _ in range(ROUNDS):
        started = time.process_time()
        work()
        spent.append(time.process_time() - started)
    return min(spent) * 1000


def report(figures: dict[str, Any]) -> str:
    """Return a table for human readers."""
    lines = [
        f"`WHERE at > now() - interval '7 days'` over {figures['rows']:,} waiting rows, by "
        f"`python -m bench.ticks`: {figures['date']}, revision {figures['revision']}, load of the "
        f"machine {figures['load']}; CPU time.",
        "",
        "| | ms |",
        "|---|---|",
        f"| a second in which nothing expires | {figures['idle']:.2f} |",
        f"| to find the next tick, after an epoch or an hour | {figures['plan']:.1f} |",
    ]
    lines += [
        f"| a tick, its commit included, at which {n:,} rows expire | {figures[f'due {n}']:.1f} |"
        for n in DUE_ROWS
    ]
    return "\n".join(lines)


def section() -> list[str]:
    """Return the section as Markdown lines; [] before the first run."""
    if not FIGURES.exists():
        return []
    return ["", "## Ticks of a clock", "", *report(json.loads(FIGURES.read_text())).splitlines()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
