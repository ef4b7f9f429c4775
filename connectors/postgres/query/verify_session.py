"""Sessions that verify a view: a snapshot of the sink with its position, and bounded reads.

Every read has a statement timeout and a read-only transaction, and can be cancelled from another
thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import psycopg2
from psycopg2.extensions import connection as Connection

from connectors.postgres.evaluation import sandbox
from connectors.postgres.query.answer_comparison import SortedRows, selected
from connectors.postgres.query.history_rows import find_history
from connectors.postgres.schema.history_target import History
from connectors.postgres.session.session import connect, to_error, translated
from connectors.postgres.sink.restricted_sink import reading
from connectors.sink import SinkTable
from dataflow.errors import TidemarkError
from dataflow.notes import FROZEN_EDGE, LATE_LEFT_OUT
from dataflow.types import UTC

_APPLICATION = "tidemark verify"
_SETTINGS = {"row_security": "off", "jit": "off", "lock_timeout": "5s"}
_CANCELLED = "57014"
_VIEW = "tidemark_verified"


class VerifySession:
    """A read-only snapshot of the sink; `take` renews it. key: whose progress is meant."""

    def __init__(self, dsn: str, key: str) -> None:
        self._dsn, self._key = dsn, key
        self.connection = connect(
            dsn, side="sink", application_name=_APPLICATION, settings=_SETTINGS
        )
        self.connection.set_session(isolation_level="REPEATABLE READ")

    def take(self) -> dict[str, Any]:
        """Take a snapshot; return the position of each source that it shows."""
        self.connection.rollback()
        found = self._rows("SELECT positions FROM tidemark.progress WHERE sink_key = %s", self._key)
        return dict(found[0][0]) if found else {}

    def views(self, identities: Sequence[str]) -> dict[str, tuple[str, str, str, str]]:
        """Return (status, schema, name, query) of these views; missing ones are absent."""
        sql = (
            "SELECT identity, status, schema, name, query FROM tidemark.views"
            " WHERE identity = ANY (%s)"
        )
        return {identity: tuple(facts) for identity, *facts in self._rows(sql, list(identities))}

    def errors(self, titles: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
        """Return (operator, row) of each row left out of these views, failing or late, by view."""
        sql = (
            "SELECT view, operator, source_row FROM tidemark.errors WHERE view = ANY (%s)"
            " UNION ALL SELECT view, operator, source_row FROM tidemark.notes"
            " WHERE view = ANY (%s) AND sqlstate = %s"
        )
        found: dict[str, list[tuple[str, str]]] = {}
        for view, operator, row in self._rows(sql, list(titles), list(titles), LATE_LEFT_OUT):
            found.setdefault(view, []).append((operator, row))
        return found

    def frozen_edges(self, titles: Sequence[str]) -> dict[str, int]:
        """Return for each of these views with frozen windows the watermark up to which they are, in
        microseconds since 2000 UTC."""
        sql = "SELECT view, source_row FROM tidemark.notes WHERE view = ANY (%s) AND sqlstate = %s"
        rows = self._rows(sql, list(titles), FROZEN_EDGE)
        return {view: int(text.strip("()")) for view, text in rows}

    def rows_of(self, table: SinkTable) -> str:
        """Return a query of the rows of a view's table. SinkError sink.foreign_object."""
        with translated("sink", "cannot read the sink"), self.connection.cursor() as cursor:
            return reading(cursor, self._dsn, table, partial(selected, table), len(table.fields))

    def history_of(self, table: SinkTable) -> History | None:
        """Return the history of a view; None if it has none."""
        with translated("sink", "cannot read the sink"), self.connection.cursor() as cursor:
            return find_history(cursor, table)

    def close(self) -> None:
        """End the session and its snapshot."""
        self.connection.close()

    def _rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with translated("sink", "cannot read the sink"), self.connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            return cursor.fetchall()


class Reader:
    """Reads sorted rows in one session, which it closes. side: "source" or "sink"."""

    def __init__(self, side: str, connection: Connection, timeout_s: float) -> None:
        self._side = side
        self._connection = connection
        self._timeout_s = timeout_s
        with translated(side, "cannot set a time-out"), connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL statement_timeout = {max(1, int(timeout_s * 1000))}")

    def fill(self, rows: SortedRows, query: str) -> None:
        """Read the rows of a query. TidemarkError verify.timeout, verify.query_fails."""
        with self._translated():
            rows.fill(self._connection.cursor(), query)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return the few rows of a query. TidemarkError as `fill`."""
        with self._translated(), self._connection.cursor() as cursor:
            cursor.execute(query)
            return cursor.fetchall()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except psycopg2.Error as error:
            if error.pgcode == _CANCELLED:
                raise TidemarkError(
                    "verify.timeout",
                    f"the {self._side} did not answer within {self._timeout_s:g} s",
                    hint="raise verify_timeout_s",
                ) from error
            hint = "the view is still maintained, but PostgreSQL cannot run its whole query now"
            doing = "the view's query cannot be run"
            raise to_error(
                error, self._side, doing, code="verify.query_fails", hint=hint
            ) from error

    def cancel(self) -> None:
        """Cancel the running statement; from another thread."""
        with suppress(psycopg2.Error):
            self._connection.cancel()

    def close(self) -> None:
        """End the session that the reader was given."""
        self._connection.close()


def open_sandboxed(
    dsn: str, role: str, query: str, snapshot_id: str | None, time_zone: str = UTC
) -> tuple[Connection, str, float]:
    """Open a read-only session on the source, in a snapshot if one is passed.

    Return the session, the query to run in its sandbox, and the cost that PostgreSQL estimates, in
    its own units. role: whose rights it has; "" reads tables with the service's rights, and runs
    functions with none. time_zone: in which the query runs; its rows are printed in UTC.

    SourceError source.role.
    """
    session = connect(dsn, application_name=_APPLICATION, settings=_SETTINGS)
    try:
        session.set_session(isolation_level="REPEATABLE READ")
        with translated("source", "the view's query cannot be run"), session.cursor() as cursor:
            if snapshot_id is not None:
                cursor.execute("SET TRANSACTION SNAPSHOT %s", (snapshot_id,))
            owner, _ = sandbox.choose_role(cursor, role)
            if role and not owner:
                raise sandbox.no_role(role, "the service's role is not a member of it")
            box = sandbox.enter(cursor, dsn, owner, time_zone)
            box.make_view(cursor, _VIEW, query)
            if not owner:
                box.lend_tables(cursor, _VIEW)
            selected = f"SELECT * FROM {box.confine(cursor, _VIEW)}"
            plan = box.explain(cursor, f"SELECT * FROM pg_temp.{_VIEW}")
        return session, selected, float(plan[0]["Plan"]["Total Cost"])
    except BaseException:
        session.close()
        raise
