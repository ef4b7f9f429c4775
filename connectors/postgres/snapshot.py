"""A consistent snapshot of a source, read in parts from any number of processes.

A temporary slot exports the snapshot that lies exactly between two WAL positions; a coordinating
session imports it, keeps the tables locked against DDL and TRUNCATE, and re-exports it for the
parts. Invariant: snapshot plus all transactions that end after `position` is the table, nothing
twice and nothing missing. The tables are locked before the snapshot is taken: a TRUNCATE in
between would empty them under an older snapshot.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence

import psycopg2
from psycopg2 import sql
from psycopg2.extensions import connection as Connection

from connectors.postgres.decode import Decoder
from connectors.postgres.replication import ReplicationStream
from connectors.postgres.session import to_error, translated
from connectors.postgres.snapshot_parts import (
    PageRange,
    PostgresKeysPart,
    PostgresSnapshotPart,
    cut,
    cut_alike,
    open_session,
    rows_of,
)
from connectors.postgres.wal_connection import WalConnection
from dataflow.delta import Delta
from dataflow.errors import SourceError
from dataflow.schema import Relation

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
    """All given relations as of `position`; stays open until `close`.

    keeps_slot: the slot stays too, so that `stream` can tell what comes after.
    """

    def __init__(
        self, dsn: str, relations: Sequence[Relation], *, keeps_slot: bool = False
    ) -> None:
        self._dsn = dsn
        self._slot: tuple[WalConnection, str] | None = None
        guard = open_session(dsn, None)
        try:
            _lock(guard, relations)
            wal = WalConnection(dsn)
            try:
                # Every reader of this moment: unique in the cluster, at most 63 letters.
                name = f"tidemark_snapshot_{os.getpid()}_{uuid.uuid4().hex[:12]}"
                self.position, exported = wal.create_temporary_slot(name)
                self._coordinator = open_session(dsn, exported)
                self._slot = (wal, name) if keeps_slot else None
            finally:
                if self._slot is None:
                    wal.close()
            try:
                _lock(self._coordinator, relations)
                self.snapshot_id = str(
                    rows_of(self._coordinator, "SELECT pg_export_snapshot()")[0][0]
                )
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
        """About `count` disjoint parts; at least one for each physical table of the relation.

        known: names of an earlier snapshot's parts. A table that still lies in the same file is
        cut as it was then, and a row that has not changed since lies in the same part.
        """
        with translated("source", f'cannot measure table "{relation.name}"'):
            tables = rows_of(self._coordinator, _PHYSICAL_TABLES, {"oid": relation.oid})
        total = sum(pages for *_, pages in tables) or 1
        out: list[PostgresSnapshotPart] = []
        for schema, name, kind, file, pages in tables:
            if kind != "r":
                what = f'partition "{schema}.{name}" of table "{relation.name}" cannot be followed'
                raise SourceError("source.not_publishable", what, hint="use ordinary partitions")
            step = max(1, -(-pages // max(1, round(count * pages / total))))
            whole = PageRange(schema, name, file, 0, None)
            for where in cut_alike(whole, known) or cut(whole, pages, step):
                out.append(
                    PostgresSnapshotPart(
                        self._dsn, self.snapshot_id, relation, tuple(columns), where
                    )
                )
        return out

    def part_of_keys(
        self, relation: Relation, columns: Sequence[int], keys: Delta
    ) -> PostgresKeysPart:
        """The rows under these keys, columns of relation.key, in this snapshot."""
        return PostgresKeysPart(self._dsn, self.snapshot_id, relation, tuple(columns), keys)

    def stream(self, relations: Sequence[Relation], publication: str) -> ReplicationStream:
        """What happens to these relations after `position`; once, where the slot is kept.

        The caller closes it.
        """
        assert self._slot is not None, "the slot was not kept"
        (wal, name), self._slot = self._slot, None
        try:
            wal.start(name, self.position, [publication])
            return ReplicationStream(wal, Decoder(relations), self.position)
        except BaseException:
            wal.close()
            raise

    def open_session(self) -> Connection:
        """Another read-only session in the snapshot; the caller closes it."""
        return open_session(self._dsn, self.snapshot_id)

    def close(self) -> None:
        """End the coordinating session: parts that are not being read yet cannot be read."""
        if self._slot is not None:
            self._slot[0].close()
        self._coordinator.close()


def _lock(connection: Connection, relations: Sequence[Relation]) -> None:
    """ACCESS SHARE on every relation and its partitions, until the transaction ends."""
    for relation in relations:
        name = relation.name
        try:
            with connection.cursor() as cursor:
                table = sql.Identifier(name.schema, name.name)
                cursor.execute(sql.SQL("SELECT FROM {} LIMIT 0").format(table))
        except psycopg2.errors.UndefinedTable:
            what = f'table "{name}" does not exist'
            raise SourceError("source.table_missing", what, relation=name) from None
        except psycopg2.Error as error:
            raise to_error(error, "source", f'cannot read table "{name}"') from error
