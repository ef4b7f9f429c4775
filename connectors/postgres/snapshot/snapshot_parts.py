"""Parts of a PostgreSQL snapshot: pages of a table, or the rows under some keys.

Each part is read by COPY BINARY in a session of its own that joins the exported snapshot, and is
decoded by columns. Invariant: the page ranges of a table are adjacent, and the last one is
open-ended, so each row of the snapshot is in exactly one of them. Parts are immutable; read them
from any process.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote

import numpy as np
import psycopg2
from psycopg2 import sql
from psycopg2.extensions import ISOLATION_LEVEL_REPEATABLE_READ
from psycopg2.extensions import connection as Connection
from tidemark_native import replication

from connectors.postgres.evaluation.restricted_source import RestrictedTable, is_foreign
from connectors.postgres.replication.decode import parse_column
from connectors.postgres.session.session import connect, to_error
from dataflow.delta import Column, Delta
from dataflow.errors import InvariantError, TemporaryError
from dataflow.schema import Relation
from dataflow.types import FIXED_NAN, SqlType, TypeKind
from dataflow.values import to_text

CHUNK_ROWS = 65_536
_CHUNK_BYTES = 8 << 20
_FIRST_PAGES = 128
_COPY_HEADER = 19
_KEYS_AT_ONCE = 10_000
_SNAPSHOT_APPLICATION = "tidemark snapshot"
# Under row security a reader would silently get fewer rows than the stream sends. A TRUNCATE or
# ALTER TABLE in between waits for the snapshot's own lock, and readers queue behind it: without a
# limit they would deadlock. The backfill gives way.
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
# Their cast to text is their output function; for other types (inet, citext) it may differ.
_CAST_TO_TEXT = {
    TypeKind.DECIMAL,
    TypeKind.INTERVAL,
    TypeKind.UUID,
    TypeKind.BYTEA,
    TypeKind.JSONB,
}


@dataclass(frozen=True)
class PageRange:
    """Pages [first, end) of one physical table; end None means to its last page.

    file: its file node, which changes when the table is rewritten and its rows move.
    """

    schema: str
    name: str
    file: int
    first: int
    end: int | None

    @property
    def table(self) -> str:
        """Return the table and its file, in a form usable within a name."""
        return f"{quote(self.schema, safe='')}.{quote(self.name, safe='')}/{self.file}"

    @property
    def title(self) -> str:
        """Return the whole range as a name.

        >>> PageRange("public", "a b", 16384, 0, 128).title
        'public.a%20b/16384:0-128'
        """
        return f"{self.table}:{self.first}-{'' if self.end is None else self.end}"


def cut(whole: PageRange, pages: int, step: int) -> list[PageRange]:
    """Cut a table of `pages` pages into ranges of `step`; the last one is open-ended."""
    firsts = range(0, max(pages, 1), step)
    return [
        replace(whole, first=first, end=first + step if first + step < pages else None)
        for first in firsts
    ]


def cut_alike(whole: PageRange, known: Sequence[str]) -> list[PageRange]:
    """Cut a table into the ranges of parts with these names; [] when they are of another file.

    >>> whole = PageRange("public", "t", 7, 0, None)
    >>> known = ["public.t/7:0-64", "public.t/7:64-", "public.t/6:0-"]
    >>> [where.title for where in cut_alike(whole, known)]
    ['public.t/7:0-64', 'public.t/7:64-']
    """
    found = []
    for title in known:
        table, _, pages = title.rpartition(":")
        if table == whole.table:
            first, _, end = pages.partition("-")
            found.append(replace(whole, first=int(first), end=int(end) if end else None))
    return found


@dataclass(frozen=True)
class PostgresSnapshotPart:
    """Some pages of one physical table of a relation, in the exported snapshot."""

    dsn: str
    snapshot_id: str
    relation: Relation
    columns: tuple[int, ...]
    where: PageRange

    def read(self) -> Iterator[Delta]:
        """Yield rows of weight 1 with the requested columns, about CHUNK_ROWS per delta."""
        connection = open_session(self.dsn, self.snapshot_id, is_read_only=False)
        try:
            yield from self._read_pages(connection)
        except psycopg2.Error as error:
            raise to_error(error, "source", f'cannot read table "{self.relation.name}"') from error
        finally:
            connection.close()

    @property
    def name(self) -> str:
        """Return table, file and pages."""
        return self.where.title

    def __repr__(self) -> str:
        return f"PostgresSnapshotPart({self.relation.name}, {self.where})"

    def _read_pages(self, connection: Connection) -> Iterator[Delta]:
        """Run one COPY after the other over some pages each, sized by the previous one's result."""
        end = self.where.end
        if end is None:
            pages = (
                "SELECT pg_relation_size(format('%%I.%%I', %s::text, %s::text)::regclass)"
                " / current_setting('block_size')::int"
            )
            found = rows_of(connection, pages, (self.where.schema, self.where.name))
            end = int(found[0][0])
        query = self._query_of(connection)
        at, step = self.where.first, _FIRST_PAGES
        while at < end:
            stop = min(at + step, end)
            delta, size_bytes = _copy(connection, query(at, stop), self)
            if len(delta):
                yield delta
            growth = min(CHUNK_ROWS / max(len(delta), 1), _CHUNK_BYTES / max(size_bytes, 1))
            step = max(1, int((stop - at) * min(growth, 16.0)))
            at = stop

    def _query_of(self, connection: Connection) -> Callable[[int, int], sql.Composable]:
        """Return the query builder for pages [first, end)."""
        columns = _all_selected(self.relation, self.columns)
        table = sql.SQL("ONLY {}").format(sql.Identifier(self.where.schema, self.where.name))
        restricted = _restricted(connection, self, table, columns)
        if restricted is None:
            shown = sql.SQL(", ").join(columns)
            text = sql.SQL("SELECT {} FROM {} WHERE ctid >= {} AND ctid < {}")
            return lambda first, end: text.format(shown, table, _at(first), _at(end))
        function = restricted.function("tid, tid", "t.at >= $1 AND t.at < $2")
        restricted.close()
        shown = sql.SQL(", ").join(sql.Identifier(f"c{i}") for i in range(len(columns)))
        text = sql.SQL("SELECT {} FROM {}({}, {})")
        return lambda first, end: text.format(shown, function, _at(first), _at(end))


@dataclass(frozen=True)
class PostgresKeysPart:
    """The rows of a relation under some keys, in the exported snapshot.

    keys: columns of relation.key, not NULL, each key once.
    """

    dsn: str
    snapshot_id: str
    relation: Relation
    columns: tuple[int, ...]
    keys: Delta

    @property
    def name(self) -> str:
        """Return a name for messages: such a part is never cached."""
        return f"keys of {self.relation.name}"

    def read(self) -> Iterator[Delta]:
        """Yield rows of weight 1 with the requested columns, found by the index of the key."""
        connection = open_session(self.dsn, self.snapshot_id, is_read_only=False)
        try:
            query = self._query_of(connection, *self._types(connection))
            for start in range(0, len(self.keys), _KEYS_AT_ONCE):
                keys = self.keys.slice(start, min(start + _KEYS_AT_ONCE, len(self.keys)))
                delta, _ = _copy(connection, query(keys), self)
                if len(delta):
                    yield delta
        except psycopg2.Error as error:
            raise to_error(error, "source", f'cannot read table "{self.relation.name}"') from error
        finally:
            connection.close()

    def _types(self, connection: Connection) -> tuple[bool, list[str]]:
        """Return whether the table is the root of partitions, and the SQL names of the key's types.

        "" stands for a user-defined type: our session neither casts to it nor checks a domain.
        """
        found = rows_of(
            connection,
            "WITH RECURSIVE made(attname, oid) AS (SELECT attname, atttypid FROM pg_attribute"
            " WHERE attrelid = %(oid)s::bigint::oid AND attnum > 0 AND NOT attisdropped"
            " UNION ALL SELECT m.attname, t.typbasetype FROM made m JOIN pg_type t ON t.oid = m.oid"
            " WHERE t.typtype = 'd')"
            " SELECT c.relkind = 'p', m.attname,"
            " CASE WHEN t.oid < 16384 THEN format_type(t.oid, -1) ELSE '' END"
            " FROM pg_class c, made m JOIN pg_type t ON t.oid = m.oid"
            " WHERE c.oid = %(oid)s::bigint::oid AND t.typtype <> 'd'",
            {"oid": self.relation.oid},
        )
        types = {name: type for _, name, type in found}
        key_names = [self.relation.fields[i].name for i in self.relation.key]
        return bool(found and found[0][0]), [types[name] for name in key_names]

    def _query_of(
        self, connection: Connection, is_root: bool, types: Sequence[str]
    ) -> Callable[[Delta], sql.Composable]:
        """Return the query builder for some of the keys, of these types. is_root: of partitions."""
        columns = _all_selected(self.relation, self.columns)
        name, fields = self.relation.name, [self.relation.fields[i] for i in self.relation.key]
        table = sql.SQL("{}{}").format(
            sql.SQL("" if is_root else "ONLY "), sql.Identifier(name.schema, name.name)
        )
        own = [sql.Identifier("t", f.name) for f in fields]
        restricted = _restricted(connection, self, table, [*columns, *own])
        if restricted is None:
            shown = sql.SQL(", ").join(columns)
            text = sql.SQL("SELECT {} FROM {} AS t WHERE ({}) IN ({})")
            names = sql.SQL(", ").join(map(_compared, own, types))
            return lambda keys: text.format(shown, table, names, _rows_of(self._texts(keys), types))
        placeholders = [sql.SQL(f"${i}") for i in range(1, len(types) + 1)]
        restricted_columns = [sql.SQL(f"t.c{len(columns) + i}") for i in range(len(types))]
        names = sql.SQL(", ").join(map(_compared, restricted_columns, types)).as_string(connection)
        among = f"({names}) IN ({_rows_of(placeholders, types).as_string(connection)})"
        function = restricted.function(", ".join(["text[]"] * len(types)), among)
        restricted.close()
        shown = sql.SQL(", ").join(sql.Identifier(f"c{i}") for i in range(len(columns)))
        text = sql.SQL("SELECT {} FROM {}({})")
        return lambda keys: text.format(shown, function, sql.SQL(", ").join(self._texts(keys)))

    def _texts(self, keys: Delta) -> list[sql.Composable]:
        fields = [self.relation.fields[i] for i in self.relation.key]
        return [
            sql.SQL("{}::text[]").format(sql.Literal(to_text(field.type, column).texts()))
            for field, column in zip(fields, keys.columns, strict=True)
        ]


def _compared(column: sql.Composable, type: str) -> sql.Composable:
    """Return a key's column for a comparison with a passed value; type: as of `_types`."""
    return column if type else sql.SQL("pg_catalog.format('%s', {})").format(column)


def _rows_of(arrays: Sequence[sql.Composable], types: Sequence[str]) -> sql.Composable:
    """Return a query of rows whose columns are passed as arrays of texts."""
    aliases = [sql.Identifier(f"k{i}") for i in range(len(types))]
    casts = [
        sql.SQL("given.{}::{}").format(alias, sql.SQL(type or "text"))
        for alias, type in zip(aliases, types, strict=True)
    ]
    parts = (sql.SQL(", ").join(some) for some in (casts, arrays, aliases))
    return sql.SQL("SELECT {} FROM unnest({}) AS given({})").format(*parts)


def _restricted(
    connection: Connection,
    part: PostgresSnapshotPart | PostgresKeysPart,
    table: sql.Composable,
    columns: Sequence[sql.Composable],
) -> RestrictedTable | None:
    """Return a table that other roles control as a restricted one; None for any other table."""
    with connection.cursor() as cursor:
        if is_foreign(cursor, part.relation.oid):
            return RestrictedTable((connection, part.dsn), part.relation.oid, table, columns)
        cursor.execute("SET LOCAL transaction_read_only = on")
        return None


def _at(page: int) -> sql.Composable:
    return sql.SQL("{}::tid").format(sql.Literal(f"({page},0)"))


def _copy(
    connection: Connection, query: sql.Composable, part: PostgresSnapshotPart | PostgresKeysPart
) -> tuple[Delta, int]:
    """Return the rows of a query for the part's columns, and the bytes that were read."""
    out = io.BytesIO()
    with connection.cursor() as cursor:
        cursor.copy_expert(
            sql.SQL("COPY ({}) TO STDOUT (FORMAT binary)").format(query), out, size=1 << 20
        )
        rows = cursor.rowcount
    joined = np.frombuffer(out.getbuffer(), np.uint8)
    try:
        starts, lengths = replication.walk_copy(joined, _COPY_HEADER, rows, len(part.columns))
        columns = [
            _column(part.relation, joined, position, starts[c], lengths[c])
            for c, position in enumerate(part.columns)
        ]
    except ValueError as error:
        what = f'the copy of table "{part.relation.name}" cannot be read'
        raise InvariantError("source.protocol", what, detail=str(error)) from error
    return Delta(columns, np.ones(rows, np.int64)), len(joined)


def _column(
    relation: Relation, joined: np.ndarray, position: int, starts: np.ndarray, lengths: np.ndarray
) -> Column:
    type = relation.fields[position].type
    kind = type.kind
    if kind in _INTS:
        values, valid, nulls = replication.read_ints(joined, starts, lengths)
    elif kind is TypeKind.FIXED:
        values, valid, nulls = replication.read_numerics(
            joined, starts, lengths, type.scale, FIXED_NAN
        )
    elif kind is TypeKind.BOOL:
        values, valid, nulls = replication.read_bools(joined, starts, lengths)
    elif kind in (TypeKind.FLOAT4, TypeKind.FLOAT8):
        size = 4 if kind is TypeKind.FLOAT4 else 8
        values, valid, nulls = _read_floats(joined, starts, lengths, size)
    else:
        offsets, texts, valid, nulls = replication.gather_bytes(joined, starts, lengths)
        column = Column(offsets, valid if nulls else None, texts)
        return parse_column(relation, position, column)
    return Column(values, valid if nulls else None)


def _read_floats(
    joined: np.ndarray, starts: np.ndarray, lengths: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """Read floats of 4 or 8 bytes: (float64[n], valid bool[n], nulls). Every NaN is one NaN."""
    bits, valid, nulls = replication.read_ints(joined, starts, lengths)
    if size == 4:
        values = bits.astype(np.int32).view(np.float32).astype(np.float64)
    else:
        values = bits.view(np.float64)
    values[np.isnan(values)] = np.nan
    return values, valid, nulls


def _all_selected(relation: Relation, columns: Sequence[int]) -> list[sql.Composable]:
    fields = [relation.fields[i] for i in columns]
    return [_selected(f.name, f.type) for f in fields]


def _selected(name: str, type: SqlType) -> sql.Composable:
    """Return the column as COPY BINARY must send it: a fixed-width value, or its text output."""
    column = sql.Identifier(name)
    kind = type.kind
    fixed = (TypeKind.BOOL, TypeKind.FLOAT4, TypeKind.FLOAT8, TypeKind.FIXED)
    if kind in _INTS or kind in _PLAIN_TEXT or kind in fixed:
        return column
    if kind in _CAST_TO_TEXT:
        return sql.SQL("{}::text").format(column)
    return sql.SQL("CASE WHEN num_nonnulls({0}) > 0 THEN format('%s', {0}) END").format(column)


def open_session(dsn: str, snapshot_id: str | None, *, is_read_only: bool = True) -> Connection:
    """Open a read-only REPEATABLE READ transaction, in an exported snapshot if one is passed."""
    connection = connect(
        dsn, application_name=_SNAPSHOT_APPLICATION, settings=_SETTINGS, is_long=True
    )
    connection.set_session(isolation_level=ISOLATION_LEVEL_REPEATABLE_READ, readonly=is_read_only)
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
                "source.snapshot_gone", "the snapshot ended before it was read", detail=text
            ) from error
        raise to_error(error, "source", "cannot use an exported snapshot") from error
    return connection


def rows_of(connection: Connection, text: str, parameters: object = None) -> list[tuple]:
    """Return all rows of a query."""
    with connection.cursor() as cursor:
        cursor.execute(text, parameters)  # type: ignore[arg-type]
        return cursor.fetchall()
