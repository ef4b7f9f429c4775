"""Views as plain PostgreSQL tables: one transaction an epoch, with rows, errors and progress.

Invariant: a reader of the sink sees all views, error rows and tidemark.progress of one and the
same epoch. Fence: the progress moves on by exactly one epoch in the same transaction, so of two
writers the slower one is refused. `write` may be repeated after a lost connection once
`read_progress` has shown that the epoch is not there; a session is made anew as needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import psycopg2
from psycopg2.extensions import connection as Connection

from connectors.postgres import control_schema, copy_text, dead_letters, sink_tables
from connectors.postgres.copy_text import quote_name, quote_text
from connectors.postgres.session import connect, is_temporary, to_error, translated
from connectors.postgres.sink_apply import (
    Preparer,
    apply_by_copy,
    copy_rows,
    is_large,
    key_violation,
    rows_missing,
    split_delta,
    take_copied,
)
from connectors.postgres.sink_target import ERRORS, Target, target_of
from connectors.sink import Progress, SinkEpoch, SinkTable
from dataflow.delta import Column, Delta
from dataflow.errors import SinkError, TidemarkError

# Prepared plans must not depend on how small a table was when it was planned: always by index.
_WRITE_SETTINGS = {
    "standard_conforming_strings": "on",
    "plan_cache_mode": "force_generic_plan",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    "jit": "off",
    "synchronous_commit": "on",
}
_COPY_SETTINGS = {"standard_conforming_strings": "on", "jit": "off"}
# Counting is for people, who must not wait for whoever has locked a view.
_COUNT_SETTINGS = {"lock_timeout": "200ms", "statement_timeout": "2s"}
_RIGHTS = ["SELECT", "INSERT", "UPDATE", "DELETE"]
# Statements that go to the server together: libpq holds them as often as four times.
_GATHERED_BYTES = 2 << 20


class PostgresSink:
    """The sink of one service; `key` tells it from another service on the same database.

    Not for several threads at once, except `stage`, `drop` and the readers, which use sessions
    of their own.
    """

    def __init__(self, dsn: str, *, key: str = "tidemark") -> None:
        self._dsn = dsn
        self._key = key
        self._session: Connection | None = None
        self._preparer = Preparer()
        self._is_prepared = False

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
            control_schema.ensure(session)
        self._is_prepared = True

    def check(self, table: SinkTable) -> None:
        """Whether a view of this name could be created. SinkError as sink_tables.check_name."""
        self._ensure()
        with self._own_session(f'cannot check view "{table.title}"', is_long=False) as session:
            sink_tables.check_name(session.cursor(), table)

    def close(self) -> None:
        """End the writing session; the next call of write makes a new one."""
        if self._session is not None:
            self._session.close()
        self._session = None
        self._preparer = Preparer()

    def interrupt(self) -> None:
        """Cancel the statement of a `write` that waits, from another thread."""
        session = self._session
        if session is not None and not session.closed:
            with suppress(psycopg2.Error):
                session.cancel()

    # --- epochs ----------------------------------------------------------------------------

    def read_progress(self) -> Progress | None:
        """What the last committed epoch said; None before the first."""
        self._ensure()
        with self._own_session("cannot read the sink's progress", is_long=False) as session:
            return _progress(session.cursor(), self._key)

    def write(self, epoch: SinkEpoch) -> None:
        """Apply in one transaction, durable on return in the order of calls.

        TemporaryError: not applied, or the outcome of the commit is unknown. SinkError
        sink.fenced: another writer has this epoch; with a relation: a view cannot take its name
        (sink.name_taken, sink.not_staged, sink.dependents). InvariantError sink.key_violation,
        sink.row_missing: nothing of the epoch is written.
        """
        self._ensure()
        session = self._writing_session()
        try:
            with session.cursor() as cursor:
                self._write(cursor, epoch)
        except psycopg2.Error as error:
            raise self._failure(session, epoch, error) from error
        except BaseException:
            self._roll_back(session)
            raise

    def _write(self, cursor: Any, epoch: SinkEpoch) -> None:
        """Statements gather and go to the server together; what needs an answer flushes them."""
        positions = quote_text(json.dumps(dict(epoch.progress.positions)))
        number = epoch.progress.epoch
        advance = f"SELECT tidemark.advance({quote_text(self._key)}, {number}, {positions})"
        waiting = [b"BEGIN", advance.encode()]
        if epoch.swaps or epoch.refusals:
            _flush(cursor, waiting)
            for table in epoch.swaps:
                try:
                    sink_tables.swap(cursor, table)
                except SinkError as error:
                    error.relation = table.relation
                    raise
            for table, error in epoch.refusals:
                sink_tables.tell_refusal(cursor, table, error)
        for target, delta in _targets(epoch):
            changes = split_delta(target, delta)
            copied = take_copied(target, changes)
            if is_large(changes):
                _flush(cursor, waiting)
                apply_by_copy(cursor, target, changes)
            else:
                waiting += self._preparer.statements(cursor, target, changes)
                if copied or sum(map(len, waiting)) > _GATHERED_BYTES:
                    _flush(cursor, waiting)
            for _, columns, n in copied:
                copy_rows(cursor, target, columns, n)
        if epoch.rejected is not None and len(epoch.rejected):
            _flush(cursor, waiting)
            dead_letters.apply(cursor, self._key, epoch.rejected)
        _flush(cursor, [*waiting, b"COMMIT"])

    def _failure(
        self, session: Connection, epoch: SinkEpoch, error: psycopg2.Error
    ) -> TidemarkError:
        number = epoch.progress.epoch
        state, diagnostics = error.pgcode, error.diag
        if is_temporary(error):
            self.close()
            return to_error(error, "sink", f"cannot write epoch {number}")
        self._roll_back(session)
        if state == control_schema.FENCED_STATE or diagnostics.table_name == "progress":
            return SinkError(
                "sink.fenced",
                f"epoch {number} does not follow what the sink holds",
                detail=str(diagnostics.message_primary),
                hint="another service writes under the same key: stop it, or give it another one",
            )
        if state == control_schema.MISSING_STATE:
            return rows_missing(str(diagnostics.message_primary))
        if state == "23505" and self._is_key(session, diagnostics):
            target = Target(str(diagnostics.schema_name), str(diagnostics.table_name), (), ())
            return key_violation(target, str(diagnostics.message_detail))
        code, hint = "sink.failed", ""
        if state in ("42P01", "42501"):
            unwritable = self._unwritable(session, epoch)
            if unwritable is not None:
                return unwritable
        elif state is not None and state[:2] in ("22", "23"):
            code, hint = "sink.constraint", "drop the constraint that was added to the table"
        return to_error(error, "sink", f"cannot write epoch {number}", code=code, hint=hint)

    def _unwritable(self, session: Connection, epoch: SinkEpoch) -> SinkError | None:
        """The refusal of the first view whose table somebody has dropped, or taken from us."""
        with session.cursor() as cursor:
            # What is swapped in with this epoch is not there any more.
            for table in epoch.row_counts().keys() - set(epoch.swaps):
                cursor.execute(
                    "SELECT to_regclass(%s), current_user, coalesce(bool_and("
                    "has_table_privilege(to_regclass(%s), p)), false) FROM unnest(%s) AS p",
                    (target_of(table).sql, target_of(table).sql, _RIGHTS),
                )
                found, role, is_ours = cursor.fetchone()  # type: ignore[misc]
                if is_ours:
                    continue
                what = f'the table of view "{table.title}" '
                code = "sink.privilege" if found else "sink.table_missing"
                return SinkError(
                    code,
                    what + (f'may not be written by role "{role}"' if found else "is gone"),
                    hint="drop the view and create it again",
                    relation=table.relation,
                )
        return None

    def _is_key(self, session: Connection, diagnostics: Any) -> bool:
        with session.cursor() as cursor:
            cursor.execute(
                "SELECT 1 FROM pg_constraint WHERE contype = 'p' AND conname = %s "
                "AND conrelid = to_regclass(%s)",
                (
                    diagnostics.constraint_name,
                    f"{quote_name(diagnostics.schema_name)}.{quote_name(diagnostics.table_name)}",
                ),
            )
            return cursor.fetchone() is not None

    # --- tables ----------------------------------------------------------------------------

    def stage(self, table: SinkTable, rows: Iterable[Delta]) -> int:
        """Fill a hidden staging table with a view's first rows; committed, replaced if there."""
        self._ensure()
        doing = f'cannot stage the rows of view "{table.title}"'
        with self._own_session(doing, _COPY_SETTINGS) as session:
            count = sink_tables.stage(session.cursor(), table, rows)
            session.commit()
            return count

    def load(self, table: SinkTable, rows: Iterable[Delta], progress: Progress | None) -> int:
        """Stage and swap in, apart from any epoch; progress is set as it is, if given."""
        count = self.stage(table, rows)
        with self._own_session(f'cannot load view "{table.title}"') as session:
            cursor = session.cursor()
            sink_tables.swap(cursor, table)
            if progress is not None:
                cursor.execute(
                    "INSERT INTO tidemark.progress (sink_key, epoch, positions) "
                    "VALUES (%s, %s, %s) ON CONFLICT (sink_key) DO UPDATE SET "
                    "epoch = excluded.epoch, positions = excluded.positions, updated_at = now()",
                    (self._key, progress.epoch, json.dumps(dict(progress.positions))),
                )
            session.commit()
        return count

    def drop_staged(self, table: SinkTable) -> None:
        """Remove a staging table that will not become a view."""
        self._ensure()
        with self._own_session(f'cannot drop staged view "{table.title}"') as session:
            sink_tables.drop(session.cursor(), table, is_staged=True)
            session.commit()

    def drop(self, tables: Sequence[SinkTable]) -> None:
        """Remove the tables, their staging tables and their error rows; SinkError
        sink.dependents when something of the user's hangs on one, then nothing is dropped."""
        self._ensure()
        with self._own_session("cannot drop views") as session:
            cursor = session.cursor()
            for table in tables:
                sink_tables.drop(cursor, table, is_staged=True)
                sink_tables.drop(cursor, table, is_staged=False)
            sink_tables.forget_errors(cursor, tables)
            session.commit()

    def forget_progress(self) -> None:
        """Remove our progress, when the last view is gone."""
        self._ensure()
        with self._own_session("cannot remove the sink's progress") as session:
            session.cursor().execute(
                "DELETE FROM tidemark.progress WHERE sink_key = %s", (self._key,)
            )
            session.commit()

    def read_rows(self, table: SinkTable) -> Iterator[Delta]:
        """The view's rows as of one moment, in chunks; a bag's with their counts as weights."""
        self._ensure()
        with self._own_session(f'cannot read view "{table.title}"', _COPY_SETTINGS) as session:
            yield from _rows_of(session.cursor(), table)

    @contextmanager
    def rows_at(self, table: SinkTable) -> Iterator[tuple[Progress, Iterator[Delta]]]:
        """The view's rows, as `read_rows`, with the progress that they show: of one snapshot.

        SinkError sink.no_progress when nothing was written yet.
        """
        self._ensure()
        with self._own_session(f'cannot read view "{table.title}"', _COPY_SETTINGS) as session:
            session.set_session(isolation_level="REPEATABLE READ", readonly=True)
            cursor = session.cursor()
            found = _progress(cursor, self._key)
            if found is None:
                raise SinkError("sink.no_progress", "no epoch has been written yet")
            yield found, _rows_of(cursor, table)

    def row_count(self, table: SinkTable) -> int:
        """About how many rows the view has; exact while it is small and nobody has locked it."""
        self._ensure()
        doing = f'cannot count view "{table.title}"'
        with self._own_session(doing, _COUNT_SETTINGS, is_long=False) as session:
            return sink_tables.count_rows(session.cursor(), table)

    # --- sessions --------------------------------------------------------------------------

    def _ensure(self) -> None:
        if not self._is_prepared:
            self.prepare()

    def _writing_session(self) -> Connection:
        if self._session is None or self._session.closed:
            self.close()
            self._session = connect(
                self._dsn,
                side="sink",
                application_name="tidemark sink",
                settings=_WRITE_SETTINGS,
                is_long=True,
            )
            self._session.autocommit = True
        return self._session

    def _roll_back(self, session: Connection) -> None:
        try:
            with session.cursor() as cursor:
                cursor.execute("ROLLBACK")
        except psycopg2.Error:
            self.close()

    @contextmanager
    def _own_session(
        self, doing: str, settings: dict[str, str] | None = None, *, is_long: bool = True
    ) -> Iterator[Connection]:
        session = connect(self._dsn, side="sink", settings=settings, is_long=is_long)
        try:
            with translated("sink", doing):
                yield session
        finally:
            session.close()


def _targets(epoch: SinkEpoch) -> Iterator[tuple[Target, Delta]]:
    """What to apply to which table, part by part."""
    for part in epoch.parts():
        yield from ((target_of(t), delta) for t, delta in part.deltas if len(delta))
        if part.errors is not None and len(part.errors):
            yield ERRORS, part.errors


def _progress(cursor: Any, key: str) -> Progress | None:
    cursor.execute("SELECT epoch, positions FROM tidemark.progress WHERE sink_key = %s", (key,))
    row = cursor.fetchone()
    return None if row is None else Progress(row[0], row[1])


def _rows_of(cursor: Any, table: SinkTable) -> Iterator[Delta]:
    target = target_of(table)
    columns = target.columns[1:] if target.is_bag else target.columns
    query = f"SELECT {', '.join(quote_name(c.name) for c in columns)} FROM {target.sql}"
    for chunk in copy_text.copy_out(cursor, query, [c.type for c in columns]):
        yield _delta_of(chunk, is_bag=target.is_bag)


def _flush(cursor: Any, waiting: list[bytes]) -> None:
    if waiting:
        cursor.execute(b";".join(waiting))
        waiting.clear()


def _delta_of(columns: list[Column], *, is_bag: bool) -> Delta:
    if is_bag:
        return Delta(columns[1:], columns[0].values)
    return Delta(columns, np.ones(len(columns[0]), np.int64))
