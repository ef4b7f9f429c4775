"""What happens when the source cannot be streamed from the state's position.

Invariant: until that is resolved no view is built, and the rows that views last showed stay.
"""

from __future__ import annotations

from collections.abc import Callable

from connectors.postgres.replication.slot import LOST
from connectors.source import MAIN_SOURCE
from dataflow.errors import SourceError, TidemarkError
from service.backfill.builds import Builds
from service.engine.engine import Engine
from service.metrics.metrics import PipelineMetrics
from service.pipeline.followed_database import FollowedDatabase
from service.pipeline.reconciler import CatalogReconciler
from service.pipeline.source_reset import SourceReset
from service.pipeline.source_subscriptions import SourceSubscriptions
from service.pipeline.view_drops import ViewDrops
from service.runtime.log import log
from service.runtime.runtime import Runtime

RECONCILE_S = 1.0
REFUSED_S = 15.0
# Prefixes of the error codes that opening the stream may raise.
OPENING = ("source.slot_", "source.no_free_", "source.privilege", "source.login", "source.database")
OPENING += ("source.tls", "source.pooler")
OPENING += ("source.identity_", "source.promoted_", "source.standby", "source.wal_level")
# Possibly a wrong setting that will be corrected; a requested rebuild ends the wait.
ABANDONED = ("source.identity_changed", "source.promoted_behind")


class SourceRefusal:
    """Used by the pipeline's thread.

    report_failure: shows the API why the pipeline does not run.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        builds: Builds,
        reconciler: CatalogReconciler,
        subscriptions: SourceSubscriptions,
        reset: SourceReset,
        database: FollowedDatabase,
        drops: ViewDrops,
        metrics: PipelineMetrics,
        report_failure: Callable[[TidemarkError], None],
        runtime: Runtime,
    ) -> None:
        self._engine = engine
        self._builds = builds
        self._reconciler = reconciler
        self._subscriptions = subscriptions
        self._reset = reset
        self._database = database
        self._drops = drops
        self._metrics = metrics
        self._report_failure = report_failure
        self._runtime = runtime

    def resolve(self, error: SourceError, is_stopping: Callable[[], bool]) -> None:
        """Serve only drops while the source cannot be followed from the state's position.

        Raise the error after a while, so that the supervisor tries again. Return when the last view
        that depends on the position is gone, or has failed for it.
        """
        error = self._database.explained(error)
        log.error("source.refused", code=error.code, why=error.what, hint=error.hint)
        self._database.close_stream()
        if error.code in LOST:
            self._discard_position(error)
            return
        self._builds.cancel_all(error)
        until = self._runtime.monotonic() + REFUSED_S
        while self._engine.views:
            if is_stopping() or self._runtime.monotonic() > until:
                raise error
            self._report_failure(error)
            if self._reconciler.refresh():
                for row in self._reconciler.to_drop():
                    self._drops.remove(row)
                if error.code in ABANDONED and self._reconciler.requests_replacement:
                    self._discard_position(error)
                    return
            self._reconciler.wait(RECONCILE_S)
            if self._engine.views and self._is_put_right(error):
                log.info("source.running", source=MAIN_SOURCE)
                break
        else:
            self._reset.forget_all()
        # The refusal is withdrawn before anything new is called live.
        self._metrics.write()

    def _discard_position(self, error: SourceError) -> None:
        """Continue without the views that read the database; a rebuild resolves it."""
        self._reset.lose_database(error)
        self._metrics.position = self._engine.position
        self._metrics.write()

    def _is_put_right(self, error: SourceError) -> bool:
        """Return True if a source that could not be opened can be opened now."""
        if not error.code.startswith(OPENING):
            return False
        try:
            self._subscriptions.open()
        except TidemarkError as again:
            log.debug("source.retry", code=again.code)
            self._database.close_stream()
            return False
        return True
