"""What the last runs of `make queries` found, for the page of results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# The command of each file.
COUNTED = {
    HERE / "generated_queries.json": "make queries",
    HERE / "generated_temporal_queries.json": "make queries TEMPORAL=1",
}


def section(counted: Mapping[Path, str] = COUNTED) -> list[str]:
    """Return the section as Markdown lines; none before the first run."""
    runs = {path: command for path, command in counted.items() if path.exists()}
    if not runs:
        return []
    lines = ["", "## Generated queries"]
    for path, command in runs.items():
        lines += _of_run(json.loads(path.read_text()), command)
    return lines


def _of_run(run: dict[str, Any], command: str) -> list[str]:
    counts = run["counts"]
    refused, queries = sum(counts["refused"].values()), counts["queries"]
    share = 100 * refused / max(queries, 1)
    lines = [
        "",
        f"{run['date']}, by `{command}`, seed {run['seed']}: {queries:,} queries"
        f"{_temporal(counts)} over "
        f"{run['histories']:,} random schemas in {run['elapsed_s']:,.0f} s, "
        f"{counts['comparisons']:,} comparisons with PostgreSQL after a transaction, "
        f"{counts['moved']:,} queries whose answer moved. **Wrong: {counts['wrong']:,}.** "
        f"Refused: {refused:,} ({share:.2f} %).",
    ]
    if counts["refused"]:
        lines += ["", "| refused | reason |", "|---|---|"]
        ordered = sorted(counts["refused"].items(), key=lambda pair: (-pair[1], pair[0]))
        lines += [
            f"| {count} | {reason.replace('|', chr(92) + '|')} |" for reason, count in ordered
        ]
    if run["found"]:
        lines += ["", "Found: " + ", ".join(_found(run, name) for name in run["found"])]
    return lines


def _temporal(counts: dict[str, Any]) -> str:
    """Return how many read the clock, in runs that count it."""
    return f", {counts['temporal']:,} of which read the clock," if "temporal" in counts else ""


def _found(run: dict[str, Any], name: str) -> str:
    """Return the name of a file that the run has written, with its outcome if known."""
    note = run.get("notes", {}).get(name, "")
    return f"`{name}`" + (f" ({note})" if note else "")
