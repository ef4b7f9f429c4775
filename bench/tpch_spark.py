"""`python -m bench.tpch_spark [--scale 1]`: all views of TPC-H, maintained by Spark's tasks.

The whole service with a local Spark of two cores, one view after the other: it is built, follows
refreshes, is compared with PostgreSQL's answer, and dropped. Measured: seconds until it is live and
of a refresh, from its commit until it is visible; the megabytes of its state, and the memory of the
Python processes of the executors, which have the state in their buckets. Printed, and written to a
file; the exit code is 1 if any view was wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from bench.measure import machine
from bench.record import stamp
from bench.server import different_rows
from bench.service_run import ServiceRun
from bench.tpch_tables import Tables
from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness.compare import pin_session
from tests.harness.maintained import create_marker, run_numbered
from tests.harness.postgres import SERVER_SETTINGS, new_database
from tests.harness.schemas.tpch import TPCH

FIGURES = Path(__file__).parent / "tpch_spark.json"
CORES, BUCKETS = 2, 8
REFRESHES = 3
WAIT_S = 300
DAEMON = "connectors.spark.maintained.daemon"
SCHEMA = "views"


def main(arguments: list[str]) -> int:
    """Measure, print, and write the file."""
    parser = argparse.ArgumentParser(prog="python -m bench.tpch_spark", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", nargs="*", help="queries, such as q1")
    options = parser.parse_args(arguments)
    settings = {**SERVER_SETTINGS, "shared_buffers": "1GB"}
    with EmbeddedPostgres(settings=settings) as server, new_database(server) as database:
        figures = run(database, options.scale, options.only or sorted(TPCH.queries(), key=_number))
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    print(machine())
    print("\n".join(section()))
    return 1 if any(view["wrong"] for view in figures["by_view"].values()) else 0


def run(database: Any, scale: float, names: Sequence[str]) -> dict[str, Any]:
    """Return the figures: rows, and by view what `measure` gives."""
    connection = database.connect()
    pin_session(connection)
    tables = Tables(connection, scale)
    create_marker(connection)
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE SCHEMA {SCHEMA}")
    figures = {**stamp(), "scale": scale, "rows": tables.rows, "cores": CORES, "buckets": BUCKETS}
    by_view: dict[str, dict[str, Any]] = {}
    with TemporaryDirectory(prefix="tidemark-bench-") as folder:
        settings = {"TIDEMARK_SPARK": f"local[{CORES}]", "TIDEMARK_SPARK_BUCKETS": str(BUCKETS)}
        with ServiceRun(database.dsn, Path(folder), settings) as service:
            for turn, name in enumerate(names):
                numbers = range(1 + turn * REFRESHES, 1 + (turn + 1) * REFRESHES)
                todo = [(n, tables.refresh()) for n in numbers]
                by_view[name] = measure(service, connection, name, todo)
                print(name, by_view[name], flush=True)
    connection.close()
    return {**figures, "by_view": by_view}


def measure(
    service: ServiceRun, connection: Any, name: str, refreshes: Sequence[tuple[int, Any]]
) -> dict[str, Any]:
    """Build a view, follow refreshes, compare, and drop it.

    Returns live_s, refresh_s (the median), state_mb, executors_mb, wrong (rows too many or too
    few).
    """
    query = TPCH.queries()[name]
    live_s = service.create(f"{SCHEMA}.{name}", query, "local", runtime="spark")
    spent = []
    for number, transaction in refreshes:
        run_numbered(connection, transaction, number)
        started = time.perf_counter()
        service.await_view(f"{SCHEMA}.{name}", _position(connection), WAIT_S)
        spent.append(time.perf_counter() - started)
    nodes = service.dataflow(f"{SCHEMA}.{name}")
    executors_mb = _executors_mb()
    with connection.cursor() as cursor:
        wrong = different_rows(cursor, f"{SCHEMA}.{name}", query)
    service.drop(f"{SCHEMA}.{name}")
    return {
        "live_s": live_s,
        "refresh_s": sorted(spent)[len(spent) // 2],
        "state_mb": sum(node["bytes"] for node in nodes) / 1e6,
        "executors_mb": executors_mb,
        "wrong": wrong,
    }


def _position(connection: Any) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_wal_flush_lsn()")
        return cursor.fetchone()[0]


def _executors_mb() -> float:
    """Return the memory of all Python processes of executors, shared pages counted once."""
    total = 0
    for child in psutil.Process().children(recursive=True):
        try:
            if DAEMON in " ".join(child.cmdline()):
                total += child.memory_full_info().pss
        except psutil.Error:
            continue
    return total / 1e6


def _number(name: str) -> int:
    return int(name.removeprefix("q"))


def section() -> list[str]:
    """Return the lines of RESULTS.md; none before the first run."""
    if not FIGURES.exists():
        return []
    figures = json.loads(FIGURES.read_text())
    views = figures["by_view"]
    wrong = sum(bool(view["wrong"]) for view in views.values())
    lines = [
        "",
        "## TPC-H on Spark",
        "",
        f"`python -m bench.tpch_spark`: {figures['date']}, revision {figures['revision']}, load of "
        f"the machine {figures['load']}. TPC-H at {figures['scale']:g}, {figures['rows']:,} rows, "
        f"local[{figures['cores']}], {figures['buckets']} buckets, one view after the other; "
        f"{REFRESHES} refreshes each. {len(views)} views, {wrong} wrong. Seconds until the view is "
        "live, and from a commit until it is visible (median); megabytes of the state, and of the "
        "executors' Python processes.",
        "",
        "| view | live, s | refresh, s | state, MB | executors, MB |",
        "|---|---|---|---|---|",
    ]
    for name, view in views.items():
        lines.append(
            f"| {name} | {view['live_s']:.1f} | {view['refresh_s']:.2f} | {view['state_mb']:.0f} "
            f"| {view['executors_mb']:.0f} |"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
