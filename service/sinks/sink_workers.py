"""The pipeline's additional sinks: which ones are followed, and how far the outbox is trimmed.

Invariant: an epoch leaves the outbox only once every followed sink has it or does not need it, and
the same commit records that. While any sink is followed, each epoch's commit is durable before the
sinks see it: the state never lacks what a sink has seen. The views' tables also have it before: a
fenced-off service fails there, so nothing of it reaches a sink before its successor has opened it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from connectors.postgres.catalog import sink_records
from connectors.postgres.catalog.catalog import Control
from connectors.postgres.catalog.sink_records import SinkRow
from connectors.postgres.session.lsn import format_lsn
from connectors.sink import SinkTable
from connectors.view_sink import ADD_AGAIN, ViewSink
from dataflow.errors import SinkError, TemporaryError, TidemarkError
from service.engine.departures import Departures
from service.engine.engine import Engine
from service.engine.view_positions import ViewPositions
from service.runtime.log import log
from service.runtime.runtime import RUNTIME, Runtime
from service.sinks.sink_thread import ABANDON_S, EndingThreads, SinkThread
from service.sinks.sink_worker import (
    FAILED,
    RETRY_S,
    RETRYING,
    Reached,
    SinkRoute,
    SinkWorker,
)
from storage.backoff import Backoff

if TYPE_CHECKING:
    from service.factory.service_factory import ServiceFactory

FENCED = "sink.fenced"
LIVE, ERASED = "live", "erased"
_KEY = "follower/"
_PAUSED = SinkError(
    "view.paused",
    "its view is paused",
    detail="it has the rows as of the pause",
    hint="resume the view, or repeat the reset of its source",
)


@dataclass(frozen=True)
class HandedSinks:
    """The sinks of a view on its way to another group.

    entries: their progress, for its store. least: the epoch that each of them has reached.
    """

    entries: Mapping[str, bytes]
    least: int


class SinkWorkers:
    """One per pipeline, used by its thread only."""

    def __init__(
        self, control: Control, engine: Engine, factory: ServiceFactory, runtime: Runtime = RUNTIME
    ) -> None:
        self._control = control
        self._engine = engine
        self._positions = ViewPositions(lambda: engine.views)
        self._departures = Departures(engine.store)
        self._factory = factory
        self._runtime = runtime
        self._budget_bytes = factory.settings.sink_budget_mb << 20
        self._group = factory.settings.group
        self._written: Callable[[], int] = lambda: 0
        self._rows: dict[str, SinkRow] = {}
        self._sink_workers: dict[str, SinkWorker] = {}
        self._removals: dict[str, Removal] = {}
        self._noted = {
            key[len(_KEY) :]: Reached(**json.loads(value))
            for key, value in engine.store.items(_KEY)
        }
        self._reported: dict[str, dict[str, Any]] = {}
        self._abandoned: dict[str, TidemarkError] = {}
        self._paused: Collection[str] = ()
        self._failed_removals: set[str] = set()
        self._ending = EndingThreads(runtime)

    @property
    def is_any(self) -> bool:
        """Return True if any sink is followed, or was before the restart."""
        return bool(self._noted)

    @property
    def are_listed(self) -> bool:
        """Return True once every persisted sink has its catalog row."""
        return self._noted.keys() <= self._rows.keys()

    @property
    def has_rows(self) -> bool:
        """Return True if the catalog, as last read, has any sink of this group."""
        return bool(self._rows)

    def has_sinks_of(self, view_identity: str) -> bool:
        """Return True if a view has additional sinks."""
        return any(row.view_identity == view_identity for row in self._rows.values())

    def set_paused(self, view_identities: Collection[str]) -> None:
        """Set the views that come back with the difference from the rows that they show.

        Their sinks wait for it, and the outbox retains what they lack.
        """
        self._paused = frozenset(view_identities)

    @property
    def await_paused(self) -> bool:
        """Return True if a sink waits for a paused view to come back."""
        return any(
            row.view_identity in self._paused and row.identity in self._noted
            for row in self._rows.values()
        )

    def followed(self, view_identity: str) -> list[str]:
        """Return the names of a view's sinks that must get all its changes."""
        rows = self._rows.values()
        return [
            r.name for r in rows if r.view_identity == view_identity and r.identity in self._noted
        ]

    def fail_view(self, view_identity: str, why: str) -> None:
        """Fail the sinks of a view, because they cannot follow what happens to it."""
        error = SinkError("sink.view_failed", why, hint=ADD_AGAIN)
        for identity, row in list(self._rows.items()):
            if row.view_identity != view_identity or identity not in self._noted:
                continue
            if identity in self._sink_workers:
                self._sink_workers[identity].fail(error)
            else:
                self._fail(identity, error)

    def hand_over(self, view_identity: str) -> HandedSinks:
        """Stop writing to a view's sinks, and return where another group continues.

        Those of a view that stays after all continue with the next `reconcile`. Part of the open
        epoch. SinkError sink.fenced as `check`; TemporaryError sink.stuck while one of them is in a
        call.
        """
        own = {row.identity for row in self._rows.values() if row.view_identity == view_identity}
        workers = {i: worker for i, worker in self._sink_workers.items() if i in own}
        for identity, worker in workers.items():
            self._ending.add(identity, worker.thread)
        self.check()
        for worker in workers.values():
            if not (worker.thread.has_ended or worker.thread.is_abandoned):
                raise TemporaryError("sink.stuck", f'sink "{worker.title}" has not stopped yet')
        for identity, worker in workers.items():
            if worker.status == FAILED and worker.error is not None:
                self._fail(identity, worker.error)
                continue
            self._note(identity, worker.reached)
            del self._sink_workers[identity]
            # The other group reports from here on.
            self._reported.pop(identity, None)
        noted = {i: reached for i, reached in self._noted.items() if i in own}
        least = min((reached.epoch for reached in noted.values()), default=self._engine.epoch)
        return HandedSinks({_KEY + i: _encoded(reached) for i, reached in noted.items()}, least)

    def hold(self, written: int) -> int:
        """Return the epoch up to which the outbox may be trimmed; record the sinks' progress.

        written: the newest epoch in the views' tables. Part of the open epoch.
        """
        self._positions.refresh()
        for identity, worker in self._sink_workers.items():
            self._note(identity, worker.reached)
        return min([written, *(reached.epoch for reached in self._noted.values())])

    def follow(self, written: Callable[[], int]) -> None:
        """Start advancing. written: returns the newest epoch in the views' tables."""
        self._written = written

    def advance(self) -> None:
        """Announce that the views' tables have another epoch; from any thread."""
        for worker in list(self._sink_workers.values()):
            worker.advance(self._written())

    def check(self) -> None:
        """Fail with SinkError sink.fenced if another service writes to one of the sinks."""
        for worker in self._sink_workers.values():
            if worker.error is not None and worker.error.code == FENCED:
                raise worker.error

    # --- desired state ------------------------------------------------------------------------

    def reconcile(self, *, is_muted: bool, is_lagging: bool = False) -> bool:
        """Apply the catalog's desired sinks; return True if the state must be synced first.

        is_muted: the views' tables are ahead of the state, so no sink can begin yet. is_lagging:
        the tables were rewound, so only sinks that have begun continue.
        """
        try:
            rows = sink_records.list_sinks(self._control)
        except TemporaryError as error:
            log.warning("catalog.retry", code=error.code)
            return False
        self._rows = {r.identity: r for r in rows if r.view_group == self._group}
        for identity in [i for i in self._noted if i not in self._rows]:
            self._end(identity)
        self._forget_stopped()
        for row in list(self._rows.values()):
            if row.desired != LIVE:
                self._drop(row)
        self._resolve_removals()
        return not is_muted and self._attach_new(is_lagging=is_lagging)

    def _forget_stopped(self) -> None:
        """Let the sinks of a view that was not handed over after all be attached again."""
        for identity, worker in list(self._sink_workers.items()):
            if worker.thread.stopping.is_set() and worker.status != FAILED:
                self._ending.add(identity, worker.thread)
                self._note(identity, worker.reached)
                del self._sink_workers[identity]

    def _attach_new(self, *, is_lagging: bool) -> bool:
        departed = self._departures.identities()
        waiting = [
            row
            for row in self._rows.values()
            if row.desired == LIVE
            and row.status != FAILED
            and row.view_identity not in departed
            and row.view_identity not in self._paused
            and row.identity not in self._sink_workers
            and row.identity not in self._abandoned
            and (self._has_begun(row) or not is_lagging)
        ]
        for row in waiting:
            try:
                self._attach(row)
            except TidemarkError as error:
                self._fail(row.identity, error)
        return bool(waiting)

    def _has_begun(self, row: SinkRow) -> bool:
        return self._noted.get(row.identity, Reached(0)).has_begun

    def start(self) -> None:
        """Start the attached workers; the state has been synced."""
        self.advance()
        for worker in self._sink_workers.values():
            worker.start()

    def _attach(self, row: SinkRow) -> None:
        reached = self._noted.get(row.identity)
        found = [d for d in self._engine.views.values() if d.identity == row.view_identity]
        if not found:
            raise SinkError(
                "sink.view_failed",
                f'view "{row.schema}.{row.view}" is no longer kept up to date',
                hint="drop the view and create it again, with its sinks",
            )
        if reached is None and (row.status != "starting" or row.epoch is not None):
            raise SinkError(
                "sink.state_lost",
                "the state lacks epochs that the sink needs",
                detail="the state has no entry for the sink",
                hint=ADD_AGAIN,
            )
        if row.epoch is not None and row.epoch > self._engine.epoch:
            raise SinkError(
                "sink.state_lost",
                "the state lacks epochs that the sink needs",
                detail=f"the sink is at epoch {row.epoch}, the state at {self._engine.epoch}",
                hint=ADD_AGAIN,
            )
        self._positions.refresh()
        table = found[0].published
        route = SinkRoute(
            table,
            self._factory.view_sink(row, table),
            self._engine.find_epoch,
            functools.partial(self._factory.sink().rows_at, table),
            functools.partial(self._shown_of, row.view_identity),
            has_rows=row.options.get("initial", "rows") == "rows",
            begins=self._engine.epoch,
            max_delay_s=float(row.options.get("max_delay_s", 0)),
        )
        earlier = self._ending.of(row.identity)
        worker = SinkWorker(
            row.title, route, reached, self._written(), self._runtime, earlier=earlier
        )
        self._sink_workers[row.identity] = worker
        self._note(row.identity, worker.reached)
        log.info("sink.attached", sink=row.title, epoch=worker.reached.epoch)

    def _shown_of(self, view_identity: str, positions: Mapping[str, Any]) -> dict[str, Any]:
        return shown_positions(self._positions.of(view_identity, positions))

    def _drop(self, row: SinkRow) -> None:
        removal = self._removals.get(row.identity)
        if removal is not None and row.desired == ERASED:
            return
        if removal is not None:
            # Its data is to stay now, for example because its server does not answer.
            self._ending.add(row.identity, self._removals.pop(row.identity).thread)
        self._end(row.identity)
        if row.desired != ERASED:
            self._forget(row)
        elif row.status != FAILED or row.identity not in self._failed_removals:
            # Its columns are no longer known, nor needed.
            table = SinkTable(row.schema, row.view, (), (0,))
            self._reported.pop(row.identity, None)
            self._abandoned.pop(row.identity, None)
            sink = self._factory.view_sink(row, table)
            earlier = self._ending.of(row.identity)
            self._removals[row.identity] = Removal(row.title, sink, self._runtime, earlier)

    def _resolve_removals(self) -> None:
        for identity, removal in list(self._removals.items()):
            if removal.is_done:
                del self._removals[identity]
                if identity not in self._rows:
                    # The catalog was rewound to before the sink was added: there is no row to
                    # report to.
                    continue
                if removal.failure is None:
                    self._forget(self._rows[identity])
                else:
                    # Not again, unless requested again.
                    self._failed_removals.add(identity)
                    self._fail(identity, removal.failure)

    def _forget(self, row: SinkRow) -> None:
        sink_records.delete_sink(self._control, row.identity)
        self._abandoned.pop(row.identity, None)
        self._reported.pop(row.identity, None)
        self._rows = {i: r for i, r in self._rows.items() if i != row.identity}
        log.info("sink.dropped", sink=row.title)

    def end_view(self, view_identity: str) -> None:
        """Drop the sinks of a view that is being dropped."""
        sink_records.drop_sinks(self._control, view_identity, is_erased=False)
        for row in self._rows.values():
            if row.view_identity == view_identity:
                self._end(row.identity)

    def close(self) -> None:
        """Stop all threads, or abandon those that do not end; call before the store is closed."""
        running = (*self._sink_workers.values(), *self._removals.values())
        self._ending.close([one.thread for one in running])
        self._control.close()

    # --- reports ---------------------------------------------------------------------------

    def report(self) -> None:
        """Check the workers, and report their status to the catalog."""
        views = {d.identity for d in self._engine.views.values()}
        for identity, error in self._abandoned.items():
            self._report(identity, status=FAILED, **_facts(error))
        self._bound_unattached()
        for identity, worker in list(self._sink_workers.items()):
            backlog_bytes = self._engine.outbox_bytes(worker.reached.epoch)
            view = self._rows[identity].view_identity if identity in self._rows else None
            is_paused = view is not None and view not in views and view in self._paused
            if view is not None and view not in views and not is_paused:
                worker.fail(SinkError("sink.view_failed", "the view has failed or was dropped"))
            elif backlog_bytes > self._budget_bytes:
                worker.fail(_backlog_error(backlog_bytes, self._budget_bytes))
            if worker.status == FAILED and worker.error is not None:
                self._fail(identity, worker.error)
                continue
            stuck = worker.stuck
            self._report(
                identity,
                status=worker.status if stuck is None else RETRYING,
                live_at=worker.live_at,
                epoch=worker.reached.epoch if worker.reached.has_begun else None,
                positions=dict(worker.positions),
                backlog_bytes=backlog_bytes,
                **_facts(worker.error or stuck or (_PAUSED if is_paused else None)),
            )

    def _bound_unattached(self) -> None:
        """Fail the sinks that wait for a view since a restart and lack too much by now."""
        for identity, reached in list(self._noted.items()):
            row = self._rows.get(identity)
            if row is None or identity in self._sink_workers:
                continue
            backlog_bytes = self._engine.outbox_bytes(reached.epoch)
            if row.view_identity in self._paused and backlog_bytes > self._budget_bytes:
                self._fail(identity, _backlog_error(backlog_bytes, self._budget_bytes))

    def figures(self) -> dict[str, dict[str, Any]]:
        """Return the figures for the metrics, by the sinks' titles."""
        abandoned = {
            self._rows[identity].title: {"status": FAILED, "rows_total": 0}
            for identity in self._abandoned
            if identity in self._rows
        }
        return abandoned | {
            f.title: {
                "status": f.status if f.stuck is None else RETRYING,
                "epoch": f.reached.epoch,
                "rows_total": f.rows_total,
                "transactions_total": f.transactions_total,
                "skipped_total": f.skipped_total,
                "backlog_bytes": self._engine.outbox_bytes(f.reached.epoch),
            }
            for f in self._sink_workers.values()
        }

    @property
    def abandoned_threads(self) -> int:
        """Return how many threads of sinks do not end although they were asked to."""
        return self._ending.abandoned()

    def _fail(self, identity: str, error: TidemarkError) -> None:
        self._abandoned[identity] = error
        self._end(identity)
        self._report(identity, status=FAILED, **_facts(error))

    def _end(self, identity: str) -> None:
        """Stop following a sink and retain nothing for it; part of the open epoch."""
        worker = self._sink_workers.pop(identity, None)
        if worker is not None:
            self._ending.add(identity, worker.thread)
        if self._noted.pop(identity, None) is not None:
            self._engine.store.put(_KEY + identity, None)

    def _note(self, identity: str, reached: Reached) -> None:
        if self._noted.get(identity) != reached:
            self._noted[identity] = reached
            self._engine.store.put(_KEY + identity, _encoded(reached))

    def _report(self, identity: str, **changes: Any) -> None:
        """Report to the catalog; what cannot be written is reported the next time."""
        if self._reported.get(identity) == changes:
            return
        # After an error, the row's content is unknown.
        self._reported.pop(identity, None)
        try:
            sink_records.update_sink(self._control, identity, **changes)
            self._reported[identity] = changes
        except TemporaryError as error:
            log.warning("catalog.retry", code=error.code)


class Removal:
    """Deletes what a sink has written, in a thread of its own, and retries until that is done.

    earlier: threads that used the sink and were asked to end.
    """

    def __init__(
        self, title: str, sink: ViewSink, runtime: Runtime, earlier: Sequence[SinkThread]
    ) -> None:
        self.failure: TidemarkError | None = None
        self.is_done = False
        self._title = title
        self._sink = sink
        self._earlier = earlier
        self.thread = SinkThread(title, sink, runtime)
        self.thread.start(self._run, f"removal {title}")

    def _run(self) -> None:
        backoff, stopping = Backoff(*RETRY_S), self.thread.stopping
        for thread in self._earlier:
            thread.await_end(ABANDON_S, unless=stopping)
        while not (stopping.is_set() or self.is_done):
            try:
                self._sink.remove()
                self.is_done = True
            except TidemarkError as error:
                if error.is_temporary:
                    pause_s = backoff.next_s()
                    log.warning("sink.retry", sink=self._title, code=error.code, pause_s=pause_s)
                    stopping.wait(pause_s)
                else:
                    self.failure, self.is_done = error, True
            except Exception as error:
                log.exception("sink.failed", sink=self._title)
                what = "what the sink has written cannot be removed"
                self.failure = SinkError("sink.internal", what, detail=repr(error))
                self.is_done = True
        self._sink.close()


def shown_positions(positions: Mapping[str, Any]) -> dict[str, Any]:
    """Return positions in the form that users read: the database's like PostgreSQL's."""
    return {name: format_lsn(p) if isinstance(p, int) else p for name, p in positions.items()}


def _encoded(reached: Reached) -> bytes:
    return json.dumps(asdict(reached)).encode()


def _facts(error: TidemarkError | None) -> dict[str, str | None]:
    if error is None:
        return {"code": None, "detail": None, "hint": None}
    return {"code": error.code, "detail": error.described, "hint": error.hint}


def _backlog_error(backlog_bytes: int, budget_bytes: int) -> SinkError:
    return SinkError(
        "sink.too_far_behind",
        "the sink is too far behind: the epochs that it lacks were removed",
        detail=f"{backlog_bytes >> 20} MB waited for it; at most {budget_bytes >> 20} MB may wait",
        hint=ADD_AGAIN,
    )
