"""The tables that a sink writes in MySQL: statements that create, fill and change them.

Mode `rows`: rows are found by a hidden key, 128 bits of hash of the view's key, or of the whole
row of a multiset view, which also has a count. So no key is too long, and no collation makes two
keys one. Mode `changes`: a changelog, to which rows are only added. Statements have many rows each
and are at most CHUNK_BYTES long, but for one row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from connectors.formats.encode_rows import joined, json_column
from connectors.mysql.server import quoted
from connectors.mysql.sink_options import TableOptions
from connectors.mysql.sink_values import column_type, hex_literals, literals, rows_of
from connectors.sink import SinkTable
from connectors.view_sink import ViewEpoch
from dataflow.delta import Column, Delta, group_rows, row_hashes
from dataflow.errors import SinkError
from dataflow.schema import Field
from dataflow.types import INT8, TypeKind

CHUNK_BYTES = 1 << 20
CHUNK_ROWS = 5_000
KEY, COUNT = "tidemark_key", "tidemark_count"
# Bytes of a text in the index of a view's key.
_PREFIX = 191
_COUNT_FIELD = Field(COUNT, INT8, False)
_TEXT_COLUMNS = "character set utf8mb4 collate utf8mb4_bin"


class Statements(Protocol):
    """What a table needs of its session."""

    def run(self, sql: bytes) -> int:
        """Run a statement; return the number of rows that it met."""
        ...


class RowsTable:
    """A table that shows the view's rows."""

    def __init__(self, options: TableOptions, table: SinkTable) -> None:
        self._table = table
        self.sql = f"{quoted(options.database)}.{quoted(options.table)}"

    def create(self, comment: str) -> str:
        """Return CREATE TABLE."""
        columns = [f"{KEY} binary(16) not null primary key"]
        if not self._table.key:
            columns.append(f"{COUNT} bigint not null")
        columns += [_column(f) for f in self._table.fields]
        if self._table.key:
            indexed = ", ".join(_indexed(self._table.fields[k]) for k in self._table.key[:16])
            columns.append(f"key tidemark_by_key ({indexed})")
        return _create(self.sql, columns, comment)

    def write(self, session: Statements, epochs: Sequence[ViewEpoch]) -> None:
        """Change the rows: those of several epochs add up, and each row changes once."""
        if len(epochs) == 1:
            for delta in epochs[0].deltas:
                self._apply(session, delta)
            return
        deltas = [delta for epoch in epochs for delta in epoch.deltas]
        if deltas:
            self._apply(session, Delta.concat(deltas).consolidate())

    def _apply(self, session: Statements, delta: Delta) -> None:
        if self._table.key:
            self._apply_keyed(session, delta)
        else:
            self._apply_counted(session, delta)

    def _apply_keyed(self, session: Statements, delta: Delta) -> None:
        keys = [delta.columns[k] for k in self._table.key]
        group, first = group_rows(keys, len(delta))
        is_new = delta.weights > 0
        news = np.bincount(group[is_new], minlength=len(first))
        if news.max(initial=0) > 1 or delta.weights.max(initial=0) > 1:
            raise SinkError(
                "sink.key_violation",
                f'key of view "{self._table.title}" does not hold',
                hint="Tidemark derived the view's key wrongly; please report the query",
            )
        gone = np.flatnonzero(~is_new & (news[group] == 0))
        self._delete(session, _hashes([c.take(gone) for c in keys], len(gone)))
        now = np.flatnonzero(is_new)
        rows = [c.take(now) for c in delta.columns]
        hashes = hex_literals(_hashes([c.take(now) for c in keys], len(now)))
        fields = [f.name for f in self._table.fields]
        changed = ", ".join(f"{quoted(name)}=values({quoted(name)})" for name in fields)
        names = [KEY, *fields]
        after = f" on duplicate key update {changed}"
        _insert(session, self.sql, names, [hashes, *self._literals(rows)], after)

    def _apply_counted(self, session: Statements, delta: Delta) -> None:
        hashes, n = _hashes(delta.columns, len(delta)), len(delta)
        counts = json_column(_COUNT_FIELD, Column(delta.weights))
        after = f" on duplicate key update {COUNT}={COUNT}+values({COUNT})"
        out, up = np.flatnonzero(delta.weights < 0), np.flatnonzero(delta.weights > 0)
        names = [KEY, COUNT, *(f.name for f in self._table.fields)]
        rows = delta.take(up) if len(up) < n else delta
        added = [hex_literals(hashes.take(up)), counts.take(up), *self._literals(rows.columns)]
        _insert(session, self.sql, names, added, after)
        taken = hashes.take(out)
        _insert(session, self.sql, names[:2], [hex_literals(taken), counts.take(out)], after)
        for keys in _lists(hex_literals(taken)):
            parts = self.sql.encode(), KEY.encode(), keys, COUNT.encode()
            listed = b"delete from %s where %s in (%s) and %s " % parts
            if session.run(listed + b"< 0"):
                raise rows_changed("rows that an epoch removes are missing")
            session.run(listed + b"= 0")

    def _delete(self, session: Statements, hashes: Column) -> None:
        met = 0
        for keys in _lists(hex_literals(hashes)):
            parts = self.sql.encode(), KEY.encode(), keys
            met += session.run(b"delete from %s where %s in (%s)" % parts)
        if met != len(hashes):
            raise rows_changed(f"{met} of {len(hashes)} rows found in {self.sql}")

    def _literals(self, columns: Sequence[Column]) -> list[Column]:
        return [literals(f, c) for f, c in zip(self._table.fields, columns, strict=True)]


class Changelog:
    """A table of changes. The rows of an epoch are in order: retractions first."""

    def __init__(self, options: TableOptions, table: SinkTable) -> None:
        self._table = table
        self.sql = f"{quoted(options.database)}.{quoted(options.table)}"

    def create(self, comment: str) -> str:
        """Return CREATE TABLE."""
        columns = [
            "tidemark_id bigint not null auto_increment primary key",
            "tidemark_op varchar(6) character set ascii not null",
            "tidemark_weight bigint not null",
            "tidemark_epoch bigint not null",
            f"tidemark_position longtext {_TEXT_COLUMNS} not null",
        ]
        return _create(self.sql, [*columns, *map(_column, self._table.fields)], comment)

    def write(self, session: Statements, epochs: Sequence[ViewEpoch]) -> None:
        """Add the changes of epochs."""
        own = ("op", "weight", "epoch", "position")
        names = [*(f"tidemark_{name}" for name in own), *(f.name for f in self._table.fields)]
        for epoch in epochs:
            position = json.dumps(dict(epoch.positions)).encode().hex().encode()
            for delta in epoch.deltas:
                rows = delta.take(np.argsort(delta.weights > 0, kind="stable"))
                same = np.zeros(len(rows), np.int64)
                is_new = (rows.weights > 0).astype(np.int64)
                facts = [
                    Column.of("s", [b"'delete'", b"'insert'"]).take(is_new),
                    json_column(_COUNT_FIELD, Column(rows.weights)),
                    Column.of("s", [str(epoch.number)]).take(same),
                    Column.of("s", [b"_utf8mb4 x'" + position + b"'"]).take(same),
                ]
                values = [
                    literals(f, c) for f, c in zip(self._table.fields, rows.columns, strict=True)
                ]
                _insert(session, self.sql, names, [*facts, *values], "")


def rows_changed(detail: str) -> SinkError:
    """Return the error for rows that others have changed."""
    return SinkError(
        "sink.target_changed",
        "the rows of an additional sink are not those that were written",
        detail=detail,
        hint="someone else changed the target: drop the sink with its data, and add it again",
    )


def _create(sql: str, columns: Sequence[str], comment: str) -> str:
    return (
        f"create table {sql} ({', '.join(columns)}) engine=InnoDB "
        f"default {_TEXT_COLUMNS} comment='{comment}'"
    )


def _column(field: Field) -> str:
    """Columns may be NULL: rows that others have removed are found by that."""
    kind = column_type(field.type)
    return f"{quoted(field.name)} {kind}{f' {_TEXT_COLUMNS}' if kind == 'longtext' else ''} null"


def _indexed(field: Field) -> str:
    is_long = column_type(field.type) == "longtext" or field.type.kind is TypeKind.BYTEA
    return f"{quoted(field.name)}({_PREFIX})" if is_long else quoted(field.name)


def _hashes(columns: Sequence[Column], n: int) -> Column:
    """Return 32 hexadecimal digits of each row."""
    raw = np.empty((n, 2), ">u8")
    raw[:, 0], raw[:, 1] = row_hashes(columns, n)
    digits = np.frombuffer(raw.tobytes().hex().encode(), np.uint8)
    return Column(np.arange(n + 1, dtype=np.int64) * 32, None, digits)


def _insert(
    session: Statements, sql: str, names: Sequence[str], columns: Sequence[Column], after: str
) -> None:
    head = f"insert into {sql} ({', '.join(map(quoted, names))}) values ".encode()
    for rows in _lists(rows_of(columns, len(columns[0]))):
        session.run(b"".join((head, rows, after.encode())))


def _lists(values: Column) -> Iterator[bytes]:
    """Yield the values in lists, with commas between them, of bounded size."""
    n = len(values)
    listed = joined([values, b","], n)
    assert listed.data is not None
    ends, start = listed.values[1:], 0
    while start < n:
        begin = int(listed.values[start])
        fitting = int(np.searchsorted(ends, begin + CHUNK_BYTES, "right"))
        stop = min(start + CHUNK_ROWS, n, max(fitting, start + 1))
        yield listed.data[begin : int(listed.values[stop]) - 1].tobytes()
        start = stop
