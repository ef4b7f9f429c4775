"""Peak memory of the pipeline process under its cap: `python -m bench.memory`, one JSON object.

The steps are a transaction of many rows, an update that a join multiplies by a thousand, and a sink
blocked by a lock while writes continue. After each step every view must equal PostgreSQL's own
answer. The process runs in a cgroup limited to the cap if one can be created; its peak RSS is
measured in any case.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.server import session
from bench.service_run import ServiceRun, await_position
from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness import fan_out
from tests.harness.cgroup import MemoryCgroup

WAIT_S = 1800.0


@dataclass
class Load:
    """rows: of the large transaction. fan_out: things of one owner. owners: how many owners are
    updated.
    """

    rows: int
    fan_out: int
    owners: int
    stall_s: float


@dataclass
class Result:
    """Seconds until everything is visible in the sink, and the peak so far in mebibytes."""

    step: str
    seconds: float
    peak_mb: float
    is_equal: bool


def run(load: Load, memory_mb: int, folder: Path) -> tuple[list[Result], str]:
    """Run all steps on a server of their own; return them, and how the kernel enforced the cap."""
    with EmbeddedPostgres() as postgres, session(postgres.dsn) as cursor:
        cursor.execute(fan_out.TABLES)
        cursor.execute(fan_out.fill_owners(max(load.rows // load.fan_out, load.owners)))
        settings = {"TIDEMARK_MEMORY": str(memory_mb)} | fan_out.ANY_BUDGET_VARIABLES
        with (
            ServiceRun(postgres.dsn, folder, settings) as service,
            MemoryCgroup(memory_mb) as limit,
        ):
            for name, query in fan_out.VIEWS.items():
                service.create(name, query, "local")
            is_limited = limit.add(service.pipeline_pid())
            results = [_result("idle", service, cursor, time.perf_counter())]
            for step, statement in fan_out.steps(load.rows, load.fan_out, load.owners).items():
                started = time.perf_counter()
                cursor.execute(statement)
                results.append(_result(step, service, cursor, started))
            results.append(_stalled(load, service, cursor, postgres.dsn))
        return results, "by cgroup" if is_limited else limit.reason


def _stalled(load: Load, service: ServiceRun, cursor: Any, dsn: str) -> Result:
    """Commit small transactions while another session holds a lock on a view's table."""
    with session(dsn) as other:
        other.execute("BEGIN; LOCK TABLE totals IN ACCESS EXCLUSIVE MODE")
        started, number = time.perf_counter(), 0
        while time.perf_counter() - started < load.stall_s:
            number += 1
            cursor.execute(fan_out.insert_some(number))
        other.execute("COMMIT")
    step = f"sink stalled for {load.stall_s:.0f} s, {number:,} transactions of 1,000 rows"
    return _result(step, service, cursor, started)


def _result(step: str, service: ServiceRun, cursor: Any, started: float) -> Result:
    cursor.execute("SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn")
    position = int(cursor.fetchone()[0])
    cursor.execute("SELECT pg_logical_emit_message(true, 'bench', '')")
    ended = await_position(cursor, position, WAIT_S)
    peak = service.pipeline_rss_mb()
    is_equal = not any(fan_out.differences(cursor).values())
    return Result(step, round(ended - started, 1), round(peak, 1), is_equal)


def main() -> int:
    """Return exit code 1 if a view is wrong or the peak exceeds the cap."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--fan-out", type=int, default=1_000)
    parser.add_argument("--owners", type=int, default=500)
    parser.add_argument("--stall-s", type=float, default=30.0)
    parser.add_argument("--memory", type=int, default=512)
    given = parser.parse_args()
    load = Load(given.rows, given.fan_out, given.owners, given.stall_s)
    with TemporaryDirectory(prefix="tidemark-bench-") as folder:
        results, limit = run(load, given.memory, Path(folder))
    peak = max(r.peak_mb for r in results)
    reported = {
        "cap_mb": given.memory,
        "peak_rss_mb": peak,
        "limit": limit,
        "steps": [asdict(r) for r in results],
    }
    sys.stdout.write(json.dumps(reported, indent=2) + "\n")
    return 0 if peak <= given.memory and all(r.is_equal for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
