"""`python -m bench.timeline [--seconds N]`: where the time from commit to visible goes.

W1's view in the real service, single-row commits at a low and at a steady rate, so that each is an
epoch of its own. The service notes when an epoch reaches each stage (bench.traced_service); the
figures are medians of the time from one stage to the next, so their sum is about the whole.
"""

from __future__ import annotations

import argparse
import json
import sys
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench import server
from bench.cells import table
from bench.generate import prepare
from bench.measure import percentile
from bench.path import VIEW, Watcher, check_view, write_steadily
from bench.record import stamp
from bench.rows import Generated
from bench.server import QUERY
from bench.service_run import ServiceRun
from bench.traced_service import TRACE
from bench.workloads import FULL, WORKLOADS
from connectors.postgres.embedded.server import EmbeddedPostgres

FIGURES = Path(__file__).parent / "timeline.json"
RATES = (1, 100)
STAGES = {
    "received": "the WAL sender has decoded the commit, and its last message is here",
    "polled": "the pipeline's thread has woken up and taken it",
    "checked": "the versions of the tables in the source's catalog have been compared",
    "decoded": "its rows are columns",
    "stepped": "the engine has stepped all views",
    "committed": "the epoch is in the state",
    "taken": "the sink's thread has woken up and taken it",
    "composed": "its statements are composed",
    "written": "the sink's transaction has ended, fsync included",
    "seen": "a reader that polls each half millisecond has seen it",
}


def main(arguments: list[str]) -> int:
    """Measure, print, and write the file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    seconds = parser.parse_args(arguments).seconds
    rows = prepare(WORKLOADS["w1"].rows, FULL)
    found = {**stamp(), "rates": measure(rows, FULL.customers, RATES, seconds)}
    FIGURES.write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join(section()))
    return 0


def measure(
    rows: Generated, customers: int, rates: Sequence[int], seconds: float
) -> dict[str, dict[str, float]]:
    """Return by rate: the median milliseconds of each stage, of all of them, and `epochs`."""
    with (
        EmbeddedPostgres() as postgres,
        TemporaryDirectory(prefix="tidemark-bench-") as name,
        server.session(postgres.dsn) as cursor,
    ):
        server.fill(cursor, rows)
        path = Path(name) / "trace"
        traced = {TRACE: str(path)}
        seen: dict[str, list[tuple[int, int]]] = {}
        with ServiceRun(postgres.dsn, Path(name), traced, "bench.traced_service") as service:
            service.create(VIEW, QUERY, "local")
            for rate in rates:
                seen[str(rate)] = _moments(
                    postgres.dsn, rate, max(int(rate * seconds), 5), customers
                )
            check_view(cursor)
        noted = sorted((int(at), stage) for stage, at in map(str.split, path.open()))
    return {rate: medians(pairs, noted) for rate, pairs in seen.items()}


def _moments(dsn: str, rate: int, count: int, customers: int) -> list[tuple[int, int]]:
    """Return when each commit returned and when it was seen, in nanoseconds."""
    with Watcher(dsn) as watcher:
        commits = write_steadily(dsn, rate, count, customers)
        watcher.await_beyond(commits[-1][0])
    return [(int(at * 1e9), int(watcher.seen_beyond(p) * 1e9)) for p, at in commits]


def medians(pairs: Sequence[tuple[int, int]], noted: Sequence[tuple[int, str]]) -> dict[str, float]:
    """Return the figures of `measure` for one rate.

    pairs: when each commit returned and was seen. noted: when which stage was reached, in order.
    """
    spent: dict[str, list[float]] = {stage: [] for stage in (*STAGES, "whole")}
    for number, (committed, seen) in enumerate(pairs):
        until = pairs[number + 1][0] if number + 1 < len(pairs) else seen + 1
        chain = _chain(noted, committed, until)
        if chain is None:
            continue
        chain.append(seen)
        for stage, start, end in zip(STAGES, [committed, *chain], chain, strict=False):
            spent[stage].append((end - start) / 1e6)
        spent["whole"].append((seen - committed) / 1e6)
    epochs = len(spent["whole"])
    if not epochs:
        raise RuntimeError("no commit was an epoch of its own")
    return {stage: percentile(ms, 0.5) for stage, ms in spent.items()} | {"epochs": epochs}


def _chain(noted: Sequence[tuple[int, str]], committed: int, until: int) -> list[int] | None:
    """Return when one commit reached each stage; None if it shared its epoch with another.

    The WAL sender may be quicker than the client that has committed.
    """
    at = bisect_left(noted, (committed - 1_000_000, ""))
    chain: list[int] = []
    stages = [stage for stage in STAGES if stage != "seen"]
    for moment, stage in noted[at:]:
        if moment >= until:
            return None
        if stage == stages[len(chain)]:
            chain.append(moment)
            if len(chain) == len(stages):
                return chain
    return None


def section() -> list[str]:
    """Return the section as Markdown lines; [] before the first run."""
    if not FIGURES.exists():
        return []
    found: dict[str, Any] = json.loads(FIGURES.read_text())
    rates = found["rates"]
    rows = [[text, *(f"{r[stage]:.2f}" for r in rates.values())] for stage, text in STAGES.items()]
    rows.append(["**all of it**", *(f"**{r['whole']:.2f}**" for r in rates.values())])
    return [
        "",
        "## From commit to visible, by stage",
        "",
        f"`python -m bench.timeline`: {found['date']}, revision {found['revision']}, load of the "
        f"machine {found['load']}. W1's view, one row a commit, each an epoch of its own; source, "
        "sink and service on one machine. Milliseconds from the stage above, medians.",
        "",
        *table(("until", *(f"{int(rate):,} a second" for rate in rates)), rows),
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
