"""`python -m bench.sandbox`: the cost of the sandbox for expressions evaluated in PostgreSQL.

The lower bound is the same evaluator without a sandbox, with a prepared statement of the session's
own login. Figures are CPU time of this process and the server's, in alternating pairs, the minimum
of several runs; printed, and written to a file.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from bench.record import stamp
from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.postgres.evaluation.evaluator import PostgresEvaluator, Statement
from dataflow.delta import Column
from dataflow.types import INT4, TEXT

FIGURES = Path(__file__).parent / "sandbox.json"
EXPRESSION = "md5(($1)::text)"
# Rows of a batch, and how many batches are one measurement.
BATCHES = {1: 2_000, 100: 500, 10_000: 20}
ROUNDS = 5


def main() -> int:
    """Measure, print, and write the file."""
    figures = {
        **stamp(),
        "batches": measure(),
    }
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    print("\n".join(section()))
    return 0


def measure() -> dict[str, dict[str, float]]:
    """Return microseconds of CPU a batch, by its rows: without a sandbox, and in it."""
    found: dict[str, dict[str, float]] = {}
    with EmbeddedPostgres(settings={"fsync": "off", "jit": "off"}) as server:
        evaluator = PostgresEvaluator(server.dsn)
        floor = _WithoutSandbox(server.dsn)
        for rows, batches in BATCHES.items():
            column = Column.of("i", list(range(rows)))
            call = (EXPRESSION, [INT4], [column], rows, TEXT)
            times: dict[str, list[float]] = {"floor": [], "sandbox": []}
            for _ in range(ROUNDS):
                for name, evaluate in (
                    ("floor", functools.partial(floor.evaluate, *call)),
                    ("sandbox", functools.partial(evaluator.evaluate, *call)),
                ):
                    times[name].append(_cpu_s(server.pid, evaluate, batches) / batches)
            found[str(rows)] = {name: round(min(of) * 1e6, 1) for name, of in times.items()}
        evaluator.close()
        floor.close()
    return found


class _WithoutSandbox(PostgresEvaluator):
    """The evaluator with prepared statements of the session's own login."""

    def _prepare(self, cursor: Any, name: str, statement: Statement) -> None:
        cursor.execute(f"PREPARE {name}({statement.parameters}) AS {statement.select}")

    def _call(
        self, cursor: Any, name: str, statement: Statement, call: bytes
    ) -> list[tuple[Any, ...]]:
        cursor.execute(f"START TRANSACTION READ ONLY; EXECUTE {name}(".encode() + call + b")")
        return cursor.fetchall()


def _cpu_s(server: int, evaluate: Callable[[], object], batches: int) -> float:
    """Return the CPU seconds of this process and the server's sessions for so many batches."""
    evaluate()
    before = _used(server)
    for _ in range(batches):
        evaluate()
    return _used(server) - before


def _used(server: int) -> float:
    total = time.process_time()
    for process in psutil.Process(server).children(recursive=True):
        times = process.cpu_times()
        total += times.user + times.system
    return total


def section() -> list[str]:
    """Return the section as Markdown lines; [] before the first run."""
    if not FIGURES.exists():
        return []
    figures: dict[str, Any] = json.loads(FIGURES.read_text())
    lines = [
        "",
        "## The sandbox",
        "",
        f"An expression without a native kernel (`{EXPRESSION}`) over batches of rows, inside"
        " the sandbox ([SECURITY.md](../docs/SECURITY.md#the-sandbox)) and as a prepared statement"
        f" without one, by `python -m bench.sandbox`: {figures['date']}, revision"
        f" {figures['revision']}, load of the machine {figures['load']}. CPU time of both sides.",
        "",
        "| rows of a batch | without, CPU us | in the sandbox, CPU us | times |",
        "|---|---|---|---|",
    ]
    for rows, of in figures["batches"].items():
        ratio = of["sandbox"] / of["floor"]
        lines.append(f"| {int(rows):,} | {of['floor']:,.0f} | {of['sandbox']:,.0f} | {ratio:.2f} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
