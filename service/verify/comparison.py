"""A view compared with PostgreSQL's own answer to its query, at the view's own position.

The sink is read in one snapshot, which has its position. The source is read in a slightly older
snapshot, with the changes in between laid over it (connectors/postgres/snapshot/point_in_time.py).
So nothing is stopped or slowed: neither the source's writers, nor the pipeline, nor the sink.
A view of now() is compared at its clock; `clock_check` says whether that has stopped.
Invariant: a reported difference is real, and "equal" has compared every row of view and answer.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from connectors.postgres.catalog import verification_records
from connectors.postgres.catalog.catalog import ViewRow
from connectors.postgres.query.answer_comparison import Comparison, SortedRows, compare
from connectors.postgres.query.history_check import (
    HistoryFindings,
    counts_query,
    current_rows,
    exact,
    examples_query,
    findings,
    lost,
)
from connectors.postgres.query.verify_session import Reader, VerifySession, open_sandboxed
from connectors.postgres.session.lsn import format_lsn
from connectors.postgres.snapshot.point_in_time import PointInTimeRead
from dataflow.errors import TemporaryError, TidemarkError
from service.engine import output_fields
from service.factory.planning import NO_HISTORY
from service.factory.service_factory import SOURCE, ServiceFactory
from service.runtime.log import log
from service.runtime.settings import Settings
from service.runtime.view_names import parse_name
from service.verify.clock_check import Clocks, StandingClock, clocks_of
from service.verify.frozen_windows import retained_since
from service.verify.promised_query import Promise, left_out, open_reasons, promise_of
from service.verify.verify_models import ClockModel, HistoryModel, VerificationModel
from service.views.groups import group_of
from service.views.lifecycle import ViewState
from service.views.requested_changes import table_of
from storage import clock

EQUAL, DIFFERENT, OPEN, FAILED = "equal", "different", "open", "failed"
COMPARABLE = (ViewState.LIVE, ViewState.DEGRADED)
MAX_EXAMPLES = 1_000
_ATTEMPTS = 5
_AGAIN = ("verify.too_much", "verify.changed")
_REACH_S = 30.0
_POLL_S = 0.005


@dataclass(frozen=True)
class Limits:
    """timeout_s: for each statement sent to a database. max_cost: of PostgreSQL's plan for the
    query, in its own units; 0: unlimited.
    """

    timeout_s: float
    max_cost: float = 0.0


class Verify:
    """One per API process; thread-safe, and one thread works at a time."""

    def __init__(self, settings: Settings, factory: ServiceFactory) -> None:
        self._settings = settings
        self._factory = factory
        self._control = factory.control()
        self._turn = threading.Lock()
        self._readers: list[Reader] = []
        self._is_closed = False

    @property
    def timeout_s(self) -> float:
        """Return how long a requested verification waits for a running one."""
        return self._settings.verify_timeout_s

    def verify(self, name: str, limit: int = 20) -> VerificationModel:
        """Compare a live view with PostgreSQL's answer, with at most `limit` differing rows.

        TidemarkError view.not_found, view.not_live, verify.timeout, verify.not_in_database,
        verify.error_rows, verify.query_fails; TemporaryError verify.busy, verify.sink_behind,
        verify.too_much.
        """
        return self.verify_row(self._live(name), limit, Limits(self._settings.verify_timeout_s))

    def verify_row(self, row: ViewRow, limit: int, limits: Limits) -> VerificationModel:
        """Do the same for a catalog row; also TidemarkError verify.too_costly."""
        if not self._turn.acquire(timeout=limits.timeout_s):
            raise TemporaryError(
                "verify.busy", "another view is being verified", hint="try again later"
            )
        try:
            try:
                found = self._verified(row, min(limit, MAX_EXAMPLES), limits)
            except TidemarkError as error:
                self._report(row, {"result": FAILED, "code": error.code, "reason": error.what})
                raise
            self._report(row, found.model_dump(exclude={"examples": True, "history": {"examples"}}))
            return found
        finally:
            self._turn.release()

    def close(self) -> None:
        """Cancel a running verification and refuse new ones."""
        self._is_closed = True
        for reader in list(self._readers):
            reader.cancel()
        self._control.close()

    # --- one verification ------------------------------------------------------------------------

    def _verified(self, row: ViewRow, limit: int, limits: Limits) -> VerificationModel:
        started = time.monotonic()
        for attempt in range(1, _ATTEMPTS + 1):
            rows, sources = self._control.list_views(), self._control.list_sources()
            row = next((r for r in rows if r.identity == row.identity), row)
            promise = promise_of(row, self._factory, rows, sources)
            names = promise.maintained()
            views = [row, *(r for r in rows if r.title in names and r is not row)]
            try:
                found, positions, facts = self._compared(views, promise, limit, limits)
                break
            except TemporaryError as error:
                if error.code not in _AGAIN or attempt == _ATTEMPTS:
                    raise
        reasons = open_reasons([r for r in rows if r.title in names])
        result = EQUAL if found.is_equal else (OPEN if reasons else DIFFERENT)
        # A query with several answers may have another one at any moment.
        due = [] if reasons else facts["clock"]
        facts["clock"] = next((ClockModel.of(c) for c in due if not self._moves(row, c)), None)
        if facts["clock"] is not None:
            result = DIFFERENT
        past: HistoryFindings | None = facts["history"]
        if past is not None and not past.is_equal:
            # A query may have several answers, but a view has one past.
            result = DIFFERENT
        if result == DIFFERENT:
            counts = {k: v for k, v in asdict(found).items() if k != "examples"}
            if past is not None:
                counts |= {f"history_{kind}": n for kind, n in past.counts.items()}
            if facts["clock"] is not None:
                counts["clock"] = facts["clock"].described
            log.error("verify.different", view=row.title, positions=positions, **counts)
        return VerificationModel(
            view=row.title,
            result=result,
            **facts | {"history": None if past is None else HistoryModel(**asdict(past))},
            reasons=reasons if result == OPEN else [],
            positions=positions,
            took_ms=round((time.monotonic() - started) * 1000, 1),
            at=clock.utc().isoformat(),
            **asdict(found),
        )

    def _compared(
        self, views: Sequence[ViewRow], promise: Promise, limit: int, limits: Limits
    ) -> tuple[Comparison, dict[str, str], dict[str, Any]]:
        """Compare once; also return what was left out of both answers, as the model has it, and
        the findings in the view's history.

        views: the maintained views in the promise as planned, the view itself first.
        """
        row = views[0]
        settings = self._settings.for_group(group_of(row))
        relations = promise.relations()
        with ExitStack() as resources:
            sink = VerifySession(settings.sink, settings.sink_key)
            resources.callback(sink.close)
            snapshot = None
            if relations:
                publication = ServiceFactory(settings).source.publication_name
                snapshot = PointInTimeRead(settings.source, relations, publication)
                resources.callback(snapshot.close)
            positions = self._reach(sink, snapshot)
            self._require_same(row, views, sink)
            if snapshot is not None:
                snapshot.resolve(positions[SOURCE])
            facts = output_fields.from_json(row.fields or [])
            all_rows = own = sink.rows_of(table_of(row))
            query_at, omitted = self._query(promise, sink, snapshot)
            clocks = clocks_of(self._control.list_sources(), positions, views)
            later = _later(query_at, clocks)
            queries = [query_at(clocks), *later.values()]
            omissions: dict[str, Any] = {"left_out": omitted}
            if since := retained_since(row, sink.frozen_edges(promise.maintained())):
                queries, own = [since.rows(q) for q in queries], since.rows(own)
                omissions["retained_since"] = since.text
            key = [[f.name for f in facts].index(k) for k in row.key or []]
            got, *answers = [SortedRows(facts, key) for _ in (own, *queries)]
            for rows in (got, *answers):
                resources.callback(rows.close)
            for number, query in enumerate(queries):
                opened = open_sandboxed(
                    settings.source,
                    promise.role,
                    query,
                    snapshot.snapshot_id if snapshot else None,
                    promise.time_zone,
                )
                with self._reading(Reader("source", opened[0], limits.timeout_s)) as reader:
                    self._check_cost(row, opened[2], limits)
                    reader.fill(answers[number], opened[1])
            if snapshot:
                snapshot.close()
            with self._reading(Reader("sink", sink.connection, limits.timeout_s)) as reader:
                reader.fill(got, own)
                omissions["history"] = self._past(row, sink, reader, all_rows, limit)
            shown = {s: _shown(p) for s, p in positions.items()}
            omissions["clock"] = [
                StandingClock(name, clocks.until_us[name], found)
                for name, answer in zip(later, answers[1:], strict=True)
                if not (found := compare(answer, answers[0], facts, key, 0)).is_equal
            ]
            return compare(answers[0], got, facts, key, limit), shown, omissions

    def _moves(self, row: ViewRow, standing: StandingClock) -> bool:
        """Wait for a clock that has to tick; return False if it does not."""
        settings = self._settings.for_group(group_of(row))
        with closing(VerifySession(settings.sink, settings.sink_key)) as sink:
            return standing.moves(sink.take, lambda: self._is_closed)

    def _past(
        self, row: ViewRow, sink: VerifySession, reader: Reader, own: str, limit: int
    ) -> HistoryFindings | None:
        """Check the view's history against its table, in the same snapshot; None if it has none.

        own: a query of the table's rows.
        """
        table = table_of(row)
        history = sink.history_of(table)
        if history is None and row.options.get("history") in (None, NO_HISTORY):
            return None
        fields = exact(table.fields)
        with (
            closing(SortedRows(fields, table.key)) as expected,
            closing(SortedRows(fields, table.key)) as current,
        ):
            reader.fill(expected, own)
            if history is not None:
                reader.fill(current, current_rows(table, history))
            compared = compare(expected, current, fields, table.key, limit)
        if history is None:
            # It was lost: no row of the view is in it.
            return lost(compared)
        (counts,) = reader.rows(counts_query(history))
        rest = max(0, limit - len(compared.examples))
        examples = reader.rows(examples_query(history, rest)) if rest else []
        return findings(compared, counts, examples, history)

    def _query(
        self,
        promise: Promise,
        sink: VerifySession,
        snapshot: PointInTimeRead | None,
    ) -> tuple[Callable[[Clocks], str], int]:
        """Return the query for PostgreSQL by the clocks' values, the promise at the sink's
        position, and how many rows it leaves out."""
        rows, sources = self._control.list_views(), self._control.list_sources()
        errors = sink.errors(promise.maintained())
        out = {}
        for view in rows:
            if found := errors.get(view.title):
                below = promise.of(view.title)
                out[view.title] = left_out(view, found, below, self._factory, (rows, sources))
        omitted = sum(len(rows.rows) for found in out.values() for rows in found)
        overlays = snapshot.overlays if snapshot else {}
        return lambda clocks: promise.query(overlays, out, times=clocks.texts()), omitted

    def _reach(self, sink: VerifySession, snapshot: PointInTimeRead | None) -> dict[str, Any]:
        """Take the sink's snapshot at or after the source's; return its positions."""
        deadline = time.monotonic() + _REACH_S
        nudged_at = 0.0
        while True:
            positions = sink.take()
            reached = positions.get(SOURCE)
            if snapshot is None or (reached is not None and reached >= snapshot.start):
                return positions
            now = time.monotonic()
            if now > deadline or self._is_closed:
                raise TemporaryError(
                    "verify.sink_behind",
                    "the view did not reach the source's position in time",
                    detail=f"the source's snapshot is at {format_lsn(snapshot.start)}",
                    hint="see the view's lag and GET /health",
                )
            if now - nudged_at > 1.0:
                nudged_at = now
                self._factory.source.heartbeat()
            time.sleep(_POLL_S)

    def _require_same(self, row: ViewRow, views: Sequence[ViewRow], sink: VerifySession) -> None:
        """Require that the view, and views below it, have not changed since they were planned.

        They must not be dropped, stopped, replaced or renamed, as of the sink's snapshot.
        """
        found = sink.views([r.identity for r in views])
        if row.identity not in found or found[row.identity][0] not in COMPARABLE:
            raise _not_live(row.title)
        if any(found.get(r.identity, ("",))[1:] != (r.schema, r.name, r.query) for r in views):
            raise TemporaryError(
                "verify.changed",
                f'view "{row.title}", or one that it reads, changed during the verification',
                hint="verify it again",
            )

    def _check_cost(self, row: ViewRow, cost: float, limits: Limits) -> None:
        if limits.max_cost and cost > limits.max_cost:
            raise TidemarkError(
                "verify.too_costly",
                f'the query of view "{row.title}" exceeds the cost limit',
                detail=f"PostgreSQL's estimate is {cost:.0f}, the limit is {limits.max_cost:.0f}",
                hint="raise verify_max_cost, or verify the view on request",
            )

    @contextmanager
    def _reading(self, reader: Reader) -> Iterator[Reader]:
        self._readers.append(reader)
        try:
            if self._is_closed:
                raise TemporaryError("verify.stopped", "the service is stopping")
            yield reader
        finally:
            self._readers.remove(reader)
            reader.close()

    # --- the catalog -----------------------------------------------------------------------------

    def _live(self, name: str) -> ViewRow:
        schema, plain = parse_name(name)
        row = self._control.get_view(schema, plain)
        if row is None:
            what = f'view "{schema}.{plain}" does not exist'
            raise TidemarkError(
                "view.not_found", what, hint="check the name: the list of views has all of them"
            )
        if row.status not in COMPARABLE:
            raise _not_live(row.title)
        return row

    def _report(self, row: ViewRow, facts: dict[str, Any]) -> None:
        facts.setdefault("at", clock.utc().isoformat())
        try:
            verification_records.record(self._control, row.identity, facts)
        except TemporaryError as error:
            log.warning("verify.unwritten", view=row.title, code=error.code)


def _not_live(title: str) -> TidemarkError:
    what = f'view "{title}" is not live'
    return TidemarkError("view.not_live", what, hint="only a live view's rows can be compared")


def _shown(position: Any) -> str:
    return format_lsn(position) if isinstance(position, int) else json.dumps(position)


def _later(query_at: Callable[[Clocks], str], clocks: Clocks) -> dict[str, str]:
    """Return the query with each clock that is behind at its later value, if it depends on it."""
    now = query_at(clocks)
    found = {name: query_at(clocks.later(name)) for name in clocks.due}
    return {name: query for name, query in found.items() if query != now}
