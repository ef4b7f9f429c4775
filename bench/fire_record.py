"""Stored runs under fault injection, and their section of the page of results.

bench/fire.jsonl has one JSON line a run, as tests/harness/figures.py writes it. Invariants: a
figure always has its command, date and revision. Wrong states and failed runs stay in the totals.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cells import number, table

STORED = Path(__file__).parent / "fire.jsonl"


@dataclass(frozen=True)
class Kind:
    """title: what is counted. aim: the count for one run by hand; 0 if there is none."""

    title: str
    aim: int = 0


KINDS = {
    "kills": Kind("kill -9 at random moments", 1_000),
    "failpoints": Kind("kill -9 and errors at named failpoints"),
    "connection_faults": Kind("connections cut, reset, half-open, delayed, dripping", 1_000),
    "postgres_restarts": Kind("immediate restarts of PostgreSQL", 500),
    "slot_faults": Kind("slots lost, dropped, recreated, in use by others"),
    "promotions": Kind("standbys promoted"),
    "kafka_kills": Kind("brokers killed, rebalances, zombies, timeouts", 300),
    "disk_full": Kind("disks full at write N", 500),
    "io_errors": Kind("I/O errors"),
    "corrupted_files": Kind("state files corrupted, truncated, missing", 2_000),
    "restores": Kind("restores from a copy of the state"),
    "seeds": Kind("seeds of the simulation", 20_000),
    "operator_epochs": Kind(
        "epochs of random plans over a store, compared with batch evaluation", 2_500_000
    ),
    "requests": Kind("requests generated from the API's description, tries an operation", 5_000),
    "clock_jumps": Kind("clock jumps"),
    "bounded": Kind("cases with a memory cap"),
    "soak": Kind("operations of a soak"),
}
_ALWAYS = ("kind", "count", "epochs", "wrong", "command", "date", "revision")


def read(path: Path = STORED) -> list[dict[str, Any]]:
    """Return the runs of a file, in its order."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def take(files: Iterable[Path], stored: Path = STORED) -> int:
    """Append the runs of the files that are not stored yet; return how many there were."""
    known = read(stored)
    new: list[dict[str, Any]] = []
    for path in files:
        new += [run for run in read(path) if run not in known and run not in new]
    with stored.open("a") as out:
        out.writelines(json.dumps(run) + "\n" for run in new)
    return len(new)


def section(path: Path = STORED) -> list[str]:
    """Return the section as Markdown lines; none before the first run."""
    runs = read(path)
    if not runs:
        return []
    epochs, wrong = (sum(run[name] for run in runs) for name in ("epochs", "wrong"))
    reported = (
        f"From {len(runs):,} runs stored in bench/fire.jsonl, by `python -m bench.fire`. States of "
        f"the sink compared with an oracle: {epochs:,}. **Wrong: {wrong:,}.**{_since(runs)} The "
        "aim is for one run by hand and is compared with the longest successful run; "
        "docs/contributing/TESTING.md describes each test."
    )
    titles = ("fault", "in all", "runs", "failed", "longest run", "aim", "", "epochs compared")
    titles += ("wrong", "newest", "command")
    rows = [_row(kind, runs) for kind in KINDS if any(run["kind"] == kind for run in runs)]
    lines = ["", "## Fault injection", "", reported, "", *table(titles, rows)]
    return lines + _cases(runs)


def _since(runs: Sequence[dict[str, Any]]) -> str:
    """Return what succeeded since the newest run with a wrong state; none without such a run."""
    newest = max((run for run in runs if run["wrong"]), key=lambda run: run["date"], default=None)
    if newest is None:
        return ""
    later = [run for run in runs if run["date"] > newest["date"]]
    epochs = sum(run["epochs"] for run in later)
    return (
        f" The newest of these was found at {newest['revision']} on {newest['date']}; since then "
        f"{len(later):,} runs compared {epochs:,} states, none wrong."
    )


def _row(kind: str, runs: Sequence[dict[str, Any]]) -> list[str]:
    mine = [run for run in runs if run["kind"] == kind]
    well = [run for run in mine if not _has_failed(run)]
    longest = max(well, key=lambda run: run["count"], default=None)
    newest = max(mine, key=lambda run: run["date"])
    count = 0 if longest is None else longest["count"]
    aim, verdict = KINDS[kind].aim, ""
    if aim:
        verdict = "met" if count >= aim else "**not met**"
    wrong = sum(run["wrong"] for run in mine)
    return [
        KINDS[kind].title,
        f"{sum(run['count'] for run in mine):,}",
        f"{len(mine):,}",
        f"{len(mine) - len(well):,}",
        f"{count:,}",
        f"{aim:,}" if aim else "",
        verdict,
        f"{sum(run['epochs'] for run in mine):,}",
        f"**{wrong:,}**" if wrong else "0",
        f"{newest['date']}, {newest['revision']}",
        f"`{(longest or newest)['command']}`",
    ]


def _has_failed(run: dict[str, Any]) -> bool:
    return bool(run["wrong"] or run.get("failed"))


def _cases(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Return what runs reported besides their counts: the newest of each kind and case."""
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for run in sorted(runs, key=lambda run: run["date"]):
        if run.keys() - set(_ALWAYS):
            newest[run["kind"], str(run.get("case", ""))] = run
    rows = []
    for (kind, case), run in sorted(newest.items()):
        more = {n: v for n, v in run.items() if n not in (*_ALWAYS, "case")}
        reported = ", ".join(
            f"{name.replace('_', ' ')} {_shown(value)}" for name, value in more.items()
        )
        rows.append([kind.replace("_", " "), case, reported, f"{run['date']}, {run['revision']}"])
    return ["", *table(("", "case", "count", "newest"), rows)] if rows else []


def _shown(value: Any) -> str:
    """Format a value for readers: numbers with thousands separators."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value).replace("|", "\\|")
    return f"{value:,}" if isinstance(value, int) else number(value)
