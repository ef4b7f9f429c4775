"""The path of an epoch: stepped, committed to the state, then passed to the sink.

Invariants: an epoch is committed to the state before the sink sees it, and synced first if its
source cannot replay it. A position that was passed over without changes is shown in the end, also
if nothing more comes. Epochs that the sink has and the state lacks are stepped again with the
sink muted. A rewound sink gets nothing before the one epoch that repairs it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from connectors.sink import Progress, SinkEpoch, SinkLagging
from connectors.source import MAIN_SOURCE, SourceBatch
from dataflow.changes import Changes
from service.backfill.builds import Builds
from service.engine.engine import Engine, ViewDefinition
from service.ingest.external_sources import ExternalSources
from service.metrics.metrics import PipelineMetrics
from service.pipeline.schema_change_recovery import SchemaChangeRecovery
from service.pipeline.sink_mute import SinkMute
from service.pipeline.sink_writer import SinkWriter
from service.pipeline.view_failures import Failures
from service.runtime.runtime import Runtime
from service.sinks.sink_workers import SinkWorkers
from service.subscriptions.change_log_writers import ChangeLogs
from storage.failpoints import failpoint

IDLE_PROGRESS_S = 5.0
# An epoch without changes writes to the sink, which may be on the source's server and so move its
# position again: the time to the next one doubles up to this.
MAX_QUIET_S = 60.0


class Epochs:
    """The path of epochs, used by the pipeline's thread.

    mute: what the sink already has. rewound_to: the epoch of a rewound sink that lacks more than
    the outbox has. awaits_sink: nothing is read until the sink has every epoch.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        builds: Builds,
        failures: Failures,
        schema_recovery: SchemaChangeRecovery,
        mute: SinkMute,
        external_sources: ExternalSources,
        sink_workers: SinkWorkers,
        change_logs: ChangeLogs,
        metrics: PipelineMetrics,
        runtime: Runtime,
    ) -> None:
        self._engine = engine
        self._builds = builds
        self._failures = failures
        self._schema_recovery = schema_recovery
        self._mute = mute
        self._external_sources = external_sources
        self._sink_workers = sink_workers
        self._change_logs = change_logs
        self._metrics = metrics
        self._runtime = runtime
        self._writer: SinkWriter | None = None
        self._progressed_at = 0.0
        # The source whose position the sink does not show, and for how long it need not.
        self._unshown: str | None = None
        self._quiet_s = IDLE_PROGRESS_S
        self.rewound_to: int | None = None
        self._returned = 0
        self.awaits_sink = False

    def start(self, writer: SinkWriter, mute: Mapping[str, Any]) -> None:
        """Begin with state and sink at one position, or mute the sink until they are."""
        self._writer = writer
        self._mute.start(mute, writer.written)
        self.rewound_to = writer.written if writer.written < self._engine.epoch else None
        self._mute.adopt_epoch(writer.written)
        logs = self._change_logs
        writer.on_written, writer.on_refused = self._note_written, logs.refuse
        logs.start(lambda: writer.written, writer.ever_left_out, is_gap=self.is_lagging)
        # Rewound tables do not delay topics that had the missing rows.
        engine = self._engine
        newest = lambda: engine.epoch if self.is_returning else writer.written  # noqa: E731
        self._sink_workers.follow(newest)

    def resume_progress(self, shown: Progress | None) -> None:
        """Note that the state has passed positions that its sink does not show: the process that
        read up to them ended before it was time.
        """
        own = self._engine.positions.progress
        if own is None or shown is None or self._mute or self.is_lagging:
            return
        in_sink = shown.as_stored()
        passed = [s for s, at in own.as_stored().items() if in_sink.get(s) != at]
        self._unshown = min(passed, key=lambda source: source != MAIN_SOURCE, default=None)

    def _note_written(self) -> None:
        """Called by the writer's thread when the views' tables have another epoch."""
        self._change_logs.advance()
        self._sink_workers.advance()

    @property
    def writer(self) -> SinkWriter:
        """The sink's writer; set by `start`."""
        assert self._writer is not None
        return self._writer

    @property
    def is_lagging(self) -> bool:
        """Return whether the sink was rewound, and its repair is not committed yet."""
        return self.rewound_to is not None

    @property
    def is_returning(self) -> bool:
        """Return whether the sink lags, or its repair is still on its way."""
        return self.is_lagging or self.writer.written < self._returned

    def require_sink(self, acknowledged: int, found: int | None) -> None:
        """Raise SinkBehind if the sink, now at epoch `found`, had acknowledged a later one.

        None: it has no progress, as after the last view.
        """
        at = self._engine.positions.floor if found is None else found
        if at < acknowledged or (self.is_lagging and at != acknowledged):
            raise SinkLagging(at, acknowledged)

    def _note_acknowledged(self) -> None:
        if self._writer is not None and not self.is_lagging:
            self._engine.positions.acknowledged = self._writer.written

    def close(self) -> None:
        """Stop writing; what waits stays in the outbox."""
        if self._writer is not None:
            self._writer.close()

    def written(self) -> int:
        """Up to which epoch the outbox may forget."""
        if self._writer is None:
            return 0
        # A rewound sink is repaired from recomputed rows, not from the outbox.
        in_sink = self._engine.epoch if self.is_lagging else self._writer.written
        needed = self._change_logs.hold(self._sink_workers.hold(in_sink))
        return min([needed, *self._builds.retained_epochs()])

    def commit(self, *, sync: bool = False) -> None:
        """Write what belongs to no epoch of the sink."""
        self._note_acknowledged()
        self._engine.commit(None, written=self.written(), sync=sync)

    def is_sink_drained(self) -> bool:
        """Return True if the sink has every epoch, and each view that it refused has left the
        engine; until then nothing is read. A refused view lacks what was left out of its epochs.
        """
        self.awaits_sink = not self.writer.is_idle or self.writer.has_refusals
        return not self.awaits_sink

    def run(self, batch: SourceBatch) -> list[ViewDefinition]:
        """Step all views by a batch of whole transactions; the views that failed in it."""
        started = time.perf_counter()
        engine = self._engine
        has_changes = batch.changes or batch.later is not None or batch.stored is not None
        is_bare = not has_changes and batch.rejected is None
        is_main = batch.source == MAIN_SOURCE
        # At the same position it may be that of `unshown`.
        least = engine.position + (self._unshown is None)
        if is_bare and is_main and batch.position < least:
            return []
        is_silent = not batch.transactions if is_main else is_bare
        if is_silent and not self._is_progress_due(IDLE_PROGRESS_S):
            # Nothing to show, but the source may forget it at the next checkpoint.
            engine.advance(batch)
            self._unshown = batch.source
            return []
        self._quiet_s = min(2 * self._quiet_s, MAX_QUIET_S) if is_silent else IDLE_PROGRESS_S
        before = engine.epoch
        epoch = engine.step(replace(batch, changes=[], later=self._chunks_for_builds(batch)))
        failpoint("epoch.step.after")
        epoch, changed = self._take_out_changed(epoch)
        epoch, failed = self.take_out_failed(epoch)
        failed += changed
        self._metrics.epoch_stepped(batch, time.perf_counter() - started)
        if self._mute:
            # The sink has all of this already; keep the number of the epoch.
            engine.positions.set_epoch(before)
            failpoint("epoch.replayed.before")
            self.commit()
            if epoch.rows.later is not None:
                epoch.rows.later.close()
        else:
            self.finish(epoch, sync=not self._external_sources.is_replayable(batch))
        return failed

    def unshown(self) -> SourceBatch | None:
        """Return a batch without changes if the sink lacks a position, and it is time to show it.

        A position can be waited for although nothing follows it: by a subscriber, or to compare.
        """
        if self._unshown is None or not self._is_progress_due(self._quiet_s):
            return None
        if self._mute or self.is_lagging:
            return None
        source, positions = self._unshown, self._engine.positions
        if source == MAIN_SOURCE:
            position = self._engine.position
            return SourceBatch(position, [], 0, 0) if position else None
        is_read = source in positions.by_source
        return SourceBatch(0, [], 0, 0, source=source, positions={}) if is_read else None

    def _take_out_changed(self, epoch: SinkEpoch) -> tuple[SinkEpoch, list[ViewDefinition]]:
        """Take out the views whose tables changed while this epoch was stepped; return these too.

        PostgreSQL evaluates under the names of its present catalog. So a failure may only show
        that these changed, and rows of before a change may have got names and values of after it.
        """
        views = self._engine.views.values()
        rests = any(d.plan.row_types or d.names.objects for d in views)
        if not (rests or self._engine.has_refused):
            return epoch, []
        taken = self._schema_recovery.take_out_changed()
        return epoch.without({d.table.relation for d in taken}) if taken else epoch, taken

    def take_out_failed(self, epoch: SinkEpoch) -> tuple[SinkEpoch, list[ViewDefinition]]:
        """Fail the views that this epoch could not step, and their readers; return these too.

        If the catalog cannot be written now, the epoch itself reports them: else the sink would
        show it before it says that they do not follow.
        """
        failed: list[ViewDefinition] = []
        for error in self._engine.refused():
            live = {id(definition) for definition in self._engine.views.values()}
            found = self._failures.take_out(error)
            failed += found.views
            if self._failures.are_unreported:
                epoch = epoch.refusing([d.table for d in found.failed if id(d) in live], error)
                epoch = epoch.degrading(
                    [(d.identity, d.table) for d in found.degraded if id(d) in live], error
                )
        return epoch, failed

    def _chunks_for_builds(self, batch: SourceBatch) -> Iterator[list[Changes]]:
        """Yield the batch's chunks, each spooled for the views that are being built."""
        for chunk in batch.chunks():
            yield chunk
            fed = replace(batch, changes=chunk, later=None, notes={}, rejected=None)
            self._builds.feed(fed)

    def finish(self, epoch: SinkEpoch, *, sync: bool = False) -> None:
        """Commit the stepped epoch, and pass it to the sinks."""
        is_synced = sync or self._sink_workers.is_any or self._engine.depends_on_history
        self._note_acknowledged()
        self._engine.commit(epoch, written=self.written(), sync=is_synced)
        failpoint("epoch.commit.after")
        if self.is_lagging:
            self._sink_workers.advance()
        else:
            self.writer.submit(epoch)
        self._progressed_at = self._runtime.monotonic()
        self._unshown = None
        self._metrics.position = self._engine.position

    def repair_sink(self, epoch: SinkEpoch) -> None:
        """Commit the epoch that repairs a rewound sink, and submit it."""
        assert epoch.repair is not None
        self.rewound_to = None
        self._returned = epoch.progress.epoch
        self.finish(epoch, sync=True)

    def forget_sink(self) -> None:
        """Forget earlier epochs of state and sink: the next one has a higher number."""
        self._mute.clear()
        self.rewound_to, self._returned = None, 0
        self._unshown = None
        positions = self._engine.positions
        positions.set_epoch(max(positions.epoch, self.writer.written))
        positions.clear()
        self.writer.restart(positions.floor)

    def _is_progress_due(self, after_s: float) -> bool:
        return self._runtime.monotonic() - self._progressed_at > after_s
