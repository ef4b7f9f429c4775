"""`python -m bench.history`: the cost of a retained past, for W1 in the service and the sink alone.

Figures are CPU time of the pipeline and the server (for the sink alone, of this process and the
server), in alternating pairs, the minimum of several runs; printed, and written to a file.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from bench import server
from bench.generate import prepare
from bench.record import stamp
from bench.service_run import ServiceRun, await_position
from bench.workloads import QUICK, WORKLOADS
from connectors.postgres.catalog.catalog import Control, ViewRow
from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.postgres.sink.postgres_sink import PostgresSink
from connectors.sink import Progress, SinkEpoch, SinkRows, SinkTable, Swap, ViewDdl
from dataflow import types
from dataflow.delta import Delta
from dataflow.schema import Field

FIGURES = Path(__file__).parent / "history.json"
WAYS = {"without": None, "with": "1 hour"}
# Changes of W1 in one measurement, changes of a transaction, and measurements of each way.
CHANGES, BATCH, ROUNDS = 4_000, 100, 3
# Rows that an epoch updates, and epochs of one measurement, of the sink alone.
EPOCHS = {1: 500, 100: 50, 2_000: 10}
ROWS = 20_000
TABLE = SinkTable(
    "public", "v", (Field("id", types.INT8, False), Field("total", types.NUMERIC)), (0,)
)
WAIT_S = 300.0


def main() -> int:
    """Measure, print, and write the file."""
    figures = {
        **stamp(),
        "sink": measure_sink(),
        "w1": measure_w1(),
    }
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    print("\n".join(section()))
    return 0


def measure_w1() -> dict[str, float]:
    """Return CPU µs of pipeline and server a change of W1, by whether the past is retained."""
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    rows = prepare(WORKLOADS["w1"].rows, QUICK)
    with (
        EmbeddedPostgres() as postgres,
        TemporaryDirectory(prefix="tidemark-bench-") as folder,
        server.session(postgres.dsn) as cursor,
    ):
        server.fill(cursor, rows)
        done = 0
        with ServiceRun(postgres.dsn, Path(folder)) as service:
            for _ in range(ROUNDS):
                for way, period in WAYS.items():
                    service.create("by_region", server.QUERY, "local", history=period)
                    before = service.pipeline_cpu_s() + _server_cpu_s(postgres.pid)
                    server.apply_all(cursor, done, done + CHANGES, BATCH)
                    done += CHANGES
                    cursor.execute("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint")
                    await_position(cursor, cursor.fetchone()[0] - 1, WAIT_S)
                    spent = service.pipeline_cpu_s() + _server_cpu_s(postgres.pid) - before
                    times[way].append(spent / CHANGES * 1e6)
                    service.drop("by_region")
    return {way: round(min(of), 1) for way, of in times.items()}


def measure_sink() -> dict[str, dict[str, float]]:
    """Return CPU µs of both sides an epoch, by updated rows and by whether the past is retained."""
    found: dict[str, dict[str, float]] = {}
    for updated, epochs in EPOCHS.items():
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for way, period in WAYS.items():
            with EmbeddedPostgres() as postgres:
                sink = PostgresSink(postgres.dsn)
                sink.prepare()
                control = Control(postgres.dsn)
                options = {"history": period}
                control.insert_view(ViewRow("public", "v", "SELECT", "v", options=options))
                control.close()
                first = Delta.of("is", [(i, b"0") for i in range(ROWS)])
                sink.stage(TABLE, [first], "t")
                sink.write(SinkEpoch(Progress(1, {}), ddl=ViewDdl(swaps=(Swap(TABLE, "t"),))))
                number = 1
                for _ in range(ROUNDS):
                    deltas = [_update(number + k, updated) for k in range(1, epochs + 1)]
                    before = time.process_time() + _server_cpu_s(postgres.pid)
                    for delta in deltas:
                        number += 1
                        sink.write(SinkEpoch(Progress(number, {}), SinkRows([(TABLE, delta)])))
                    spent = time.process_time() + _server_cpu_s(postgres.pid) - before
                    times[way].append(spent / epochs * 1e6)
                sink.close()
        found[str(updated)] = {way: round(min(of), 1) for way, of in times.items()}
    return found


def _update(number: int, updated: int) -> Delta:
    """Return new values of the same rows in every epoch: a long past of few rows."""
    old, new = b"%d" % (number - 2), b"%d" % (number - 1)
    rows = [(i, value) for i in range(updated) for value in (old, new)]
    return Delta.of("is", rows, [-1, 1] * updated)


def _server_cpu_s(pid: int) -> float:
    total = 0.0
    for process in psutil.Process(pid).children(recursive=True):
        times = process.cpu_times()
        total += times.user + times.system
    return total


def section() -> list[str]:
    """Return the section as Markdown lines; [] before the first run."""
    if not FIGURES.exists():
        return []
    figures: dict[str, Any] = json.loads(FIGURES.read_text())
    w1 = figures["w1"]
    lines = [
        "",
        "## History",
        "",
        "The cost of a retained past ([HISTORY.md](../docs/HISTORY.md)), by `python -m"
        f" bench.history`: {figures['date']}, revision {figures['revision']}, load of the machine"
        f" {figures['load']}. CPU time of both sides.",
        "",
        "| | without, CPU us | with, CPU us | times |",
        "|---|---|---|---|",
        f"| W1 through the service, a change (in transactions of {BATCH}) | {w1['without']:,.0f} |"
        f" {w1['with']:,.0f} | {w1['with'] / w1['without']:.2f} |",
    ]
    for rows, of in figures["sink"].items():
        ratio = of["with"] / of["without"]
        lines.append(
            f"| the sink alone, an epoch that updates {int(rows):,} rows | {of['without']:,.0f} |"
            f" {of['with']:,.0f} | {ratio:.2f} |"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
