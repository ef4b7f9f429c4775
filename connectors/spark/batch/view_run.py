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
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from connectors.feed_source import BY_EXECUTORS, BoundedSource, read_in_ranges, reader_of
from connectors.objects.shared_storage import SharedStorage
from connectors.source import SourceBatch, StoredInput
from connectors.spark.batch.planning import PlannedView
from connectors.spark.maintained.commits import lost
from connectors.spark.maintained.driver import Batch, Driver, EpochSink, Limits
from connectors.spark.maintained.scheduler import Scheduler
from dataflow.changes import Changes
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
    read_by: by relation, "executors", or "driver" and why.
    """

    view: str
    epoch: int = 0
    epochs: int = 0
    rows: int = 0
    failed_rows: int = 0
    rejected: int = 0
    positions: dict[str, Any] = field(default_factory=dict)
    read_by: dict[str, str] = field(default_factory=dict)


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
        for batch in self._batches(driver):
            self._step(driver, batch.whole(), batch.stored)
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

    def _batches(self, driver: Driver) -> Iterator[SourceBatch]:
        """Yield what the sources have, each batch for the next epoch."""
        for name, source in self._sources.items():
            at, end = self._reached[name], self._ends[name]
            here: list[Relation] = []
            ranged: list[Relation] = []
            for relation in self._relations[name]:
                reader = self._summary.read_by[str(relation.name)] = reader_of(source, relation)
                (ranged if reader == BY_EXECUTORS else here).append(relation)
            batches: list[Iterator[SourceBatch]] = []
            if here:
                positions, notes = dict(at.positions), dict(at.notes)
                batches.append(source.read_until(here, positions, notes, end, self._epoch_rows))
            if ranged:
                batches.append(self._ranges(driver, source, ranged, end))
            for batch in chain.from_iterable(batches):
                at.advance(batch)
                yield batch

    def _ranges(
        self, driver: Driver, source: BoundedSource, relations: Sequence[Relation], end: Any
    ) -> Iterator[SourceBatch]:
        """Yield what executors read of these relations, which the tasks' storage then has."""
        ranged, at = read_in_ranges(source), self._reached[source.name]
        assert ranged is not None
        positions, notes = dict(at.positions), dict(at.notes)
        planner = ranged.open_ranges(relations, positions, notes, lambda: None, end)
        try:
            while (batch := driver.read(planner, self._epoch_rows)) is not None:
                yield batch
        finally:
            planner.close()

    def _step(
        self, driver: Driver, changes: Sequence[Changes], stored: StoredInput | None = None
    ) -> None:
        sent = {name: at.as_json() for name, at in self._reached.items()}
        if driver.step(Batch(sent, changes, stored=stored)) != sent:
            raise TidemarkError(
                "batch.other_run",
                f'another run brings view "{self._planned.name}" up to date at the same time',
                hint="let one run end before the next one starts; then run it again",
            )
