"""A view as a table of another PostgreSQL: rows and progress in one transaction, exactly once.

Each transaction locks the sink's row of the progress table and finds our token there; a writer that
opens the sink later has ended our session and put its own. The first rows create the table in the
transaction that notes its oid, so a table that was recreated is never written to as if it held the
earlier rows. After a failure the row says which epochs are there.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg2
from psycopg2 import errors as states

from connectors.postgres.additional.options import TableOptions
from connectors.postgres.additional.progress_table import ProgressTable, Standing
from connectors.postgres.additional.table_check import TableCheck
from connectors.postgres.additional.written_table import Changelog, RowsTable, changed
from connectors.postgres.session.liveness_watchdog import Watched
from connectors.postgres.session.session import connect, to_error
from connectors.postgres.sink.apply_deltas import LOOKED_UP
from connectors.sink import SinkTable
from connectors.view_sink import Detachment, Interruption, ViewEpoch, fenced, lost
from dataflow.delta import Delta
from dataflow.errors import SinkError, TemporaryError, TidemarkError
from storage.failpoints import failpoint

APPLICATION = "tidemark sink"
_SETTINGS = {
    # Prepared plans must not depend on how small a table was when it was planned.
    "plan_cache_mode": "force_generic_plan",
    **LOOKED_UP,
    "jit": "off",
    "synchronous_commit": "on",
}
_GONE = (states.UndefinedTable, states.UndefinedColumn, states.InvalidSchemaName)


class TableSink:
    """One sink. identity: new for each creation. title: readable."""

    def __init__(self, options: TableOptions, table: SinkTable, identity: str, title: str) -> None:
        self._options = options
        self._title = title
        self._table = (RowsTable if options.mode == "rows" else Changelog)(options, table)
        self._progress = ProgressTable(options.schema, identity)
        self._token = secrets.token_hex(16)
        # Of the writer before us, "" for none; None until we have tried to take over.
        self._earlier: str | None = None
        self._session: Watched | None = None
        self._interrupted = Interruption()

    # --- life ------------------------------------------------------------------------------

    def open(self, known: int | None = None) -> int | None:
        """Take over from every earlier writer; return the newest epoch, None before the first.

        TemporaryError sink.unreachable, sink.busy; SinkError sink.fenced, sink.lost, and refusals
        of the server.
        """
        self.close()
        self._interrupted.check()
        with self._translated("opening the sink"):
            session = self._connect()
            with session.cursor() as cursor:
                if known is None:
                    self._progress.ensure(cursor)
                    session.commit()
                standing = self._progress.find(cursor)
                if standing is None and known is not None:
                    session.rollback()
                    return None
                self._require_turn(standing)
                if standing is not None:
                    self._progress.end_earlier(cursor)
                    # What it has committed meanwhile.
                    standing = self._progress.find(cursor, is_locked=True)
                    self._require_turn(standing)
                self._earlier = "" if standing is None else standing.owner
                self._progress.claim(cursor, self._token, self._title, self._options.title)
                if standing is not None and standing.epoch is not None:
                    self._require_table(cursor, standing)
            session.commit()
        return None if standing is None else standing.epoch

    def interrupt(self) -> None:
        """Interrupt from any thread: the current call and all later ones end soon."""
        self._interrupted.set()
        session = self._session
        if session is not None and not session.closed:
            with suppress(psycopg2.Error):
                session.cancel()

    def close(self) -> None:
        """Close the session; what is not committed is lost."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(psycopg2.Error):
                session.close()
        self._table.forget()

    def remove(self) -> None:
        """Delete the sink's row, and the table if the sink has created it, else its rows."""
        self.close()
        with self._translated("removing the sink"):
            session = self._connect()
            with session.cursor() as cursor:
                standing = self._progress.find(cursor)
                if standing is not None:
                    self._progress.end_earlier(cursor)
                    self._remove_rows(cursor, standing)
                    self._progress.remove(cursor)
            session.commit()

    def detachment(self) -> Detachment:
        """See ViewSink."""
        progress = f"its row of table {self._progress.sql}, and that table with its last row"
        return Detachment((progress,), (f"table {self._options.title}",))

    def detach(self) -> None:
        """Delete the sink's row of the progress table, and that table with its last row."""
        self.close()
        with self._translated("leaving the sink"):
            session = self._connect()
            with session.cursor() as cursor:
                if self._progress.find(cursor) is not None:
                    self._progress.end_earlier(cursor)
                    self._progress.remove(cursor)
            session.commit()

    def _remove_rows(self, cursor: Any, standing: Standing) -> None:
        if standing.table_oid is None:
            return
        if standing.is_created:
            self._table.drop(cursor, standing.table_oid)
        elif self._oid_of(cursor) == standing.table_oid:
            cursor.execute(f"TRUNCATE {self._table.sql}")

    # --- epochs ----------------------------------------------------------------------------

    def write(self, epochs: Sequence[ViewEpoch]) -> None:
        """Write whole epochs in one transaction.

        TemporaryError: none of them is written, or the outcome is unknown. SinkError sink.fenced,
        sink.lost, sink.target_changed, sink.row_too_wide, sink.table_unfit.
        """
        session = self._session
        if session is None:
            raise TemporaryError("sink.unreachable", "the sink is not open")
        watched = [_interruptible(epoch, self._interrupted.check) for epoch in epochs]
        with self._translated("writing an epoch"), session.cursor() as cursor:
            standing = self._progress.find(cursor, is_locked=True)
            if standing is None:
                raise lost("its progress is gone")
            if standing.owner != self._token:
                raise fenced(f"table {self._options.title}")
            if epochs[0].is_initial:
                self._begin(cursor, watched[0])
                watched = watched[1:]
            else:
                self._require_table(cursor, standing)
            if watched:
                self._table.write(cursor, watched)
            self._progress.advance(cursor, epochs[-1].number, epochs[-1].positions)
            failpoint("copy.commit.before", psycopg2.OperationalError)
            session.commit()
            failpoint("copy.commit.after", psycopg2.OperationalError)

    def _begin(self, cursor: Any, epoch: ViewEpoch) -> None:
        """Write the first rows, into a new table or an empty one that fits."""
        is_created = not TableCheck(self._options, self._table).check(cursor)
        if is_created:
            self._table.create(cursor, epoch)
        else:
            cursor.execute(f"LOCK TABLE {self._table.sql} IN SHARE ROW EXCLUSIVE MODE")
            TableCheck(self._options, self._table).require_empty(cursor)
            self._table.fill(cursor, epoch)
        self._progress.begin(cursor, self._table.sql, is_created=is_created)

    def _oid_of(self, cursor: Any) -> int | None:
        cursor.execute("SELECT to_regclass(%s)::oid::bigint", (self._table.sql,))
        return cursor.fetchone()[0]

    def _require_table(self, cursor: Any, standing: Standing) -> None:
        if self._oid_of(cursor) != standing.table_oid:
            raise lost(f"table {self._options.title} was dropped, renamed or recreated")

    def _require_turn(self, standing: Standing | None) -> None:
        """Fail if another writer has taken over since we did."""
        if self._earlier is None or standing is None:
            return
        if standing.owner not in (self._token, self._earlier):
            raise fenced(f"table {self._options.title}")

    # --- sessions and errors ---------------------------------------------------------------

    def _connect(self) -> Watched:
        self._session = connect(
            self._options.dsn(),
            side="sink",
            application_name=APPLICATION,
            settings=_SETTINGS,
            is_long=True,
        )
        return self._session

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        """Turn errors into ours; whatever happens, nothing of a failed transaction stays open."""
        try:
            yield
        except psycopg2.Error as error:
            self.close()
            self._interrupted.check()
            raise self._error(error, doing) from error
        except BaseException:
            self.close()
            raise

    def _error(self, error: psycopg2.Error, doing: str) -> TidemarkError:
        detail = str(error.diag.message_primary or error)
        if isinstance(error, _GONE):
            return lost(detail)
        if isinstance(error, states.ProgramLimitExceeded):
            return SinkError(
                "sink.row_too_wide",
                f'a row is wider than PostgreSQL can store in table "{self._options.title}"',
                detail=detail,
                hint="remove columns from the view, or split it into two views",
            )
        if isinstance(error, states.IntegrityError):
            return changed(detail)
        return to_error(error, "sink", f'{doing} "{self._title}" failed')


def _interruptible(epoch: ViewEpoch, check: Callable[[], None]) -> ViewEpoch:
    """Return the same epoch, whose deltas end when the sink is interrupted."""
    return ViewEpoch(
        epoch.number,
        epoch.positions,
        _Checked(epoch.deltas, check),
        epoch.rows,
        epoch.is_initial,
    )


class _Checked:
    """Deltas, each after a check."""

    def __init__(self, deltas: Any, check: Callable[[], None]) -> None:
        self._deltas = deltas
        self._check = check

    def __iter__(self) -> Iterator[Delta]:
        for delta in self._deltas:
            self._check()
            yield delta
