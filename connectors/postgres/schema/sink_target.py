"""How the rows of a view are stored in the sink: names, columns and the SQL that changes them.

A keyed view is one plain table with the view's columns. A multiset view is a hidden table with a
128-bit row hash as key, a count and the columns. A view of the desired name repeats each row count
times. Pure text: nothing here opens a connection.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from connectors.postgres.session.quoting import NAME_BYTES, clip_name, quote_name, quote_text
from connectors.sink import SinkTable
from dataflow.schema import Field
from dataflow.types import INT8, TEXT, SqlType, TypeKind, sql_type

UUID = sql_type("uuid", 2950)
FILL_FACTOR = 85
# Prefix, before the table's oid, of the index of a table whose key is too wide.
WIDE_INDEX = "_tidemark_key_"


@dataclass(frozen=True)
class Target:
    """A physical table that deltas are applied to.

    fields: the view's columns. key: their positions, () for a multiset; then hash and count name
    the two hidden columns. is_wide: there is no primary key, but an index over the key's hash.
    """

    schema: str
    name: str
    fields: tuple[Field, ...]
    key: tuple[int, ...]
    hash: str = ""
    count: str = ""
    is_wide: bool = False

    @property
    def is_multiset(self) -> bool:
        """Return whether rows are found by their hash and have a count."""
        return not self.key

    @property
    def sql(self) -> str:
        """Return the qualified name."""
        return f"{quote_name(self.schema)}.{quote_name(self.name)}"

    @property
    def columns(self) -> tuple[Field, ...]:
        """Return all physical columns in order: hash and count first, for a multiset."""
        if not self.is_multiset:
            return self.fields
        return (Field(self.hash, UUID, False), Field(self.count, INT8, False), *self.fields)

    @property
    def key_columns(self) -> tuple[Field, ...]:
        """Return the columns of the primary key."""
        return self.columns[:1] if self.is_multiset else tuple(self.fields[i] for i in self.key)

    @property
    def other_columns(self) -> tuple[Field, ...]:
        """Return the columns outside the primary key."""
        return tuple(c for c in self.columns if c not in self.key_columns)

    def renamed(self, name: str) -> Target:
        """Return the same table under another name in the same schema."""
        return replace(self, name=name)


@functools.lru_cache(1024)
def target_of(table: SinkTable) -> Target:
    """Return the physical table of a view."""
    if table.key:
        return Target(table.schema, table.name, table.fields, table.key)
    taken = {f.name for f in table.fields}
    name = _hidden_name(table.name)
    return Target(table.schema, name, table.fields, (), _free("__h", taken), _free("__n", taken))


@functools.lru_cache(1024)
def staged_target_of(table: SinkTable) -> Target:
    """Return the physical table of a view while it is filled."""
    return target_of(table).renamed(f"_tidemark_{_digest(table.name, 16)}")


ERRORS = Target(
    "tidemark",
    "errors",
    tuple(Field(n, TEXT) for n in ("view", "operator", "sqlstate", "message", "source_row")),
    (),
    "hash",
    "count",
)


def key_name(table: SinkTable) -> str:
    """Return the name of the primary key's constraint, as PostgreSQL would choose it."""
    return clip_name(target_of(table).name, NAME_BYTES - len("_pkey")) + "_pkey"


def create_table(target: Target, collations: frozenset[str] = frozenset()) -> str:
    """Return CREATE TABLE without its key, which is added after the rows.

    collations: those of the columns that the sink also has.
    """
    columns = ", ".join(
        f"{quote_name(c.name)} {c.type.name}"
        + (f" COLLATE {c.type.collation}" if c.type.collation in collations else "")
        for c in target.columns
    )
    return f"CREATE TABLE {target.sql} ({columns}) WITH (fillfactor = {FILL_FACTOR})"


def add_key(target: Target) -> str:
    """Return the statement that adds the primary key to a filled table."""
    key = ", ".join(quote_name(c.name) for c in target.key_columns)
    extra = f", ALTER {quote_name(target.count)} SET NOT NULL" if target.is_multiset else ""
    return f"ALTER TABLE {target.sql} ADD PRIMARY KEY ({key}){extra}"


def create_view(table: SinkTable) -> str:
    """Return the view over a multiset's table: each row as often as its count says."""
    target = target_of(table)
    columns = ", ".join(f"b.{quote_name(f.name)}" for f in target.fields)
    count = f"b.{quote_name(target.count)}"
    return (
        f"CREATE VIEW {quote_name(table.schema)}.{quote_name(table.name)} AS "
        f"SELECT {columns} FROM {target.sql} AS b WHERE {count} = 1 UNION ALL "
        f"SELECT {columns} FROM {target.sql} AS b, generate_series(1, {count}) WHERE {count} > 1"
    )


# Placeholders in unfinished SQL; no name contains such a character.
ROWS, FIRST, MET = "\0rows", "\0first", "\0met"
_C1 = "u.c1"


@dataclass(frozen=True)
class Change:
    """One kind of change of a target's rows: its parameters and its SQL.

    columns: the physical columns of its parameters. sql has ROWS in place of a FROM item `u` with
    columns c1, c2, ... of these values, and yields one row per changed row: MET stands for its
    columns. It has FIRST in place of the value that the first column of the index must equal:
    `first`.
    """

    columns: tuple[Field, ...]
    sql: str
    first: str = _C1

    def over(self, rows: str, *, is_looked_up: bool, met: str = "1") -> str:
        """Return the statement over these rows. met: what it yields per changed row.

        is_looked_up: find each row by the index. An equality that joins nothing forces it.
        Otherwise a planner that believes the table empty (analyzed before its rows were committed)
        would scan it and compare each of its rows with each of ours (decision 24).
        """
        # Opaque types may be arrays, and there are no arrays of arrays.
        may_be_array = self.first == _C1 and self.columns[0].type.kind is TypeKind.OPAQUE
        is_listed = is_looked_up and not may_be_array
        first = f"ANY (ARRAY[{self.first}])" if is_listed else self.first
        return self.sql.replace(ROWS, rows).replace(FIRST, first).replace(MET, met)


@functools.lru_cache(1024)
def changes_of(target: Target) -> dict[str, Change]:
    """Return the changes by letter, in the order of execution.

    Keyed: "d" delete, "u" update in place, "i" insert. Multiset: "d" remove rows, "i" add rows.
    """
    found = _multiset_changes(target) if target.is_multiset else _keyed_changes(target)
    return {letter: found[letter] for letter in ("d", "u", "i") if letter in found}


def _keyed_changes(target: Target) -> dict[str, Change]:
    sql, keys, others = target.sql, target.key_columns, target.other_columns
    stored, same = f"t.{quote_name(keys[0].name)}", _equal(keys)[1:]
    names = ", ".join(quote_name(c.name) for c in target.columns)
    is_new = ""
    first = new_first = _C1
    if target.is_wide:
        first, new_first = _passed_hash(target, range(len(keys))), _passed_hash(target, target.key)
        stored, same = _stored_hash(target), _equal(keys)
        # No key rejects an existing row: it is not inserted, and not counted.
        own = " AND ".join(
            f"t.{quote_name(c.name)} = u.c{i + 1}" for i, c in zip(target.key, keys, strict=True)
        )
        is_new = (
            f"WHERE NOT EXISTS (SELECT FROM ONLY {sql} AS t WHERE {stored} = {FIRST} AND {own}) "
        )
    met = " AND ".join([f"{stored} = {FIRST}", *same])
    found = {
        "d": Change(
            keys, f"DELETE FROM ONLY {sql} AS t USING {ROWS} WHERE {met} RETURNING {MET}", first
        ),
        "i": Change(
            target.columns,
            f"INSERT INTO {sql} ({names}) SELECT {_values(target.columns)} FROM {ROWS} "
            f"{is_new}RETURNING {MET}",
            new_first,
        ),
    }
    if others:
        new = ", ".join(
            f"{quote_name(c.name)} = u.c{k}" for k, c in enumerate(others, len(keys) + 1)
        )
        update = f"UPDATE ONLY {sql} AS t SET {new} FROM {ROWS} WHERE {met} RETURNING {MET}"
        found["u"] = Change((*keys, *others), update, first)
    return found


def key_hash(target: Target, names: Mapping[int, str]) -> str:
    """Return PostgreSQL's hash of a key; names: of its columns, by their number in it.

    A row is changed with exactly the key that it was written with, so bytes may stand for values.
    Collations that call other texts equal do not matter.
    """
    parts = (
        names[k] + (' COLLATE "C"' if c.type.collation else "")
        for k, c in enumerate(target.key_columns)
    )
    return f"hash_record_extended(ROW({', '.join(parts)}), 0)"


def _stored_hash(target: Target) -> str:
    return key_hash(
        target, {k: f"t.{quote_name(c.name)}" for k, c in enumerate(target.key_columns)}
    )


def _passed_hash(target: Target, supplied: Sequence[int]) -> str:
    """Return the hash of a passed key; supplied: the number of each key column's c, from 0."""
    return key_hash(target, {k: f"u.c{i + 1}" for k, i in enumerate(supplied)})


def _multiset_changes(target: Target) -> dict[str, Change]:
    sql, columns = target.sql, target.columns
    count, hash_column = quote_name(target.count), quote_name(target.hash)
    names = ", ".join(quote_name(c.name) for c in columns)
    same = f"t.{hash_column} = {FIRST} AND t.{count} + u.c2"
    return {
        "d": Change(
            columns[:2],
            f"UPDATE ONLY {sql} AS t SET {count} = t.{count} + u.c2 FROM {ROWS} "
            f"WHERE {same} > 0 RETURNING {MET}), y AS ("
            f"DELETE FROM ONLY {sql} AS t USING {ROWS} WHERE {same} = 0 RETURNING {MET}",
        ),
        "i": Change(
            columns,
            f"INSERT INTO {sql} AS t ({names}) SELECT {_values(columns)} FROM {ROWS} "
            f"ON CONFLICT ({hash_column}) DO UPDATE SET {count} = t.{count} + excluded.{count} "
            f"RETURNING {MET}",
        ),
    }


def counted(change: Change, rows: str, *, is_looked_up: bool) -> str:
    """Return a SELECT of how many rows a change met, with `rows` as its FROM item."""
    body = change.over(rows, is_looked_up=is_looked_up)
    both = " + (SELECT count(*) FROM y)" if "), y AS (" in body else ""
    return f"WITH x AS ({body}) SELECT (SELECT count(*) FROM x){both}"


def expected(target: Target, change: Change, rows: str) -> str:
    """Return `counted` with each row looked up; fails in the database unless it meets $1 rows."""
    body = change.over(rows, is_looked_up=True)
    both = " + (SELECT count(*) FROM y)" if "), y AS (" in body else ""
    title = quote_text(f"{target.schema}.{target.name}")
    return f"WITH x AS ({body}) SELECT tidemark.expect({title}, (SELECT count(*) FROM x){both}, $1)"


def array_type(type: SqlType) -> str:
    """Return the type of an array parameter that carries values of `type`.

    Opaque types travel as text: unnest would spread an array of a composite type into columns, and
    there are no arrays of arrays. Enums do not: their owners may have made a cast from text, which
    would run as the service.
    """
    return "text[]" if _is_cast(type) else f"{type.name}[]"


def _is_cast(type: SqlType) -> bool:
    """Return whether values travel as text."""
    return type.kind is TypeKind.OPAQUE and not type.is_enum


def unnest_rows(change: Change, first: int) -> str:
    """Return the FROM item over array parameters $first, $first + 1, ..."""
    count = len(change.columns)
    arrays = ", ".join(f"${first + k}" for k in range(count))
    raw = ", ".join(f"c{k + 1}" for k in range(count))
    if not any(_is_cast(c.type) for c in change.columns):
        return f"unnest({arrays}) AS u({raw})"
    typed = ", ".join(
        f"c{k}::{c.type.name} AS c{k}" if _is_cast(c.type) else f"c{k}"
        for k, c in enumerate(change.columns, 1)
    )
    return f"(SELECT {typed} FROM unnest({arrays}) AS r({raw})) AS u"


def _values(columns: tuple[Field, ...]) -> str:
    return ", ".join(f"u.c{k + 1}" for k in range(len(columns)))


def _equal(columns: tuple[Field, ...]) -> list[str]:
    return [f"t.{quote_name(c.name)} = u.c{k}" for k, c in enumerate(columns, 1)]


def _hidden_name(name: str) -> str:
    if len(name.encode()) < NAME_BYTES:
        return "_" + name
    return f"_{clip_name(name, NAME_BYTES - 10)}_{_digest(name, 8)}"


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _digest(text: str, size: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:size]
