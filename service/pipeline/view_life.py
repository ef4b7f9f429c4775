"""The catalog's requests for views: drops, pauses, names, builds, and additional sinks.

Invariant: a pause or a new name waits until the sink has every epoch before it.
"""

from __future__ import annotations

from connectors.postgres.catalog.catalog import ViewRow
from connectors.sink import SinkTable
from dataflow.errors import TidemarkError
from service.backfill.builds import Builds
from service.engine.engine import Engine
from service.pipeline.build_queue import BuildQueue
from service.pipeline.build_start import BuildStart
from service.pipeline.epochs import Epochs
from service.pipeline.reconciler import CatalogReconciler
from service.pipeline.sink_mute import SinkMute
from service.pipeline.sink_rewind import SinkRewind
from service.pipeline.sink_watch import SinkWatch
from service.pipeline.source_reset import SourceReset
from service.pipeline.source_subscriptions import SourceSubscriptions
from service.pipeline.view_drops import ViewDrops
from service.pipeline.view_failures import Failures
from service.pipeline.view_handovers import ViewHandovers
from service.pipeline.view_replacement import ViewReplacement
from service.pipeline.view_rights import ViewRights
from service.runtime.log import log
from service.runtime.settings import DEFAULT_GROUP
from service.sinks.sink_workers import SinkWorkers
from service.subscriptions.change_log_writers import ChangeLogs
from service.views.wait_reasons import Waiting


class ViewLife:
    """The life of views, used by the pipeline's thread.

    is_unused: a group other than the default has no views any more, and nothing is left. _renaming:
    views whose new name the catalog may not show yet.
    """

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
        reset: SourceReset,
        replacement: ViewReplacement,
        rewind: SinkRewind,
        drops: ViewDrops,
        start: BuildStart,
        queue: BuildQueue,
        sink_workers: SinkWorkers,
        change_logs: ChangeLogs,
        handovers: ViewHandovers,
        waiting: Waiting,
        sink_watch: SinkWatch,
        rights: ViewRights,
        group: str,
    ) -> None:
        self._engine = engine
        self._epochs = epochs
        self._mute = mute
        self._builds = builds
        self._failures = failures
        self._reconciler = reconciler
        self._subscriptions = subscriptions
        self._reset = reset
        self._replacement = replacement
        self._rewind = rewind
        self._drops = drops
        self._start = start
        self._queue = queue
        self._sink_workers = sink_workers
        self._change_logs = change_logs
        self._handovers = handovers
        self._waiting = waiting
        self._sink_watch = sink_watch
        self._rights = rights
        self._group = group
        self._renaming: set[str] = set()
        self.is_unused = False

    def restore(self) -> None:
        """At the start, begin the repair of a rewound sink, or finish forgetting the last view."""
        if self._epochs.is_lagging:
            self._rewind.begin()
        elif self._reconciler.sink_epoch is not None and not (
            self._engine.views or self._reconciler.has_views() or self._awaits_paused()
        ):
            self._reset.forget_all()

    def _awaits_paused(self) -> bool:
        """Return True if a sink may wait for a paused view; the sinks are not listed yet."""
        return self._sink_workers.is_any and bool(self._reconciler.paused_views())

    def reconcile(self) -> None:
        """Execute the catalog's requests: drop, then build what is neither live nor being built."""
        self._sink_workers.set_paused(self._reconciler.paused_views())
        self._subscriptions.complete_failed(self._failures.remove_unknown())
        for row in self._reconciler.to_drop():
            self._drops.drop(row)
        self._change()
        if not self._is_sink_elsewhere:
            self._rights.reconcile()
            self._reconciler.rebuild_outdated()
        self._handovers.reconcile(is_blocked=self._is_sink_elsewhere)
        self._queue.start_next(self._renaming)
        self._attach_sinks()
        self._change_logs.reconcile(self._reconciler.rows, is_muted=self._is_sink_elsewhere)
        self._end_unused()

    @property
    def _is_sink_elsewhere(self) -> bool:
        """Return whether the sink is ahead of the state, or rewound and not repaired yet."""
        return bool(self._mute) or self._epochs.is_returning

    def _change(self) -> None:
        """Cancel builds that are no longer desired; pause and rename views."""
        self._renaming.clear()
        for build in self._builds.values():
            if not self._reconciler.is_desired(build):
                build.cancel()
        paused = self._reconciler.to_pause()
        renamed = [r for r in self._reconciler.to_rename() if self._is_renamable(r)]
        if self._is_sink_elsewhere or not (paused or renamed):
            return
        if not (self._epochs.is_sink_drained() and self._sink_workers.are_listed):
            return
        if paused:
            self._subscriptions.release(self._replacement.pause(paused))
        for row in renamed:
            self._start.forget(row.identity)
            # Later builds use the new name, once it is known.
            self._renaming.add(row.identity)
            try:
                self._replacement.rename(row)
                if self._reconciler.refresh():
                    self._renaming.discard(row.identity)
            except TidemarkError as error:
                if error.is_temporary:
                    log.warning("rename.retry", view=row.title, code=error.code)
                else:
                    self._renaming.discard(row.identity)
                    self._reconciler.abandon(row, error)

    def _is_renamable(self, row: ViewRow) -> bool:
        """Return whether nothing else is done with a view, and nobody holds a lock on its table:
        all views would wait for it.
        """
        if row.identity in self._builds:
            return False
        table = SinkTable(row.schema, row.name, (), ())
        if not self._sink_watch.is_held(row.identity, [table]):
            self._sink_watch.forget(row.identity)
            return True
        why = self._sink_watch.held(row.identity)
        if why is not None:
            self._waiting.note(row.identity, why)
        return False

    def _attach_sinks(self) -> None:
        """Start the requested additional sinks, once the state is on disk."""
        is_lagging = self._epochs.is_lagging
        if self._sink_workers.reconcile(is_muted=bool(self._mute), is_lagging=is_lagging):
            self._epochs.commit(sync=True)
            self._sink_workers.start()

    def _end_unused(self) -> None:
        """End a group other than the default one with its last view; leave nothing of it."""
        is_default = self._group == DEFAULT_GROUP
        if is_default or self._engine.views or self._builds:
            return
        if self._reconciler.has_rows() or self._sink_workers.has_rows:
            return
        self._reset.forget_all()
        self.is_unused = True
