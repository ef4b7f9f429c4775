"""Tables of another PostgreSQL database as a source: declared relations, positions, snapshots.

Each source has its own slot and publication for each group of views. Invariants: the slot is
created before the first snapshot, and confirmed only up to what is durable here; a slot that lacks
changes, and another server behind the same address, are refused by name.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from connectors.feed_source import (
    DeclaredRelation,
    FeedPosition,
    FeedPositions,
    FeedSnapshot,
    FeedSource,
    FeedStart,
    Reader,
    SourceFeed,
)
from connectors.postgres.remote.columns import check_generated, discovered, wire_relation
from connectors.postgres.remote.feed import Connection, RemoteFeed
from connectors.postgres.remote.options import RemoteOptions, TableOptions, read_options
from connectors.postgres.remote.positions import identity_of, lsn_of, position_at
from connectors.postgres.remote.snapshot import RemoteSnapshot
from connectors.postgres.remote.table_watch import first_seen, known_of, notes_of
from connectors.postgres.replication.table_facts import TableCatalog, TableFacts
from connectors.postgres.session.foreign import ForeignDsn
from connectors.postgres.session.session import Session
from connectors.postgres.source import PostgresSource
from connectors.source import SourceBatch
from dataflow.delta import Delta
from dataflow.errors import SourceError, TidemarkError
from dataflow.schema import Relation

_OID = """
SELECT c.oid::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')
"""


def declare(options: Mapping[str, Any]) -> Sequence[DeclaredRelation]:
    """See Connector: a relation for each entry of `tables`."""
    return [table.declared() for table in read_options(options).tables]


def make(name: str, options: Mapping[str, Any], relations: Sequence[Relation]) -> FeedSource:
    """See Connector."""
    return RemoteSource(name, read_options(options), relations)


def discover(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options with `columns` and `key` for each table that lacks columns. SourceError,
    TemporaryError.
    """
    read = read_options(options, needs_columns=False)
    listed = options["tables"]
    found: dict[str, Any] = {}
    dsn = ForeignDsn.of(read.login)
    session, catalog = Session(dsn), TableCatalog(dsn, "")
    try:
        for table in read.tables:
            own = listed[table.relation] if isinstance(listed, Mapping) else {}
            own = {} if isinstance(own, str) else dict(own)
            if not table.columns:
                own |= discovered(table, _facts(session, catalog, table))
            found[table.relation] = {"table": table.title, **own}
    finally:
        session.close()
        catalog.close()
    return {**options, "tables": found}


@dataclass
class _Use:
    """The use of a slot by this process. reading: held while a stream is open."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    reading: threading.Lock = field(default_factory=threading.Lock)
    begun_at: float = float("-inf")


_uses: dict[tuple[str, int, str], _Use] = {}
_uses_lock = threading.Lock()


class RemoteSource:
    """A RetainingSource. relations: those that the options declare.

    The slot has the same changes again from any position that was not confirmed.
    """

    is_replayable = True

    def __init__(self, name: str, options: RemoteOptions, relations: Sequence[Relation]) -> None:
        self.name = name
        self._options = options
        self._relations = tuple(relations)
        self._reader = Reader("tidemark", "default")

    def read_as(self, reader: Reader) -> None:
        """See RetainingSource: the reader is part of the names of slot and publication."""
        self._reader = reader

    def relations(self) -> Sequence[Relation]:
        """See FeedSource."""
        return self._relations

    def order_of(self, position: FeedPosition) -> int:
        """See RetainingSource."""
        return lsn_of(position)

    def check(self) -> None:
        """See FeedSource: server, privileges, free slots, the slot, tables and columns."""
        with self._connected() as (source, session, catalog):
            source.check()
            for relation in self._relations:
                table = self._options.table_of(relation.name.name)
                with _about(relation):
                    source.check_tables([table.name])
                facts = _facts(session, catalog, table)
                check_generated(relation.name, table, facts, session.server_version)
                wire_relation(relation, table, facts)

    def start_position(self, relation: Relation) -> FeedStart:
        """See FeedSource: a place in the WAL after which the slot has all changes of the table."""
        table = self._options.table_of(relation.name.name)
        use = self._use()
        with use.lock, self._connected() as (source, session, catalog):
            use.begun_at = time.monotonic()
            facts = _facts(session, catalog, table)
            check_generated(relation.name, table, facts, session.server_version)
            wire = wire_relation(relation, table, facts)
            source.drop_lost_slot()
            with _about(relation):
                # Before the slot, which decodes by the catalog that it begins with.
                source.watch([wire])
            source.ensure_slot()
            now = catalog.read([wire.oid], {}).tables
            if wire.oid not in now:
                raise _no_table(table, relation)
            position = position_at(source.heartbeat(), source.identity())
        return FeedStart(position, notes_of({relation.name.name: first_seen(now[wire.oid])}))

    def open_snapshot(
        self, relations: Sequence[Relation], positions: FeedPositions, notes: Mapping[str, bytes]
    ) -> FeedSnapshot:
        """See FeedSource; it is at a later position, see ChosenSnapshot."""
        wires = {}
        with self._connected() as (source, session, catalog):
            for relation in relations:
                name = relation.name.name
                table, known = self._options.table_of(name), known_of(notes, name)
                facts = _facts(session, catalog, table)
                if known is not None and known.facts.oid != facts.oid:
                    raise _no_table(table, relation)
                wires[relation.name] = wire_relation(relation, table, facts)
            own = {r.name.name: positions[r.name.name] for r in relations}
            reached = max(lsn_of(position) for position in own.values())
            source.require_slot(identity_of(own), reached)
            snapshot = source.open_snapshot(list(wires.values()))
            try:
                # The stream passes the snapshot, also if nothing else is written there.
                source.heartbeat()
                position = position_at(snapshot.position, source.identity())
            except BaseException:
                snapshot.close()
                raise
        return RemoteSnapshot(snapshot, wires, position)

    def open_feed(
        self,
        relations: Sequence[Relation],
        positions: FeedPositions,
        notes: Mapping[str, bytes],
        on_ready: Callable[[], None],
    ) -> SourceFeed:
        """See FeedSource; the feed's own thread reaches the database."""
        connection = Connection(self.name, self._options, self._new_source, self._use().reading)
        return RemoteFeed(connection, relations, positions, notes, on_ready)

    def decode_again(self, relation: Relation, rows: Delta) -> SourceBatch:
        """See FeedSource: no value is ever rejected, so nothing is left to be retried."""
        return SourceBatch(0, [], 0, 0, source=self.name, rejected=rows.negate())

    def release(self, requested_at: float) -> None:
        """See RetainingSource: drop slot and publication."""
        use = self._use()
        slot, publication = self._options.names(self.name, self._reader)
        with use.lock:
            if use.begun_at > requested_at:
                return
            try:
                with self._connected() as (source, _, _):
                    source.drop_slot()
            except TidemarkError as error:
                raise SourceError(
                    "source.slot_not_dropped",
                    f'slot "{slot}" of postgres source "{self.name}" was not dropped',
                    detail=error.described,
                    hint=f"there: SELECT pg_drop_replication_slot('{slot}'); "
                    f"DROP PUBLICATION {publication};",
                ) from error

    def _use(self) -> _Use:
        login = self._options.login
        slot, _ = self._options.names(self.name, self._reader)
        with _uses_lock:
            return _uses.setdefault((login.host, login.port, slot), _Use())

    def _new_source(self) -> PostgresSource:
        names = self._options.names(self.name, self._reader)
        dsn = ForeignDsn.of(self._options.login)
        return PostgresSource(dsn, self.name, names=names, claim=self._reader.claim)

    @contextmanager
    def _connected(self) -> Iterator[tuple[PostgresSource, Session, TableCatalog]]:
        source = self._new_source()
        session, catalog = Session(source.dsn), source.tables()
        try:
            yield source, session, catalog
        finally:
            source.close()
            session.close()
            catalog.close()


@contextmanager
def _about(relation: Relation) -> Iterator[None]:
    """Let errors about the table name the declared relation."""
    try:
        yield
    except TidemarkError as error:
        if error.relation is not None:
            error.relation = relation.name
        raise


def _facts(session: Session, catalog: TableCatalog, table: TableOptions) -> TableFacts:
    found = session.rows(_OID, (table.schema, table.table), doing="cannot read the catalog")
    facts = catalog.read([found[0][0]], {}).tables.get(found[0][0]) if found else None
    if facts is None:
        raise _no_table(table)
    return facts


def _no_table(table: TableOptions, relation: Relation | None = None) -> SourceError:
    what = "is another table now" if relation is not None else "does not exist"
    return SourceError(
        "source.table_missing",
        f'table "{table.title}" {what}',
        hint="check its name; rebuild the views that read a table that was created again",
        relation=None if relation is None else relation.name,
    )
