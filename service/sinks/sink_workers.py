"""The pipeline's side of further sinks: which ones are followed, and how far the outbox is kept.

Invariant: an epoch leaves the outbox only when every sink that is followed has it or need not
have it, and the state says so in the same commit. While any sink is followed, each epoch's commit
is on disk before the sinks see it: what a sink has seen the state never lacks. And the views'
tables have it before: a service that was thought dead is shut out there, so that nothing of its
own gets into a sink before the one that took over has opened it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from connectors.postgres.catalog import sink_records
from connectors.postgres.catalog.catalog import Control
from connectors.postgres.catalog.sink_records import SinkRow
from connectors.postgres.session.lsn import format_lsn
from connectors.sink import SinkTable
from connectors.view_sink import ViewSink
from dataflow.errors import SinkError, TemporaryError, TidemarkError
from service.engine.engine import Engine
from service.runtime.log import log
from service.runtime.runtime import RUNTIME, Runtime
from service.sinks.sink_worker import ADD_AGAIN, FAILED, RETRY_S, Reached, Road, SinkWorker
from storage.backoff import Backoff

if TYPE_CHECKING:
    from service.factory.service_factory import ServiceFactory

FENCED = "sink.fenced"
LIVE, ERASED = "live", "erased"
_KEY = "follower/"


class SinkWorkers:
    """One for a pipeline, used by its thread alone."""

    def __init__(
        self, control: Control, engine: Engine, parts: ServiceFactory, host: Runtime = RUNTIME
    ) -> None:
        self._control = control
        self._engine = engine
        self._parts = parts
        self._host = host
        self._budget_bytes = parts.settings.sink_budget_mb << 20
        self._group = parts.settings.group
        self._written: Callable[[], int] = lambda: 0
        self._rows: dict[str, SinkRow] = {}
        self._sink_workers: dict[str, SinkWorker] = {}
        self._removals: dict[str, Removal] = {}
        self._noted = {
            key[len(_KEY) :]: Reached(**json.loads(value))
            for key, value in engine.store.items(_KEY)
        }
        self._told: dict[str, dict[str, Any]] = {}
        self._abandoned: dict[str, TidemarkError] = {}
        self._unerased: set[str] = set()

    @property
    def is_any(self) -> bool:
        """Whether any sink is followed, or was before the restart."""
        return bool(self._noted)

    @property
    def are_known(self) -> bool:
        """Whether it is known whose the sinks are that were followed before the restart."""
        return self._noted.keys() <= self._rows.keys()

    @property
    def has_rows(self) -> bool:
        """Whether the catalog knows any sink of this group, as far as it was read."""
        return bool(self._rows)

    def has_sinks_of(self, view_identity: str) -> bool:
        """Whether a view has sinks beside its table."""
        return any(row.view_identity == view_identity for row in self._rows.values())

    def followed(self, view_identity: str) -> list[str]:
        """The names of a view's sinks that are to get all that changes it."""
        rows = self._rows.values()
        return [
            r.name for r in rows if r.view_identity == view_identity and r.identity in self._noted
        ]

    def fail_view(self, view_identity: str, why: str) -> None:
        """The sinks of a view cannot be told what becomes of it."""
        error = SinkError("sink.view_failed", why, hint=ADD_AGAIN)
        for identity, row in list(self._rows.items()):
            if row.view_identity != view_identity or identity not in self._noted:
                continue
            if identity in self._sink_workers:
                self._sink_workers[identity].fail(error)
            else:
                self._give_up(identity, error)

    def hold(self, written: int) -> int:
        """Up to which epoch the outbox may forget, with `written` of them in the views' tables;
        notes in the open epoch how far each sink is."""
        for identity, follower in self._sink_workers.items():
            self._note(identity, follower.reached)
        return min([written, *(reached.epoch for reached in self._noted.values())])

    def follow(self, written: Callable[[], int]) -> None:
        """written: the newest epoch that the views' tables have; they are open from now on."""
        self._written = written

    def advance(self) -> None:
        """The views' tables have another epoch; from any thread."""
        for follower in list(self._sink_workers.values()):
            follower.advance(self._written())

    def check(self) -> None:
        """SinkError sink.fenced when another service writes to one of the sinks."""
        for follower in self._sink_workers.values():
            if follower.error is not None and follower.error.code == FENCED:
                raise follower.error

    # --- what is wanted ------------------------------------------------------------------------

    def reconcile(self, *, is_muted: bool, is_lagging: bool = False) -> bool:
        """Do what the catalog asks for; whether the state must be synced before it goes on.

        is_muted: the views' tables are ahead of the state, so nothing can begin yet; is_behind:
        they were set back, so what has begun goes on, and nothing else begins.
        """
        try:
            rows = sink_records.list_sinks(self._control)
        except TemporaryError as error:
            log.warning("catalog.retry", code=error.code)
            return False
        self._rows = {r.identity: r for r in rows if r.view_group == self._group}
        for identity in [i for i in self._noted if i not in self._rows]:
            self._end(identity)
        for row in list(self._rows.values()):
            if row.desired != LIVE:
                self._drop(row)
        self._resolve_removals()
        return not is_muted and self._attach_new(is_lagging=is_lagging)

    def _attach_new(self, *, is_lagging: bool) -> bool:
        waiting = [
            row
            for row in self._rows.values()
            if row.desired == LIVE
            and row.status != FAILED
            and row.identity not in self._sink_workers
            and row.identity not in self._abandoned
            and (self._has_begun(row) or not is_lagging)
        ]
        for row in waiting:
            try:
                self._attach(row)
            except TidemarkError as error:
                self._give_up(row.identity, error)
        return bool(waiting)

    def _has_begun(self, row: SinkRow) -> bool:
        return self._noted.get(row.identity, Reached(0)).has_begun

    def start(self) -> None:
        """Begin what was attached; the state has been synced."""
        self.advance()
        for follower in self._sink_workers.values():
            follower.start()

    def _attach(self, row: SinkRow) -> None:
        reached = self._noted.get(row.identity)
        found = [d for d in self._engine.views.values() if d.identity == row.view_identity]
        if not found:
            raise SinkError(
                "sink.view_failed",
                f'view "{row.schema}.{row.view}" is not kept up to date any more',
                hint="drop the view and create it again, with its sinks",
            )
        if reached is None and (row.status != "starting" or row.epoch is not None):
            raise SinkError(
                "sink.state_lost",
                "what the sink lacks is not in the state",
                detail="the state does not know the sink",
                hint=ADD_AGAIN,
            )
        table = found[0].table
        road = Road(
            table,
            self._parts.view_sink(row, table),
            self._engine.find_epoch,
            functools.partial(self._parts.sink().rows_at, table),
            shown_positions,
            has_rows=row.options.get("initial", "rows") == "rows",
            begins=self._engine.epoch,
        )
        follower = SinkWorker(row.title, road, reached, self._written(), self._host)
        self._sink_workers[row.identity] = follower
        self._note(row.identity, follower.reached)
        log.info("sink.attached", sink=row.title, epoch=follower.reached.epoch)

    def _drop(self, row: SinkRow) -> None:
        if row.identity in self._removals:
            return
        self._end(row.identity)
        if row.desired != ERASED:
            self._forget(row)
        elif row.status != FAILED or row.identity not in self._unerased:
            # Its columns are not known any more, nor asked for.
            table = SinkTable(row.schema, row.view, (), (0,))
            self._told.pop(row.identity, None)
            self._abandoned.pop(row.identity, None)
            sink = self._parts.view_sink(row, table)
            self._removals[row.identity] = Removal(row.title, sink, self._host)

    def _resolve_removals(self) -> None:
        for identity, removal in list(self._removals.items()):
            if removal.is_done:
                del self._removals[identity]
                if identity not in self._rows:
                    # The catalog was set back to before it was added: there is nobody to tell.
                    continue
                if removal.failure is None:
                    self._forget(self._rows[identity])
                else:
                    # Not again, unless it is asked for again.
                    self._unerased.add(identity)
                    self._give_up(identity, removal.failure)

    def _forget(self, row: SinkRow) -> None:
        sink_records.delete_sink(self._control, row.identity)
        self._abandoned.pop(row.identity, None)
        self._told.pop(row.identity, None)
        self._rows = {i: r for i, r in self._rows.items() if i != row.identity}
        log.info("sink.dropped", sink=row.title)

    def end_view(self, view_identity: str) -> None:
        """The view is being dropped: its sinks go with it."""
        sink_records.drop_sinks(self._control, view_identity, is_erased=False)
        for row in self._rows.values():
            if row.view_identity == view_identity:
                self._end(row.identity)

    def close(self) -> None:
        """Stop all threads; before the store is closed."""
        running = (*self._sink_workers.values(), *self._removals.values())
        for one in running:
            one.stop()
        for one in running:
            one.close()
        self._control.close()

    # --- how it goes ---------------------------------------------------------------------------

    def report(self) -> None:
        """Look after the sinks, and tell the catalog how they stand."""
        views = {d.identity for d in self._engine.views.values()}
        for identity, error in self._abandoned.items():
            self._report(identity, status=FAILED, **_facts(error))
        for identity, follower in list(self._sink_workers.items()):
            backlog_bytes = self._engine.outbox_bytes(follower.reached.epoch)
            if identity in self._rows and self._rows[identity].view_identity not in views:
                follower.fail(SinkError("sink.view_failed", "the view has failed or is gone"))
            elif backlog_bytes > self._budget_bytes:
                follower.fail(_too_far_behind(backlog_bytes, self._budget_bytes))
            if follower.status == FAILED and follower.error is not None:
                self._give_up(identity, follower.error)
                continue
            self._report(
                identity,
                status=follower.status,
                live_at=follower.live_at,
                epoch=follower.reached.epoch if follower.reached.has_begun else None,
                positions=dict(follower.positions),
                backlog_bytes=backlog_bytes,
                **_facts(follower.error),
            )

    def figures(self) -> dict[str, dict[str, Any]]:
        """For the metrics, by the sinks' titles."""
        abandoned = {
            self._rows[identity].title: {"status": FAILED, "rows_total": 0}
            for identity in self._abandoned
            if identity in self._rows
        }
        return abandoned | {
            f.title: {
                "status": f.status,
                "epoch": f.reached.epoch,
                "rows_total": f.rows_total,
                "transactions_total": f.transactions_total,
                "backlog_bytes": self._engine.outbox_bytes(f.reached.epoch),
            }
            for f in self._sink_workers.values()
        }

    def _give_up(self, identity: str, error: TidemarkError) -> None:
        self._abandoned[identity] = error
        self._end(identity)
        self._report(identity, status=FAILED, **_facts(error))

    def _end(self, identity: str) -> None:
        """Follow a sink no more, and keep nothing for it; part of the open epoch."""
        follower = self._sink_workers.pop(identity, None)
        if follower is not None:
            follower.close()
        if self._noted.pop(identity, None) is not None:
            self._engine.store.put(_KEY + identity, None)

    def _note(self, identity: str, reached: Reached) -> None:
        if self._noted.get(identity) != reached:
            self._noted[identity] = reached
            facts = {"epoch": reached.epoch, "has_begun": reached.has_begun}
            self._engine.store.put(_KEY + identity, json.dumps(facts).encode())

    def _report(self, identity: str, **changes: Any) -> None:
        """What the sink database could not be told is told the next time."""
        if self._told.get(identity) == changes:
            return
        # Nobody knows what it says where the answer is lost.
        self._told.pop(identity, None)
        try:
            sink_records.update_sink(self._control, identity, **changes)
            self._told[identity] = changes
        except TemporaryError as error:
            log.warning("catalog.retry", code=error.code)


class Removal:
    """A thread that deletes what a sink has written, again and again until that is done."""

    def __init__(self, title: str, sink: ViewSink, host: Runtime) -> None:
        self.failure: TidemarkError | None = None
        self.is_done = False
        self._title = title
        self._sink = sink
        self._stopping = host.event()
        self._thread = host.begin(self._run, f"removal {title}")

    def stop(self) -> None:
        """Ask it to end; the next service goes on with it."""
        self._stopping.set()
        self._sink.interrupt()

    def close(self) -> None:
        """Wait for its end."""
        self._thread.join()

    def _run(self) -> None:
        backoff = Backoff(*RETRY_S)
        while not (self._stopping.is_set() or self.is_done):
            try:
                self._sink.remove()
                self.is_done = True
            except TidemarkError as error:
                if error.is_temporary:
                    pause_s = backoff.next_s()
                    log.warning("sink.retry", sink=self._title, code=error.code, pause_s=pause_s)
                    self._stopping.wait(pause_s)
                else:
                    self.failure, self.is_done = error, True
        self._sink.close()


def shown_positions(positions: Mapping[str, Any]) -> dict[str, Any]:
    """Positions as people write them: the database's as PostgreSQL does."""
    return {name: format_lsn(p) if isinstance(p, int) else p for name, p in positions.items()}


def _facts(error: TidemarkError | None) -> dict[str, str | None]:
    if error is None:
        return {"code": None, "detail": None, "hint": None}
    return {"code": error.code, "detail": error.described, "hint": error.hint}


def _too_far_behind(backlog_bytes: int, budget_bytes: int) -> SinkError:
    return SinkError(
        "sink.too_far_behind",
        "the sink is too far behind: what it lacks is not kept any longer",
        detail=f"{backlog_bytes >> 20} MB waited for it, {budget_bytes >> 20} MB may",
        hint=ADD_AGAIN,
    )
