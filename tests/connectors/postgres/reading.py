"""What the tests of the source share: relations as the analyzer would give them, rows as text, and
a table kept from changes by the plainest rules."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from psycopg2.extensions import UNICODE, string_types

from connectors.postgres.replication.stream import ReplicationStream
from connectors.postgres.session.session import connect
from connectors.postgres.source import PostgresSource
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.delta import Column
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import sql_type
from dataflow.values import to_text
from tests.harness.postgres import Database

Row = tuple[str | None, ...]


def relation_of(database: Database, name: str, *, source: str = "source") -> Relation:
    """A table of schema public with all its columns that are sent (not generated)."""
    [(oid, identity)] = database.rows(
        "SELECT oid::bigint, relreplident FROM pg_class WHERE oid = %s::regclass", (name,)
    )
    columns = database.rows(
        "SELECT attname, format_type(atttypid, atttypmod), atttypid::bigint, atttypmod,"
        " NOT attnotnull, attnum = ANY(coalesce((SELECT indkey::int2[] FROM pg_index"
        "   WHERE indrelid = attrelid AND indisprimary), '{}')), attnum"
        " FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
        " AND attgenerated = '' ORDER BY attnum",
        (name,),
    )
    fields = tuple(Field(c, sql_type(t, o, m), null) for c, t, o, m, null, *_ in columns)
    key = tuple(i for i, c in enumerate(columns) if c[5])
    numbers = tuple(c[6] for c in columns)
    relation = RelationName(source, "public", name)
    return Relation(relation, oid, fields, key, identity == "f", numbers=numbers)


def raw_rows(database: Database, query: str) -> list[Row]:
    """PostgreSQL's own text of every value, under our session settings."""
    connection = connect(database.dsn, is_users=True)
    for oid in string_types:
        connection.string_types[oid] = UNICODE
    try:
        with connection.cursor() as cursor:
            cursor.execute(query)
            return cursor.fetchall()
    finally:
        connection.close()


def table_rows(database: Database, relation: Relation) -> Counter[Row]:
    """The table now, as a multiset of texts."""
    names = ", ".join(f'"{f.name}"' for f in relation.fields)
    return Counter(raw_rows(database, f'SELECT {names} FROM "{relation.name.name}"'))


def text_rows(relation: Relation, columns: Sequence[Column]) -> list[Row]:
    """Physical columns as rows of PostgreSQL's text."""
    texts = [to_text(f.type, c).texts() for f, c in zip(relation.fields, columns, strict=True)]
    return list(zip(*texts, strict=True))


def snapshot_rows(snapshot, relation: Relation, parts: int = 3) -> Counter[Row]:
    """All rows of a snapshot of the relation."""
    out: Counter[Row] = Counter()
    for part in snapshot.parts(relation, range(len(relation.fields)), parts):
        for delta in part.read():
            assert (delta.weights == 1).all()
            out.update(text_rows(relation, delta.columns))
    return out


class Replay:
    """A table kept row by row from changes: by key with default identity, as a bag with FULL."""

    def __init__(self, relation: Relation, rows: Counter[Row] | None = None) -> None:
        self.relation = relation
        self.rows: Counter[Row] = Counter(rows or ())

    def apply(self, changes: Changes) -> None:
        """Take changes of this relation in their order; others are passed over."""
        if changes.relation.name != self.relation.name:
            return
        rows = text_rows(self.relation, changes.columns)
        old: Row | None = None
        for i, (kind, row) in enumerate(zip(changes.kinds.tolist(), rows, strict=True)):
            if kind == Changes.TRUNCATE:
                self.rows.clear()
            elif kind == Changes.INSERT:
                self._add(row, 1)
            elif kind in (Changes.DELETE, Changes.DELETE_KEY):
                self._add(row if kind == Changes.DELETE else self._kept(row), -1)
            elif kind in (Changes.OLD, Changes.OLD_KEY):
                old = row if kind == Changes.OLD else self._kept(row)
            else:
                old = old or self._kept(row)
                missing = {c for c, mask in changes.unchanged.items() if mask[i]}
                whole = tuple(old[c] if c in missing else v for c, v in enumerate(row))
                self._add(old, -1)
                self._add(whole, 1)
                old = None

    def _kept(self, row: Row) -> Row:
        key = [row[i] for i in self.relation.key]
        [found] = [r for r in self.rows if [r[i] for i in self.relation.key] == key]
        return found

    def _add(self, row: Row, weight: int) -> None:
        self.rows[row] += weight
        assert self.rows[row] >= 0, row
        if not self.rows[row]:
            del self.rows[row]


@contextmanager
def opened(database: Database, *names: str) -> Iterator[tuple[PostgresSource, list[Relation]]]:
    """A source that watches the tables, with its slot; nothing of it is left at the end."""
    source = PostgresSource(database.dsn, database.name)
    try:
        source.ensure_slot()
        relations = [relation_of(database, name) for name in names]
        source.watch(relations)
        yield source, relations
    finally:
        source.drop_slot()
        source.close()


@contextmanager
def streaming(
    source: PostgresSource, start: int, relations: Sequence[Relation], **options
) -> Iterator[ReplicationStream]:
    """A stream that is closed at the end."""
    stream = source.stream(start, relations, **options)
    try:
        yield stream
    finally:
        stream.close()


@contextmanager
def following(
    database: Database, *names: str
) -> Iterator[tuple[PostgresSource, ReplicationStream]]:
    """A source that watches the tables, and its stream from now on."""
    with (
        opened(database, *names) as (source, relations),
        streaming(source, source.current_position(), relations) as stream,
    ):
        yield source, stream


def read_all(
    source: PostgresSource, stream: ReplicationStream, max_rows: int = 100_000
) -> list[SourceBatch]:
    """Every batch up to what is committed now."""
    target = source.heartbeat()
    batches: list[SourceBatch] = []
    deadline = time.monotonic() + 60
    while stream.position <= target:
        assert time.monotonic() < deadline, "the stream does not reach the heartbeat"
        batch = stream.poll(max_rows, 1.0)
        if batch is not None:
            batch.whole()
            batches.append(batch)
    return batches


def changes_of(batches: Sequence[SourceBatch]) -> list[Changes]:
    """The changes of all batches in order."""
    return [changes for batch in batches for changes in batch.whole()]


def events(changes: Sequence[Changes]) -> list[tuple[str, str, Row]]:
    """(table, letter, row) of every change, for small expectations."""
    return [
        (c.relation.name.name, chr(kind), row)
        for c in changes
        for kind, row in zip(c.kinds.tolist(), text_rows(c.relation, c.columns), strict=True)
    ]
