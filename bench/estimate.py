"""Compare estimates with measurements: the 22 views of TPC-H, estimated and then built.

`python -m bench.estimate [--scale 0.05]`. The answer of `POST /views/validate` is recorded for each
view. The local engine then builds the view in a child process. Compared are the rows, the bytes of
its state files, and the CPU seconds of the child, which other load does not affect. Prints the
ratios estimated/measured and the constants that would fit best.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bench.measure import machine
from bench.record import revision
from bench.tpch_tables import Tables
from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.postgres.evaluation.evaluator import PostgresEvaluator
from connectors.postgres.source import PostgresSource
from connectors.sink import SinkTable
from dataflow.plan.nodes import ViewPlan
from service.backfill.child_processes import run_alone
from service.backfill.engine_choice import LOCAL, LOCAL_START_S, EngineChoice
from service.backfill.local_backfill import BackfillJob
from service.engine.engine import ViewDefinition
from service.verify.estimate import COMPRESSION, Estimator, machine_speed
from tests.harness.compare import pin_session
from tests.harness.maintained import plan_all
from tests.harness.postgres import new_database
from tests.harness.schemas.tpch import TPCH

FIGURES = Path(__file__).parent / "estimate.json"
PARTS = 8
_MEASURES = {"rows": "rows", "state_bytes": "state", "backfill_s": "backfill, CPU time"}


def main(arguments: list[str]) -> int:
    """Estimate, build, compare, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.estimate", description=__doc__)
    parser.add_argument("--scale", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    with EmbeddedPostgres() as server, new_database(server) as database:
        figures = run(database, options.scale, options.seed)
    print(machine())
    print(report(figures))
    print(fit(figures))
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    print("the page of results is written by python -m bench --write")
    return 0


def run(database: Any, scale: float, seed: int) -> dict[str, Any]:
    """Return figures by view: the estimates, the measurements, and the assumed work."""
    connection = database.connect()
    pin_session(connection)
    rows = Tables(connection, scale, seed).rows
    connection.close()
    plans, refused = plan_all(database, TPCH.queries())
    assert not refused, refused
    views = {}
    with TemporaryDirectory(prefix="tidemark-bench-") as folder:
        for name, plan in plans.items():
            definition = _definition(name, plan)
            views[name] = {
                "estimated": estimated(database.dsn, definition),
                "true": built(database.dsn, definition, Path(folder) / name.replace(" ", "_")),
            }
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "revision": revision(),
        "scale": scale,
        "rows": rows,
        "speed": machine_speed(),
        "views": views,
    }


def estimated(dsn: str, definition: ViewDefinition) -> dict[str, float]:
    """Return the answer of validate, and the seconds it took."""
    started = time.perf_counter()
    estimator = Estimator(dsn, definition, [])
    found = estimator.estimate(
        lambda work: EngineChoice(LOCAL, "", {LOCAL: work.local_s()}), {LOCAL: 1.0}
    )
    took_s = time.perf_counter() - started
    work = estimator.work()
    return {
        "rows": found.output_rows,
        "state_bytes": found.state_bytes,
        "backfill_s": found.backfill_s,
        "read": work.read,
        "stepped": work.stepped,
        "took_ms": took_s * 1000,
    }


def built(dsn: str, definition: ViewDefinition, work_dir: Path) -> dict[str, float]:
    """Build one view and return its measurements."""
    work_dir.mkdir()
    relations = definition.relations()
    source = PostgresSource(dsn, "source")
    snapshot = source.open_snapshot(relations)
    try:
        needed = {relation.name: columns for relation, columns in definition.reads()}
        parts = {r.name: snapshot.parts(r, needed[r.name], PARTS) for r in relations}
        evaluator = partial(PostgresEvaluator, dsn)
        root, scope = definition.plan.root, definition.scope
        job = BackfillJob(root, scope, relations, needed, parts, evaluator, work_dir)
        started, before_s = time.perf_counter(), _children_s()
        outcome = run_alone(job, lambda progress: None)
        took_s, cpu_s = time.perf_counter() - started, _children_s() - before_s
    finally:
        snapshot.close()
        source.close()
    rows = sum(int(delta.weights.sum()) for delta in outcome.read_output())
    size = sum(Path(f.path).stat().st_size for f in outcome.files if f.pages)
    kept = sum(f.rows for f in outcome.files)
    return {
        "rows": rows,
        "state_bytes": size,
        "backfill_s": cpu_s,
        "wall_s": took_s,
        "kept": kept,
    }


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def ratios(figures: dict[str, Any], measure: str) -> dict[str, float]:
    """Return estimated/measured by view; both get one row or byte added, so neither is zero."""
    return {
        name: (view["estimated"][measure] + 1) / (view["true"][measure] + 1)
        for name, view in figures["views"].items()
    }


def geometric(values: Iterable[float]) -> float:
    """Return the geometric mean distance of ratios from 1, in either direction."""
    return math.exp(statistics.fmean(abs(math.log(v)) for v in values))


def fit(figures: dict[str, Any]) -> str:
    """Return the constants of service/backfill/engine_choice.py that fit these figures best."""
    views = figures["views"].values()
    true_s = np.array([v["true"]["backfill_s"] for v in views])
    known = [[1.0, v["estimated"]["read"], v["estimated"]["stepped"]] for v in views]
    found, *_ = np.linalg.lstsq(np.array(known), true_s, rcond=None)
    factors = [v["true"]["state_bytes"] / max(v["estimated"]["state_bytes"], 1) for v in views]
    compression = COMPRESSION * statistics.geometric_mean(factors)
    constants = f"start {found[0]:.2f} s (now {LOCAL_START_S}), compression {compression:.2f}"
    return (
        f"fit: {constants} (now {COMPRESSION}), {found[1] * 1e6:.2f} us a row read, "
        f"{found[2] * 1e6:.2f} us a row stepped, speed {figures['speed']:.2f}"
    )


def section(path: Path = FIGURES) -> list[str]:
    """Return the last run's figures as Markdown lines; none before the first run."""
    if not path.exists():
        return []
    figures = json.loads(path.read_text())
    reported = f"{figures['date']}, revision {figures['revision']}, by `python -m bench.estimate`; "
    reported += "the constants of compression and time were fitted to this run."
    return [
        "",
        "## Estimates before create, against the truth",
        "",
        reported,
        *report(figures).splitlines(),
    ]


def report(figures: dict[str, Any]) -> str:
    """Return a table for human readers."""
    by_measure = {m: ratios(figures, m) for m in _MEASURES}
    took = [v["estimated"]["took_ms"] for v in figures["views"].values()]
    lines = [
        f"TPC-H at {figures['scale']:g}, {figures['rows']:,} rows, {len(figures['views'])} views. "
        f"An estimate takes {statistics.median(took):.0f} ms, at most {max(took):.0f} ms. "
        "Estimated/true:",
        "",
        "| | off by (geometric mean) | within a factor of 2 | worst |",
        "|---|---|---|---|",
    ]
    for measure, title in _MEASURES.items():
        found = by_measure[measure]
        worst = max(found, key=lambda n: abs(math.log(found[n])))
        near = sum(0.5 <= v <= 2 for v in found.values())
        lines.append(
            f"| {title} | {geometric(found.values()):.2f} | {near} of {len(found)} "
            f"| {worst}: {found[worst]:.3g} |"
        )
    lines += ["", "| view | rows, true | estimated/true | state, MB | estimated/true | s | "]
    lines[-1] += "estimated/true |"
    lines.append("|---|---|---|---|---|---|---|")
    for name, view in figures["views"].items():
        true = view["true"]
        lines.append(
            f"| {name} | {true['rows']:,} | {by_measure['rows'][name]:.3g} "
            f"| {true['state_bytes'] / 1e6:.2f} | {by_measure['state_bytes'][name]:.2f} "
            f"| {true['backfill_s']:.1f} | {by_measure['backfill_s'][name]:.2f} |"
        )
    return "\n".join(lines)


def _definition(name: str, plan: ViewPlan) -> ViewDefinition:
    table = SinkTable("public", name, plan.root.fields, plan.key)
    return ViewDefinition(name, table, "", plan)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
