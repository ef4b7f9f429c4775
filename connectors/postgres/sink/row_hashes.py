"""The hashes of a multiset's rows, renewed after the text of its values has changed.

A row is found by the hash of its text. A renamed label of an enum, or attribute of a composite
type, changes that text while the stored row stays as it is; so does somebody who writes to the
hidden table. Invariant: afterwards each row has the hash of its present text. Rows that have become
alike are one, with their counts added up.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from connectors.postgres.schema import table_guard
from connectors.postgres.schema.history_target import History
from connectors.postgres.schema.sink_target import Target, target_of
from connectors.postgres.schema.trigger_guard import require_ours
from connectors.postgres.session import copy_text
from connectors.postgres.session.quoting import quote_name
from connectors.postgres.sink.sink_reader import hashed_rows_of, hashes_of
from connectors.sink import SinkTable
from dataflow.delta import Column

_MOVED = "CREATE TEMP TABLE tidemark_rehashed (old uuid, new uuid) ON COMMIT DROP"
_RENEW = """
CREATE TEMP TABLE tidemark_renewed ON COMMIT DROP AS
SELECT p.new, t.* FROM ONLY {table} AS t JOIN tidemark_rehashed AS p ON p.old = t.{hash};
DELETE FROM ONLY {table} AS t USING tidemark_rehashed AS p WHERE p.old = t.{hash};
INSERT INTO {table} AS t ({columns})
SELECT DISTINCT ON (new) new, sum({count}) OVER (PARTITION BY new), {own}
FROM tidemark_renewed ON CONFLICT ({hash}) DO UPDATE SET {count} = t.{count} + excluded.{count};
DROP TABLE tidemark_renewed
"""
_RENEW_PAST = """
UPDATE ONLY {table} AS h SET {hash} = p.new FROM tidemark_rehashed AS p WHERE p.old = h.{hash}
"""


def outdated(cursor: Any, dsn: str, table: SinkTable) -> list[bytes]:
    """Return lines of COPY with the stored and the right hash of each row that has another one.

    dsn: of the cursor's session, whose transaction is read-only from here on.
    """
    return list(_outdated(cursor, dsn, table))


def _outdated(cursor: Any, dsn: str, table: SinkTable) -> Iterator[bytes]:
    for stored, delta in hashed_rows_of(cursor, dsn, table):
        right = hashes_of(delta)
        others = np.flatnonzero(_digits(stored) != _digits(right))
        if len(others):
            lines = copy_text.copy_lines([stored.take(others), right.take(others)], len(others))
            yield lines.tobytes()


def renew(cursor: Any, table: SinkTable, history: History | None, lines: list[bytes]) -> None:
    """Store the right hashes; lines: as from `outdated`. The caller commits."""
    require_ours(cursor, table, writes=True)
    target = target_of(table)
    cursor.execute(_MOVED)
    cursor.copy_expert("COPY tidemark_rehashed FROM STDIN", io.BytesIO(b"".join(lines)))
    cursor.execute("ANALYZE tidemark_rehashed")
    table_guard.let_write(cursor)
    cursor.execute(_RENEW.format(**_names(target)))
    if history is not None:
        cursor.execute(_RENEW_PAST.format(table=history.sql, hash=quote_name(target.hash)))


def _digits(texts: Column) -> np.ndarray:
    """Return the 32 digits of each hash as one value."""
    assert texts.data is not None
    found = texts.data[texts.values[0] : texts.values[-1]]
    return np.ascontiguousarray(found).view("S32")


def _names(target: Target) -> dict[str, str]:
    own = ", ".join(quote_name(f.name) for f in target.fields)
    hash_name, count = quote_name(target.hash), quote_name(target.count)
    columns = ", ".join([hash_name, count, *([own] if own else [])])
    return {"table": target.sql, "hash": hash_name, "count": count, "columns": columns, "own": own}
