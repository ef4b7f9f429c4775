"""PostgreSQL as a source: publication, slot, snapshots and the replication stream of one database.

Invariant: the stream starts only on the server, timeline and slot that the state was built from;
anything else is refused with a code (RELIABILITY P4). What is made here is dropped here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from connectors.postgres.evaluation.sandbox import check_role
from connectors.postgres.replication.decode import Decoder
from connectors.postgres.replication.identity import SourceIdentity, check_identity, identify
from connectors.postgres.replication.publication import Publication
from connectors.postgres.replication.slot import (
    Slot,
    SlotState,
    check_server,
    object_name,
    open_transactions,
    slot_name,
)
from connectors.postgres.replication.slot_errors import REBUILD_HINT, in_use
from connectors.postgres.replication.stream import ReplicationStream, StreamLimits
from connectors.postgres.replication.table_facts import TableCatalog
from connectors.postgres.replication.wal_connection import STREAM_APPLICATION, WalConnection
from connectors.postgres.replication.wire_shapes import Shape
from connectors.postgres.schema.lease import Claim
from connectors.postgres.session.lsn import format_lsn, parse_lsn
from connectors.postgres.session.session import Session
from connectors.postgres.snapshot.snapshot import PostgresSnapshot
from dataflow.errors import SourceError, TemporaryError
from dataflow.schema import Relation, RelationName
from storage.failpoints import failpoint

HEARTBEAT_PREFIX = "tidemark"
STATUS_S = 2.0
# As PostgreSQL has it by default.
_SENDER_TIMEOUT_MS = 60_000
_EVICT_WAIT_S = 5.0


class PostgresSource:
    """One database; `prefix` and `name` make the name of its slot and publication, with
    `suffix` where there are several. claim: of the sink, by which another service is told from
    an earlier one of ours that still reads the slot.

    Nothing is opened before the first use. Usable from several threads.
    """

    def __init__(
        self,
        dsn: str,
        name: str = "source",
        prefix: str = "tidemark",
        *,
        suffix: str = "",
        claim: Claim | None = None,
    ) -> None:
        self.dsn = dsn
        self.name = name
        self._claim = claim
        self._session = Session(dsn)
        self._prefix, self._suffixed = prefix, f"{name}_{suffix}" if suffix else name
        self._name = object_name(prefix, self._suffixed)
        self._publication = Publication(self._session, self._name)

    @cached_property
    def _slot(self) -> Slot:
        """Named once: what is there then decides, by the server."""
        return Slot(self._session, slot_name(self._session, self._prefix, self._suffixed))

    @property
    def slot_name(self) -> str:
        """The slot's name, which is asked for at the first use."""
        return self._slot.name

    @property
    def publication_name(self) -> str:
        """The publication's name."""
        return self._name

    def check(self) -> None:
        """Whether this database can be a source; refuses with a code and the way out."""
        check_server(self._session, self._slot.name, self._name)
        if self._slot.state() is not None:
            self._slot.require()

    def check_role(self, role: str) -> None:
        """Whether views may be created with the rights of a role. SourceError source.role."""
        check_role(self._session, role)

    def readable_tables(self, role: str) -> list[tuple[str, str, list[str]]]:
        """(schema, table, columns) that a role may read, "" being the service's own."""
        return readable_tables(self._session, role)

    def identity(self) -> SourceIdentity:
        """System identifier, timeline and database."""
        wal = WalConnection(self.dsn)
        try:
            return identify(wal)[0]
        finally:
            wal.close()

    def ensure_slot(self) -> int:
        """Make slot and publication where they are not; the position the slot has changes from.

        Only for a source without state: where state is kept, use require_slot.
        """
        if self._slot.state() is not None:
            confirmed = self._slot.require().confirmed
            self._publication.ensure()
            return confirmed
        check_server(self._session, self._slot.name, self._name)
        self._publication.ensure()
        failpoint("source.slot.before")
        position = self._slot.create()
        failpoint("source.slot.after")
        return position

    @property
    def _reader(self) -> str:
        return self._claim.stream_application if self._claim else STREAM_APPLICATION

    def drop_lost_slot(self) -> None:
        """Drop a slot of ours that the server has invalidated, which is of no use to anybody.

        Only for a source without state.
        """
        found = self._slot.state()
        if found is not None and found.is_lost and self._slot.is_ours(found):
            self._slot.drop()

    def require_slot(self, identity: Sequence[object] | None = None, position: int = 0) -> None:
        """The slot is there and usable, on the server of `identity` or one that was promoted
        after `position`; else SourceError."""
        self._require_identity(identity, position)
        self._slot.require()

    def _require_identity(self, identity: Sequence[object] | None, position: int) -> None:
        if not identity:
            return
        wal = WalConnection(self.dsn)
        try:
            check_identity(wal, identify(wal)[0], identity, position)
        finally:
            wal.close()

    def drop_slot(self) -> None:
        """Drop slot and publication; nothing of ours is left at the source. A slot of this name
        that is another database's, or another's by its plugin, is left.

        SourceError source.slot_in_use when someone else reads it; then the publication, by which
        that one may live, is left as well.
        """
        found = self._slot.state()
        if found is not None and self._slot.is_ours(found):
            self._slot.drop()
        self._publication.drop()

    def clock(self) -> float:
        """The server's clock now, in seconds since 1970."""
        return float(self._session.rows("SELECT extract(epoch FROM clock_timestamp())")[0][0])

    def kept_wal_bytes(self) -> int:
        """How much WAL the server keeps for our slot; 0 when there is none."""
        return self._slot.kept_bytes()

    def slot(self) -> SlotState | None:
        """What the server says of our slot; None when there is none."""
        return self._slot.state()

    def confirmed_position(self) -> int:
        """Up to where the server may have forgotten; 0 when there is no slot."""
        state = self._slot.state()
        return 0 if state is None else state.confirmed

    def release_slot(self) -> None:
        """Drop the slot under its reader: what it would still have sent is lost to us.

        The publication stays; a stream is refused from now on (source.slot_missing).
        """
        state = self._slot.state()
        if state is not None and state.active_pid is not None:
            self._evict(state.active_pid)
        self._slot.drop()

    def watch(self, relations: Sequence[Relation | RelationName]) -> None:
        """Publish these relations too, by the names that they have now; snapshots opened from now
        on fit to their changes."""
        names = [r for r in relations if isinstance(r, RelationName)]
        tables = [r for r in relations if isinstance(r, Relation)]
        self._publication.add([*names, *self._publication.names_now(tables)])

    def unwatch(self, relations: Sequence[Relation | RelationName]) -> None:
        """Publish these relations no more, whatever they are called by now."""
        published = self._publication.tables()
        names = [published.get(r.oid, r.name) if isinstance(r, Relation) else r for r in relations]
        self._publication.remove(names)

    def watched(self) -> list[RelationName]:
        """What is published now."""
        found = self._publication.tables().values()
        return sorted(
            (RelationName(self.name, n.schema, n.name) for n in found),
            key=lambda n: (n.schema, n.name),
        )

    def require_watched(self, relations: Sequence[Relation]) -> None:
        """Each relation still exists and is published: there is no event for the opposite."""
        self._publication.require(relations)

    def open_transactions(self, least_s: int) -> TemporaryError | None:
        """What a snapshot that is being opened waits for, open for at least so many seconds."""
        return open_transactions(self._session, least_s)

    def open_snapshot(self, relations: Sequence[Relation] = ()) -> PostgresSnapshot:
        """A snapshot with its position; `relations` are locked against DDL while it is open."""
        return PostgresSnapshot(self.dsn, relations)

    def stream(
        self,
        start_position: int,
        relations: Sequence[Relation],
        *,
        columns: Mapping[RelationName, Sequence[int]] | None = None,
        identity: Sequence[object] | None = None,
        takes_over: bool = False,
        limits: StreamLimits | None = None,
        shapes: Mapping[int, Sequence[Shape]] | None = None,
        look: Callable[[], None] | None = None,
        on_promoted: Callable[[], None] | None = None,
        shown: int = 0,
    ) -> ReplicationStream:
        """All transactions that end after start_position, with the changes of `relations`.

        columns: the field positions in use (others come as NULLs). takes_over: end another
        backend of ours that still reads the slot. Refuses a slot that does not hold everything
        since start_position, and a server that is not there yet (restored from a backup). shapes:
        see Decoder. look: called before each batch is decoded. on_promoted: called when the server
        is a standby of `identity` that was promoted, and has everything up to start_position and
        `shown`.
        """
        try:
            state = self._slot.require(start_position)
            self._publication.require(relations)
        except SourceError:
            # Of another server, all of that says nothing.
            self._require_identity(identity, max(start_position, shown))
            raise
        if takes_over and state.active_pid is not None:
            if self._claim is not None and not self._claim.may_end(state.reader):
                raise in_use(self._slot.name, state.active_pid, state.reader)
            self._evict(state.active_pid)
        wal = WalConnection(self.dsn, application=self._reader)
        try:
            actual, flushed = identify(wal)
            if identity:
                check_identity(wal, actual, identity, max(start_position, shown))
            if flushed < start_position:
                raise SourceError(
                    "source.identity_changed",
                    "the source is behind the state kept here",
                    detail=f"its WAL ends at {format_lsn(flushed)}, the state is at"
                    f" {format_lsn(start_position)}: was it restored from a backup?",
                    hint=REBUILD_HINT,
                )
            limits = limits or StreamLimits()
            if not limits.status_s:
                limits = replace(limits, status_s=_status_interval(wal, limits.silence_s))
            self._slot.let_fail_over(state, wal)
            wal.start(self._slot.name, start_position, [self._name])
            decoder = Decoder(relations, columns, shapes)
            stream = ReplicationStream(wal, decoder, start_position, limits, look)
        except BaseException:
            wal.close()
            raise
        if identity and on_promoted is not None and tuple(actual) != tuple(identity):
            on_promoted()
        return stream

    def tables(self) -> TableCatalog:
        """What the catalog says of tables, asked through a session of its own."""
        return TableCatalog(self.dsn, self._name)

    def heartbeat(self) -> int:
        """Commit a WAL message, so that the stream's position moves past now; its position."""
        found = self._session.rows(
            "SELECT pg_logical_emit_message(true, %s, '')::text",
            (HEARTBEAT_PREFIX,),
            doing="cannot write a heartbeat",
        )
        return parse_lsn(found[0][0])

    def current_position(self) -> int:
        """How far the source's WAL is flushed; what is committed visibly lies before it."""
        return parse_lsn(self._session.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0])

    def close(self) -> None:
        """Close the session; the source can be used again."""
        self._session.close()

    def _evict(self, pid: int) -> None:
        self._slot.evict(pid)
        deadline = time.monotonic() + _EVICT_WAIT_S
        while time.monotonic() < deadline:
            state = self._slot.state()
            if state is None or state.active_pid != pid:
                return
            time.sleep(0.02)


def _status_interval(wal: WalConnection, silence_s: float) -> float:
    """Often enough for wal_sender_timeout (milliseconds), for our own judgement of a server that
    is silent, and for people who look at the lag.

    A server without that timeout has one for this session: it would keep the slot for whoever had
    it, also when that host is gone.
    """
    (timeout_ms,) = wal.command(
        "SELECT setting::int FROM pg_settings WHERE name = 'wal_sender_timeout'"
    )[0]
    if not timeout_ms:
        timeout_ms = _SENDER_TIMEOUT_MS
        wal.command(f"SELECT set_config('wal_sender_timeout', '{timeout_ms}', false)")
    return min(STATUS_S, silence_s / 6, timeout_ms / 3000)


# --- for completing queries -----------------------------------------------------------------------

# Nothing is named that the role could not SELECT, neither a table nor a column.

MOST_COLUMNS = 20_000

# As a role sees them: SELECT on the column, or the table, and USAGE on the schema.
_READABLE = """
SELECT n.nspname::text, c.relname::text, array_agg(a.attname::text ORDER BY a.attnum)
FROM (
    SELECT a.attrelid, a.attname, a.attnum FROM pg_catalog.pg_attribute AS a
    JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition
        AND n.nspname NOT IN ('information_schema', 'tidemark') AND n.nspname !~ '^pg_'
        AND a.attnum > 0 AND NOT a.attisdropped
        AND pg_catalog.has_schema_privilege(%(role)s, n.oid, 'USAGE')
        AND pg_catalog.has_column_privilege(%(role)s, c.oid, a.attnum, 'SELECT')
    ORDER BY n.nspname, c.relname, a.attnum LIMIT %(most)s
) AS a
JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
GROUP BY n.nspname, c.relname ORDER BY 1, 2
"""


def readable_tables(session: Session, role: str) -> list[tuple[str, str, list[str]]]:
    """(schema, table, columns) that a role may read; "" is the session's own. [] for a role that
    is not there."""
    if role and not session.rows("SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = %s", (role,)):
        return []
    named = role or session.rows("SELECT current_user::text")[0][0]
    return session.rows(_READABLE, {"role": named, "most": MOST_COLUMNS})
