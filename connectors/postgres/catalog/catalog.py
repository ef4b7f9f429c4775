"""The catalog of a service in its sink database: views, sources, progress, change notifications.

Several services may have theirs in one database, by their prefixes; each sees its own rows only.

REST, CLI and psql write the desired state into tidemark.views. The pipeline reads it, acts, and
writes the outcome. All coordination goes through these tables, so the API is stateless. Invariant:
a row changes by whole statements that commit at once, and a trigger notifies every waiting session
on channel "tidemark", so psql needs only SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import psycopg2
from psycopg2.extensions import connection as Connection
from psycopg2.extras import Json

from connectors.postgres.catalog.listener import Listener
from connectors.postgres.schema import channels, schema_setup, view_status
from connectors.postgres.schema.stored_roles import current_name
from connectors.postgres.session.quoting import quote_name
from connectors.postgres.session.session import Session, to_error
from connectors.postgres.session.timeline import has_changed, timeline_of
from connectors.sink import Progress, SinkPromoted
from connectors.source import MAIN_SOURCE
from connectors.view_states import INITIAL, DesiredState, ViewEvent
from dataflow.errors import InvariantError, SinkError, TemporaryError
from dataflow.notes import FROZEN_ROW, LATE_APPLIED, LATE_LEFT_OUT, WATERMARK

T = TypeVar("T")


@dataclass(frozen=True)
class ViewRow:
    """A row of tidemark.views. identity is new for each creation and names the view's state.

    change: the requested change beside `desired` (service/views/requested_changes.py); replacing:
    its progress. created_by: the owner's name now (schema/stored_roles.py). withheld: why nobody
    may read its rows (withheld_rows.py).
    """

    schema: str
    name: str
    query: str
    identity: str
    status: str = INITIAL
    desired: str = DesiredState.LIVE
    kind: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    row_estimate: int | None = None
    progress: Mapping[str, Any] | None = None
    code: str | None = None
    detail: str | None = None
    hint: str | None = None
    key: list[Any] | None = None
    fields: list[Any] | None = None
    plan: Any = None
    warnings: list[str] = field(default_factory=list)
    epoch: int | None = None
    positions: Mapping[str, int] | None = None
    created_by: str = ""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    live_at: datetime | None = None
    version: int = 0
    change: Mapping[str, Any] | None = None
    replacing: Mapping[str, Any] | None = None
    rights: str | None = None
    withheld: Mapping[str, Any] | None = None

    @property
    def title(self) -> str:
        """Return schema.name, for messages."""
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True)
class SourceRow:
    """A row of tidemark.sources.

    The row of a group's source database has its dsn (without password), slot and server. That of a
    declared source has type (the connector), options and relations as they were declared.
    """

    name: str
    dsn: str
    slot: str | None = None
    publication: str | None = None
    system_identifier: str | None = None
    timeline: int | None = None
    position: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    type: str = "postgres"
    options: Mapping[str, Any] = field(default_factory=dict)
    relations: list[Any] = field(default_factory=list)
    status: str = "running"
    code: str | None = None
    detail: str | None = None
    hint: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    retry_at: datetime | None = None

    @property
    def is_database(self) -> bool:
        """Return True for the source database of a group, False for a declared source."""
        return self.name.partition("/")[0] == MAIN_SOURCE


_JSON = {
    *("options", "progress", "key", "fields", "plan", "warnings", "positions", "facts"),
    *("relations", "change", "replacing", "withheld"),
}
_BY_DATABASE = {"created_by", "created_at", "updated_at"}
_VIEW_COLUMNS = tuple(f.name for f in fields(ViewRow))
_STORED_VIEW = tuple(
    current_name(c, "created_oid") if c == "created_by" else c for c in _VIEW_COLUMNS
)
_SOURCE_COLUMNS = tuple(f.name for f in fields(SourceRow))
# A source, whose name other services may have given too.
_NAMED = "service = %s AND name = %s"
_CHANGEABLE = frozenset(_VIEW_COLUMNS) - _BY_DATABASE - {"schema", "name", "identity", "status"}


@dataclass
class TimeFacts:
    """How far the columns with a lateness have come, and how many rows came late."""

    watermarks: dict[str, datetime] = field(default_factory=dict)
    late_rows: int = 0


def moment_of(us: int) -> datetime:
    """Return a moment in microseconds since 2000 UTC; the last one there is beyond year 9999.

    >>> moment_of(0).isoformat()
    '2000-01-01T00:00:00+00:00'
    """
    first = datetime(2000, 1, 1, tzinfo=UTC)
    try:
        return first + timedelta(microseconds=us)
    except OverflowError:
        edge = datetime.max if us > 0 else datetime.min
        return edge.replace(tzinfo=UTC)


class Control:
    """Statements of one service on the control tables; safe for several threads.

    service: whose views, sources and other rows they see: its prefix.
    is_one_session: they run in the session that waits for changes, so `wait` and they are for one
    thread only. Otherwise the process's pool lends a session for each.
    """

    def __init__(
        self, dsn: str, service: str = channels.DEFAULT_SERVICE, *, is_one_session: bool = False
    ) -> None:
        self._dsn = dsn
        self.service = service
        self._listener = self.listen() if is_one_session else None
        self._session = self._listener or Session(dsn, "sink")
        self._timeline: str | None = None

    def ensure(self) -> None:
        """Create the control tables if they are missing, and register the service there.

        SinkError sink.privilege.
        """
        self._in_session(lambda session: schema_setup.ensure(session, self.service))

    def close(self) -> None:
        """End the sessions; the next call opens new ones."""
        self._session.close()
        if self._listener is not None:
            self._listener.close()

    # --- views -----------------------------------------------------------------------------

    def insert_view(self, row: ViewRow) -> ViewRow:
        """Request a view; return the row as stored. SinkError view.name_taken."""
        settable = {"created_by"} if row.created_by else set()
        columns = [c for c in _VIEW_COLUMNS if c not in _BY_DATABASE - settable]
        values = [_adapted(c, getattr(row, c)) for c in columns]
        try:
            return ViewRow(*self._insert("views", columns, values, _STORED_VIEW))
        except psycopg2.errors.UniqueViolation:
            found = self.get_view(row.schema, row.name)
            if found is not None and found.identity == row.identity:
                return found  # the first attempt went through before its session was lost
            is_going = found is not None and found.desired == DesiredState.DROPPED
            other = self.other_service_of(row.schema, row.name)
            raise name_taken(row.title, other, is_going=is_going) from None

    def get_view(self, schema: str, name: str) -> ViewRow | None:
        """Return the view of this name, or None."""
        which = "service = %s AND schema = %s AND name = %s"
        found = self._query(_select("views", _STORED_VIEW, which), self.service, schema, name)
        return ViewRow(*found[0]) if found else None

    def other_service_of(self, schema: str, name: str) -> str:
        """Return the service that has a view of this name, if it is another one, or ""."""
        sql = "SELECT service FROM tidemark.views WHERE schema = %s AND name = %s AND service <> %s"
        found = self._query(sql, schema, name, self.service)
        return found[0][0] if found else ""

    def list_views(self) -> list[ViewRow]:
        """Return all views of the service, oldest first."""
        sql = _select("views", _STORED_VIEW, "service = %s") + " ORDER BY created_at, identity"
        return [ViewRow(*row) for row in self._query(sql, self.service)]

    def update_view(self, identity: str, **changes: Any) -> bool:
        """Set these columns, never the status; return False when the view is gone."""
        _require_changeable(changes)
        sets = "".join(f", {quote_name(c)} = %s" for c in changes)
        sql = f"UPDATE tidemark.views SET updated_at = now(){sets} WHERE identity = %s RETURNING 1"
        return bool(self._query(sql, *(_adapted(c, v) for c, v in changes.items()), identity))

    def change_view(
        self,
        identity: str,
        events: Sequence[ViewEvent],
        reason: str,
        unanswered: Collection[ViewEvent] = (),
        **columns: Any,
    ) -> bool:
        """Apply events to a view's status and set columns; return False when it is gone.

        unanswered: the last events of earlier writes whose outcome is unknown.
        InvariantError view.illegal_transition. SinkPromoted when a standby that took over just now
        has an earlier state of the view.
        """
        _require_changeable(columns)
        values = [(name, _adapted(name, value)) for name, value in columns.items()]
        where = "identity = %s", [identity]
        try:
            return view_status.change(
                self._query, where, events, reason, values, unanswered=unanswered
            )
        except InvariantError:
            self.require_server()
            raise

    def delete_view(self, identity: str) -> bool:
        """Delete a view's row; return False when there was none. Dropping its table is the sink's
        task."""
        sql = "DELETE FROM tidemark.views WHERE identity = %s RETURNING 1"
        return bool(self._query(sql, identity))

    def count_errors(self) -> dict[str, int]:
        """Return the number of error rows by "schema.name"; views without any are absent."""
        sql = "SELECT view, sum(count)::bigint FROM tidemark.errors GROUP BY view"
        return dict(self._query(sql))

    def time_facts(self) -> dict[str, TimeFacts]:
        """Return watermarks and late rows by "schema.name"; views without lateness are absent."""
        sql = (
            "SELECT view, sqlstate, message, source_row, sum(count)::bigint FROM ("
            " SELECT view, sqlstate, message, source_row, count FROM tidemark.notes"
            " WHERE sqlstate = %s UNION ALL SELECT view, sqlstate, '', '', count"
            " FROM tidemark.notes WHERE sqlstate = ANY (%s)) n GROUP BY 1, 2, 3, 4"
        )
        found: dict[str, TimeFacts] = {}
        late = [LATE_LEFT_OUT, LATE_APPLIED, FROZEN_ROW]
        for view, code, column, text, count in self._query(sql, WATERMARK, late):
            facts = found.setdefault(view, TimeFacts())
            if code == WATERMARK:
                facts.watermarks[column] = moment_of(int(text.strip("()")))
            else:
                facts.late_rows += count
        return found

    # --- sources and progress --------------------------------------------------------------

    def upsert_source(self, row: SourceRow) -> None:
        """Store a source, or its changed fields."""
        columns = [c for c in _SOURCE_COLUMNS if c not in _BY_DATABASE]
        values = [_adapted(c, getattr(row, c)) for c in columns]
        sets = ", ".join(f"{c} = excluded.{c}" for c in columns[1:])
        placeholders = ", ".join(["%s"] * len(columns))
        self._query(
            f"INSERT INTO tidemark.sources ({', '.join(columns)}, service) "
            f"VALUES ({placeholders}, %s) "
            f"ON CONFLICT (service, name) DO UPDATE SET {sets}, updated_at = now() RETURNING 1",
            *(*values, self.service),
        )

    def insert_source(self, row: SourceRow, declared_by: str = "") -> None:
        """Declare a source of a role, or "" of the service. SinkError source.name_taken."""
        columns = [c for c in _SOURCE_COLUMNS if c not in _BY_DATABASE]
        values = [_adapted(c, getattr(row, c)) for c in columns]
        placeholders = ", ".join(["%s"] * len(columns))
        sql = (
            f"INSERT INTO tidemark.sources ({', '.join(columns)}, service, declared_by)"
            f" VALUES ({placeholders}, %s, (SELECT oid FROM pg_roles WHERE rolname = %s))"
            " RETURNING 1"
        )
        try:
            self._query(sql, *values, self.service, declared_by)
        except psycopg2.errors.UniqueViolation:
            raise SinkError(
                "source.name_taken",
                f'source "{row.name}" exists already',
                hint="choose another name, or drop it",
            ) from None

    def update_source(self, name: str, **changes: Any) -> bool:
        """Set these columns; return False when the source is gone."""
        sets = "".join(f", {quote_name(c)} = %s" for c in changes)
        sql = f"UPDATE tidemark.sources SET updated_at = now(){sets} WHERE {_NAMED} RETURNING 1"
        values = (_adapted(c, v) for c, v in changes.items())
        return bool(self._query(sql, *values, self.service, name))

    def retry_source(self, name: str) -> bool:
        """Request an immediate retry of a source; return False when it is gone."""
        sql = (
            "UPDATE tidemark.sources SET retry_at = clock_timestamp(), updated_at = now() "
            f"WHERE {_NAMED} RETURNING 1"
        )
        return bool(self._query(sql, self.service, name))

    def get_source(self, name: str) -> SourceRow | None:
        """Return the source of this name, or None."""
        found = self._query(_select("sources", _SOURCE_COLUMNS, _NAMED), self.service, name)
        return _source_row(found[0]) if found else None

    def list_sources(self) -> list[SourceRow]:
        """Return all sources of the service by name."""
        sql = _select("sources", _SOURCE_COLUMNS, "service = %s") + " ORDER BY name"
        return [_source_row(row) for row in self._query(sql, self.service)]

    def delete_source(self, name: str) -> bool:
        """Delete a source's row; return False when there was none."""
        sql = f"DELETE FROM tidemark.sources WHERE {_NAMED} RETURNING 1"
        return bool(self._query(sql, self.service, name))

    def read_progress(self, key: str = "tidemark") -> Progress | None:
        """Return epoch and positions stored in the sink under a service's key."""
        sql = "SELECT epoch, positions FROM tidemark.progress WHERE sink_key = %s"
        found = self._query(sql, key)
        return Progress(*found[0]) if found else None

    def require_server(self) -> None:
        """Raise SinkPromoted when a standby has taken over since the first call.

        Do nothing while the sink cannot be reached.
        """

        def probe(session: Connection) -> bool:
            with session, session.cursor() as cursor:
                if self._timeline is None:
                    self._timeline = timeline_of(cursor)
                return has_changed(self._timeline, cursor)

        try:
            is_another = self._in_session(probe)
        except TemporaryError:
            return
        if is_another:
            raise SinkPromoted()

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run one statement, commit, and return its rows. For tables with a module of their own."""
        return self._query(sql, *parameters)

    def transact(self, act: Callable[[Any], T]) -> T:
        """Return what `act` returns with a cursor of one transaction; it may be called again."""

        def run(session: Connection) -> T:
            with session, session.cursor() as cursor:
                return act(cursor)

        return self._in_session(run)

    # --- notifications ---------------------------------------------------------------------

    def notify(self) -> None:
        """Wake every waiting session, without a change."""
        self._query("SELECT pg_notify(%s, 'CALL')", channels.CHANNEL)

    def listen(self) -> Listener:
        """Open a new listening session; the caller closes it."""
        return Listener(self._dsn)

    def wait(self, timeout_s: float) -> bool:
        """Wait up to timeout_s; return whether views changed, or may have, since the last call.

        For one thread only. The first call returns True, since earlier changes may have been
        missed.
        """
        if self._listener is None:
            self._listener = self.listen()
        return self._listener.wait(timeout_s)

    # --- sessions --------------------------------------------------------------------------

    def _insert(self, table: str, columns: list[str], values: list[Any], back: tuple) -> tuple:
        names = ", ".join([*columns, "service"])
        placeholders = ", ".join(["%s"] * (len(columns) + 1))
        returned = ", ".join(back)
        sql = f"INSERT INTO tidemark.{table} ({names}) VALUES ({placeholders}) RETURNING {returned}"
        return self._query(sql, *values, self.service)[0]

    def execute(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run one statement, commit, and return its rows."""
        return self._query(sql, *parameters)

    def _query(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        def run(session: Connection) -> list[tuple[Any, ...]]:
            with session, session.cursor() as cursor:
                cursor.execute(sql, parameters)
                return cursor.fetchall()

        return self._in_session(run)

    def _in_session(self, run: Callable[[Connection], T]) -> T:
        """Run in a session; once more after a deadlock or a wait for a lock."""
        try:
            return self._attempt(run)
        except TemporaryError as error:
            if error.code == "sink.unreachable":
                raise
            return self._attempt(run)

    def _attempt(self, run: Callable[[Connection], T]) -> T:
        try:
            return self._session.run(run)
        except psycopg2.errors.UniqueViolation:
            raise
        except psycopg2.errors.UndefinedTable as error:
            raise SinkError(
                "control.missing",
                'the control tables in schema "tidemark" are missing',
                detail=str(error.diag.message_primary),
                hint="start the service once, it creates them",
            ) from None
        except psycopg2.Error as error:
            raise to_error(error, "sink", "cannot use the control tables") from error


def name_taken(title: str, other: str, *, is_going: bool = False) -> SinkError:
    """Return the error for a name that a view has. other: the service that has it, "" for this one.

    is_going: whether it is being dropped.
    """
    hint = "wait until it is gone" if is_going else "choose another name, or drop it"
    detail = "it is being dropped" if is_going else ""
    if other:
        detail = f'it belongs to the service "{other}", which writes to this database too'
        hint = "choose another name: names are unique over all services of a database"
    what = f'view "{title}" exists already'
    return SinkError("view.name_taken", what, detail=detail, hint=hint)


@contextmanager
def control_of(dsn: str, service: str = channels.DEFAULT_SERVICE) -> Iterator[Control]:
    """Yield a Control and close it at the end."""
    control = Control(dsn, service)
    try:
        yield control
    finally:
        control.close()


def _select(table: str, columns: tuple[str, ...], where: str = "") -> str:
    sql = f"SELECT {', '.join(columns)} FROM tidemark.{table}"
    return f"{sql} WHERE {where}" if where else sql


def _require_changeable(columns: Mapping[str, Any]) -> None:
    unknown = set(columns) - _CHANGEABLE
    if unknown:
        raise ValueError(f"not columns that change: {sorted(unknown)}")


def _adapted(column: str, value: Any) -> Any:
    return Json(value) if column in _JSON and value is not None else value


def _source_row(row: tuple[Any, ...]) -> SourceRow:
    facts = dict(zip(_SOURCE_COLUMNS, row, strict=True))
    position = facts["position"]
    return SourceRow(**{**facts, "position": None if position is None else int(position)})
