"""The start of a pipeline: sink and state brought to one position, however long the sink refuses.

A sink that refuses to be written, for a reason that is no single view's (it is a standby now, a
right was taken away, another service has it), is told as the problem of all views and tried again
with growing pauses in the same process. Invariant: nothing is read or stepped before the sink has
said how far it is; meanwhile further sinks get what is committed for them.
"""

from __future__ import annotations

from collections.abc import Callable

from dataflow.errors import SinkError, TemporaryError, TidemarkError
from service.pipeline.context import PipelineContext
from service.pipeline.epochs import Epochs
from service.pipeline.recovery import recover, require_known
from service.pipeline.view_builds import ViewLife
from service.runtime import signals, state_owner
from service.runtime.log import log
from storage.backoff import Backoff

PAUSE_S = (0.5, 30.0)
# Another process must begin, or another version of the program.
_ENDING = signals.FINAL_CODES | {"sink.fenced"}


class Start:
    """Used by the pipeline's thread, once. reopen: opens the stream, or lets it be looked for."""

    def __init__(
        self, core: PipelineContext, epochs: Epochs, views: ViewLife, reopen: Callable[[], None]
    ) -> None:
        self._context = core
        self._engine = core.engine
        self._desk = core.desk
        self._epochs = epochs
        self._views = views
        self._reopen = reopen
        self._is_ours = False

    def run(self, is_stopping: Callable[[], bool]) -> None:
        """Until the sink is known and open; raises what is not the sink's, or needs another start,
        and the sink's refusal when the service stops."""
        backoff, told = Backoff(*PAUSE_S), ""
        while True:
            try:
                self._recover()
                break
            except SinkError as error:
                if error.code in _ENDING or error.relation is not None or is_stopping():
                    raise
                if told != str(error):
                    told = str(error)
                    log.error("sink.refused", code=error.code, why=error.what, hint=error.hint)
                self._await(error, backoff.next_s(), is_stopping)
        if told:
            log.info("sink.running")

    def _await(self, error: SinkError, pause_s: float, is_stopping: Callable[[], bool]) -> None:
        """Tell why nothing moves, and wait; what is committed goes on to further sinks."""
        host = self._context.host
        self._epochs.close()
        until = host.monotonic() + pause_s
        while host.monotonic() < until and not is_stopping():
            self._context.parts.report_failure(error)
            self._serve_others()
            host.sleep(min(0.5, pause_s))

    def _serve_others(self) -> None:
        if not self._is_ours:
            return
        try:
            self._context.sink_workers.reconcile(is_muted=False, is_lagging=True)
            self._context.sink_workers.start()
            self._context.sink_workers.report()
        except TidemarkError as error:
            log.debug("sink.retry", code=error.code)

    def _recover(self) -> None:
        """Bring sink and state to one position (DESIGN 4)."""
        self._desk.claim()
        self._context.sink.claim()
        self._is_ours = True
        self._refresh()
        self._check_owner()
        require_known(self._engine, self._context.sink)
        is_older = self._context.failures.remove_strangers()
        self._desk.recall_lost()
        failed, waiting = self._desk.failed_names(), self._context.settings.budget.waiting
        before, metrics = self._engine.epoch, self._context.metrics
        found = recover(
            self._engine,
            self._context.sink,
            metrics,
            failed,
            waiting,
            is_older=is_older,
            host=self._context.host,
        )
        self._epochs.start(*found)
        # What was on its way to the sink may have changed the catalog.
        self._refresh()
        self._context.failures.remove_failed()
        if self._epochs.writer.written > before:
            self._remove_outdated()
        self._views.bring_back()
        self._epochs.commit()
        self._reopen()
        if not self._epochs.is_lagging:
            self._desk.complete_recovered()

    def _refresh(self) -> None:
        if not self._desk.refresh():
            raise TemporaryError("sink.unreachable", "the catalog cannot be read")

    def _check_owner(self) -> None:
        """The state is of the database that the catalog follows. StorageError state.foreign."""
        identity = self._desk.source_identity()
        if self._engine.views:
            state_owner.check(self._context.store, identity, str(self._context.settings.state))
        state_owner.note(self._context.store, identity)

    def _remove_outdated(self) -> None:
        """The state is older than the sink: what cannot be told again is built anew."""
        failures, sides = self._context.failures, self._context.sides
        failures.remove_outdated(sides.not_replayable(self._epochs.mute))
        self._desk.recall_lost()
