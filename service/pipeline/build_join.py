"""How a build ends: caught up and joined to the live views, or given up.

Invariant: a view joins at an epoch boundary, so that every reader of the sink sees all views as of
one position.
"""

from __future__ import annotations

from connectors.postgres.sink.postgres_sink import PostgresSink
from dataflow.errors import OverBudgetError, SinkError, TemporaryError, TidemarkError, ViewError
from service.backfill.builds import Builds
from service.backfill.view_build import Cancelled, Failed, ViewBuild
from service.engine.engine import Engine
from service.pipeline.epochs import Epochs
from service.pipeline.followed_database import FollowedDatabase
from service.pipeline.reconciler import CatalogReconciler
from service.pipeline.sink_mute import SinkMute
from service.pipeline.sink_refusals import SinkRefusals
from service.pipeline.sink_rewind import SinkRewind
from service.pipeline.sink_watch import SinkWatch
from service.pipeline.source_subscriptions import SourceSubscriptions
from service.pipeline.view_failures import Failures
from service.pipeline.view_replacement import ViewReplacement
from service.runtime.log import log
from service.sinks.sink_workers import SinkWorkers
from service.views.wait_reasons import Waiting
from storage.failpoints import failpoint
from storage.store import Store


class BuildJoin:
    """Used by the pipeline's thread. staging: a session of the sink for everything but epochs."""

    def __init__(
        self,
        *,
        engine: Engine,
        epochs: Epochs,
        mute: SinkMute,
        builds: Builds,
        failures: Failures,
        reconciler: CatalogReconciler,
        subscriptions: SourceSubscriptions,
        refusals: SinkRefusals,
        replacement: ViewReplacement,
        rewind: SinkRewind,
        database: FollowedDatabase,
        sink_workers: SinkWorkers,
        staging: PostgresSink,
        store: Store,
        waiting: Waiting,
        sink_watch: SinkWatch,
    ) -> None:
        self._engine = engine
        self._epochs = epochs
        self._mute = mute
        self._builds = builds
        self._failures = failures
        self._reconciler = reconciler
        self._subscriptions = subscriptions
        self._refusals = refusals
        self._replacement = replacement
        self._rewind = rewind
        self._database = database
        self._sink_workers = sink_workers
        self._staging = staging
        self._store = store
        self._waiting = waiting
        self._sink_watch = sink_watch

    def advance_builds(self) -> None:
        """Let builds catch up, and join those that are complete."""
        caught_up = set()
        for identity, build in list(self._builds.items()):
            build.passed(self._engine.position)
            if not self._epochs.is_returning:
                build.hold(self._epochs.writer.written)
            if build.is_working:
                continue
            end = build.end
            if isinstance(end, Failed) and end.error.is_temporary:
                if not build.is_comparison:
                    self._reconciler.fail_build(build, end.error)
                build.start_again()
            elif end is not None:
                if isinstance(end, Failed):
                    self._subscriptions.note_changes()
                self._end_build(identity)
            elif build.catch_up(self._engine.epoch):
                if build.unpassed(self._engine.positions):
                    # The source itself moves its feed past the snapshot.
                    continue
                if not self._mute and self._engine.position >= build.position:
                    caught_up.add(identity)
                    if not self._epochs.is_lagging:
                        self._join(identity)
                else:
                    # The snapshot is ahead of the stream, which has nothing to move it.
                    self._nudge(build)

        if self._epochs.is_lagging:
            self._rewind.complete(caught_up)

    def _nudge(self, build: ViewBuild) -> None:
        if self._database.away_error is None:
            try:
                build.nudge()
            except TemporaryError as error:
                log.warning("build.retry", view=build.definition.table.title, code=error.code)

    def _end_build(self, identity: str) -> None:
        self._waiting.forget(identity)
        self._sink_watch.forget(identity)
        build = self._builds.withdraw(identity)
        build.close()
        self._engine.forget_build(build.definition)
        self._epochs.commit()
        self._staging.drop_staged(build.definition.table)
        error = _reported_error(build.end)
        if build.is_comparison:
            self._rewind.failed(build)
        elif isinstance(error, OverBudgetError):
            log.warning("build.postponed", view=build.definition.table.title, why=error.described)
            self._failures.postpone(build, error)
        elif error is not None:
            reports, title = self._failures.reports, build.definition.table.title
            error = reports.reported(error, title)
            log.warning("build.failed", view=build.definition.table.title, why=error.described)
            self._reconciler.fail_build(build, error)
        self._subscriptions.release(build.definition.relations())

    def _join(self, identity: str) -> None:
        """Make a caught-up view live: its staged rows and later changes, in one epoch."""
        build = self._builds[identity]
        if not self._reconciler.is_desired(build):
            # The build was cancelled, as the last poll of all builds found.
            build.cancel()
            return
        parents = build.definition.parents()
        # The additional sinks must be known: they may be unable to represent another version.
        is_ready = self._epochs.writer.has_space and self._sink_workers.are_listed
        if not is_ready or (parents and not self._epochs.is_sink_drained()):
            return
        if parents:
            self._refusals.resolve()
            if not all(parent in self._engine.views for parent in parents):
                # The view was paused or marked for a rebuild meanwhile: this build restarts once
                # its parents are live.
                build.cancel()
            if build.is_cancelled:
                return
        if self._is_held(build):
            return
        why_not = self._replacement.why_not(build)
        if why_not is not None:
            build.fail(why_not)
            return
        view, buffered, result = build.take_over()
        try:
            with view.meter.epoch():
                for parent in parents:
                    for rows in self._staging.read_rows(self._engine.views[parent].table):
                        build.add(view.step({parent: rows}))
                        self._store.relieve()
        except (ViewError, TemporaryError) as error:
            build.fail(error)
            return
        except SinkError as error:
            if error.relation is None:
                raise
            # Someone has dropped or changed a parent's table: it fails, and so does this view.
            self._subscriptions.complete_failed(self._failures.fail_readers(error))
            return
        self._builds.join(identity)
        epoch, read_before = self._replacement.take_over(build, view, buffered, result)
        epoch, failed = self._epochs.take_out_failed(epoch)
        # A change of a whole view cannot be reported twice: the state is on disk first.
        failpoint("view.join.before")
        self._epochs.finish(epoch, sync=bool(epoch.ddl.changes))
        failpoint("view.join.after")
        self._waiting.forget(identity)
        self._sink_watch.forget(identity)
        self._reconciler.joined(build, epoch.progress.epoch)
        build.close()
        self._subscriptions.complete_failed(failed)
        if read_before:
            self._subscriptions.release(read_before)
        log.info("view.joined", view=view.definition.table.title, epoch=epoch.progress.epoch)

    def _is_held(self, build: ViewBuild) -> bool:
        """Return whether others hold locks that this epoch, and so all views, would wait for."""
        identity = build.definition.identity
        tables = [self._engine.views[parent].table for parent in build.definition.parents()]
        live = build.live_version
        tables.append(build.definition.table if live is None else live.before)
        is_held = self._sink_watch.is_held(identity, tables)
        why = self._sink_watch.held(identity)
        if why is not None:
            self._waiting.note(identity, why)
        return is_held


def _reported_error(end: Cancelled | Failed | None) -> TidemarkError | None:
    """Return the error to report for the end of a build."""
    return end.refusal if isinstance(end, Cancelled) else end and end.error
