"""The state that a backfill's tasks have written, as the first bases of a view in buckets.

Tasks read the files where they are and write them again, cut for the view's buckets: no state
passes through the service's process or disk. Invariant: the bases hold exactly the rows of the
files. A file is read by one task, so of a state one file at a time is in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from connectors.shuffle_storage import Exchange
from connectors.spark.frame import Row
from connectors.spark.maintained.bases import cut_rows, new_folder, write_base
from connectors.spark.maintained.bucket_state import Version
from connectors.spark.maintained.layout import COUNTED, WRITTEN, Layout
from connectors.spark.maintained.skew import StateCounts
from connectors.spark.maintained.tasks import BucketWork, returning_errors
from connectors.spark.stages import Spec
from dataflow.errors import InvariantError
from storage.bulk import read_file
from storage.failpoints import failpoint
from storage.store import BulkFile

# By the name of a state: its stage, and how many columns of its key decide the bucket.
_States = Mapping[str, tuple[int, Spec, int]]


@dataclass(frozen=True)
class BackfilledState:
    """Files of a backfill. Their paths are names in the exchange."""

    exchange: Exchange
    files: Sequence[BulkFile]

    def level_bytes(self, layout: Layout) -> dict[int, int]:
        """Return the bytes of each level. TemporaryError."""
        sizes: dict[str, dict[str, int]] = {}
        found: dict[int, int] = {}
        states = _states(layout)
        for file in self.files:
            folder, _, name = file.path.rpartition("/")
            if folder not in sizes:
                sizes[folder] = self.exchange.sizes(folder)
            level = layout.cut.stages[_state_of(states, file)[0]].level
            found[level] = found.get(level, 0) + sizes[folder].get(name, 0)
        return found


@dataclass(frozen=True)
class ImportWork(BucketWork):
    """Writes the files of a backfill as bases of the job's buckets. at: the version they get."""

    state: BackfilledState
    at: Version

    @returning_errors
    def run(self, step: int, group: int, rows: Iterable[Row], folder: str) -> Iterable[Row]:
        """Write the files of a group, and count the rows of frequent keys."""
        layout = self.job.layout
        states, counts = _states(layout), StateCounts(layout)
        for file in list(self.state.files)[group :: self.groups]:
            number, spec, width = _state_of(states, file)
            with new_folder(Path(folder)) as local:
                path = self.state.exchange.download(file.path, Path(local))
                read = read_file(replace(file, path=str(path)), spec)
                counted = counts.counted(number, (spec, width), read)
                found = cut_rows(counted, layout, number, (spec, width), Path(local))
                failpoint("spark.import.cut")
                for key, part in found.items():
                    at = self.at.epoch, self.at.batch
                    base = write_base(self.job.storage, key, at, [part])
                    yield WRITTEN, 0, orjson.dumps([key, base.name, base.nbytes])
        for report in counts.reports():
            yield COUNTED, 0, orjson.dumps(report.facts())


def _states(layout: Layout) -> _States:
    return {
        spec.name: (number, spec, width)
        for number, specs in layout.specs.items()
        for spec, width in specs
    }


def _state_of(states: _States, file: BulkFile) -> tuple[int, Spec, int]:
    if file.name not in states:
        raise InvariantError("spark.exchange", f"no bucket has the state {file.name}")
    return states[file.name]
