"""Peak memory of the pipeline when one change matches very many rows, by kind.

`python -m bench.fan_out --memory 384`. The kinds are a TRUNCATE, joins with conditions, a NULL in
NOT IN, a recursion and a window. Each runs against a service and a server of its own, in a cgroup
limited to the cap if one can be created. Prints one JSON object: peak and outcome of each.
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


@dataclass
class Outcome:
    """ended: "equal", "refused CODE", "another answer", or "the process was ended"."""

    kind: str
    seconds: float
    peak_mb: float
    ended: str


def run(name: str, rows: int, memory_mb: int, wait_s: float) -> Outcome:
    """Run one kind, step by step."""
    kind = fan_out.KINDS[name]
    with (
        TemporaryDirectory(prefix="tidemark-bench-") as folder,
        EmbeddedPostgres() as postgres,
        session(postgres.dsn) as cursor,
    ):
        cursor.execute(fan_out.hot_tables(rows))
        settings = {"TIDEMARK_MEMORY": str(memory_mb)} | fan_out.ANY_BUDGET_VARIABLES
        with (
            ServiceRun(postgres.dsn, Path(folder), settings) as service,
            MemoryCgroup(memory_mb) as limit,
        ):
            for view, query in kind.views.items():
                service.create(view, query, "local")
            pid, started, peak = service.pipeline_pid(), time.perf_counter(), 0.0
            limit.add(pid)
            ended = "equal"
            for statement in kind.steps:
                cursor.execute(statement)
                ended = _ended(service, cursor, wait_s)
                if service.pipeline_pid() != pid:
                    ended = "the process was ended"
                    break
                peak = service.pipeline_rss_mb()
                if ended:
                    break
                ended = _compared(kind, cursor)
            return Outcome(name, round(time.perf_counter() - started, 1), round(peak, 1), ended)


def _ended(service: ServiceRun, cursor: Any, wait_s: float) -> str:
    """Wait until everything is in the sink; return the code of a failed view, or nothing."""
    cursor.execute("SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn")
    position = int(cursor.fetchone()[0])
    cursor.execute("SELECT pg_logical_emit_message(true, 'bench', '')")
    try:
        await_position(cursor, position, wait_s)
    except RuntimeError:
        return "not done"
    cursor.execute("SELECT coalesce(max(code), '') FROM tidemark.views")
    code = cursor.fetchone()[0]
    return f"refused {code}" if code else ""


def _compared(kind: fan_out.Kind, cursor: Any) -> str:
    found = fan_out.differences(cursor, kind.views)
    return "another answer" if any(found.values()) else "equal"


def main() -> int:
    """Return exit code 1 if a process was killed, an answer differs, or a cap was exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--memory", type=int, default=384)
    parser.add_argument("--wait-s", type=float, default=600.0)
    parser.add_argument("--kind", choices=fan_out.KINDS, action="append")
    given = parser.parse_args()
    names = given.kind or list(fan_out.KINDS)
    outcomes = [run(name, given.rows, given.memory, given.wait_s) for name in names]
    reported = {"rows": given.rows, "cap_mb": given.memory, "kinds": [asdict(o) for o in outcomes]}
    sys.stdout.write(json.dumps(reported, indent=2) + "\n")
    is_good = all(o.ended == "equal" or o.ended.startswith("refused") for o in outcomes)
    return 0 if is_good and max(o.peak_mb for o in outcomes) <= given.memory else 1


if __name__ == "__main__":
    sys.exit(main())
