"""The result of a backfill by either engine.

The files are on the service's own disk, in the folder that the backfill was called with; or they
stay in the storage that tasks wrote them to, for a view that other tasks maintain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from connectors.pages import decode_delta
from connectors.shuffle_storage import Exchange
from dataflow.delta import Delta
from storage.store import BulkFile


@dataclass
class BackfillResult:
    """The result of one backfill.

    State files for `Store.ingest`, the view's initial rows as pages, error rows, records that feed
    sources rejected (rows of REJECTED_KINDS), and how many rows were read. exchange: where the
    files are, whose paths are then names in it; None: on the service's own disk.
    """

    files: list[BulkFile]
    output: Sequence[Path | str]
    errors: Delta | None
    rejected: Delta | None
    rows: int
    exchange: Exchange | None = None

    def read_output(self) -> Iterator[Delta]:
        """Yield the view's initial rows, each once, in chunks."""
        for path in self.output:
            found = self.exchange
            content = Path(path).read_bytes() if found is None else found.get(str(path))
            yield decode_delta(content)


def added_up(parts: list[Delta]) -> Delta | None:
    """Return the sum of deltas of one shape; None if it is empty."""
    found = Delta.concat(parts).consolidate() if parts else None
    return found if found is not None and len(found) else None
