"""A consistent snapshot of a source, read in parts from any number of processes.

A temporary slot exports the snapshot that lies exactly between two WAL positions. A coordinating
session imports it, keeps the tables locked against DDL and TRUNCATE, and exports it again for the
parts. Invariant: snapshot plus all transactions that end after `position` is the table, with
nothing duplicate or missing. The tables are locked before the snapshot is taken, since a TRUNCATE
in between would empty them under an older snapshot. They are read by their names under that lock,
which may differ from the planned ones.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

import psycopg2
from psycopg2 import sql
from psycopg2.extensions import ISOLATION_LEVEL_READ_COMMITTED
from psycopg2.extensions import connection as Connection

from connectors.postgres.evaluation.restricted_source import is_foreign, lock
from connectors.postgres.replication.decode import Decoder
from connectors.postgres.replication.stream import ReplicationStream
from connectors.postgres.replication.wal_connection import WalConnection
from connectors.postgres.session.session import to_error, translated
from connectors.postgres.snapshot.snapshot_parts import (
    PageRange,
    PostgresKeysPart,
    PostgresSnapshotPart,
    cut,
    cut_alike,
    open_session,
    rows_of,
)
from connectors.postgres.types.column_types import ColumnTypes
from dataflow.delta import Delta
from dataflow.errors import SourceError, TemporaryError
from dataflow.schema import Relation, RelationName

_NAME = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = %s::bigint::oid
"""
_PHYSICAL_TABLES = """
SELECT n.nspname, c.relname, c.relkind, pg_relation_filenode(c.oid)::bigint,
  pg_relation_size(c.oid) / current_setting('block_size')::int
FROM (SELECT %(oid)s::bigint::oid AS oid
        WHERE NOT EXISTS (SELECT FROM pg_partition_tree(%(oid)s::bigint::oid))
      UNION SELECT relid::oid FROM pg_partition_tree(%(oid)s::bigint::oid) WHERE isleaf) t
JOIN pg_class c ON c.oid = t.oid JOIN pg_namespace n ON n.oid = c.relnamespace
ORDER BY 1, 2
"""


class PostgresSnapshot:
    """All relations as of `position`; stays open until `close`.

    keeps_slot: retain the slot too, so that `stream` can read what comes after.
    """

    def __init__(
        self, dsn: str, relations: Sequence[Relation], *, keeps_slot: bool = False
    ) -> None:
        self._dsn = dsn
        self._slot: tuple[WalConnection, str] | None = None
        guard = open_session(dsn, None)
        try:
            with translated("source", "cannot lock the tables to be read"):
                # Each query of the catalog must see what was committed before the lock was
                # granted.
                guard.set_isolation_level(ISOLATION_LEVEL_READ_COMMITTED)
                self._locked = {r.oid: _locked(guard, r) for r in relations}
            wal = WalConnection(dsn)
            try:
                # Distinct for every snapshot in the cluster, at most 63 characters.
                name = f"tidemark_snapshot_{os.getpid()}_{uuid.uuid4().hex[:12]}"
                self.position, exported = wal.create_temporary_slot(name)
                self._coordinator = open_session(dsn, exported)
                self._slot = (wal, name) if keeps_slot else None
            finally:
                if self._slot is None:
                    wal.close()
            try:
                for locked in self._locked.values():
                    _lock(self._coordinator, locked.relation)
                with translated("source", "cannot export a snapshot"):
                    [(found,)] = rows_of(self._coordinator, "SELECT pg_export_snapshot()")
                self.snapshot_id = str(found)
            except BaseException:
                self.close()
                raise
        finally:
            guard.close()

    def parts(
        self,
        relation: Relation,
        columns: Sequence[int],
        count: int,
        known: Sequence[str] = (),
    ) -> Sequence[PostgresSnapshotPart]:
        """Return about `count` disjoint parts; at least one per physical table of the relation.

        known: names of an earlier snapshot's parts. A table in the same file is cut as it was then,
        and an unchanged row stays in the same part.
        """
        now = self._now(relation, columns)
        with translated("source", f'cannot measure table "{relation.name}"'):
            tables = rows_of(self._coordinator, _PHYSICAL_TABLES, {"oid": relation.oid})
        total = sum(pages for *_, pages in tables) or 1
        out: list[PostgresSnapshotPart] = []
        for schema, name, kind, file, pages in tables:
            if kind != "r":
                what = f'partition "{schema}.{name}" of table "{relation.name}" cannot be published'
                raise SourceError("source.not_publishable", what, hint="use ordinary partitions")
            step = max(1, -(-pages // max(1, round(count * pages / total))))
            whole = PageRange(schema, name, file, 0, None)
            for where in cut_alike(whole, known) or cut(whole, pages, step):
                out.append(
                    PostgresSnapshotPart(self._dsn, self.snapshot_id, now, tuple(columns), where)
                )
        return out

    def part_of_keys(
        self, relation: Relation, columns: Sequence[int], keys: Delta
    ) -> PostgresKeysPart:
        """Return the rows under these keys, columns of relation.key, in this snapshot."""
        now = self._now(relation, (*columns, *relation.key))
        return PostgresKeysPart(self._dsn, self.snapshot_id, now, tuple(columns), keys)

    def _now(self, relation: Relation, columns: Sequence[int]) -> Relation:
        return self._locked[relation.oid].reading(columns)

    def stream(self, relations: Sequence[Relation], publication: str) -> ReplicationStream:
        """Stream the changes of these relations after `position`; once, and only with keeps_slot.

        The caller closes it.
        """
        assert self._slot is not None, "the slot was not retained"
        (wal, name), self._slot = self._slot, None
        try:
            wal.start(name, self.position, [publication])
            return ReplicationStream(wal, Decoder(relations), self.position)
        except BaseException:
            wal.close()
            raise

    def open_session(self) -> Connection:
        """Open another read-only session in the snapshot; the caller closes it."""
        return open_session(self._dsn, self.snapshot_id)

    def close(self) -> None:
        """End the coordinating session: unread parts can no longer be read."""
        if self._slot is not None:
            self._slot[0].close()
        self._coordinator.close()


@dataclass(frozen=True)
class _Locked:
    """A relation under its current name. changed: positions of fields that differ from the plan."""

    relation: Relation
    changed: frozenset[int]

    def reading(self, columns: Sequence[int]) -> Relation:
        """Return the relation, for a reader of these columns.

        TemporaryError source.table_changing: the reader of the table's changes decides what they
        mean for a view.
        """
        for position in self.changed.intersection(columns):
            name = self.relation.name
            raise TemporaryError(
                "source.table_changing",
                f'table "{name}" has changed since the read was planned',
                detail=f'column "{self.relation.fields[position].name}"',
                relation=name,
            )
        return self.relation


def _locked(connection: Connection, relation: Relation) -> _Locked:
    """Take ACCESS SHARE on the relation and its partitions until the transaction ends.

    The transaction must be READ COMMITTED, to see what others commit. SourceError
    source.table_missing.
    """
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL search_path = pg_temp")
        name = None
        while name != (name := _name_of(connection, relation)):
            _lock(connection, replace(relation, name=name))
        found = ColumnTypes(cursor).read_fields(relation.oid)
    by_name = {field.name: number for number, field in found.items()}
    numbers = relation.numbers or [by_name.get(field.name, 0) for field in relation.fields]
    fields, changed = list(relation.fields), set()
    for position, (field, number) in enumerate(zip(relation.fields, numbers, strict=True)):
        now = found.get(number)
        if now is None or (now.type.oid, now.type.typmod) != (field.type.oid, field.type.typmod):
            changed.add(position)
        else:
            fields[position] = replace(field, name=now.name)
    return _Locked(replace(relation, name=name, fields=tuple(fields)), frozenset(changed))


def _name_of(connection: Connection, relation: Relation) -> RelationName:
    found = rows_of(connection, _NAME, (relation.oid,))
    if not found:
        what = f'table "{relation.name}" does not exist'
        raise SourceError("source.table_missing", what, relation=relation.name)
    return RelationName(relation.name.source, *found[0])


def _lock(connection: Connection, relation: Relation) -> None:
    """Take ACCESS SHARE on a relation and its partitions, until the transaction ends."""
    name = relation.name
    table = sql.Identifier(name.schema, name.name)
    try:
        with connection.cursor() as cursor:
            if is_foreign(cursor, relation.oid):
                lock(cursor, relation.oid, table)
            else:
                cursor.execute(sql.SQL("SELECT FROM {} LIMIT 0").format(table))
    except psycopg2.errors.UndefinedTable:
        # It existed a moment ago.
        what = f'table "{name}" is being renamed or dropped'
        raise TemporaryError("source.table_changing", what, relation=name) from None
    except psycopg2.Error as error:
        raise to_error(error, "source", f'cannot read table "{name}"') from error
