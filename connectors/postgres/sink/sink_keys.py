"""The key of a view's table: a primary key, or for wide keys an index over a hash of the key.

A B-tree takes no entry of more than 2,704 bytes, and a key may be a text of any length. A table
whose key does not fit gets, from then on, an index over PostgreSQL's own 64-bit hash of the key's
columns instead: rows are looked up by the hash and compared by the columns, and what an insert
would double is not inserted and counted as missing. What tells such a table is its index's name,
which goes with it wherever it is renamed. Invariant: a row is found by its key, whatever its size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from psycopg2 import errors as states

from connectors.postgres.schema import sink_target
from connectors.postgres.schema.sink_target import WIDE_INDEX, Target, target_of
from connectors.postgres.session import copy_text
from connectors.postgres.session.quoting import quote_name
from connectors.postgres.sink.apply_deltas import key_violation
from connectors.sink import SinkPart, SinkTable
from dataflow.delta import Delta
from dataflow.errors import SinkError

# Less than an entry may have: an entry has a header, and more than one column has gaps.
WIDE_BYTES = 2_000

_WIDE = rf"""SELECT n.nspname, t.relname FROM pg_class AS c
JOIN pg_index AS i ON i.indexrelid = c.oid JOIN pg_class AS t ON t.oid = i.indrelid
JOIN pg_namespace AS n ON n.oid = t.relnamespace
WHERE c.relname LIKE '{WIDE_INDEX.replace("_", chr(92) + "_")}%%' AND c.relkind = 'i'"""

# A bag's rows may come in parts that hold the same row: add the counts up, keep one.
_ADD_UP = """CREATE TEMP TABLE tidemark_twice ON COMMIT DROP AS
SELECT {hash} AS h, sum({count}) AS n, min(ctid) AS first FROM {table}
GROUP BY 1 HAVING count(*) > 1;
DELETE FROM {table} AS t USING tidemark_twice WHERE {hash} = h AND t.ctid <> first;
UPDATE {table} SET {count} = n FROM tidemark_twice WHERE {hash} = h;
DROP TABLE tidemark_twice"""


class WideKeys:
    """Which tables have no primary key for being too wide, as one session sees it.

    What it knows holds until the transaction is rolled back, or a table takes another's place:
    then it is to `forget`.
    """

    def __init__(self) -> None:
        self._names: frozenset[tuple[str, str]] | None = None

    @property
    def is_known(self) -> bool:
        """Whether `target` need not ask the database."""
        return self._names is not None

    def forget(self) -> None:
        """Ask again the next time."""
        self._names = None

    def target(self, cursor: Any, table: SinkTable, widened: Collection[SinkTable] = ()) -> Target:
        """The physical table of a view, with the way its rows are found.

        widened: tables that are to be made ready for wide keys, if they are not yet.
        """
        if self._names is None:
            cursor.execute(_WIDE)
            self._names = frozenset(cursor.fetchall())
        target = target_of(table)
        name = (target.schema, target.name)
        if target.is_bag or (name not in self._names and table not in widened):
            return target
        if name in self._names:
            return replace(target, is_wide=True)
        self._names |= {name}
        return widen(cursor, target)


def too_wide(parts: Iterable[SinkPart]) -> set[SinkTable]:
    """The keyed tables with a change whose key may be more than a B-tree takes."""
    return {t for part in parts for t, delta in part.deltas if t.key and _widest(t, delta)}


def _widest(table: SinkTable, delta: Delta) -> bool:
    sizes = np.zeros(len(delta), np.int64)
    types = [table.fields[i].type for i in table.key]
    for text in copy_text.texts_of(types, [delta.columns[i] for i in table.key]):
        sizes += np.diff(text.values)
    return bool(sizes.max(initial=0) > WIDE_BYTES)


def add_key(cursor: Any, target: Target) -> None:
    """Give a table with its first rows its key; InvariantError sink.key_violation."""
    cursor.execute("SAVEPOINT before_key")
    try:
        cursor.execute(sink_target.add_key(target))
    except states.UniqueViolation as error:
        cursor.execute("ROLLBACK TO before_key")
        if not target.is_bag:
            raise key_violation(target, str(error.diag.message_detail)) from None
        hash_column, count = quote_name(target.hash), quote_name(target.count)
        cursor.execute(_ADD_UP.format(hash=hash_column, count=count, table=target.sql))
        cursor.execute(sink_target.add_key(target))
    except states.ProgramLimitExceeded:
        cursor.execute("ROLLBACK TO before_key")
        widen(cursor, target)
        names = ", ".join(_names(target))
        cursor.execute(f"SELECT 1 FROM {target.sql} GROUP BY {names} HAVING count(*) > 1 LIMIT 1")
        if cursor.fetchone() is not None:
            raise key_violation(target, f"two rows have the same {names}") from None


def widen(cursor: Any, target: Target) -> Target:
    """Replace a table's primary key, if it has one, by an index over its hash.

    SinkError sink.dependents when something of the user's refers to the key.
    """
    cursor.execute(
        "SELECT %s::regclass::oid, (SELECT conname FROM pg_constraint "
        "WHERE conrelid = %s::regclass AND contype = 'p')",
        (target.sql, target.sql),
    )
    oid, key = cursor.fetchone()
    steps = [f"ALTER {name} SET NOT NULL" for name in _names(target)]
    if key is not None:
        _drop_key(cursor, target, key)
    wide = replace(target, is_wide=True)
    # Without a primary key, whoever publishes the table could not change it otherwise.
    cursor.execute(f"ALTER TABLE {target.sql} {', '.join(steps)}, REPLICA IDENTITY FULL")
    cursor.execute(
        f"CREATE INDEX {quote_name(f'{WIDE_INDEX}{oid}')} ON {target.sql} "
        f"({sink_target.key_hash(wide, dict(enumerate(_names(target))))})"
    )
    return wide


def _drop_key(cursor: Any, target: Target, key: str) -> None:
    try:
        cursor.execute(f"ALTER TABLE {target.sql} DROP CONSTRAINT {quote_name(key)}")
    except states.DependentObjectsStillExist as error:
        raise SinkError(
            "sink.dependents",
            f'the primary key of "{target.schema}.{target.name}" is too narrow for its rows',
            detail=str(error.diag.message_detail or error),
            hint="drop what refers to the key, then rebuild the view",
        ) from None


def _names(target: Target) -> Iterator[str]:
    return (quote_name(c.name) for c in target.key_columns)
