"""Views as plain PostgreSQL tables: one transaction an epoch, with rows, errors and progress.

Invariant: a reader of the sink sees all views, error rows and tidemark.progress of one and the same
epoch. Fence: the progress advances by exactly one epoch in the same transaction, so of two writers
the slower one is refused. `write` may be repeated after a lost connection once `read_progress` has
shown that the epoch is missing; a new session is opened as needed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import psycopg2
from psycopg2 import errors as states
from psycopg2.extensions import connection as Connection

from connectors.postgres.schema import schema_setup, table_guard
from connectors.postgres.schema.lease import Claim, applications_of
from connectors.postgres.schema.sink_target import WIDE_INDEX, Target
from connectors.postgres.schema.trigger_guard import Guards, guard_sql, require_ours
from connectors.postgres.schema.view_status import run_in
from connectors.postgres.session.backend_probe import end_left
from connectors.postgres.session.liveness_watchdog import Watched
from connectors.postgres.session.session import (
    connect,
    is_outlived,
    is_temporary,
    to_error,
    translated,
)
from connectors.postgres.sink import cut_over, history_tables, row_hashes, sink_tables
from connectors.postgres.sink.apply_deltas import (
    LOOKED_UP,
    Preparer,
    apply_by_copy,
    copy_rows,
    is_large,
    split_delta,
    take_copied,
)
from connectors.postgres.sink.error_attribution import (
    AT_ONCE,
    about,
    constrained_view,
    fault_of,
    is_of_statement,
    locked,
    reading,
    refusal_of,
)
from connectors.postgres.sink.history_tables import Histories
from connectors.postgres.sink.lock_waits import holders_of
from connectors.postgres.sink.rejected_rows import write_rejected
from connectors.postgres.sink.sink_epoch import (
    COMMIT_WITH_TRIGGERS,
    PINNED_AGAIN,
    USERS_TRIGGERS,
    WriteContext,
    begin,
    deltas_of,
    flush,
)
from connectors.postgres.sink.sink_keys import WideKeys, too_wide
from connectors.postgres.sink.sink_reader import closed_of, progress_of, rows_of, window_edge
from connectors.sink import Progress, SinkEpoch, SinkTable, Swap, ViewChange
from dataflow.delta import Delta
from dataflow.errors import SinkError, TidemarkError, internal_error
from dataflow.schema import VIEW_SOURCE, RelationName
from storage.failpoints import failpoint

# Prepared plans must not depend on how small a table was when it was planned: always by index.
_WRITE_SETTINGS = {
    "standard_conforming_strings": "on",
    "plan_cache_mode": "force_generic_plan",
    **LOOKED_UP,
    "jit": "off",
    "synchronous_commit": "on",
    # A policy is an error, not code to be run.
    "row_security": "off",
}
_COPY_SETTINGS = {"standard_conforming_strings": "on", "jit": "off", "row_security": "off"}
# The count is for display, and must not wait for a locked view.
_COUNT_SETTINGS = {"lock_timeout": "200ms", "statement_timeout": "2s", "row_security": "off"}
_SET_PROGRESS = """INSERT INTO tidemark.progress (sink_key, epoch, positions) VALUES (%s, %s, %s)
ON CONFLICT (sink_key) DO UPDATE
SET epoch = excluded.epoch, positions = excluded.positions, updated_at = now()"""
# Statements that go to the server together: libpq holds them as often as four times.
_BUFFERED_BYTES = 2 << 20
# Milliseconds to wait for a lock, and seconds that others get then.
_LOCK_MS = 200
_PAUSE_S = 1.0
# Of the search for the view whose table was locked too long.
_SEARCH_LOCK_S = 1.0
# What a statement is refused with, for many causes.
_UNFIT = ("sink.table_missing", "sink.table_changed")
LOCK_S = 10.0

T = TypeVar("T", Swap, ViewChange)


class PostgresSink:
    """The sink of one service; `key` distinguishes services that share a database.

    Not for several threads at once, except `stage`, `drop` and the readers, which use separate
    sessions. lock_s: how long an epoch waits for one lock.
    """

    def __init__(
        self,
        dsn: str,
        *,
        key: str = "tidemark",
        claim: Claim | None = None,
        lock_s: float = LOCK_S,
    ) -> None:
        self._claim, self._names = claim, applications_of(claim)
        self._dsn = dsn
        self._key = key
        self._session: Watched | None = None
        self._lost: Watched | None = None
        self._preparer = Preparer()
        self._is_prepared = False
        self._keys = WideKeys()
        self._guards = Guards()
        self._histories = Histories(key)
        self._lock_s = lock_s
        # The views on whose tables users have triggers, as of the last look.
        self.with_triggers: frozenset[RelationName] = frozenset()
        # Which session holds what an epoch waits for, as of the last look; "" while none does.
        self.blocked_by = ""

    # --- life ------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make sure that the control tables are there and that we may write.

        TemporaryError sink.unreachable; SinkError sink.read_only, sink.privilege, sink.version.
        """
        with self._own_session("cannot prepare the sink") as session:
            with session.cursor() as cursor:
                cursor.execute("SELECT pg_is_in_recovery()")
                if cursor.fetchone()[0]:  # type: ignore[index]
                    raise SinkError(
                        "sink.read_only",
                        "the sink is a standby and cannot be written",
                        hint="point the sink's DSN at the primary",
                    )
            session.rollback()
            schema_setup.ensure(session, self._key.partition("/")[0])
        self._is_prepared = True

    def claim(self) -> None:
        """Take the sink before anything is written. SinkError sink.in_use."""
        self._ensure()
        self._writing_session()

    def check(self, table: SinkTable) -> None:
        """Check that a view of this name can be created. SinkError as sink_tables.check_name."""
        self._ensure()
        with self._own_session(f'cannot check view "{table.title}"', is_long=False) as session:
            sink_tables.check_name(session.cursor(), table)

    def close(self) -> None:
        """End the writing session; the next call of write makes a new one."""
        if self._session is not None:
            self._session.close()
        self._session = None
        self._forget()
        self._preparer = Preparer()

    def interrupt(self) -> None:
        """Cancel the statement of a `write` that waits, from another thread."""
        session = self._session
        if session is not None and not session.closed:
            with suppress(psycopg2.Error):
                session.cancel()

    # --- epochs ----------------------------------------------------------------------------

    def read_progress(self) -> Progress | None:
        """Return the progress of the last committed epoch; None before the first.

        SinkError sink.fenced once another service has taken over: its epochs may have the same
        numbers.
        """
        self._ensure()
        # The outcome of its commit is known once it has ended.
        with translated("sink", "cannot find whether the last epoch was committed"):
            end_left(self._lost)
        self._lost = None
        with self._own_session("cannot read the sink's progress", is_long=False) as session:
            found = progress_of(session.cursor(), self._key)
            self._require(session)
            return found

    def write(self, epoch: SinkEpoch) -> None:
        """Apply in one transaction, durable on return in the order of calls.

        TemporaryError: not applied, or the outcome of the commit is unknown. SinkBehind: it lacks
        epochs before this one. SinkPromoted: a standby took over. SinkError sink.fenced: another
        writer has this epoch; with a relation: a view cannot take its name (sink.name_taken,
        sink.not_staged, sink.dependents), or its table is not as it was left (sink.table_missing,
        sink.table_changed, sink.row_missing ...): nothing is written.
        """
        self._ensure()
        session = self._writing_session()
        context = WriteContext()
        try:
            with session.cursor() as cursor:
                try:
                    self._write(cursor, epoch, context)
                except states.ProgramLimitExceeded:
                    context = WriteContext(widened=frozenset(too_wide(epoch.rows.parts())))
                    self._roll_back(session)
                    self._write(cursor, epoch, context)
        except psycopg2.Error as error:
            failure = self._failure(session, epoch, error)
            if not session.closed and self._learn_triggers(session):
                # They may lack only the search path that is theirs.
                self.write(epoch)
                return
            if failure.is_temporary and is_of_statement(error):
                found = self._find_fault(epoch, context.widened)
                failure = found if found is not None and found.relation else failure
            elif not (failure.is_temporary or failure.relation or failure.code == "sink.fenced"):
                failure = self._find_fault(epoch, context.widened) or failure
                if failure.relation is None:
                    failure.relation = constrained_view(session.cursor(), error)
            raise self._with_its_cause(failure) from error
        except TidemarkError as error:
            self._roll_back(session)
            error.relation = error.relation or context.relation
            if error.relation is None and not error.is_temporary:
                raise self._find_fault(epoch, context.widened) or error from error
            raise
        except Exception as error:
            self._roll_back(session)
            if context.relation is None or isinstance(error, OSError):
                raise
            # The conversion of the rows concerns this view alone.
            failure = internal_error("what writes the view's table", error)
            failure.relation = context.relation
            raise failure from error
        except BaseException:
            self._roll_back(session)
            raise

    def _find_fault(self, epoch: SinkEpoch, widened: frozenset[SinkTable]) -> TidemarkError | None:
        """Which view's table refuses the epoch: all is tried again, one table at a time."""
        session, context = self._writing_session(), WriteContext(widened, is_searched=True)
        try:
            with session.cursor() as cursor:
                self._write(cursor, epoch, context)
            return None
        except psycopg2.Error as error:
            failure = self._fault(session, context, error) or self._failure(session, epoch, error)
        except TidemarkError as error:
            failure = error
        finally:
            self._roll_back(session)
        failure.relation = failure.relation or context.relation
        if context.title:
            self._blame_for_errors(failure, context.title)
        return failure

    def _with_its_cause(self, failure: TidemarkError) -> TidemarkError:
        """Return what somebody has changed of the table, if a statement does not fit it."""
        session = self._session
        if failure.relation is None or failure.code not in _UNFIT or session is None:
            return failure
        states = table_guard.read_states(run_in(session.cursor()), WIDE_INDEX)
        own = (s.error for s in states if s.relation == failure.relation and s.error is not None)
        return next(own, failure)

    def _learn_triggers(self, session: Connection) -> bool:
        """Return whether users have put triggers on a table since the last look."""
        is_new = False
        with suppress(psycopg2.Error):
            found = table_guard.with_triggers(session.cursor())
            is_new = not found <= self.with_triggers
            self.with_triggers = found
        return is_new

    def _fault(
        self, session: Connection, context: WriteContext, error: psycopg2.Error
    ) -> TidemarkError | None:
        """Return the fault of the table that was being written, if a lock or a trigger is it."""
        if context.relation is None or error.diag.severity_nonlocalized != "ERROR":
            return None
        self._roll_back(session)
        return fault_of(session.cursor(), context.relation, error, self.blocked_by)

    def _search(self, cursor: Any) -> None:
        """Prepare an open transaction for the search: each table fails in its own statements."""
        cursor.execute(f"SET LOCAL lock_timeout TO {round(1000 * _SEARCH_LOCK_S)}")
        cursor.execute(AT_ONCE)
        (names,) = cursor.fetchone()
        if names:
            cursor.execute(f"SET CONSTRAINTS {names} IMMEDIATE")

    def _blame_for_errors(self, failure: TidemarkError, title: str) -> None:
        """Blame the view for error rows that differ from those it produced."""
        with self._own_session("cannot find whose error rows these are", is_long=False) as session:
            cursor = session.cursor()
            cursor.execute(
                "SELECT schema, name FROM tidemark.views WHERE schema || '.' || name = %s", (title,)
            )
            found = cursor.fetchall()
        if len(found) == 1:
            failure.relation = RelationName(VIEW_SOURCE, *found[0])
        if failure.code == "sink.row_missing":
            failure.what = f'tidemark.errors does not hold the error rows of view "{title}"'
            failure.hint = "someone else changed tidemark.errors: rebuild the view, or drop it"

    def _write(self, cursor: Any, epoch: SinkEpoch, context: WriteContext) -> None:
        """Statements gather and go to the server together; what needs an answer flushes them."""
        waiting = self._begin(cursor, epoch, context)
        rejected, recorded, is_noted = epoch.rows.rejected, 0, False
        if epoch.ddl or epoch.rows.final_tables():
            # Readers of final rows need such an epoch even if no row of a table changes.
            if not self._histories.is_known:
                flush(cursor, waiting)
            is_noted = self._histories.are_any(cursor)
            if is_noted:
                waiting.append(history_tables.noted(self._key, epoch))
        for table, delta in deltas_of(epoch, context):
            before, after, past = list[bytes](), list[bytes](), None
            if isinstance(table, Target):
                target = table
            else:
                known = (self._keys, self._guards, self._histories)
                if not all(k.is_known for k in known) or table in context.widened:
                    flush(cursor, waiting)
                history = self._histories.find(cursor, table)
                if history is not None:
                    past = history, self._key
                    if not is_noted:
                        waiting.append(history_tables.noted(self._key, epoch))
                        is_noted = True
                    recorded += len(delta)
                before, after = self._around(cursor, table)
                if table in context.widened and not after:
                    flush(cursor, before[:])
                target = self._keys.target(cursor, table, context.widened)
            changes = split_delta(target, delta)
            copied = [] if past else take_copied(target, changes)
            is_copied = not isinstance(table, Target) and self._guards.is_copied(table)
            if is_copied or is_large(changes):
                flush(cursor, waiting)
                around = b";".join(before).decode(), b";".join(after).decode()
                apply_by_copy(cursor, target, changes, around, past)
            else:
                statements = self._preparer.statements(cursor, target, changes, past)
                # Before each of them: somebody may have been waited for in the one before.
                waiting += [s for one in statements for s in (*before, one, *after)]
                if copied or context.is_searched or sum(map(len, waiting)) > _BUFFERED_BYTES:
                    flush(cursor, waiting)
            for _, columns, n in copied:
                flush(cursor, before[:])
                copy_rows(cursor, target, columns, n)
                flush(cursor, after[:])
        context.relation = None
        if rejected is not None and len(rejected):
            flush(cursor, waiting)
            write_rejected(cursor, self._key, rejected)
        if self._histories.is_due(time.monotonic(), recorded):
            if not self._histories.is_known:
                flush(cursor, waiting)
            waiting += self._histories.pruning(cursor, recorded)
        failpoint("sink.commit.before", psycopg2.OperationalError)
        commit = COMMIT_WITH_TRIGGERS if self.with_triggers else b"COMMIT"
        flush(cursor, [*waiting, b"ROLLBACK" if context.is_searched else commit])
        failpoint("sink.commit.after", psycopg2.OperationalError)

    def _begin(self, cursor: Any, epoch: SinkEpoch, context: WriteContext) -> list[bytes]:
        """Return the first statements that have not been sent yet."""
        waiting = begin(self._key, self._claim.token if self._claim else "", epoch)
        if context.is_searched:
            flush(cursor, waiting)
            self._search(cursor)
        if epoch.ddl:
            flush(cursor, waiting)
            self._change_views(cursor, epoch)
        return waiting

    def _around(self, cursor: Any, table: SinkTable) -> tuple[list[bytes], list[bytes]]:
        """Return what to send before and after each statement that changes a view's table."""
        if self._guards.covers(cursor, table):
            return [guard_sql(table, writes=True).encode()], []
        if table.relation in self.with_triggers:
            return [USERS_TRIGGERS], [PINNED_AGAIN]
        return [], []

    def _change_views(self, cursor: Any, epoch: SinkEpoch) -> None:
        changed = {change.table for change in epoch.ddl.changes}
        for change in epoch.ddl.changes:
            with about(change.table):
                self._retry_locked(cursor, partial(self._change, epoch=epoch), change)
        for swap in epoch.ddl.swaps:
            with about(swap.table):
                # A request that the state has followed already cannot be refused.
                is_bounded = swap.table not in changed
                act = partial(self._swap, epoch=epoch)
                self._retry_locked(cursor, act, swap, is_bounded=is_bounded)
        failpoint("sink.change.after", psycopg2.OperationalError)
        for table, error in epoch.ddl.refusals:
            sink_tables.report_refusal(cursor, table, error)
        self._forget()

    def _retry_locked(
        self,
        cursor: Any,
        act: Callable[[Any, T], None],
        what: T,
        *,
        is_bounded: bool = False,
    ) -> None:
        """Run `act(cursor, what)` inside an open transaction; retry until all locks are free.

        PostgreSQL queues new readers behind a waiting exclusive lock, so one open transaction that
        has read the view would block all other readers through us. They wait only briefly, however
        long that transaction lasts. is_bounded: SinkError sink.locked after `lock_s`.
        """
        cursor.execute("SHOW lock_timeout")
        (usual,) = cursor.fetchone()
        until = time.monotonic() + self._lock_s
        while True:
            cursor.execute(f"SAVEPOINT lock_retry; SET LOCAL lock_timeout = '{_LOCK_MS}ms'")
            try:
                act(cursor, what)
            except (states.LockNotAvailable, states.DeadlockDetected):
                cursor.execute("ROLLBACK TO lock_retry")
                table = what.table
                self.blocked_by = holders_of(cursor, table)
                if is_bounded and time.monotonic() > until:
                    raise locked(table.title, table.relation, self.blocked_by) from None
                time.sleep(_PAUSE_S)
                continue
            cursor.execute("RELEASE lock_retry")
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", (usual,))
            self.blocked_by = ""
            return

    def _change(self, cursor: Any, change: ViewChange, epoch: SinkEpoch) -> None:
        is_doubtful = change.is_replaced and history_tables.has_failed(cursor, change.table)
        cut_over.apply(cursor, change, self._key)
        is_swapped = any(swap.table == change.table for swap in epoch.ddl.swaps)
        if not is_swapped and change.hands_over is None:
            history_tables.settle(cursor, change.table, self._key, epoch, is_doubtful=is_doubtful)

    def _swap(self, cursor: Any, swap: Swap, epoch: SinkEpoch) -> None:
        grants = history_tables.grants_of(cursor, swap.table)
        sink_tables.swap(cursor, swap.table, token=swap.token)
        history_tables.settle(cursor, swap.table, self._key, epoch, grants=grants)

    def _failure(
        self, session: Connection, epoch: SinkEpoch, error: psycopg2.Error
    ) -> TidemarkError:
        if is_temporary(error) and not is_of_statement(error):
            self._lost = self._session
            self.close()
            return to_error(error, "sink", f"cannot write epoch {epoch.progress.epoch}")
        self._roll_back(session)
        if is_outlived(error):
            self.close()
            return to_error(error, "sink", f"cannot write epoch {epoch.progress.epoch}")
        if is_temporary(error):
            return to_error(error, "sink", f"cannot write epoch {epoch.progress.epoch}")
        return refusal_of(session.cursor(), self._key, epoch, error)

    # --- tables ----------------------------------------------------------------------------

    def stage(self, table: SinkTable, rows: Iterable[Delta], token: str = "") -> int:
        """Fill a hidden staging table with a view's first rows; committed, replaced if there."""
        self._ensure()
        doing = f'cannot stage the rows of view "{table.title}"'
        with self._own_session(doing, _COPY_SETTINGS) as session:
            count = sink_tables.stage(session.cursor(), table, rows, token)
            self._require(session)
            failpoint("sink.stage.filled", psycopg2.OperationalError)
            session.commit()
            return count

    def load(self, table: SinkTable, rows: Iterable[Delta], progress: Progress | None) -> int:
        """Stage and swap in, apart from any epoch; progress is set as it is, if given."""
        count = self.stage(table, rows)
        with self._own_session(f'cannot load view "{table.title}"') as session:
            cursor = session.cursor()
            self._forget()
            sink_tables.swap(cursor, table)
            if progress is not None:
                positions = json.dumps(dict(progress.positions))
                cursor.execute(_SET_PROGRESS, (self._key, progress.epoch, positions))
            session.commit()
        return count

    def is_staged(self, table: SinkTable, token: str) -> bool:
        """Return True if exactly these initial rows are staged."""
        self._ensure()
        with self._own_session(f'cannot look at view "{table.title}"') as session:
            return sink_tables.is_staged(session.cursor(), table, token)

    def drop_staged(self, table: SinkTable) -> None:
        """Remove a staging table that will not become a view."""
        self._ensure()
        with self._own_session(f'cannot drop staged view "{table.title}"') as session:
            self._require(session)
            sink_tables.drop(session.cursor(), table, is_staged=True)
            session.commit()

    def drop(self, tables: Sequence[SinkTable]) -> None:
        """Remove the tables, their staging tables and their error rows; SinkError
        sink.dependents when something of the user's hangs on one, then nothing is dropped."""
        self._ensure()
        with self._own_session("cannot drop views") as session:
            self._require(session)
            cursor = session.cursor()
            for table in tables:
                sink_tables.drop(cursor, table, is_staged=True)
                sink_tables.drop(cursor, table, is_staged=False)
            sink_tables.forget_errors(cursor, tables)
            session.commit()

    def holds(self, table: SinkTable) -> bool:
        """Return True if the view's table exists with all of its columns and without foreign code.

        Otherwise it is created again as a whole.
        """
        self._ensure()
        with self._own_session(f'cannot look at view "{table.title}"') as session:
            cursor = session.cursor()
            try:
                require_ours(cursor, table, writes=True)
            except SinkError:
                return False
            return sink_tables.is_there(cursor, table)

    def forget_progress(self) -> None:
        """Remove our progress, when the last view is gone or paused."""
        self._ensure()
        with self._own_session("cannot remove the sink's progress") as session:
            self._require(session)
            session.cursor().execute("SELECT tidemark.forget_progress(%s)", (self._key,))
            session.commit()

    def forget_owner(self) -> None:
        """Remove the record of who writes under this key, once nobody will again."""
        self._ensure()
        with self._own_session("cannot remove the sink's owner") as session:
            if self._claim is not None:
                self._claim.forget(session.cursor())
            session.commit()

    def read_rows(self, table: SinkTable, *, is_checked: bool = False) -> Iterator[Delta]:
        """Yield the view's rows of one snapshot, in chunks; a multiset's with their counts as
        weights.

        is_checked: as for `rows_at`.
        """
        self._ensure()
        doing = f'cannot read view "{table.title}"'
        with self._own_session(doing, _COPY_SETTINGS) as session, reading(table):
            yield from rows_of(session.cursor(), self._dsn, table, is_checked=is_checked)

    @contextmanager
    def rows_at(
        self, table: SinkTable, *, is_checked: bool = False
    ) -> Iterator[tuple[Progress, Iterator[Delta]]]:
        """Return the view's rows, as `read_rows`, and the progress that they show, of one snapshot.

        Of final rows (SinkTable.final) those of closed windows.

        is_checked: SinkError sink.row_changed if someone else wrote to a multiset. SinkError
        sink.no_progress if nothing was written yet.
        """
        self._ensure()
        with self._own_session(f'cannot read view "{table.title}"', _COPY_SETTINGS) as session:
            session.set_session(isolation_level="REPEATABLE READ")
            cursor = session.cursor()
            found = progress_of(cursor, self._key)
            if found is None:
                raise SinkError("sink.no_progress", "no epoch has been written yet")
            rows = rows_of(cursor, self._dsn, table, is_checked=is_checked)
            if table.final is not None:
                edge_us = window_edge(cursor, table)
                rows = (closed_of(table, delta, edge_us) for delta in rows)
            yield found, rows

    def renew_hashes(self, table: SinkTable) -> None:
        """Give each row of a multiset the hash of its present text; nothing else may write to it
        meanwhile.
        """
        if table.key:
            return
        self._ensure()
        doing = f'cannot read view "{table.title}"'
        with self._own_session(doing, _COPY_SETTINGS) as session, reading(table):
            cursor = session.cursor()
            lines = row_hashes.outdated(cursor, self._dsn, table)
            session.rollback()
            if lines:
                self._require(session)
                history = Histories(self._key).find(cursor, table)
                row_hashes.renew(cursor, table, history, lines)
                session.commit()

    def row_count(self, table: SinkTable) -> int:
        """Return about how many rows the view has; exact while it is small and not locked."""
        self._ensure()
        doing = f'cannot count view "{table.title}"'
        with self._own_session(doing, _COUNT_SETTINGS, is_long=False) as session:
            return sink_tables.count_rows(session.cursor(), self._dsn, table)

    def _require(self, session: Connection) -> None:
        """Check that no other service has taken over: what is staged or dropped now is ours."""
        if self._claim is not None:
            self._claim.require(session.cursor())

    # --- sessions --------------------------------------------------------------------------

    def _ensure(self) -> None:
        if not self._is_prepared:
            self.prepare()

    def _writing_session(self) -> Watched:
        if self._session is None or self._session.closed:
            self.close()
            session = connect(
                self._dsn,
                side="sink",
                application_name=self._names[0],
                settings={**_WRITE_SETTINGS, "lock_timeout": f"{round(1000 * self._lock_s)}"},
                is_long=True,
            )
            session.autocommit = True
            try:
                if self._claim is not None:
                    self._claim.take(session)
            except BaseException:
                session.close()
                raise
            self._session = session
        return self._session

    def _forget(self) -> None:
        """Discard the cached facts of tables."""
        self._keys.forget()
        self._guards.forget()
        self._histories.forget()

    def _roll_back(self, session: Connection) -> None:
        self._forget()
        try:
            with session.cursor() as cursor:
                cursor.execute("ROLLBACK")
        except psycopg2.Error:
            self.close()

    @contextmanager
    def _own_session(
        self, doing: str, settings: dict[str, str] | None = None, *, is_long: bool = True
    ) -> Iterator[Connection]:
        session = connect(
            self._dsn,
            side="sink",
            application_name=self._names[1],
            settings=settings,
            is_long=is_long,
        )
        try:
            with translated("sink", doing):
                yield session
        finally:
            session.close()
