"""TPC-H: all queries maintained while orders come and go, compared with running them again.

`python -m bench.tpch [--scale 0.1] [--refreshes 21]`. Views are loaded one after another by the
service's local backfill, each in a child process. A refresh is one transaction: a refresh function
of the specification, or some updates. After it every view is compared with PostgreSQL's answer. A
view's cost is the CPU of the thread that steps it, over all refreshes. For comparison there is also
a count over lineitem alone. Prints a table; the exit code is 1 if any view was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections import defaultdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.measure import machine, peak_rss_mb
from bench.record import revision
from bench.tpch_tables import Tables
from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.postgres.evaluation.evaluator import PostgresEvaluator
from connectors.source import SourceBatch
from dataflow.plan.properties.unique_keys import keys_of
from service.backfill.child_processes import run_alone
from service.backfill.local_backfill import BackfillJob
from service.engine.engine import View, ViewDefinition
from storage.rocks import RocksStore
from tests.harness.compare import empty_answer, pin_session
from tests.harness.maintained import (
    MARKER,
    MARKER_QUERY,
    Fault,
    Maintained,
    ask,
    create_marker,
    plan_all,
    run_numbered,
)
from tests.harness.postgres import new_database
from tests.harness.schemas.tpch import TPCH

CACHE_BYTES = 1 << 30
WARM = 3
WAIT_S = 600.0
PARTS = 2
COUNT = "count of lineitem"
COUNT_QUERY = """
SELECT l_returnflag, l_linestatus, count(*) AS n FROM lineitem GROUP BY l_returnflag, l_linestatus
"""
FIGURES = Path(__file__).parent / "tpch.json"


class Timed(Maintained):
    """Views loaded as the service loads them, and the CPU seconds of each one's steps."""

    def __init__(self, database: Any, plans: Any, store: RocksStore, folder: Path) -> None:
        self.took: defaultdict[str, float] = defaultdict(float)
        self.load_s: dict[str, float] = {}
        self.changes = 0
        self._folder = folder
        self._dsn = database.dsn
        super().__init__(database, plans, store)

    def _load(self, name: str, definition: ViewDefinition, snapshot: Any) -> None:
        started = time.perf_counter()
        view = View(definition, self._store, self._evaluators[definition.plan.time_zone])
        needed = view.dataflow.needed_columns()
        relations = definition.relations()
        work = self._folder / name.replace(" ", "_")
        work.mkdir(parents=True)
        parts = {r.name: snapshot.parts(r, needed[r.name], PARTS) for r in relations}
        evaluator = partial(PostgresEvaluator, self._dsn)
        root, scope = definition.plan.root, definition.scope
        job = BackfillJob(root, scope, relations, needed, parts, evaluator, work)
        outcome = run_alone(job, lambda progress: None)
        self._store.ingest(outcome.files)
        self.load_s[name] = time.perf_counter() - started
        answer = empty_answer(definition.table.fields)
        for rows in outcome.read_output():
            answer.add(rows, definition.table.fields)
        if outcome.errors is not None:
            self._note_errors(name, outcome.errors)
        self._views[name] = view
        self._facts[name] = keys_of(definition.plan.root)
        self.answers[name] = answer

    def _step(self, batch: SourceBatch, number: int) -> None:
        changes = batch.whole()
        self.changes += sum(map(len, changes))
        for name, view in list(self._views.items()):
            started = time.thread_time()
            inputs = view.resolve(changes)
            output = view.step(inputs) if inputs else None
            self.took[name] += time.thread_time() - started
            if output is not None:
                self.answers[name].add(output, view.definition.table.fields)
                self._note_errors(name, view.errors.take())
        started = time.thread_time()
        self._store.commit()
        self.took["commit"] += time.thread_time() - started


def main(arguments: list[str]) -> int:
    """Load, refresh, compare, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.tpch", description=__doc__)
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--refreshes", type=int, default=21)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    with EmbeddedPostgres() as server, new_database(server) as database:
        figures = run(database, options.scale, options.refreshes, options.seed)
    print(machine())
    print(report(figures))
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    print("the page of results is written by python -m bench --write")
    return 1 if figures["faults"] else 0


def run(database: Any, scale: float, refreshes: int, seed: int) -> dict[str, Any]:
    """Return the figures: rows, load_s, change_s by query, query_s by query, faults, refused."""
    connection = database.connect()
    pin_session(connection)
    tables = Tables(connection, scale, seed)
    create_marker(connection)
    queries = {**TPCH.queries(), COUNT: COUNT_QUERY, MARKER: MARKER_QUERY}
    plans, refused = plan_all(database, queries)
    with TemporaryDirectory(prefix="tidemark-bench-") as folder:
        store = RocksStore(Path(folder) / "store", cache_bytes=CACHE_BYTES)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        before_s = before.ru_utime + before.ru_stime
        maintained = Timed(database, plans, store, Path(folder) / "loads")
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        measured = {name: queries[name] for name in plans}
        faults: list[Fault] = maintained.compare(0, ask(connection, measured))
        # The first of each kind loads what was compiled.
        for number in range(1, WARM + 1):
            run_numbered(connection, tables.refresh(), number)
            maintained.follow(number, WAIT_S)
        maintained.took.clear()
        maintained.changes = 0
        for number in range(WARM + 1, WARM + refreshes + 1):
            run_numbered(connection, tables.refresh(), number)
            maintained.follow(number, WAIT_S)
            faults += maintained.compare(number, ask(connection, measured))
        query_s = {name: timed_query(connection, measured[name]) for name in measured}
        maintained.close()
        store.close()
    connection.close()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "revision": revision(),
        "scale": scale,
        "rows": tables.rows,
        "views": len(measured) - 2,
        "load_s": maintained.load_s,
        "refreshes": refreshes,
        "changes": maintained.changes,
        "change_s": {n: took / maintained.changes for n, took in maintained.took.items()},
        "query_s": query_s,
        "load": os.getloadavg()[1],
        "peak_mb": peak_rss_mb(),
        "load_peak_mb": children.ru_maxrss / 1024,
        "load_cpu_s": children.ru_utime + children.ru_stime - before_s,
        "faults": [f"{f.query} after {f.transaction}: {f.what}" for f in faults],
        "refused": refused,
    }


def timed_query(connection: Any, query: str) -> float:
    """Return the seconds of the query in PostgreSQL, with a warm cache."""
    with connection.cursor() as cursor:
        started = time.perf_counter()
        cursor.execute(query)
        cursor.fetchall()
        return time.perf_counter() - started


def section(path: Path = FIGURES) -> list[str]:
    """Return the last run's figures as Markdown lines; none before the first run."""
    if not path.exists():
        return []
    figures = json.loads(path.read_text())
    reported = f"{figures['date']}, revision {figures.get('revision', 'not noted')}"
    if "change_s" not in figures:
        return ["", "## TPC-H", "", f"{reported}: by an earlier form of the bench, not shown."]
    lines = report(figures).splitlines()
    return ["", "## TPC-H", "", f"{reported}, by `python -m bench.tpch`. {lines[0]};", *lines[1:]]


def report(figures: dict[str, Any]) -> str:
    """Return a table for human readers."""
    kept, again = figures["change_s"], figures["query_s"]
    changes = figures["changes"] / figures["refreshes"]
    load_s = figures["load_s"]
    count = kept[COUNT]
    lines = [
        f"TPC-H at {figures['scale']:g}: {figures['rows']:,} rows, {figures['views']} views of 22, "
        f"{len(figures['refused'])} refused, {figures['refreshes']} refreshes of "
        f"{changes:,.0f} changes, {len(figures['faults'])} wrong answers",
        f"all views loaded one after another in {sum(load_s.values()):.1f} s, "
        f"{max(load_s.values()):.1f} s the slowest, {figures['load_cpu_s']:.1f} s of CPU; peak "
        f"{figures['load_peak_mb']:.0f} MB while loading one, {figures['peak_mb']:.0f} MB of the "
        "process that maintains them all; wall time of the queries run again, at a load of "
        f"{figures['load']:.1f} on {os.cpu_count()} cores",
        "",
        "| query | CPU a change, us | x count(*) | CPU a refresh, ms | the query again, ms |",
        "|---|---|---|---|---|",
    ]
    names = [n for n in again if n != MARKER]
    for name in names:
        lines.append(_line(name, kept.get(name, 0), count, changes, again[name]))
    queries = [n for n in names if n != COUNT]
    mine = sum(kept.get(n, 0) for n in queries) + kept.get("commit", 0)
    theirs = sum(again[n] for n in queries)
    lines.append(_line("all 22, with the commit", mine, count, changes, theirs))
    lines += figures["faults"] + [f"refused {n}: {why}" for n, why in figures["refused"].items()]
    return "\n".join(lines)


def _line(name: str, change_s: float, count_s: float, changes: float, query_s: float) -> str:
    return (
        f"| {name} | {change_s * 1e6:.1f} | {change_s / count_s:.1f} "
        f"| {change_s * changes * 1000:.1f} | {query_s * 1000:.1f} |"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
