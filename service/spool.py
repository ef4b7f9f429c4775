"""A file of source batches that a view still being built will have to replay.

Written by the pipeline as it streams, read back in order when the view's snapshot is in place.
It does not outlive the process: a build that was interrupted starts again from a new snapshot.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from connectors.source import SourceBatch
from dataflow.schema import RelationName


class Spool:
    """First in, first out, on disk; only changes of the given relations are kept."""

    def __init__(self, path: Path, relations: Iterable[RelationName]) -> None:
        self._file = path.open("w+b", buffering=1 << 20)
        self._path = path
        self._relations = frozenset(relations)
        self._read_at = 0
        self._write_at = 0

    def append(self, batch: SourceBatch) -> None:
        """Add a batch; one without changes of our relations still carries its position."""
        changes = [c for c in batch.changes if c.relation.name in self._relations]
        kept = replace(batch, changes=changes)
        self._file.seek(self._write_at)
        pickle.dump(kept, self._file, protocol=pickle.HIGHEST_PROTOCOL)
        self._write_at = self._file.tell()

    def pop(self) -> SourceBatch | None:
        """The oldest batch not yet read, None when all are."""
        if self._read_at == self._write_at:
            return None
        self._file.seek(self._read_at)
        batch = pickle.load(self._file)
        self._read_at = self._file.tell()
        return batch

    @property
    def waiting_bytes(self) -> int:
        """Bytes not yet read."""
        return self._write_at - self._read_at

    def close(self) -> None:
        """Remove the file."""
        self._file.close()
        self._path.unlink(missing_ok=True)
