"""`python -m bench.many_views [--views 200] [--tables 20] [--rate 1000] [--seconds 30]`.

Many views of ten kinds over many tables in one pipeline, while single rows are inserted, updated
and deleted at a steady rate, each in a transaction of its own. Measured: the time from commit to
visible, the CPU and memory of the pipeline. In the end every view is compared with its query.
Printed, and written to a file.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from bench import server
from bench.measure import percentile
from bench.path import Watcher, commit_steadily
from bench.record import stamp
from bench.service_run import ServiceRun
from connectors.postgres.embedded.server import EmbeddedPostgres

FIGURES = Path(__file__).parent / "many_views.json"
ROWS, GROUPS, VALUES = 10_000, 100, 1_000
LIVE_S = 1_800.0
# {t}: a table, {u}: the next one, {n}: another number for each view, so that none is computed once
# for two.
KINDS = (
    "SELECT grp, count(*) AS n, sum(v) AS total FROM {t} WHERE v % 13 <> {n} GROUP BY grp",
    "SELECT grp, max(v) AS most, min(v) AS least FROM {t} WHERE v % 11 <> {n} GROUP BY grp",
    "SELECT id, grp, v * {n} AS v FROM {t} WHERE v > 900 - {n}",
    "SELECT count(*) AS n, avg(v) AS mean FROM {t} WHERE v % 7 <> {n}",
    "SELECT id, v FROM {t} WHERE v % 17 <> {n} ORDER BY v DESC, id LIMIT 10",
    "SELECT DISTINCT grp, v % {n} AS rest FROM {t}",
    "SELECT t.grp, sum(t.v + u.v) AS total FROM {t} t JOIN {u} u ON u.id = t.other "
    "WHERE t.v % 19 <> {n} GROUP BY t.grp",
    "SELECT t.id, t.v, u.v AS other FROM {t} t LEFT JOIN {u} u ON u.id = t.other AND u.v > {n} "
    "WHERE t.v > 950",
    "SELECT grp, count(*) AS n FROM {t} GROUP BY grp HAVING count(*) > 90 + {n}",
    "SELECT t.id FROM {t} t WHERE v > 800 AND NOT EXISTS "
    "(SELECT FROM {u} u WHERE u.id = t.other AND u.v > 500 + {n})",
)


def main(arguments: list[str]) -> int:
    """Measure, print, and write the file; 1 if a view is wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.many_views", description=__doc__)
    parser.add_argument("--views", type=int, default=200)
    parser.add_argument("--tables", type=int, default=20)
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args(arguments)
    figures = {**stamp(), **measure(options.views, options.tables, options.rate, options.seconds)}
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    print("\n".join(section()))
    return 1 if figures["wrong"] else 0


def views(count: int, tables: int) -> dict[str, str]:
    """Return the queries by name: the kinds in turn, over the tables in turn."""
    found = {}
    for number in range(count):
        table = number // len(KINDS) % tables
        names = {"t": f"many{table}", "u": f"many{(table + 1) % tables}"}
        kind = KINDS[number % len(KINDS)]
        found[f"view{number}"] = kind.format(**names, n=2 + number // len(KINDS) % 5)
    return found


def measure(count: int, tables: int, rate: int, seconds: float, rows: int = ROWS) -> dict[str, Any]:
    """Return the figures. rate: of changes, in 1/s."""
    queries = views(count, tables)
    with (
        EmbeddedPostgres() as postgres,
        TemporaryDirectory(prefix="tidemark-bench-") as folder,
        server.session(postgres.dsn) as cursor,
        ServiceRun(postgres.dsn, Path(folder)) as service,
    ):
        for table in range(tables):
            cursor.execute(
                f"CREATE TABLE many{table} (id int PRIMARY KEY, grp int NOT NULL, "
                "other int NOT NULL, v int NOT NULL); "
                f"INSERT INTO many{table} SELECT i, i % {GROUPS}, (i * 7) % {rows}, "
                f"(i * 31) % {VALUES} FROM generate_series(0, {rows - 1}) AS i"
            )
        live_s = create_all(service, queries)
        with Watcher(postgres.dsn) as watcher:
            write(postgres.dsn, (tables, rows), rate, min(seconds, 3.0), seed=1)
            before_s, started = service.pipeline_cpu_s(), time.perf_counter()
            commits = write(postgres.dsn, (tables, rows), rate, seconds, seed=2)
            written_s = time.perf_counter() - started
            watcher.await_beyond(commits[-1][0], timeout_s=600)
            visible_s = time.perf_counter() - started
            cpu_s = service.pipeline_cpu_s() - before_s
        waits = watcher.waits_ms(commits)
        return {
            "views": count,
            "tables": tables,
            "rows": rows * tables,
            "live_s": live_s,
            "rate": rate,
            "changes": len(commits),
            "written_s": written_s,
            "visible_s": visible_s,
            "p50_ms": percentile(waits, 0.5),
            "p99_ms": percentile(waits, 0.99),
            "cpu_ms": cpu_s / len(commits) * 1e3,
            "cores": cpu_s / visible_s,
            "rss_mb": service.pipeline_rss_mb(),
            "wrong": [n for n, query in queries.items() if server.different_rows(cursor, n, query)],
        }


def create_all(service: ServiceRun, queries: dict[str, str]) -> float:
    """Create views all at once; return the seconds until all are live."""
    started = time.perf_counter()
    with httpx.Client(base_url=service.url, timeout=60) as client:
        for name, query in queries.items():
            client.post("/views?wait_s=0", json={"name": name, "query": query}).raise_for_status()
        left = set(queries)
        while left:
            if time.perf_counter() - started > LIVE_S:
                raise RuntimeError(f"{len(left)} views are not live\n{service.log_tail()}")
            time.sleep(0.5)
            left = {name for name in left if service.view(name)["status"] != "live"}
    return time.perf_counter() - started


def write(
    dsn: str, sizes: tuple[int, int], rate: int, seconds: float, seed: int
) -> list[tuple[int, float]]:
    """Change single rows, as `commit_steadily`. sizes: the number of tables, and of the rows of
    each."""
    pick, count = random.Random(seed), max(int(rate * seconds), 5)
    with server.session(dsn) as cursor:
        return commit_steadily(cursor, rate, ((_change(pick, *sizes), None) for _ in range(count)))


def _change(pick: random.Random, tables: int, rows: int) -> str:
    table, id = f"many{pick.randrange(tables)}", pick.randrange(2 * rows)
    values = pick.randrange(GROUPS), pick.randrange(rows), pick.randrange(VALUES)
    if pick.random() < 0.15:
        return f"DELETE FROM {table} WHERE id = {id}"
    return (
        f"INSERT INTO {table} VALUES ({id}, {', '.join(map(str, values))}) "
        "ON CONFLICT (id) DO UPDATE SET grp = excluded.grp, other = excluded.other, v = excluded.v"
    )


def section() -> Sequence[str]:
    """Return the lines of the page; none before it was measured."""
    if not FIGURES.exists():
        return []
    found = json.loads(FIGURES.read_text())
    return [
        "## Many views",
        "",
        f"`python -m bench.many_views`: {found['date']}, revision {found['revision']}, load of the "
        f"machine {found['load']}. {found['views']} views of {len(KINDS)} kinds over "
        f"{found['tables']} tables of {found['rows'] // found['tables']:,} rows, one pipeline; all "
        f"live {found['live_s']:.0f} s after the first request. Single rows inserted, updated and "
        f"deleted in transactions of their own, {found['rate']:,} a second for "
        f"{found['written_s']:.0f} s; wrong views in the end: {len(found['wrong'])}.",
        "",
        "| commit to visible, p50 ms | p99 ms | pipeline, CPU ms a change | cores | peak MB |",
        "|---|---|---|---|---|",
        f"| {found['p50_ms']:.1f} | {found['p99_ms']:.1f} | {found['cpu_ms']:.2f} "
        f"| {found['cores']:.2f} | {found['rss_mb']:,.0f} |",
        "",
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
