"""The key of a view's table: a primary key, or for wide keys an index over a hash of the key.

A B-tree takes no entry of more than 2,704 bytes, and a key may be a text of any length. A table
whose key does not fit gets, from then on, an index over PostgreSQL's own 64-bit hash of the key's
columns. Rows are looked up by the hash and compared by the columns. A duplicate insert is skipped
and counted as missing. The index's name marks such a table and follows its renames. Invariant: a
row is found by its key, whatever its size.
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

# Below the limit of an entry: it has a header, and several columns have padding.
WIDE_BYTES = 2_000

_WIDE = rf"""SELECT n.nspname, t.relname FROM pg_class AS c
JOIN pg_index AS i ON i.indexrelid = c.oid JOIN pg_class AS t ON t.oid = i.indrelid
JOIN pg_namespace AS n ON n.oid = t.relnamespace
WHERE c.relname LIKE '{WIDE_INDEX.replace("_", chr(92) + "_")}%%' AND c.relkind = 'i'"""

# A multiset's rows may come in parts that contain the same row: add the counts, store one.
_ADD_UP = """CREATE TEMP TABLE tidemark_twice ON COMMIT DROP AS
SELECT {hash} AS h, sum({count}) AS n, min(ctid) AS first FROM {table}
GROUP BY 1 HAVING count(*) > 1;
DELETE FROM {table} AS t USING tidemark_twice WHERE {hash} = h AND t.ctid <> first;
UPDATE {table} SET {count} = n FROM tidemark_twice WHERE {hash} = h;
DROP TABLE tidemark_twice"""


class WideKeys:
    """The tables with wide keys, cached for one session.

    Valid until the transaction is rolled back or a table is replaced: then call `forget`.
    """

    def __init__(self) -> None:
        self._names: frozenset[tuple[str, str]] | None = None

    @property
    def is_known(self) -> bool:
        """Return whether `target` can answer without the database."""
        return self._names is not None

    def forget(self) -> None:
        """Query the database again the next time."""
        self._names = None

    def target(self, cursor: Any, table: SinkTable, widened: Collection[SinkTable] = ()) -> Target:
        """Return the physical table of a view, with the way to find its rows.

        widened: tables to prepare for wide keys, if they are not yet.
        """
        if self._names is None:
            cursor.execute(_WIDE)
            self._names = frozenset(cursor.fetchall())
        target = target_of(table)
        name = (target.schema, target.name)
        if target.is_multiset or (name not in self._names and table not in widened):
            return target
        if name in self._names:
            return replace(target, is_wide=True)
        self._names |= {name}
        return widen(cursor, target)


def too_wide(parts: Iterable[SinkPart]) -> set[SinkTable]:
    """Return the keyed tables with a change whose key may exceed a B-tree's limit."""
    return {t for part in parts for t, delta in part.deltas if t.key and _widest(t, delta)}


def _widest(table: SinkTable, delta: Delta) -> bool:
    sizes = np.zeros(len(delta), np.int64)
    types = [table.fields[i].type for i in table.key]
    for text in copy_text.texts_of(types, [delta.columns[i] for i in table.key]):
        sizes += np.diff(text.values)
    return bool(sizes.max(initial=0) > WIDE_BYTES)


def add_key(cursor: Any, target: Target) -> None:
    """Add the key to a table with its initial rows; InvariantError sink.key_violation."""
    cursor.execute("SAVEPOINT before_key")
    try:
        cursor.execute(sink_target.add_key(target))
    except states.UniqueViolation as error:
        cursor.execute("ROLLBACK TO before_key")
        if not target.is_multiset:
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

    SinkError sink.dependents when a user's object refers to the key.
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
    # Without a primary key, a table that someone publishes needs another replica identity.
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
            f'table "{target.schema}.{target.name}" has rows too wide for its primary key',
            detail=str(error.diag.message_detail or error),
            hint="drop the objects that refer to the key, then rebuild the view",
        ) from None


def _names(target: Target) -> Iterator[str]:
    return (quote_name(c.name) for c in target.key_columns)
