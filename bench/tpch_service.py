"""`python -m bench.tpch_service [--scale 1] [--refreshes 6]`: all views of TPC-H in one service.

The whole service, all 22 views live in one pipeline; what they have in common is stored and
computed once. Measured: the seconds until all are live; of each refresh, one transaction of
thousands of changes, the seconds from its commit until all views show it; of single changes of a
line of an order, ten a second, the milliseconds until they are visible; the CPU and the memory of
the pipeline. In the end every view is compared with PostgreSQL's answer. Printed, and written to a
file; the exit code is 1 if any view was wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench.cells import table
from bench.many_views import create_all
from bench.measure import machine, percentile
from bench.path import Watcher, commit_steadily
from bench.record import stamp
from bench.server import different_rows
from bench.service_run import ServiceRun
from bench.tpch_tables import KINDS, Tables
from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness.compare import pin_session
from tests.harness.postgres import SERVER_SETTINGS, new_database
from tests.harness.schemas.tpch import TPCH

FIGURES = Path(__file__).parent / "tpch_service.json"
SINGLES_A_SECOND = 10
WAIT_S = 300.0


def main(arguments: list[str]) -> int:
    """Measure, print, and write the file."""
    parser = argparse.ArgumentParser(prog="python -m bench.tpch_service", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--refreshes", type=int, default=6)
    parser.add_argument("--singles", type=int, default=300)
    options = parser.parse_args(arguments)
    figures = stamp()
    settings = {**SERVER_SETTINGS, "shared_buffers": "1GB"}
    with EmbeddedPostgres(settings=settings) as server, new_database(server) as database:
        figures |= run(database, options.scale, options.refreshes, options.singles)
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    print(machine())
    print("\n".join(section()))
    return 1 if figures["wrong"] else 0


def run(database: Any, scale: float, refreshes: int, singles: int) -> dict[str, Any]:
    """Return the figures; `wrong` maps a view to its rows too many and too few."""
    queries = TPCH.queries()
    connection = database.connect()
    pin_session(connection)
    tables = Tables(connection, scale)
    with (
        TemporaryDirectory(prefix="tidemark-bench-") as folder,
        ServiceRun(database.dsn, Path(folder)) as service,
    ):
        live_s = create_all(service, queries)
        live_mb = service.pipeline_rss_mb()
        followed = [_refresh(service, connection, tables) for _ in range(refreshes)]
        alone = _singles(service, database.dsn, connection, tables, singles)
        state_mb = _state_mb(service, queries)
        peak_mb = service.pipeline_rss_mb()
        with connection.cursor() as cursor:
            wrong = {n: different_rows(cursor, n, query) for n, query in queries.items()}
    connection.close()
    return {
        "scale": scale,
        "rows": tables.rows,
        "views": len(queries),
        "live_s": live_s,
        "live_mb": live_mb,
        "refreshes": followed,
        "singles": alone,
        "state_mb": state_mb,
        "peak_mb": peak_mb,
        "wrong": {name: count for name, count in wrong.items() if count},
    }


def _refresh(service: ServiceRun, connection: Any, tables: Tables) -> dict[str, float]:
    """Commit a refresh and wait until all views show it: changes, visible_s, cpu_s."""
    changes, before_s = 0, service.pipeline_cpu_s()
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        for statement in tables.refresh().statements:
            cursor.execute(statement.sql)
            changes += cursor.rowcount
        cursor.execute("COMMIT")
        started = time.perf_counter()
        cursor.execute("SELECT pg_current_wal_flush_lsn()")
        ((position,),) = cursor.fetchall()
    for name in TPCH.queries():
        service.await_view(name, position, WAIT_S)
    visible_s = time.perf_counter() - started
    cpu_s = service.pipeline_cpu_s() - before_s
    return {"changes": changes, "visible_s": visible_s, "cpu_s": cpu_s}


def _singles(
    service: ServiceRun, dsn: str, connection: Any, tables: Tables, count: int
) -> dict[str, float]:
    """Change single lines, each in a transaction of its own: p50_ms and p99_ms until they are
    visible, cpu_ms of the pipeline for each."""
    sql = (
        "UPDATE lineitem SET l_quantity = l_quantity + 1 WHERE l_orderkey = %s AND l_linenumber = 1"
    )
    changes = [(sql, (tables.an_order(),)) for _ in range(count)]
    with Watcher(dsn) as watcher, connection.cursor() as cursor:
        before_s = service.pipeline_cpu_s()
        commits = commit_steadily(cursor, SINGLES_A_SECOND, changes)
        watcher.await_beyond(commits[-1][0], WAIT_S)
        cpu_s = service.pipeline_cpu_s() - before_s
    waits = watcher.waits_ms(commits)
    return {
        "changes": count,
        "p50_ms": percentile(waits, 0.5),
        "p99_ms": percentile(waits, 0.99),
        "cpu_ms": cpu_s / count * 1e3,
    }


def _state_mb(service: ServiceRun, queries: Mapping[str, str]) -> float:
    """Return the megabytes of the state of all views, what they share counted once.

    A view that has just become live has no figures for about a second.
    """
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        nodes = {node["id"]: node for name in queries for node in service.dataflow(name)}
        if all(node["bytes"] is not None for node in nodes.values()):
            return sum(node["bytes"] for node in nodes.values()) / 1e6
        time.sleep(0.5)
    raise RuntimeError(f"the service does not say how large its state is\n{service.log_tail()}")


def section() -> list[str]:
    """Return the lines of the page; none before the first run."""
    if not FIGURES.exists():
        return []
    found = json.loads(FIGURES.read_text())
    rows = [
        [
            f"{kind}, {each['changes']:,.0f} changes",
            f"{each['visible_s']:.2f} s",
            f"{each['cpu_s'] / each['changes'] * 1e6:.0f}",
        ]
        for kind, each in by_kind(found["refreshes"]).items()
    ]
    alone = found["singles"]
    kind = f"one line of an order, {SINGLES_A_SECOND} a second"
    waits = f"{alone['p50_ms']:.1f} ms (p99 {alone['p99_ms']:.1f})"
    rows.append([kind, waits, f"{alone['cpu_ms'] * 1e3:.0f}"])
    return [
        "",
        "## TPC-H in one service",
        "",
        f"`python -m bench.tpch_service`: {found['date']}, revision {found['revision']}, load of "
        f"the machine {found['load']}. TPC-H at {found['scale']:g}, {found['rows']:,} rows; "
        f"{found['views']} views in one pipeline, {len(found['wrong'])} of them wrong in the end. "
        f"All live {found['live_s']:.0f} s after the first request. The pipeline has "
        f"{found['live_mb']:,.0f} MB then, at most {found['peak_mb']:,.0f} MB later; "
        f"{found['state_mb']:,.0f} MB of state by its own estimate. Medians of "
        f"{len(found['refreshes'])} refreshes.",
        "",
        *table(("one transaction", "in all views after", "pipeline, CPU µs a change"), rows),
    ]


def by_kind(refreshes: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return the medians of each kind of refresh; kinds come in turn."""
    return {
        kind: {name: median(each[name] for each in of_kind) for name in of_kind[0]}
        for turn, kind in enumerate(KINDS)
        if (of_kind := refreshes[turn :: len(KINDS)])
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
