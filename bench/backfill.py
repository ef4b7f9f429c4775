"""`python -m bench.backfill [--rows 5000000]`: backfills of one view, locally and on local Spark.

The view joins orders with customers and adds up 40 groups, as W1 does. Both engines read snapshots
of one server, in turn. Spark's session runs already and has built a small view; its start is
measured apart. CPU seconds are those of an engine's own processes, without the server's: the
local engine's child; Spark's JVM, its Python workers and the driver's share. Wall seconds depend on
other load. Prints the figures and writes bench/backfill.json, by which the constants of
service/backfill/engine_choice.py are checked.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from bench.cells import table
from bench.measure import machine
from bench.record import stamp
from bench.workloads import WORKLOADS
from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.postgres.evaluation.evaluator import PostgresEvaluator
from connectors.postgres.source import PostgresSource
from connectors.sink import SinkTable
from connectors.spark.backfill import SparkBackfill
from connectors.spark.result import BackfillResult
from connectors.spark.session import LazySession
from dataflow.sql.planner import plan_view
from service.backfill.child_processes import Children
from service.backfill.engine_choice import LOCAL, SPARK, parts_of
from service.backfill.local_backfill import BackfillJob
from service.backfill.spark_backfill import run_on_spark
from service.engine.engine import ViewDefinition
from tests.harness.postgres import SERVER_SETTINGS, Database, new_database

FIGURES = Path(__file__).parent / "backfill.json"
NOW = "now"
CORES = 2
SMALL_ROWS = 100_000
ORDERS_A_CUSTOMER = 5
WAIT_S = 0.05
_TABLES = """
CREATE TABLE customers (customer_id bigint PRIMARY KEY, region text, segment text);
CREATE TABLE orders (
    order_id bigint PRIMARY KEY, customer_id bigint, status text, amount bigint
);
INSERT INTO customers
SELECT n, 'region' || n % 8, 'segment' || n / 8 % 5
FROM generate_series(0, {customers} - 1) AS n;
INSERT INTO orders
SELECT n, n::bigint * 7919 % {customers},
    (ARRAY['new', 'paid', 'shipped', 'cancelled'])[1 + n % 4], n::bigint * 31 % 100003
FROM generate_series(0, {orders} - 1) AS n;
ANALYZE customers, orders;
"""
Run = Callable[[BackfillJob], BackfillResult]


class Backfills:
    """Builds W1's view of a database by either engine."""

    def __init__(self, database: Database, session: LazySession) -> None:
        self._dsn = database.dsn
        self._session = session
        self._children = Children()
        with PostgresAnalyzer(self._dsn, "source") as analyzer:
            plan = plan_view(WORKLOADS["w1"].query, analyzer)
        shown = SinkTable("public", "by_region", plan.root.fields, plan.key)
        self._definition = ViewDefinition("bench", shown, "", plan)

    def run(self, engine: str) -> dict[str, Any]:
        """Return the figures of one backfill: rows, output, wall_s, cpu_s, and its parts."""
        definition = self._definition
        relations = definition.relations()
        source = PostgresSource(self._dsn, "source")
        snapshot = source.open_snapshot(relations)
        with TemporaryDirectory(prefix="tidemark-bench-") as folder:
            try:
                needed = {relation.name: columns for relation, columns in definition.reads()}
                rows = sum(r.row_estimate for r in relations)
                parts = {
                    r.name: snapshot.parts(r, needed[r.name], parts_of(rows)) for r in relations
                }
                evaluator = partial(PostgresEvaluator, self._dsn)
                root, scope = definition.plan.root, definition.scope
                job = BackfillJob(root, scope, relations, needed, parts, evaluator, Path(folder))
                before, started = _cpu_s(), time.perf_counter()
                result = self._spark(job) if engine == SPARK else self._local(job)
                wall_s = time.perf_counter() - started
                spent = {kind: s - before.get(kind, 0.0) for kind, s in _cpu_s().items()}
                output = sorted(row for page in result.read_output() for row in page.rows())
            finally:
                snapshot.close()
                source.close()
        return {
            "rows": result.rows,
            "answer": repr(output),
            "wall_s": wall_s,
            "cpu_s": sum(spent.values()),
            "by_process": spent,
        }

    def _local(self, job: BackfillJob) -> BackfillResult:
        return self._children.run(job, lambda progress: None)

    def _spark(self, job: BackfillJob) -> BackfillResult:
        return run_on_spark(SparkBackfill(self._session), job, lambda progress: None)

    def close(self) -> None:
        """End the local engine's child."""
        self._children.close()


def _cpu_s() -> dict[str, float]:
    """Return the CPU seconds so far of this process and of those below it, by kind.

    Without the server's. Of ended processes: what their parents have waited for.
    """
    own = psutil.Process()
    spent: dict[str, float] = {}
    for process in [own, *own.children(recursive=True)]:
        with suppress(psutil.Error):
            name, times = process.name(), process.cpu_times()
            if name == "postgres":
                continue
            kind = "java" if name == "java" else "driver" if process == own else "python"
            below = times.children_user + times.children_system
            spent[kind] = spent.get(kind, 0.0) + times.user + times.system
            # What Spark's daemon or this process has waited for.
            if kind != "java":
                spent["ended"] = spent.get("ended", 0.0) + below
    return spent


def main(arguments: list[str]) -> int:
    """Measure, print, and write the file."""
    parser = argparse.ArgumentParser(prog="python -m bench.backfill", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="*", default=[1_000_000, 5_000_000])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--name", default=NOW, help="under which name the figures are stored")
    options = parser.parse_args(arguments)
    figures = {**stamp(), "machine": machine(), "cores": CORES}
    session = LazySession(f"local[{CORES}]")
    settings = {**SERVER_SETTINGS, "shared_buffers": "1GB"}
    try:
        with EmbeddedPostgres(settings=settings) as server:
            started = time.perf_counter()
            session.get()
            figures["session_s"] = round(time.perf_counter() - started, 1)
            figures["first_job_s"] = round(
                measured(server, session, SMALL_ROWS, 1)[SPARK]["wall_s"], 1
            )
            figures["by_rows"] = {
                str(rows): measured(server, session, rows, options.turns) for rows in options.rows
            }
    finally:
        session.stop()
    found = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    found = {**found, options.name: figures}
    FIGURES.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(figures, indent=1))
    return 0


def section() -> list[str]:
    """Return the lines of RESULTS.md; none before the first run."""
    if not FIGURES.exists():
        return []
    found = json.loads(FIGURES.read_text())
    newest = found[NOW]
    lines = [
        "",
        "## Backfills, locally and on Spark",
        "",
        f"`python -m bench.backfill`: {newest['date']}, revision {newest['revision']}, load of the "
        f"machine {newest['load']}. W1's view, a snapshot of orders and a fifth as many customers, "
        f"local[{newest['cores']}]; the session runs (its start: {newest['session_s']} s, its "
        f"first job: {newest['first_job_s']} s). CPU seconds of the engine's processes, the least "
        "of its turns; wall seconds, the median.",
        "",
    ]
    titles = (
        "orders",
        "revision",
        "local, CPU",
        "Spark, CPU",
        "Spark / local",
        "local, s",
        "Spark, s",
    )
    rows = []
    for figures in found.values():
        for orders, by_engine in figures["by_rows"].items():
            local, spark = by_engine[LOCAL], by_engine[SPARK]
            cells = [f"{int(orders):,}", figures["revision"]]
            cells += [f"{engine['cpu_s']:.1f}" for engine in (local, spark)]
            cells.append(f"{spark['cpu_s'] / local['cpu_s']:.2f}")
            rows.append([*cells, *(f"{engine['wall_s']:.1f}" for engine in (local, spark))])
    return lines + table(titles, rows)


def measured(
    server: EmbeddedPostgres, session: LazySession, orders: int, turns: int
) -> dict[str, dict[str, Any]]:
    """Return by engine the least CPU seconds and the median wall seconds of several turns."""
    with new_database(server) as database:
        database.execute(_TABLES.format(orders=orders, customers=orders // ORDERS_A_CUSTOMER))
        backfills = Backfills(database, session)
        try:
            backfills.run(LOCAL)
            runs: dict[str, list[dict[str, Any]]] = {LOCAL: [], SPARK: []}
            for _ in range(turns):
                for engine, done in runs.items():
                    done.append(backfills.run(engine))
                    print(orders, engine, {**done[-1], "answer": ""}, file=sys.stderr, flush=True)
        finally:
            backfills.close()
    answers = {run["answer"] for done in runs.values() for run in done}
    assert len(answers) == 1, "the engines differ"
    return {engine: _of_turns(done) for engine, done in runs.items()}


def _of_turns(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    least = min(runs, key=lambda run: run["cpu_s"])
    return {
        "rows": least["rows"],
        "wall_s": round(statistics.median(run["wall_s"] for run in runs), 2),
        "cpu_s": round(least["cpu_s"], 2),
        "by_process": {kind: round(s, 2) for kind, s in least["by_process"].items()},
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
