"""`python -m bench.create [--size 40] [--aggregates 300]`.

Views with long queries over small tables, each created in a service of its own. Measured: the CPU
seconds of the service and of PostgreSQL from the request until the view is live, and the whole
time. Each view is compared with its query. Printed, and written to a file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from bench import server
from bench.record import stamp
from bench.service_run import ServiceRun
from connectors.postgres.embedded.server import EmbeddedPostgres

FIGURES = Path(__file__).parent / "create.json"
SIZE, AGGREGATES = 40, 300
_FUNCTIONS = ("sum", "count", "min", "max", "avg")


def main(arguments: list[str]) -> int:
    """Measure, print, and write the file; 1 if a view is wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.create", description=__doc__)
    parser.add_argument("--size", type=int, default=SIZE)
    parser.add_argument("--aggregates", type=int, default=AGGREGATES)
    options = parser.parse_args(arguments)
    found = measure(options.size, options.aggregates)
    figures = {**stamp(), **vars(options), "views": found}
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    print("\n".join(section()))
    return int(any(view["wrong"] for view in found.values()))


def queries(size: int, aggregates: int) -> dict[str, str]:
    """Return the queries by name, over tables `part0` to `part{size - 1}`."""
    calls = (f"{_FUNCTIONS[i % 5]}(v + {i}) AS c{i}" for i in range(aggregates))
    columns = ", ".join(f"part{i}.v AS v{i}" for i in range(size))
    joins = " ".join(f"JOIN part{i} ON part{i}.id = part{i - 1}.other" for i in range(1, size))
    branches = (
        f"SELECT p.grp, sum(p.v) AS total, count(*) AS n FROM part0 p JOIN part{i} q "
        f"ON q.id = p.other WHERE p.v > {i} GROUP BY p.grp"
        for i in range(size)
    )
    return {
        "wide_aggregate": f"SELECT grp, {', '.join(calls)} FROM part0 GROUP BY grp",
        "long_join": f"SELECT part0.id, {columns} FROM part0 {joins}",
        "long_union": " UNION ALL ".join(branches),
    }


def measure(size: int, aggregates: int) -> dict[str, dict[str, Any]]:
    """Return by the query's name the seconds of CPU, the whole time, and its wrong rows."""
    found = {}
    with EmbeddedPostgres() as postgres, server.session(postgres.dsn) as cursor:
        for i in range(size):
            cursor.execute(
                f"CREATE TABLE part{i} (id int PRIMARY KEY, grp int, other int, v int); "
                f"INSERT INTO part{i} SELECT i, i % 5, i, i FROM generate_series(1, 100) AS i; "
                f"ANALYZE part{i}"
            )
        for name, query in queries(size, aggregates).items():
            with (
                TemporaryDirectory(prefix="tidemark-bench-") as folder,
                ServiceRun(postgres.dsn, Path(folder)) as service,
            ):
                # The first views of a service load its kernels.
                for i, short in enumerate(queries(2, 5).values()):
                    service.create(f"short{i}", short, "local")
                before = _cpu_s()
                elapsed_s = service.create(name, query, "local")
                after = _cpu_s()
                wrong = server.different_rows(cursor, name, query)
                for view in (name, *(f"short{i}" for i in range(3))):
                    service.drop(view)
            found[name] = {
                "service_s": after[0] - before[0],
                "postgres_s": after[1] - before[1],
                "elapsed_s": elapsed_s,
                "wrong": wrong,
            }
    return found


def _cpu_s() -> tuple[float, float]:
    """Return the CPU seconds so far of the service and of PostgreSQL, with their ended children."""
    service = postgres = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            times, name = process.cpu_times(), process.name()
        except psutil.Error:
            continue
        spent = times.user + times.system + times.children_user + times.children_system
        if name.startswith("postgres"):
            postgres += spent
        else:
            service += spent
    return service, postgres


def section() -> Sequence[str]:
    """Return the lines of the page; none before it was measured."""
    if not FIGURES.exists():
        return []
    found = json.loads(FIGURES.read_text())
    shown = {
        "wide_aggregate": f"{found['aggregates']} aggregates",
        "long_join": f"join of {found['size']} tables",
        "long_union": f"UNION ALL of {found['size']} joins with aggregates",
    }
    lines = [
        "## Long queries",
        "",
        f"`python -m bench.create`: {found['date']}, revision {found['revision']}, load of the "
        f"machine {found['load']}. From the request until the view is live, over tables of 100 "
        f"rows; wrong rows in the end: {sum(v['wrong'] for v in found['views'].values())}.",
        "",
        "| query | service, CPU s | PostgreSQL, CPU s | whole time s |",
        "|---|---|---|---|",
    ]
    for name, view in found["views"].items():
        numbers = (view[part] for part in ("service_s", "postgres_s", "elapsed_s"))
        lines.append(f"| {shown[name]} | {' | '.join(f'{n:.1f}' for n in numbers)} |")
    return [*lines, ""]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
