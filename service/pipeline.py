"""The pipeline process: source to state to sink, epoch after epoch, for all views together.

One thread owns the store and everything of an epoch up to its commit; the sink writer, the
stream's reader and each build have threads of their own. Invariants: an epoch is committed to
the state before the sink sees it; the source may forget only what synced state covers; what the
state lacks against the sink is stepped again with the sink muted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from connectors.postgres.control import ViewRow
from connectors.postgres.replication import ReplicationStream
from connectors.sink import Progress, SinkEpoch
from connectors.source import SourceBatch
from dataflow.delta import Delta
from dataflow.errors import TidemarkError
from dataflow.schema import Relation, RelationName
from service.build import ViewBuild
from service.desk import Desk
from service.engine import Engine
from service.log import log
from service.metrics import PipelineMetrics
from service.parts import Parts
from service.settings import Settings
from service.writer import SinkWriter

POLL_S = 0.02
IDLE_PROGRESS_S = 5.0
RECONCILE_S = 1.0
REPORT_S = 1.0
RECONNECT_S = (0.1, 5.0)


class Pipeline:
    """Runs until `stop`; raises what cannot be healed here."""

    def __init__(self, settings: Settings, parts: Parts) -> None:
        self._settings = settings
        self._parts = parts
        self._is_stopping = False
        self._metrics = PipelineMetrics(settings.state)
        self._store = parts.open_store()
        self._engine = Engine(self._store, parts.evaluator(), parts.source.name)
        self._sink = parts.sink()
        self._staging = parts.sink()
        self._writer: SinkWriter | None = None
        self._stream: ReplicationStream | None = None
        self._mute_until = 0
        self._builds: dict[str, ViewBuild] = {}
        self._desk = Desk(parts.control(), self._engine, parts)
        self._reconciled_at = self._reported_at = self._progressed_at = 0.0
        self._synced_at = time.monotonic()

    def stop(self) -> None:
        """Ask the loop to end after the epoch in hand."""
        self._is_stopping = True

    def run(self) -> None:
        """Recover, then stream until stopped."""
        try:
            self._recover()
            self._metrics.position = self._engine.position
            self._metrics.write()
            while not self._is_stopping:
                self._tick()
        finally:
            self._close()

    # --- start and end -------------------------------------------------------------------

    def _recover(self) -> None:
        """Bring sink and state to one position (DESIGN 4)."""
        self._desk.claim()
        found = self._sink.read_progress()
        in_sink = 0 if found is None else found.epoch
        engine = self._engine
        if in_sink < engine.epoch:
            epochs = engine.outbox(in_sink)
            log.info("recover.outbox", epochs=len(epochs), sink_epoch=in_sink)
            self._writer = self._start_writer(in_sink)
            for epoch in epochs:
                self._writer.submit(epoch)
            self._writer.drain()
        elif found is not None and in_sink > engine.epoch:
            self._mute_until = found.positions.get(engine.source, 0)
            log.warning("recover.muted", state_epoch=engine.epoch, sink_epoch=in_sink)
            engine.progress = Progress(in_sink, {engine.source: engine.position})
        if self._writer is None:
            self._writer = self._start_writer(in_sink)
        if engine.views:
            self._open_stream()
        if self._desk.refresh():
            self._desk.settle_recovered()

    def _start_writer(self, written: int) -> SinkWriter:
        return SinkWriter(self._sink, written, self._metrics)

    def _close(self) -> None:
        for build in self._builds.values():
            build.is_cancelled = True
        if self._stream is not None:
            self._stream.close()
        if self._writer is not None:
            self._writer.close()
        for build in self._builds.values():
            build.close()
        self._desk.close()
        self._parts.close()
        self._store.close()

    # --- the loop --------------------------------------------------------------------------

    def _tick(self) -> None:
        assert self._writer is not None
        self._writer.check()
        now = time.monotonic()
        if self._desk.is_called() or now - self._reconciled_at > RECONCILE_S:
            self._reconciled_at = now
            if self._desk.refresh():
                self._reconcile()
        batch = self._poll()
        if batch is not None:
            self._run_epoch(batch)
        self._advance_builds()
        self._desk.settle(self._writer.written)
        if now - self._synced_at > self._settings.sync_interval_s:
            self._synced_at = now
            self._checkpoint()
        if now - self._reported_at > REPORT_S:
            self._reported_at = now
            self._report()

    def _poll(self) -> SourceBatch | None:
        if self._stream is None:
            self._desk.wait(POLL_S)
            return None
        until = self._mute_until if self._mute_until > self._engine.position else None
        try:
            return self._stream.poll(self._settings.epoch_rows, POLL_S, until=until)
        except TidemarkError as error:
            if not error.is_temporary:
                raise
            self._reconnect(error)
            return None

    def _run_epoch(self, batch: SourceBatch) -> None:
        started = time.perf_counter()
        engine = self._engine
        if batch.position <= engine.position and not batch.changes:
            return
        if not batch.transactions and not self._is_progress_due():
            # Nothing to show, but the source may forget it at the next checkpoint.
            engine.advance(batch.position)
            return
        before = engine.epoch
        epoch = engine.step(batch)
        for build in self._builds.values():
            build.feed(batch)
        self._metrics.epoch_stepped(batch.rows, batch.transactions, time.perf_counter() - started)
        if engine.position <= self._mute_until:
            # The sink has all of this already; keep its epoch number.
            engine.progress = Progress(before, dict(epoch.progress.positions))
            engine.commit(None, written=self._written())
            return
        self._finish_epoch(epoch)

    def _finish_epoch(self, epoch: SinkEpoch) -> None:
        assert self._writer is not None
        self._engine.commit(epoch, written=self._written())
        self._writer.submit(epoch)
        self._progressed_at = time.monotonic()
        self._metrics.position = self._engine.position

    def _is_progress_due(self) -> bool:
        return time.monotonic() - self._progressed_at > IDLE_PROGRESS_S

    def _checkpoint(self) -> None:
        """Force the state to disk, then let the source forget what it covers."""
        self._engine.commit(None, written=self._written(), sync=True)
        if self._stream is not None and self._engine.position:
            self._stream.confirm(self._engine.position)

    def _report(self) -> None:
        """Tell people how things stand."""
        if self._stream is not None:
            self._metrics.source_position = self._stream.received_position
        self._desk.report(self._builds)
        self._metrics.write()

    def _reconnect(self, error: TidemarkError) -> None:
        self._metrics.source_error = str(error)
        pause = RECONNECT_S[0]
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        while not self._is_stopping:
            log.warning("source.retry", code=error.code, pause_s=pause)
            self._metrics.write()
            time.sleep(pause)
            pause = min(pause * 2, RECONNECT_S[1])
            try:
                self._open_stream()
                break
            except TidemarkError as again:
                if not again.is_temporary:
                    raise
                error = again
        self._metrics.source_error = ""

    # --- views -----------------------------------------------------------------------------

    def _reconcile(self) -> None:
        """Do what the catalog asks for: drop, then build what is neither live nor being built."""
        for row in self._desk.unwanted():
            self._drop(row)
        for row in self._desk.wanted(self._builds):
            try:
                self._start_build(row)
            except TidemarkError as error:
                if error.is_temporary:
                    log.warning("build.retry", view=row.title, code=error.code)
                    continue
                self._desk.fail(row, error)

    def _start_build(self, row: ViewRow) -> None:
        definition = self._desk.define(row)
        if not self._desk.are_parents_live(definition):
            return
        source, relations = self._parts.source, list(definition.relations())
        self._store.drop(definition.scope + "/")
        self._engine.commit(None, written=self._written())
        if self._stream is None and not self._builds:
            position = source.ensure_slot()
            self._desk.remember_source()
            if not self._engine.position:
                self._engine.progress = Progress(
                    self._engine.epoch, {self._engine.source: position}
                )
        source.watch(relations)
        parts = self._parts.build(definition, row.options.get("backfill", "auto"))
        build = ViewBuild(definition, self._store, self._settings.state / "builds", parts)
        self._builds[definition.identity] = build
        self._open_stream()
        build.start()
        log.info("build.started", view=definition.table.title, road=build.status.road)

    def _advance_builds(self) -> None:
        for identity, build in list(self._builds.items()):
            if build.is_working:
                continue
            if build.is_cancelled or build.failure is not None:
                self._end_build(identity)
            elif build.catch_up():
                if self._engine.position >= max(self._mute_until, build.position):
                    self._join(identity)
                elif not build.is_nudged:
                    # The snapshot is ahead of the stream, which has nothing to move it.
                    build.is_nudged = True
                    self._parts.source.heartbeat()

    def _end_build(self, identity: str) -> None:
        build = self._builds.pop(identity)
        build.close()
        self._store.drop(build.definition.scope + "/")
        self._engine.commit(None, written=self._written())
        self._staging.drop_staged(build.definition.table)
        if build.failure is not None and not build.is_cancelled:
            log.warning("build.failed", view=build.definition.table.title, why=str(build.failure))
            self._desk.fail_build(build)
        self._release(build.definition.relations())

    def _join(self, identity: str) -> None:
        """Make a caught-up view live: its staged rows and what came since, in one epoch."""
        assert self._writer is not None
        build = self._builds.pop(identity)
        view, outputs, errors = build.take_over()
        if view.definition.parents():
            self._writer.drain()
            rows = {p: self._rows_of(p) for p in view.definition.parents()}
            outputs = [*outputs, view.step(rows)]
        engine = self._engine
        engine.add(view)
        epoch = engine.announce(view, outputs, errors)
        self._finish_epoch(epoch)
        self._desk.joined(build, epoch.progress.epoch)
        build.close()
        log.info("view.joined", view=view.definition.table.title, epoch=epoch.progress.epoch)

    def _rows_of(self, parent: RelationName) -> Delta:
        table = self._engine.views[parent].definition.table
        chunks = list(self._staging.read_rows(table))
        kinds = [f.type.physical for f in table.fields]
        return Delta.concat(chunks).consolidate() if chunks else Delta.empty(kinds)

    def _drop(self, row: ViewRow) -> None:
        build = self._builds.get(row.identity)
        if build is not None:
            build.is_cancelled = True
            return
        assert self._writer is not None
        self._writer.drain()
        relations: tuple[Relation, ...] = ()
        live = self._desk.live(row.identity)
        if live is not None:
            relations = live.definition.relations()
            self._engine.remove(live.definition.name)
            self._engine.commit(None, written=self._written())
        self._desk.drop(row, self._staging)
        self._release(relations)
        log.info("view.dropped", view=row.title)

    def _release(self, relations: Sequence[Relation]) -> None:
        """Stop watching what no view reads any more; the last view takes the slot with it."""
        used = self._used_relations()
        if not used and not self._desk.has_views():
            if self._stream is not None:
                self._stream.close()
                self._stream = None
            self._parts.source.drop_slot()
            self._engine.forget_progress()
            self._engine.commit(None, written=self._written())
            self._staging.forget_progress()
            self._desk.forget_source()
            return
        self._parts.source.unwatch([r for r in relations if r.name not in used])

    def _used_relations(self) -> dict[RelationName, Relation]:
        used = dict(self._engine.relations())
        for build in self._builds.values():
            used.update({r.name: r for r in build.definition.relations()})
        return used

    def _open_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        relations = list(self._used_relations().values())
        self._stream = self._parts.source.stream(
            self._engine.position,
            relations,
            identity=self._desk.source_identity(),
            takes_over=True,
        )

    def _written(self) -> int:
        return 0 if self._writer is None else self._writer.written
