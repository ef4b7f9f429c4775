"""What the last run of `make queries` found, for the page of results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

COUNTED = Path(__file__).parent / "generated_queries.json"


def section(path: Path = COUNTED) -> list[str]:
    """Return the section as Markdown lines; none before the first run."""
    if not path.exists():
        return []
    run: dict[str, Any] = json.loads(path.read_text())
    counts = run["counts"]
    refused, queries = sum(counts["refused"].values()), counts["queries"]
    share = 100 * refused / max(queries, 1)
    lines = [
        "",
        "## Generated queries",
        "",
        f"{run['date']}, by `make queries`, seed {run['seed']}: {queries:,} queries over "
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


def _found(run: dict[str, Any], name: str) -> str:
    """Return the name of a file that the run has written, with its outcome if known."""
    note = run.get("notes", {}).get(name, "")
    return f"`{name}`" + (f" ({note})" if note else "")
