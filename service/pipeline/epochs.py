"""The way of an epoch: stepped, committed to the state, then given to the sink.

Invariants: an epoch is committed to the state before the sink sees it, and synced first where its
source could not tell it again; what the state lacks against the sink is stepped again with the
sink muted. A sink that was set back is given nothing before the one epoch that brings it back.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from connectors.sink import Return, SinkEpoch, SinkLagging
from connectors.source import MAIN_SOURCE, SourceBatch
from dataflow.changes import Changes
from service.engine.engine import ViewDefinition
from service.ingest.external_sources import external_relations
from service.pipeline.context import PipelineContext
from service.pipeline.sink_writer import SinkWriter
from service.runtime.settings import DEFAULT_GROUP
from storage.failpoints import failpoint

IDLE_PROGRESS_S = 5.0


class Epochs:
    """Used by the pipeline's thread.

    mute: for each source the position up to which the sink has all already. behind: the epoch of a
    sink that lacks more than the outbox has. awaits_sink: nothing is read until the sink has every
    epoch.
    """

    def __init__(self, core: PipelineContext) -> None:
        self._context = core
        self._engine = core.engine
        self._host = core.host
        self._writer: SinkWriter | None = None
        self._progressed_at = 0.0
        self.mute: dict[str, Any] = {}
        self.behind: int | None = None
        self._returned = 0
        self.awaits_sink = False

    def start(self, writer: SinkWriter, mute: dict[str, Any]) -> None:
        """State and sink are at one position, or are brought there while the sink is muted."""
        self._writer, self.mute = writer, mute
        is_begun_after = self._engine.positions.is_begun_after
        for source in mute.keys() - {MAIN_SOURCE}:
            told = mute[source].items()
            kept = {n: p for n, p in told if not is_begun_after(source, n, writer.written)}
            self.mute[source] = kept
        self.behind = writer.written if writer.written < self._engine.epoch else None
        self._engine.positions.awaited = writer.written if mute else 0
        self._meet_sink()
        logs = self._context.change_logs
        writer.on_written, writer.on_refused = self._tell_written, logs.refuse
        logs.start(lambda: writer.written, writer.ever_left_out, is_gap=self.is_lagging)
        # Tables that were set back hold up no topic that had what they lack.
        engine = self._engine
        newest = lambda: engine.epoch if self.is_returning else writer.written  # noqa: E731
        self._context.sink_workers.follow(newest)

    def _tell_written(self) -> None:
        """By the writer's thread: the views' tables have another epoch."""
        self._context.change_logs.advance()
        self._context.sink_workers.advance()

    @property
    def writer(self) -> SinkWriter:
        """The sink's thread; from `start` on."""
        assert self._writer is not None
        return self._writer

    @property
    def is_lagging(self) -> bool:
        """Whether the sink was set back, and is not where it was yet."""
        return self.behind is not None

    @property
    def is_returning(self) -> bool:
        """Whether that is so, or what brings it back is on its way."""
        return self.is_lagging or self.writer.written < self._returned

    def require_sink(self, acknowledged: int, found: int | None) -> None:
        """SinkBehind when the sink, at epoch `found` by now, had acknowledged more. None: it has no
        progress, as with the last view."""
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
        # What brings back a sink that was set back is made of other things.
        in_sink = self._engine.epoch if self.is_lagging else self._writer.written
        kept = self._context.change_logs.hold(self._context.sink_workers.hold(in_sink))
        builds = (build.first.holds_after for build in self._context.builds.values())
        held = [number for number in builds if number is not None]
        return min([kept, *held])

    def commit(self, *, sync: bool = False) -> None:
        """Write what belongs to no epoch of the sink."""
        self._note_acknowledged()
        self._engine.commit(None, written=self.written(), sync=sync)

    def is_sink_drained(self) -> bool:
        """Whether the sink has every epoch; if not, nothing is read until it has."""
        self.awaits_sink = not self.writer.is_idle
        return not self.awaits_sink

    def run(self, batch: SourceBatch) -> list[ViewDefinition]:
        """Step all views by a batch of whole transactions; the views that failed in it."""
        started = time.perf_counter()
        engine = self._engine
        is_bare = not batch.changes and batch.later is None and batch.rejected is None
        if is_bare and batch.source == MAIN_SOURCE and batch.position <= engine.position:
            return []
        is_silent = is_bare if batch.source != MAIN_SOURCE else not batch.transactions
        if is_silent and not self._is_progress_due():
            # Nothing to show, but the source may forget it at the next checkpoint.
            engine.advance(batch)
            return []
        before = engine.epoch
        epoch = engine.step(replace(batch, changes=[], later=self._chunks_for_builds(batch)))
        failpoint("epoch.step.after")
        failed = [d for e in engine.refused() for d in self._context.failures.fail_readers(e)]
        self._context.metrics.epoch_stepped(batch, time.perf_counter() - started)
        if self.mute:
            # The sink has all of this already; keep the number of the epoch.
            engine.positions.stand(before)
            failpoint("epoch.muted.before")
            self.commit()
            if epoch.later is not None:
                epoch.later.close()
        else:
            self.finish(epoch, sync=not self._context.sides.is_replayable(batch))
        return failed

    def _chunks_for_builds(self, batch: SourceBatch) -> Iterator[list[Changes]]:
        """The batch's chunks, each kept for the views that are being built as well."""
        for chunk in batch.chunks():
            yield chunk
            for build in self._context.builds.values():
                build.feed(replace(batch, changes=chunk, later=None, notes={}, rejected=None))

    def finish(self, epoch: SinkEpoch, *, sync: bool = False) -> None:
        """Commit what was stepped, and let the sinks have it."""
        is_synced = sync or self._context.sink_workers.is_any
        self._note_acknowledged()
        self._engine.commit(epoch, written=self.written(), sync=is_synced)
        failpoint("epoch.commit.after")
        if self.is_lagging:
            self._context.sink_workers.advance()
        else:
            self.writer.submit(epoch)
        self._progressed_at = self._host.monotonic()
        self._context.metrics.position = self._engine.position

    def bring_back(self, epoch: SinkEpoch) -> None:
        """Commit what brings a sink that was set back to where the state is, and let it have it."""
        assert self.behind is not None
        live = frozenset(d.identity for d in self._engine.views.values())
        group = self._context.settings.group
        epoch.returns = Return(self.behind, live, group, group == DEFAULT_GROUP)
        self.behind = None
        self._returned = epoch.progress.epoch
        self.finish(epoch, sync=True)

    def forget_sink(self) -> None:
        """No epoch of before counts any more, of either: what comes has a higher number."""
        self.mute, self.behind, self._returned = {}, None, 0
        positions = self._engine.positions
        positions.stand(max(positions.epoch, self.writer.written))
        positions.clear()
        self.writer.restart(positions.floor)

    def _is_progress_due(self) -> bool:
        return self._host.monotonic() - self._progressed_at > IDLE_PROGRESS_S

    def checkpoint(self) -> None:
        """Force the state to disk, then let the source forget what it covers."""
        for build in self._context.builds.values():
            build.sync()
        failpoint("checkpoint.sync.before")
        self.commit(sync=True)
        failpoint("checkpoint.sync.after")
        self._context.feed.confirm(self._context.checkpoints.confirmable(self._engine.position))
        failpoint("checkpoint.confirm.after")

    def unmute_begun(self, before: Mapping[str, Any]) -> None:
        """Relations that are first read from another place than they stood at have nothing to be
        told again. before: the positions by source."""
        positions, written = self._engine.positions, self.writer.written
        for source in positions.by_source.keys() - {MAIN_SOURCE}:
            old, new = before.get(source, {}), positions.offsets(source)
            begun = {name for name, place in new.items() if old.get(name) != place}
            positions.note_begun(source, begun, written)
            if source in self.mute:
                target = self.mute[source].items()
                self.mute[source] = {n: p for n, p in target if n not in begun}

    def begin_database(self, position: int) -> None:
        """Read the database from here on. Where the sink shows more of it, by a state that was lost
        since, nothing is shown before that is reached. SinkError when the sink is away."""
        sink = self._context.parts.sink()
        try:
            found = sink.read_progress()
        finally:
            sink.close()
        self._engine.positions.begin(MAIN_SOURCE, position)
        shown = 0 if found is None else found.positions.get(MAIN_SOURCE, 0)
        if shown > position:
            self.mute[MAIN_SOURCE] = shown
            self._engine.positions.awaited = self.writer.written

    def forget_mutes(self) -> None:
        """What a source has told again, or nothing reads any more, mutes the sink no longer."""
        if not self.mute:
            return
        reached = self._engine.positions.by_source
        read = external_relations(relation for relation, _ in self._context.failures.reads())
        for source, target in list(self.mute.items()):
            if source == MAIN_SOURCE:
                is_unread = self._context.sides.is_any and not self._engine.position
                is_reached = is_unread or self._engine.position >= target
            elif self._context.is_build_left:
                # What is to be built on reads it too, and that is not known yet.
                is_reached = False
            else:
                names = [name.name for name in read.get(source, ())]
                places = reached.get(source, {})
                # What the sink does not know of has nothing to be told again.
                is_reached = all(places.get(n) == target[n] for n in names if n in target)
            if is_reached:
                del self.mute[source]
        self._meet_sink()

    def _meet_sink(self) -> None:
        """Once the state is where the sink is, it has the sink's epoch; not before."""
        if not self.mute:
            positions, written = self._engine.positions, self.writer.written
            if positions.epoch < written:
                positions.stand(written)
            positions.awaited = 0
