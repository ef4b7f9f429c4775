"""One view of a run: from where its last committed epoch ends to the ends that the run fixed.

The positions of all its sources, and what the sources store beside them, are part of each epoch's
input. Invariant: an epoch has exactly the changes between its positions and those of the epoch
before it; the driver's protocol (decision 34) does the rest.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from connectors.feed_source import BoundedSource
from connectors.source import SourceBatch
from connectors.spark.batch.planning import PlannedView
from connectors.spark.maintained.commits import lost
from connectors.spark.maintained.driver import Batch, Driver, EpochSink, Limits
from connectors.spark.maintained.scheduler import Scheduler
from connectors.spark.maintained.shared_storage import SharedStorage
from dataflow.errors import TidemarkError
from dataflow.schema import Relation
from storage.failpoints import failpoint

# A run is over before files that it does not need are deleted, so no task can still read them.
_LIMITS = Limits(grace_s=0.0)


@dataclass
class SourcePosition:
    """Where a view is in one source; see connectors/feed_source.py."""

    positions: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: dict[str, bytes] = field(default_factory=dict)

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> SourcePosition:
        """Return what `as_json` gave."""
        notes = json.loads(zlib.decompress(base64.b64decode(facts["notes"])))
        found = {name: base64.b64decode(note) for name, note in notes.items()}
        return cls(dict(facts["positions"]), found)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON; notes are packed, since files have one each."""
        notes = {name: base64.b64encode(note).decode() for name, note in sorted(self.notes.items())}
        packed = base64.b64encode(zlib.compress(json.dumps(notes).encode())).decode()
        return {"positions": self.positions, "notes": packed}

    def advance(self, batch: SourceBatch) -> None:
        """Move behind a batch."""
        self.positions.update(batch.positions or {})
        for name, note in batch.notes.items():
            if note is None:
                self.notes.pop(name, None)
            else:
                self.notes[name] = note


@dataclass
class Summary:
    """What a run has done for one view.

    epoch: the newest. epochs: of this run. rows: of the view that changed, in this run. rejected:
    malformed records that it left out. positions: by source and relation, in the source's own form.
    """

    view: str
    epoch: int = 0
    epochs: int = 0
    rows: int = 0
    failed_rows: int = 0
    rejected: int = 0
    positions: dict[str, Any] = field(default_factory=dict)


class ViewSink(EpochSink, Protocol):
    """What a run needs of a sink beside its epochs.

    rows: how many of the view it has changed so far. failed_rows: rows that the view lacks because
    one of its expressions failed for them, as of its newest epoch.
    """

    rows: int
    failed_rows: int


class ViewRun:
    """A view, its sources by name and where they end. One thread."""

    def __init__(
        self,
        planned: PlannedView,
        sources: Mapping[str, BoundedSource],
        ends: Mapping[str, Any],
        epoch_rows: int,
    ) -> None:
        self._planned = planned
        self._ends = ends
        self._epoch_rows = epoch_rows
        self._relations: dict[str, list[Relation]] = {}
        for relation in planned.view.relations:
            self._relations.setdefault(relation.name.source, []).append(relation)
        self._sources = {name: sources[name] for name in self._relations}
        self._reached: dict[str, SourcePosition] = {}
        self._summary = Summary(planned.name)

    def run(
        self, storage: SharedStorage, scheduler: Scheduler, sink: ViewSink, buckets: int
    ) -> Summary:
        """Bring the view and its sink up to date.

        TidemarkError of sources, operators and the sink; spark.fenced, spark.state_lost;
        batch.other_run. TemporaryError. It may be run again after any of them.
        """
        driver = Driver(
            self._planned.view, storage, scheduler, sink, buckets=buckets, limits=_LIMITS
        )
        try:
            driver.start()
        except FileNotFoundError as error:
            # The sink's table was dropped: what it had shown is deleted.
            raise lost(f"what the sink lacks: {Path(str(error.filename)).name}") from None
        before = driver.epoch
        self._begin(driver.positions)
        failpoint("batch.view.started")
        for batch in self._batches():
            self._step(driver, batch.whole())
            self._summary.rejected += 0 if batch.rejected is None else len(batch.rejected)
        if driver.epoch == 0:
            # Without any input a view may have rows too, such as a count.
            self._step(driver, ())
        driver.collect_garbage()
        summary = self._summary
        summary.epoch, summary.epochs = driver.epoch, driver.epoch - before
        summary.rows, summary.failed_rows = sink.rows, sink.failed_rows
        summary.positions = {name: at.positions for name, at in self._reached.items()}
        return summary

    def _begin(self, positions: Mapping[str, Any]) -> None:
        for name, source in self._sources.items():
            if name in positions:
                self._reached[name] = SourcePosition.from_json(positions[name])
                continue
            begun = self._reached[name] = SourcePosition()
            for relation in self._relations[name]:
                start = source.first_position(relation)
                begun.positions[relation.name.name] = start.position
                begun.notes.update(start.notes)

    def _batches(self) -> Iterator[SourceBatch]:
        for name, source in self._sources.items():
            at = self._reached[name]
            relations = self._relations[name]
            for batch in source.read_until(
                relations, dict(at.positions), dict(at.notes), self._ends[name], self._epoch_rows
            ):
                at.advance(batch)
                yield batch

    def _step(self, driver: Driver, changes: Sequence[Any]) -> None:
        sent = {name: at.as_json() for name, at in self._reached.items()}
        if driver.step(Batch(sent, changes)) != sent:
            raise TidemarkError(
                "batch.other_run",
                f'another run brings view "{self._planned.name}" up to date at the same time',
                hint="let one run end before the next one starts; then run it again",
            )
