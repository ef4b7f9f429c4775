"""The replication slot of a source: created, checked and dropped, never recreated silently.

A slot guarantees that no change is missing between our confirmed position and now. So a slot that
is lost, missing, of another database or ahead of our state is refused with a code. The user decides
how to continue.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from connectors.postgres.replication.slot_errors import (
    REBUILD_HINT,
    in_use,
    no_free_slot,
    no_free_wal_sender,
    not_ended,
)
from connectors.postgres.replication.wal_connection import WalConnection
from connectors.postgres.session.hosting import hosting_of
from connectors.postgres.session.lsn import format_lsn, parse_lsn
from connectors.postgres.session.session import APPLICATION_NAME, Session
from dataflow.errors import SourceError, TemporaryError

PLUGIN = "pgoutput"
OLDEST_VERSION = 140000
FAILOVER_VERSION = 170000
RELEASE_WAIT_S = 10.0
# A reader of ours that has been closed ends within milliseconds; then it is ended.
_END_WAIT_S = 1.0
MIN_WAIT_S, MAX_WAIT_S = 5, 60

# Codes that no retry cures: the changes since a position are gone on their own server.
LOST = ("source.slot_missing", "source.slot_lost", "source.slot_advanced", "source.slot_foreign")
LOST += ("source.publication_missing", "source.wal_budget")


@dataclass(frozen=True)
class SlotState:
    """A row of pg_replication_slots. active_pid: of the backend that reads it, None without one or
    once it has ended; reader: its application name."""

    database: str
    plugin: str
    active_pid: int | None
    reader: str
    confirmed: int
    wal_status: str
    has_failover: bool = False
    invalidation: str = ""

    @property
    def is_lost(self) -> bool:
        """Return whether the server has invalidated it."""
        return self.wal_status == "lost"

    @property
    def has_own_reader(self) -> bool:
        """Return whether a Tidemark reads it."""
        return self.reader.startswith(APPLICATION_NAME)


def object_name(prefix: str, name: str) -> str:
    """Return a name for slot and publication, with only characters allowed in a slot's name.

    >>> object_name("tidemark", "Shop-1")
    'tidemark_shop_1'
    """
    return re.sub(r"[^a-z0-9_]", "_", f"{prefix}_{name}".lower())[:63]


def slot_name(session: Session, prefix: str, name: str) -> str:
    """Return the slot's name for the database of a session.

    Slots are named across a whole server, so the name includes the database. A slot of an earlier
    release without it keeps its name. SourceError, TemporaryError when the database does not
    answer.
    """
    earlier = object_name(prefix, name)
    database, is_there = session.rows(
        "SELECT current_database()::text, EXISTS (SELECT FROM pg_replication_slots"
        " WHERE slot_name = %s AND database = current_database() AND plugin = %s)",
        (earlier, PLUGIN),
        doing="cannot read the replication slots",
    )[0]
    return earlier if is_there else database_name(prefix, database, name)


def database_name(prefix: str, database: str, name: str) -> str:
    """Return a distinct name for each database, whatever its characters and length.

    >>> database_name("tidemark", "shop", "source")
    'tidemark_shop_source'
    >>> database_name("tidemark", "Shop", "source")
    'tidemark_shop_d00aae6b_source'
    """
    plain = f"{prefix}_{database}_{name}"
    # A group's name is appended: a database name must not look like that suffix.
    is_clear = name not in database
    if is_clear and object_name(f"{prefix}_{database}", name) == plain:
        return plain
    digest = hashlib.sha256(database.encode()).hexdigest()[:8]
    tail = f"{digest}_{name}".lower()
    head = object_name(prefix, database)[: max(len(prefix) + 1, 62 - len(tail))].strip("_")
    return re.sub(r"[^a-z0-9_]", "_", f"{head}_{tail}")[:63]


class Slot:
    """One permanent logical slot."""

    def __init__(self, session: Session, name: str) -> None:
        self.name = name
        self._session = session
        self._timeout_s = MIN_WAIT_S

    def state(self) -> SlotState | None:
        """Return the server's record of the slot; None when there is none of this name."""
        found = self._session.rows(
            # A reader that ends may be in the first view and no longer in the second.
            "SELECT s.database, s.plugin, a.pid, coalesce(a.application_name, ''),"
            " s.confirmed_flush_lsn::text, s.wal_status,"
            " to_jsonb(s) ->> 'failover' = 'true', to_jsonb(s) ->> 'invalidation_reason'"
            " FROM pg_replication_slots AS s"
            " LEFT JOIN pg_stat_activity AS a ON a.pid = s.active_pid WHERE s.slot_name = %s",
            (self.name,),
            doing="cannot read the replication slots",
        )
        if not found:
            return None
        database, plugin, active_pid, reader, confirmed, wal_status, has_failover, reason = found[0]
        return SlotState(
            database or "",
            plugin or "",
            active_pid,
            reader,
            parse_lsn(confirmed) if confirmed else 0,
            "lost" if reason else wal_status or "",
            bool(has_failover),
            reason or "",
        )

    def create(self) -> int:
        """Create the slot; return the position from which it has all changes.

        From PostgreSQL 17 on it is a failover slot, which standbys may copy. Waits for running
        transactions, longer with each try. TemporaryError source.busy names them when the limit
        passes.
        """
        more = ", false, false, true" if self._session.server_version >= FAILOVER_VERSION else ""
        # Wait briefly at first: the caller is notified, and tries again.
        limit_s, self._timeout_s = self._timeout_s, min(2 * self._timeout_s, MAX_WAIT_S)
        try:
            found = self._session.rows(
                f"SET LOCAL lock_timeout TO '{limit_s}s';"
                f" SELECT lsn::text FROM pg_create_logical_replication_slot(%s, %s{more})",
                (self.name, PLUGIN),
                doing=f'cannot create replication slot "{self.name}"',
            )
        except TemporaryError as error:
            if error.code != "source.busy":
                raise
            raise open_transactions(self._session) or error from None
        self._timeout_s = MIN_WAIT_S
        return parse_lsn(found[0][0])

    def require(self, position: int | None = None) -> SlotState:
        """Return the state of a slot that must exist and have all changes after `position`.

        SourceError source.slot_missing, source.slot_lost, source.slot_foreign,
        source.slot_advanced.
        """
        state = self.state()
        if state is None:
            raise SourceError(
                "source.slot_missing",
                f'replication slot "{self.name}" does not exist',
                detail="it was dropped, or the server was replaced by one without it",
                hint=REBUILD_HINT,
            )
        self._check_usable(state)
        if position is not None and state.confirmed > position:
            raise SourceError(
                "source.slot_advanced",
                f'replication slot "{self.name}" is ahead of the local state',
                detail=f"it starts at {format_lsn(state.confirmed)}, the state is at"
                f" {format_lsn(position)}; it was recreated, or another reader used it",
                hint=REBUILD_HINT,
            )
        return state

    def let_fail_over(self, state: SlotState, wal: WalConnection) -> None:
        """Make an older slot of ours a failover slot, which standbys may copy."""
        if wal.server_version >= FAILOVER_VERSION and not state.has_failover:
            try:
                wal.let_fail_over(self.name)
            except SourceError:
                # Only a promotion depends on it, which then fails with its own code.
                return

    def retained_bytes(self) -> int:
        """Return the bytes of WAL that the server retains for the slot; 0 without a slot."""
        found = self._session.rows(
            "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint"
            " FROM pg_replication_slots WHERE slot_name = %s AND restart_lsn IS NOT NULL",
            (self.name,),
            doing="cannot read the replication slots",
        )
        return max(0, found[0][0]) if found else 0

    def drop(self, may_end: Callable[[str], bool] | None = None) -> None:
        """Drop the slot if it exists; wait a while for its reader to go.

        may_end: whether a reader of this application name is ours, and may be ended.
        SourceError source.slot_in_use; TemporaryError when a reader of ours has not ended yet.
        """
        started, ended = time.monotonic(), None
        while (state := self.state()) is not None:
            waited_s, pid = time.monotonic() - started, state.active_pid
            is_ours = may_end is not None and may_end(state.reader)
            if pid is None and self._has_dropped():
                return
            if waited_s > RELEASE_WAIT_S:
                has_other = not is_ours and pid is not None
                found = in_use(self.name, pid, state.reader) if has_other else None
                raise found or not_ended(self.name, pid)
            if pid is not None and is_ours and waited_s > _END_WAIT_S and pid != ended:
                self.evict(pid)
                ended = pid
            time.sleep(0.05)

    def _has_dropped(self) -> bool:
        """Drop the slot if nothing reads it; return whether it is gone."""
        try:
            self._drop_now()
        except SourceError:
            # Another session may have dropped it meanwhile.
            if self.state() is not None:
                raise
        return self.state() is None

    def _drop_now(self) -> None:
        self._session.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE slot_name = %s AND active_pid IS NULL",
            (self.name,),
            doing=f'cannot drop replication slot "{self.name}"',
        )

    def evict(self, pid: int) -> None:
        """Terminate the backend that reads the slot, if it is one of ours."""
        self._session.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid = %s AND application_name LIKE %s",
            (pid, f"{APPLICATION_NAME}%"),
            doing=f'cannot end the reader of replication slot "{self.name}"',
        )

    def is_ours(self, state: SlotState) -> bool:
        """Return whether the slot is of this database and our plugin."""
        database = self._session.rows("SELECT current_database()")[0][0]
        return (state.database, state.plugin) == (database, PLUGIN)

    def _check_usable(self, state: SlotState) -> None:
        if not self.is_ours(state):
            raise SourceError(
                "source.slot_foreign",
                f'replication slot "{self.name}" belongs to another application',
                detail=f'it is of database "{state.database}", plugin "{state.plugin}"',
                hint="slot names are unique across the whole server: choose another --prefix",
            )
        if state.is_lost:
            raise SourceError(
                "source.slot_lost",
                f'replication slot "{self.name}" was invalidated by the server',
                detail=state.invalidation
                or "its WAL was removed (max_slot_wal_keep_size), or it is obsolete",
                hint=f"raise max_slot_wal_keep_size; {REBUILD_HINT}",
            )


def check_server(session: Session, slot: str) -> None:
    """Require that this server can be a source for this role, before anything is created.

    SourceError source.version, source.standby, source.wal_level, source.privilege,
    source.no_free_slot, source.no_free_wal_sender.
    """
    version = session.server_version
    if version < OLDEST_VERSION:
        what = f"PostgreSQL {version // 10000} is too old to be a source"
        raise SourceError("source.version", what, hint="use PostgreSQL 14 or newer")
    if session.rows("SELECT pg_is_in_recovery()")[0][0]:
        raise a_standby(session)
    level = session.rows("SHOW wal_level")[0][0]
    if level != "logical":
        raise SourceError(
            "source.wal_level",
            f'the source has wal_level "{level}"',
            hint=hosting_of(session).set_to("wal_level", "logical", restarts=True),
        )
    _check_replication(session)
    _check_space(session, slot)


def a_standby(session: Session) -> SourceError:
    """Return the refusal of a standby, with its primary's address where the role may see it."""
    found = session.rows("SELECT sender_host, sender_port FROM pg_stat_wal_receiver")
    primary = [f"{host}:{port}" for host, port in found if host]
    return SourceError(
        "source.standby",
        "the source is a standby",
        detail="heartbeats and failover slots need the primary, also where a standby can decode",
        hint=f"use the DSN of the primary{', ' if primary else ''}{', '.join(primary)}",
    )


def _check_replication(session: Session) -> None:
    user, may_replicate = session.rows(
        "SELECT current_user,"
        " (SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user)"
        "  OR EXISTS (SELECT FROM pg_roles WHERE rolname IN ('rds_replication')"
        "             AND pg_has_role(oid, 'member'))"
    )[0]
    if not may_replicate:
        raise SourceError(
            "source.privilege",
            f'role "{user}" may not replicate',
            hint=hosting_of(session).let_replicate(user),
        )


def _check_space(session: Session, slot: str) -> None:
    used, allowed, is_there = session.rows(
        "SELECT count(*), current_setting('max_replication_slots')::int,"
        " coalesce(bool_or(slot_name = %s), false) FROM pg_replication_slots",
        (slot,),
    )[0]
    if not is_there and used >= allowed:
        raise no_free_slot(f"all {allowed} are in use")
    senders, most = session.rows(
        "SELECT count(*), current_setting('max_wal_senders')::int FROM pg_stat_replication"
    )[0]
    if not is_there and senders >= most:
        raise no_free_wal_sender(f"all {most} are in use")


# A slot begins once all running transactions, of any database, have ended.
_OPEN = """
SELECT * FROM (
  SELECT coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), -1)::bigint AS age_s,
    format('pid %%s, user "%%s", database "%%s"', a.pid, a.usename, a.datname) AS who,
    'SELECT pg_terminate_backend(' || a.pid || ')' AS way
  FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
  WHERE l.pid <> pg_backend_pid() AND l.granted AND l.mode = 'ExclusiveLock'
    AND l.locktype = 'transactionid'
    AND a.application_name NOT LIKE 'tidemark%%'
  UNION
  SELECT coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), -1)::bigint,
    format('pid %%s, user "%%s", database "%%s"', a.pid, a.usename, a.datname),
    'SELECT pg_terminate_backend(' || a.pid || ')'
  FROM pg_stat_activity own, unnest(pg_blocking_pids(own.pid)) AS b (pid), pg_stat_activity a
  WHERE own.usename = current_user AND own.application_name LIKE 'tidemark%%' AND a.pid = b.pid
    AND a.application_name NOT LIKE 'tidemark%%'
  UNION
  SELECT extract(epoch FROM clock_timestamp() - prepared)::bigint,
    format('prepared transaction "%%s", user "%%s", database "%%s"', gid, owner, database),
    'ROLLBACK PREPARED ' || quote_literal(gid)
  FROM pg_prepared_xacts
) AS held WHERE age_s < 0 OR age_s >= %s ORDER BY age_s DESC LIMIT 5
"""


def open_transactions(session: Session, least_s: int = 0) -> TemporaryError | None:
    """Return an error naming the transactions that block a snapshot, open for least_s or longer.

    It has the pid or gid, age and user of each. Errors as of `Session.rows`.
    """
    found = session.rows(_OPEN, (least_s,), doing="cannot list open transactions")
    if not found:
        return None
    described = [f"{who}, {f'open for {age} s' if age >= 0 else 'open'}" for age, who, _ in found]
    return TemporaryError(
        "source.busy",
        "a snapshot waits until all open transactions have ended",
        detail="; ".join(described),
        hint=f"end them, or wait: {found[0][2]}",
    )
