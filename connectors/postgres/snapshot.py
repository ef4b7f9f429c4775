"""A consistent snapshot of a source, read in parts from any number of processes.

A temporary slot exports the snapshot that lies exactly between two WAL positions; a coordinating
session imports it, keeps the tables locked against DDL and TRUNCATE, and re-exports it for the
parts. Invariant: snapshot plus all transactions that end after `position` is the table, nothing
twice and nothing missing. The tables are locked before the snapshot is taken: a TRUNCATE in
between would empty them under an older snapshot.
"""

from __future__ import annotations

import io
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import psycopg2
from psycopg2 import sql
from psycopg2.extensions import ISOLATION_LEVEL_REPEATABLE_READ
from psycopg2.extensions import connection as Connection

from connectors.postgres import decode_kernels as kernels
from connectors.postgres.decode import parse_column
from connectors.postgres.session import connect, to_error, translated
from connectors.postgres.wal_connection import WalConnection
from dataflow.delta import Column, Delta
from dataflow.errors import SourceError, TemporaryError
from dataflow.schema import Relation
from dataflow.types import FIXED_NAN, SqlType, TypeKind

CHUNK_ROWS = 65_536
_CHUNK_BYTES = 8 << 20
_FIRST_PAGES = 128
_COPY_HEADER = 19
_SNAPSHOT_APPLICATION = "tidemark snapshot"
# Under row security a reader would silently get fewer rows than the stream sends.
# A TRUNCATE or ALTER TABLE that came in between waits for the snapshot's own lock, and readers
# queue behind it: without a limit all would wait for each other for ever. The backfill gives way.
_SETTINGS = {"row_security": "off", "jit": "off", "lock_timeout": "5s"}

_INTS = {
    TypeKind.INT2,
    TypeKind.INT4,
    TypeKind.INT8,
    TypeKind.DATE,
    TypeKind.TIME,
    TypeKind.TIMESTAMP,
    TypeKind.TIMESTAMPTZ,
}
# Their binary form is their text.
_PLAIN_TEXT = {TypeKind.TEXT, TypeKind.BPCHAR, TypeKind.JSON}
# Their cast to text is their output function; for other types (inet, citext) it may not be.
_CAST_TO_TEXT = {
    TypeKind.DECIMAL,
    TypeKind.INTERVAL,
    TypeKind.UUID,
    TypeKind.BYTEA,
    TypeKind.JSONB,
}


_PHYSICAL_TABLES = """
SELECT n.nspname, c.relname, c.relkind,
  pg_relation_size(c.oid) / current_setting('block_size')::int
FROM (SELECT %(oid)s::bigint::oid AS oid
        WHERE NOT EXISTS (SELECT FROM pg_partition_tree(%(oid)s::bigint::oid))
      UNION SELECT relid::oid FROM pg_partition_tree(%(oid)s::bigint::oid) WHERE isleaf) t
JOIN pg_class c ON c.oid = t.oid JOIN pg_namespace n ON n.oid = c.relnamespace
ORDER BY 1, 2
"""


@dataclass(frozen=True)
class PageRange:
    """Pages [first, end) of one physical table; end None means to its last one."""

    schema: str
    name: str
    first: int
    end: int | None


class PostgresSnapshot:
    """All given relations as of `position`; stays open until `close`."""

    def __init__(self, dsn: str, relations: Sequence[Relation]) -> None:
        self._dsn = dsn
        guard = _open(dsn, None)
        try:
            _lock(guard, relations)
            wal = WalConnection(dsn)
            try:
                # Every reader of this moment: unique in the cluster, at most 63 letters.
                name = f"tidemark_snapshot_{os.getpid()}_{uuid.uuid4().hex[:12]}"
                self.position, exported = wal.create_temporary_slot(name)
                self._coordinator = _open(dsn, exported)
            finally:
                wal.close()
            try:
                _lock(self._coordinator, relations)
                self.snapshot_id = str(
                    _rows(self._coordinator, "SELECT pg_export_snapshot()")[0][0]
                )
            except BaseException:
                self._coordinator.close()
                raise
        finally:
            guard.close()

    def parts(
        self, relation: Relation, columns: Sequence[int], count: int
    ) -> Sequence[PostgresSnapshotPart]:
        """About `count` disjoint parts; at least one for each physical table of the relation."""
        with translated("source", f'cannot measure table "{relation.name}"'):
            tables = _rows(self._coordinator, _PHYSICAL_TABLES, {"oid": relation.oid})
        total = sum(pages for *_, pages in tables) or 1
        out: list[PostgresSnapshotPart] = []
        for schema, name, kind, pages in tables:
            if kind != "r":
                what = f'partition "{schema}.{name}" of table "{relation.name}" cannot be followed'
                raise SourceError("source.not_publishable", what, hint="use ordinary partitions")
            step = max(1, -(-pages // max(1, round(count * pages / total))))
            for first in range(0, max(pages, 1), step):
                end = first + step if first + step < pages else None
                where = PageRange(schema, name, first, end)
                out.append(
                    PostgresSnapshotPart(
                        self._dsn, self.snapshot_id, relation, tuple(columns), where
                    )
                )
        return out

    def close(self) -> None:
        """End the coordinating session: parts that are not being read yet cannot be read."""
        self._coordinator.close()


@dataclass(frozen=True)
class PostgresSnapshotPart:
    """Some pages of one physical table of a relation, in the exported snapshot."""

    dsn: str
    snapshot_id: str
    relation: Relation
    columns: tuple[int, ...]
    where: PageRange

    def read(self) -> Iterator[Delta]:
        """Rows of weight 1 with the asked columns, about CHUNK_ROWS a delta."""
        connection = _open(self.dsn, self.snapshot_id)
        try:
            yield from self._read_pages(connection)
        except psycopg2.Error as error:
            raise to_error(error, "source", f'cannot read table "{self.relation.name}"') from error
        finally:
            connection.close()

    def __repr__(self) -> str:
        return f"PostgresSnapshotPart({self.relation.name}, {self.where})"

    def _read_pages(self, connection: Connection) -> Iterator[Delta]:
        """One COPY after the other over some pages each, sized by what the last one brought."""
        end = self.where.end
        if end is None:
            pages = (
                "SELECT pg_relation_size(format('%%I.%%I', %s::text, %s::text)::regclass)"
                " / current_setting('block_size')::int"
            )
            found = _rows(connection, pages, (self.where.schema, self.where.name))
            end = int(found[0][0])
        at, step = self.where.first, _FIRST_PAGES
        while at < end:
            stop = min(at + step, end)
            delta, size_bytes = self._copy(connection, at, stop)
            if len(delta):
                yield delta
            growth = min(CHUNK_ROWS / max(len(delta), 1), _CHUNK_BYTES / max(size_bytes, 1))
            step = max(1, int((stop - at) * min(growth, 16.0)))
            at = stop

    def _copy(self, connection: Connection, first: int, end: int) -> tuple[Delta, int]:
        fields = [self.relation.fields[i] for i in self.columns]
        query = sql.SQL(
            "COPY (SELECT {} FROM ONLY {} WHERE ctid >= {} AND ctid < {}) TO STDOUT (FORMAT binary)"
        ).format(
            sql.SQL(", ").join(_selected(f.name, f.type) for f in fields),
            sql.Identifier(self.where.schema, self.where.name),
            sql.Literal(f"({first},0)"),
            sql.Literal(f"({end},0)"),
        )
        out = io.BytesIO()
        with connection.cursor() as cursor:
            cursor.copy_expert(query, out, size=1 << 20)
            rows = cursor.rowcount
        joined = np.frombuffer(out.getbuffer(), np.uint8)
        starts, lengths = kernels.walk_copy(joined, _COPY_HEADER, rows, len(fields))
        columns = [
            self._column(joined, position, starts[c], lengths[c])
            for c, position in enumerate(self.columns)
        ]
        return Delta(columns, np.ones(rows, np.int64)), len(joined)

    def _column(
        self, joined: np.ndarray, position: int, starts: np.ndarray, lengths: np.ndarray
    ) -> Column:
        type = self.relation.fields[position].type
        kind = type.kind
        if kind in _INTS:
            values, valid, nulls = kernels.read_ints(joined, starts, lengths)
        elif kind is TypeKind.FIXED:
            values, valid, nulls = kernels.read_numerics(
                joined, starts, lengths, type.scale, FIXED_NAN
            )
        elif kind is TypeKind.BOOL:
            values, valid, nulls = kernels.read_bools(joined, starts, lengths)
        elif kind in (TypeKind.FLOAT4, TypeKind.FLOAT8):
            size = 4 if kind is TypeKind.FLOAT4 else 8
            values, valid, nulls = kernels.read_floats(joined, starts, lengths, size)
        else:
            offsets, texts, valid, nulls = kernels.gather_bytes(joined, starts, lengths)
            column = Column(offsets, valid if nulls else None, texts)
            return parse_column(self.relation, position, column)
        return Column(values, valid if nulls else None)


def _selected(name: str, type: SqlType) -> sql.Composable:
    """The column as COPY BINARY has to send it: a fixed-width value, or its text output."""
    column = sql.Identifier(name)
    kind = type.kind
    fixed = (TypeKind.BOOL, TypeKind.FLOAT4, TypeKind.FLOAT8, TypeKind.FIXED)
    if kind in _INTS or kind in _PLAIN_TEXT or kind in fixed:
        return column
    if kind in _CAST_TO_TEXT:
        return sql.SQL("{}::text").format(column)
    return sql.SQL("CASE WHEN num_nonnulls({0}) > 0 THEN format('%s', {0}) END").format(column)


def _open(dsn: str, snapshot_id: str | None) -> Connection:
    """A read-only REPEATABLE READ transaction, in an exported snapshot if one is given."""
    connection = connect(dsn, application_name=_SNAPSHOT_APPLICATION, settings=_SETTINGS)
    connection.set_session(isolation_level=ISOLATION_LEVEL_REPEATABLE_READ, readonly=True)
    if snapshot_id is None:
        return connection
    try:
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION SNAPSHOT %s", (snapshot_id,))
    except psycopg2.Error as error:
        connection.close()
        text = str(error).strip()
        if "snapshot" in text:
            raise TemporaryError(
                "source.snapshot_gone", "the snapshot has ended before it was read", detail=text
            ) from error
        raise to_error(error, "source", "cannot use an exported snapshot") from error
    return connection


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


def _rows(connection: Connection, text: str, parameters: object = None) -> list[tuple]:
    with connection.cursor() as cursor:
        cursor.execute(text, parameters)  # type: ignore[arg-type]
        return cursor.fetchall()
