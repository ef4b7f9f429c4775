"""The tables that an additional sink writes: created, checked, filled and changed.

Mode `rows`: as the view's own table (connectors/postgres/schema/sink_target.py); a multiset view
is a hidden table with counts and a view over it. Mode `changes`: a changelog, to which rows are
only added. All functions work on the caller's cursor, inside the caller's transaction. Whole
columns go to the server: by COPY, or as arrays where they are few.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import psycopg2

from connectors.postgres.additional.options import TableOptions
from connectors.postgres.schema import sink_target
from connectors.postgres.schema.sink_target import Target, target_of
from connectors.postgres.session import copy_text
from connectors.postgres.session.quoting import quote_name
from connectors.postgres.sink import sink_keys
from connectors.postgres.sink.apply_deltas import (
    Changes,
    apply_by_copy,
    copy_rows,
    is_large,
    lines_of,
    split_delta,
    take_copied,
)
from connectors.postgres.sink.sink_keys import WideKeys
from connectors.sink import SinkTable
from connectors.view_sink import ViewEpoch
from dataflow.delta import Column, Delta
from dataflow.errors import InvariantError, SinkError
from dataflow.schema import Field
from dataflow.types import INT8, JSONB, TEXT

# The columns of a changelog before the view's own.
CHANGELOG = (
    Field("tidemark_op", TEXT, False),
    Field("tidemark_weight", INT8, False),
    Field("tidemark_epoch", INT8, False),
    Field("tidemark_position", JSONB, False),
)
CHANGE_ID = "tidemark_id"
INSERT, DELETE = b"insert", b"delete"


def renamed(options: TableOptions, table: SinkTable) -> SinkTable:
    """Return the view's table under the name that it has in the target."""
    return replace(table, schema=options.schema, name=options.table)


class RowsTable:
    """A table that shows the view's rows. The caller forgets it after a failed transaction."""

    def __init__(self, options: TableOptions, table: SinkTable) -> None:
        self._table = renamed(options, table)
        self._target = target_of(self._table)
        self._keys = WideKeys()
        self._names: dict[tuple[Target, str], str] = {}

    @property
    def relations(self) -> list[str]:
        """The names that it takes: its table's, and the one of the view over a multiset."""
        return list(dict.fromkeys((self._target.name, self._table.name)))

    @property
    def columns(self) -> tuple[Field, ...]:
        """The columns of its table."""
        return self._target.columns

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key's columns."""
        return tuple(c.name for c in self._target.key_columns)

    @property
    def sql(self) -> str:
        """The table's name in statements."""
        return self._target.sql

    def forget(self) -> None:
        """Forget what the session knew."""
        self._keys.forget()
        self._names.clear()

    def create(self, cursor: Any, epoch: ViewEpoch) -> None:
        """Create the table with the first rows."""
        cursor.execute(sink_target.create_table(self._target, _collations(cursor, self.columns)))
        lines = (line for delta in epoch.deltas for line in self._initial_lines(delta))
        _copy(cursor, self.sql, self.columns, lines)
        sink_keys.add_key(cursor, self._target)
        if self._target.is_multiset:
            cursor.execute(sink_target.create_view(self._table))
        cursor.execute(f"ANALYZE {self.sql}")

    def fill(self, cursor: Any, epoch: ViewEpoch) -> None:
        """Write the first rows into a table that is there."""
        for delta in epoch.deltas:
            self._apply(cursor, delta)

    def write(self, cursor: Any, epochs: Sequence[ViewEpoch]) -> None:
        """Change the rows: those of several epochs add up, and each row changes once."""
        if len(epochs) == 1:
            self.fill(cursor, epochs[0])
            return
        deltas = [delta for epoch in epochs for delta in epoch.deltas]
        if deltas:
            self._apply(cursor, Delta.concat(deltas).consolidate())

    def drop(self, cursor: Any, oid: int) -> None:
        """Drop the table of this oid, and the view over it."""
        view = f"{quote_name(self._table.schema)}.{quote_name(self._table.name)}"
        cursor.execute(
            "SELECT DISTINCT v.oid::regclass::text FROM pg_depend AS d "
            "JOIN pg_rewrite AS r ON r.oid = d.objid JOIN pg_class AS v ON v.oid = r.ev_class "
            "WHERE d.refobjid = %s AND v.oid = to_regclass(%s) AND v.relkind = 'v'",
            (oid, view),
        )
        if cursor.fetchone() is not None:
            cursor.execute(f"DROP VIEW {view}")
        _drop(cursor, oid)

    def _initial_lines(self, delta: Delta) -> Iterator[np.ndarray]:
        for letter, columns, n in split_delta(self._target, delta):
            if letter != "i":
                raise changed("the first rows have negative weights")
            yield from lines_of(columns, n)

    def _apply(self, cursor: Any, delta: Delta) -> None:
        target = self._keys.target(cursor, self._table)
        try:
            changes = split_delta(target, delta)
            copied = take_copied(target, changes)
            if is_large(changes):
                apply_by_copy(cursor, target, changes)
            else:
                self._apply_arrays(cursor, target, changes)
            for _, columns, n in copied:
                copy_rows(cursor, target, columns, n)
        except InvariantError as error:
            if error.code == "sink.key_violation":
                raise
            raise changed(error.detail) from None

    def _apply_arrays(self, cursor: Any, target: Target, changes: Changes) -> None:
        available = sink_target.changes_of(target)
        for letter, columns, n in changes:
            change, name = available[letter], self._names.get((target, letter))
            if name is None:
                name = f"ts{len(self._names)}"
                types = ", ".join(sink_target.array_type(c.type) for c in change.columns)
                rows = sink_target.unnest_rows(change, 1)
                counted = sink_target.counted(change, rows, is_looked_up=True)
                cursor.execute(f"PREPARE {name}({types}) AS {counted}")
                self._names[target, letter] = name
            arrays = b",".join(copy_text.array_literal(c) for c in columns)
            cursor.execute(b"EXECUTE %s(%s)" % (name.encode(), arrays))
            met = cursor.fetchone()[0]
            if met != n:
                raise changed(f"{met} of {n} rows found in {target.schema}.{target.name}")


class Changelog:
    """A table of changes. The rows of an epoch are in order: retractions first."""

    def __init__(self, options: TableOptions, table: SinkTable) -> None:
        self._table = renamed(options, table)

    @property
    def relations(self) -> list[str]:
        """The names that it takes."""
        return [self._table.name]

    @property
    def columns(self) -> tuple[Field, ...]:
        """The columns that are written."""
        return (*CHANGELOG, *self._table.fields)

    @property
    def key(self) -> tuple[str, ...]:
        """It needs no key."""
        return ()

    @property
    def sql(self) -> str:
        """The table's name in statements."""
        return f"{quote_name(self._table.schema)}.{quote_name(self._table.name)}"

    def forget(self) -> None:
        """Nothing is known of the session."""

    def create(self, cursor: Any, epoch: ViewEpoch) -> None:
        """Create the table with the first rows."""
        collations = _collations(cursor, self.columns)
        columns = ", ".join(
            f"{quote_name(c.name)} {c.type.name}{'' if c.is_nullable else ' NOT NULL'}"
            + (f" COLLATE {c.type.collation}" if c.type.collation in collations else "")
            for c in self.columns
        )
        cursor.execute(
            f"CREATE TABLE {self.sql} ({CHANGE_ID} bigint GENERATED BY DEFAULT AS IDENTITY "
            f"PRIMARY KEY, {columns})"
        )
        self.write(cursor, [epoch])

    def fill(self, cursor: Any, epoch: ViewEpoch) -> None:
        """Write the first rows into a table that is there."""
        self.write(cursor, [epoch])

    def write(self, cursor: Any, epochs: Sequence[ViewEpoch]) -> None:
        """Add the changes of epochs."""
        _copy(cursor, self.sql, self.columns, self._lines(epochs))

    def drop(self, cursor: Any, oid: int) -> None:
        """Drop the table of this oid."""
        _drop(cursor, oid)

    def _lines(self, epochs: Iterable[ViewEpoch]) -> Iterator[np.ndarray]:
        types = [f.type for f in self._table.fields]
        for epoch in epochs:
            for delta in epoch.deltas:
                rows = delta.take(np.argsort(delta.weights > 0, kind="stable"))
                texts = copy_text.texts_of(types, rows.columns)
                facts = _facts(rows, epoch.number, epoch.positions)
                yield from lines_of([*facts, *texts], len(rows))


def _facts(rows: Delta, epoch: int, positions: Mapping[str, Any]) -> list[Column]:
    """Return the texts of a changelog's own columns."""
    same = np.zeros(len(rows), np.int64)
    operations = Column.of("s", [DELETE, INSERT]).take((rows.weights > 0).astype(np.int64))
    weights = copy_text.texts_of([INT8], [Column(rows.weights)])
    number = Column.of("s", [str(epoch)]).take(same)
    position = Column.of("s", [json.dumps(dict(positions))]).take(same)
    return [operations, *weights, number, position]


def changed(detail: str) -> SinkError:
    """Return the error for rows that others have changed."""
    return SinkError(
        "sink.target_changed",
        "the rows of an additional sink are not those that were written",
        detail=detail,
        hint="someone else changed the target: drop the sink with its data, and add it again",
    )


def _copy(cursor: Any, sql: str, columns: Sequence[Field], lines: Iterator[np.ndarray]) -> None:
    names = ", ".join(quote_name(c.name) for c in columns)
    reader = copy_text.ChunkReader(lines)
    try:
        cursor.copy_expert(f"COPY {sql} ({names}) FROM STDIN", reader)
    except psycopg2.Error as error:
        # PostgreSQL reports an exception of ours as a cancelled statement.
        raise reader.failure or error from None


def _collations(cursor: Any, columns: Sequence[Field]) -> frozenset[str]:
    desired = {c.type.collation for c in columns if c.type.collation}
    cursor.execute(
        "SELECT c FROM unnest(%s::text[]) c WHERE to_regcollation(c) IS NOT NULL",
        (sorted(desired),),
    )
    return frozenset(name for (name,) in cursor.fetchall())


def _drop(cursor: Any, oid: int) -> None:
    cursor.execute(
        "SELECT format('%%I.%%I', n.nspname, c.relname) FROM pg_class AS c "
        "JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = %s",
        (oid,),
    )
    found = cursor.fetchone()
    if found is not None:
        cursor.execute(f"DROP TABLE {found[0]}")
