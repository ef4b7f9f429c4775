"""PostgreSQL as a source: publication, slot, snapshots and the replication stream of one database.

Invariant: the stream starts only on the server, timeline and slot that the state was built from.
Any other combination is refused with an error code (RELIABILITY P4). This module drops only the
slot and the publication that it created.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from connectors.feed_source import StreamClaim
from connectors.postgres.analysis.table_list import ListedTable, list_tables
from connectors.postgres.evaluation.sandbox import check_role
from connectors.postgres.replication.decode import Decoder
from connectors.postgres.replication.given_publication import GivenPublication
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
from connectors.postgres.replication.slot_errors import REBUILD_HINT, in_use, not_ended
from connectors.postgres.replication.stream import ReplicationStream, StreamLimits
from connectors.postgres.replication.table_facts import TableCatalog
from connectors.postgres.replication.wal_connection import STREAM_APPLICATION, WalConnection
from connectors.postgres.replication.wire_shapes import Shape
from connectors.postgres.session.lsn import format_lsn, parse_lsn
from connectors.postgres.session.session import Session
from connectors.postgres.snapshot.snapshot import PostgresSnapshot
from dataflow.errors import SourceError, TemporaryError
from dataflow.schema import Relation, RelationName
from storage.failpoints import failpoint

HEARTBEAT_PREFIX = "tidemark"
STATUS_S = 2.0
# PostgreSQL's default.
_SENDER_TIMEOUT_MS = 60_000
_EVICT_WAIT_S = 5.0


class PostgresSource:
    """One source database. `prefix`, `name` and `suffix` form the name of slot and publication.

    names: of slot and publication, where they are chosen otherwise. claim: of the sink. It
    distinguishes our own earlier slot reader from another service. publication: one that an
    administrator made, which stays as it is. Opens nothing before the first use. Usable from
    several threads.
    """

    def __init__(
        self,
        dsn: str,
        name: str = "source",
        prefix: str = "tidemark",
        *,
        suffix: str = "",
        names: tuple[str, str] | None = None,
        claim: StreamClaim | None = None,
        publication: str = "",
    ) -> None:
        self.dsn = dsn
        self.name = name
        self._claim = claim
        self._session = Session(dsn)
        self._prefix, self._suffixed = prefix, f"{name}_{suffix}" if suffix else name
        self._own_slot, self._name = names or ("", object_name(prefix, self._suffixed))
        self._publication = Publication(self._session, self._name)
        self._given = publication
        if publication:
            self._name = publication
            self._publication = GivenPublication(self._session, publication)

    @cached_property
    def _slot(self) -> Slot:
        """Return the slot. Its name is fixed at the first use, since the server's existing slots
        decide it."""
        name = self._own_slot or slot_name(self._session, self._prefix, self._suffixed)
        return Slot(self._session, name)

    @property
    def slot_name(self) -> str:
        """Return the slot's name; the first use asks the server."""
        return self._slot.name

    @property
    def publication_name(self) -> str:
        """Return the publication's name; unlike the slot's, it needs no question to the server."""
        return self._name

    @property
    def has_given_publication(self) -> bool:
        """Return whether an administrator made the publication."""
        return bool(self._given)

    def check(self) -> None:
        """Require that this database can be a source; the error's hint says how to fix it."""
        check_server(self._session, self._slot.name)
        self._publication.check()
        if self._slot.state() is not None:
            self._slot.require()

    def check_role(self, role: str) -> None:
        """Require that views may be created with the rights of a role. SourceError source.role."""
        check_role(self._session, role)

    def list_tables(self, role: str) -> list[ListedTable]:
        """Return the tables that a role may read; role "" is the service's own."""
        return list_tables(self._session, role, self._name, is_given=self.has_given_publication)

    def identity(self) -> SourceIdentity:
        """Return system identifier, timeline and database."""
        wal = WalConnection(self.dsn)
        try:
            return identify(wal)[0]
        finally:
            wal.close()

    def ensure_slot(self) -> int:
        """Create slot and publication if missing; return the slot's confirmed position.

        The slot has all changes after it. Only for a source without state. Where state exists, use
        require_slot.
        """
        if self._slot.state() is not None:
            confirmed = self._slot.require().confirmed
            self._publication.ensure()
            return confirmed
        check_server(self._session, self._slot.name)
        self._publication.check()
        self._publication.ensure()
        failpoint("source.slot.before")
        position = self._slot.create()
        failpoint("source.slot.after")
        return position

    @property
    def _reader(self) -> str:
        return self._claim.stream_application if self._claim else STREAM_APPLICATION

    def drop_lost_slot(self) -> None:
        """Drop our slot if the server has invalidated it. Only for a source without state."""
        found = self._slot.state()
        if found is not None and found.is_lost and self._slot.is_ours(found):
            self._slot.drop()

    def require_slot(self, identity: Sequence[object] | None = None, position: int = 0) -> None:
        """Require a usable slot on the server of `identity`, or on its standby promoted after
        `position`.

        SourceError otherwise.
        """
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
        """Drop slot and publication, except a slot of another database or plugin.

        SourceError source.slot_in_use when another reader uses it. Then the publication stays too,
        since that reader may depend on it. TemporaryError of this code when a reader of ours does
        not end.
        """
        found = self._slot.state()
        if found is not None and self._slot.is_ours(found):
            self._slot.drop(self._claim.may_end if self._claim else None)
        self._publication.drop()

    def clock(self) -> float:
        """Return the server's current time, in seconds since 1970."""
        return float(self._session.rows("SELECT extract(epoch FROM clock_timestamp())")[0][0])

    def retained_wal_bytes(self) -> int:
        """Return the bytes of WAL that the server retains for our slot; 0 without a slot."""
        return self._slot.retained_bytes()

    def slot(self) -> SlotState | None:
        """Return the server's record of our slot; None without a slot."""
        return self._slot.state()

    def confirmed_position(self) -> int:
        """Return the position up to which the server may discard WAL; 0 without a slot."""
        state = self._slot.state()
        return 0 if state is None else state.confirmed

    def release_slot(self) -> None:
        """Drop the slot even while it is read. Changes that were not sent yet are lost to us.

        The publication stays. Later streams are refused (source.slot_missing).
        """
        state = self._slot.state()
        if state is not None and state.active_pid is not None:
            self._slot.evict(state.active_pid)
        self._slot.drop()

    def check_tables(self, names: Sequence[RelationName]) -> None:
        """Require that tables can be published, without adding them; see Publication.add."""
        self._publication.check_tables(names)

    def check_given(self, relations: Sequence[Relation]) -> None:
        """Require that an administrator's publication sends all of these relations.

        Nothing is required of a publication of ours, which they are added to. Errors as of
        `GivenPublication.add`.
        """
        if self._given:
            self._publication.add(self._publication.names_now(relations))

    def watch(self, relations: Sequence[Relation | RelationName]) -> None:
        """Add these relations to the publication under their current names.

        Snapshots opened from now on are consistent with their changes.
        """
        names = [r for r in relations if isinstance(r, RelationName)]
        tables = [r for r in relations if isinstance(r, Relation)]
        self._publication.add([*names, *self._publication.names_now(tables)])

    def unwatch(self, relations: Sequence[Relation | RelationName]) -> None:
        """Remove these relations from the publication, whatever their current names are."""
        published = self._publication.tables()
        names = [published.get(r.oid, r.name) if isinstance(r, Relation) else r for r in relations]
        self._publication.remove(names)

    def watched(self) -> list[RelationName]:
        """Return the published relations."""
        found = self._publication.tables().values()
        return sorted(
            (RelationName(self.name, n.schema, n.name) for n in found),
            key=lambda n: (n.schema, n.name),
        )

    def require_watched(self, relations: Sequence[Relation]) -> None:
        """Require that each relation exists and is published: no event reports the opposite."""
        self._publication.require(relations)

    def open_transactions(self, least_s: int) -> TemporaryError | None:
        """Return an error naming transactions that block a new snapshot, open for at least
        `least_s`."""
        return open_transactions(self._session, least_s)

    def open_snapshot(self, relations: Sequence[Relation] = ()) -> PostgresSnapshot:
        """Open a snapshot with its position; lock `relations` against DDL while it is open."""
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
        refresh: Callable[[], None] | None = None,
        on_promoted: Callable[[], None] | None = None,
        shown: int = 0,
    ) -> ReplicationStream:
        """Stream all transactions that end after start_position, with the changes of `relations`.

        columns: field positions in use; others arrive as NULLs. takes_over: terminate another
        backend of ours that still reads the slot. shapes: see Decoder. refresh: called before each
        batch is decoded. on_promoted: called when the server is a promoted standby of `identity`
        that has everything up to start_position and `shown`. Refuses a slot that lacks changes
        since start_position, and a server whose WAL ends before it (restored from a backup).
        """
        try:
            state = self._slot.require(start_position)
            self._publication.require(relations)
        except SourceError:
            # On another server, these errors mean nothing.
            self._require_identity(identity, max(start_position, shown))
            raise
        if takes_over and state.active_pid is not None:
            if self._claim is not None and not self._claim.may_end(state.reader):
                raise in_use(self._slot.name, state.active_pid, state.reader)
            self._evict(state)
        wal = WalConnection(self.dsn, application=self._reader)
        try:
            actual, flushed = identify(wal)
            if identity:
                check_identity(wal, actual, identity, max(start_position, shown))
            if flushed < start_position:
                raise SourceError(
                    "source.identity_changed",
                    "the source is behind the local state",
                    detail=f"its WAL ends at {format_lsn(flushed)}, the state is at"
                    f" {format_lsn(start_position)}; it may have been restored from a backup",
                    hint=REBUILD_HINT,
                )
            limits = limits or StreamLimits()
            if not limits.status_s:
                limits = replace(limits, status_s=_status_interval(wal, limits.liveness_timeout_s))
            self._slot.let_fail_over(state, wal)
            self._start(wal, start_position)
            decoder = Decoder(relations, columns, shapes)
            stream = ReplicationStream(wal, decoder, start_position, limits, refresh)
        except BaseException:
            wal.close()
            raise
        if identity and on_promoted is not None and tuple(actual) != tuple(identity):
            on_promoted()
        return stream

    def _start(self, wal: WalConnection, position: int) -> None:
        """Start the stream. TemporaryError source.slot_in_use: a former reader of ours is there."""
        try:
            wal.start(self._slot.name, position, [self._name])
        except SourceError as error:
            found = self._slot.state() if error.code == "source.slot_in_use" else None
            if found is None or self._claim is None:
                raise
            if found.active_pid is None or self._claim.may_end(found.reader):
                raise not_ended(self._slot.name, found.active_pid) from error
            raise

    def tables(self) -> TableCatalog:
        """Return the table catalog, with a session of its own."""
        return TableCatalog(self.dsn, self._name, is_given=self.has_given_publication)

    def heartbeat(self) -> int:
        """Commit a WAL message so that the stream's position passes now; return its position."""
        found = self._session.rows(
            "SELECT pg_logical_emit_message(true, %s, '')::text",
            (HEARTBEAT_PREFIX,),
            doing="cannot write a heartbeat",
        )
        return parse_lsn(found[0][0])

    def current_position(self) -> int:
        """Return how far the source's WAL is flushed. Every visible commit lies before it."""
        return parse_lsn(self._session.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0])

    def close(self) -> None:
        """Close the session; the source can be used again."""
        self._session.close()

    def _evict(self, state: SlotState) -> None:
        """End the reader of the slot if it is ours. TemporaryError source.slot_in_use: a server
        under load has not ended it yet."""
        assert state.active_pid is not None
        self._slot.evict(state.active_pid)
        deadline = time.monotonic() + _EVICT_WAIT_S
        while time.monotonic() < deadline:
            found = self._slot.state()
            if found is None or found.active_pid != state.active_pid:
                return
            time.sleep(0.02)
        if state.has_own_reader:
            raise not_ended(self._slot.name, state.active_pid)


def _status_interval(wal: WalConnection, liveness_timeout_s: float) -> float:
    """Return the interval in seconds of standby status messages.

    It suits wal_sender_timeout (milliseconds), our own silence limit, and people who watch the lag.
    A server without that timeout gets one for this session. Otherwise it would hold the slot for a
    reader whose host is gone.
    """
    (timeout_ms,) = wal.command(
        "SELECT setting::int FROM pg_settings WHERE name = 'wal_sender_timeout'"
    )[0]
    if not timeout_ms:
        timeout_ms = _SENDER_TIMEOUT_MS
        wal.command(f"SELECT set_config('wal_sender_timeout', '{timeout_ms}', false)")
    return min(STATUS_S, liveness_timeout_s / 6, timeout_ms / 3000)
