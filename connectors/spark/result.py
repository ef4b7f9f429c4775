"""What a backfill leaves behind, whichever road it took.

The files lie on the service's own disk, in the folder that the backfill was given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from connectors.pages import decode_delta
from dataflow.delta import Delta
from storage.store import BulkFile


@dataclass
class BackfillResult:
    """State files for `Store.ingest`, the view's first rows as pages, error rows, what was
    rejected at feed sources (rows of REJECTED_KINDS), and how many rows were read."""

    files: list[BulkFile]
    output: list[Path]
    errors: Delta | None
    rejected: Delta | None
    rows: int

    def read_output(self) -> Iterator[Delta]:
        """The view's first rows, each once, in chunks."""
        for path in self.output:
            yield decode_delta(path.read_bytes())


def added_up(parts: list[Delta]) -> Delta | None:
    """The sum of deltas of one shape; None when nothing is left of it."""
    found = Delta.concat(parts).consolidate() if parts else None
    return found if found is not None and len(found) else None
