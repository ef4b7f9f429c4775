"""`python -m bench.engine_refresh [--rows N]`: refresh the table of a Python function.

The lower bound is what no refresh can avoid: running the function, and sending as many rows by COPY
to an empty table with the same key. Measured are the initial load, a refresh with one row in a
hundred changed, one with no change, and one recognized as unchanged by its digest. Figures are CPU
time of this process and the server's, the minimum of several runs; printed, and written to a file.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from bench.record import stamp
from bench.server import session
from connectors.postgres.embedded.function_tables import FunctionTables
from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.python.function import Function
from connectors.python.spool import spool
from service.embedded.functions import Functions

FIGURES = Path(__file__).parent / "engine_refresh.json"
COLUMNS = {"id": "bigint", "name": "text", "price": "float8", "kind": "bigint"}
ROUNDS = 2
SETTLE_S = 0.3


def main(arguments: list[str]) -> int:
    """Measure, print, and write the file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args(arguments).rows
    figures = {
        **stamp(),
        "rows": rows,
        **measure(rows),
    }
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    print(report(figures))
    return 0


def measure(n: int) -> dict[str, Any]:
    """Return the seconds of each step, with a key and without."""
    changed = [0]

    def rows() -> Iterator[tuple[int, str, float, int]]:
        for i in range(n):
            yield (i, f"name {i}", i * 0.5 + (changed[0] if i % 100 == 0 else 0), i % 100)

    def run() -> None:
        for _ in rows():
            pass

    with EmbeddedPostgres(settings={"fsync": "off"}) as server:
        least = _Meter(server.pid).least
        found: dict[str, Any] = {"function": least(run)}
        FunctionTables(server.dsn).prepare()
        for name, key in (("keyed", ("id",)), ("bag", ())):
            found[name] = {"copy": least(_copy(server.dsn, rows, key))}
            functions = Functions(server.dsn)
            register = functools.partial(functions.register, name, rows, COLUMNS, key, None)
            found[name]["first"] = least(register, 1)
            one = functions.of(name)

            def refresh(has_changed: bool, is_known: bool, one: Any = one) -> None:
                changed[0] += has_changed
                if not is_known:
                    one.digest = b""
                done = functions.refresh([one.function.name])[one.function.name]  # noqa: B023
                if done.is_changed != has_changed:
                    raise AssertionError(f"{done}")

            found[name]["one in a hundred"] = least(lambda: refresh(True, False))
            found[name]["nothing, compared"] = least(lambda: refresh(False, False))
            found[name]["nothing, by digest"] = least(lambda: refresh(False, True))
            functions.close()
    return found


def _copy(dsn: str, rows: Callable[[], Any], key: tuple[str, ...]) -> Callable[[], None]:
    """COPY prepared lines into an empty table."""
    lines = spool("floor", Function("floor", rows).read(), tuple(COLUMNS.items()))
    primary = f", PRIMARY KEY ({', '.join(key)})" if key else ""
    types = ", ".join(f"{n} {t}" for n, t in COLUMNS.items())

    def copy() -> None:
        lines.file.seek(0)
        with session(dsn) as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS floor; CREATE TABLE floor ({types}{primary})")
            cursor.copy_expert("COPY floor FROM STDIN", lines.file)

    return copy


class _Meter:
    """Return the CPU seconds of this process and of a server whose sessions have ended."""

    def __init__(self, server: int) -> None:
        self._server = psutil.Process(server)

    def least(self, run: Callable[[], object], rounds: int = ROUNDS) -> float:
        """Return the fastest of several runs."""
        found = []
        for _ in range(rounds):
            before = self._now()
            run()
            found.append(self._now() - before)
        return min(found)

    def _now(self) -> float:
        time.sleep(SETTLE_S)  # a session's process is counted when it has ended
        theirs = self._server.cpu_times()
        return time.process_time() + theirs.children_user + theirs.children_system


def section(path: Path = FIGURES) -> list[str]:
    """Return the last run's figures as Markdown lines; none before the first run."""
    if not path.exists():
        return []
    figures = json.loads(path.read_text())
    return ["", "## Functions of an engine", "", *report(figures).splitlines()]


def report(figures: dict[str, Any]) -> str:
    """Return a table for human readers."""
    lines = [
        f"A Python generator of {figures['rows']:,} tuples of four values as a table "
        f"([ENGINE.md](../docs/ENGINE.md)), by `python -m bench.engine_refresh`: "
        f"{figures['date']}, revision {figures['revision']}, load of the machine "
        f"{figures['load']}. The baseline is the function alone and COPY of its prepared rows to "
        "an empty table; CPU time of both sides.",
        "",
        "| | with a key, CPU s | x baseline | multiset, CPU s | x baseline |",
        "|---|---|---|---|---|",
    ]
    floors = {kind: figures["function"] + figures[kind]["copy"] for kind in ("keyed", "bag")}
    reported = " + ".join(("function", "COPY"))
    cells = [
        f"{figures['function']:.2f} + {figures[k]['copy']:.2f} | 1.0" for k in ("keyed", "bag")
    ]
    lines.append(f"| the baseline: {reported} | {' | '.join(cells)} |")
    for step in ("first", "one in a hundred", "nothing, compared", "nothing, by digest"):
        cells = [
            f"{figures[k][step]:.2f} | {figures[k][step] / floors[k]:.1f}" for k in ("keyed", "bag")
        ]
        title = "initial load" if step == "first" else f"changed: {step}"
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
