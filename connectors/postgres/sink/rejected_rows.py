"""Write an epoch's dead letters to tidemark.dead_letters, in the epoch's own transaction.

Invariant: a record is in the table once, however often it was read.
"""

from __future__ import annotations

from typing import Any

from psycopg2 import Binary
from psycopg2.extras import execute_values

from connectors.feed_source import REJECTED_COLUMNS
from dataflow.delta import Delta

_COLUMNS = ", ".join(REJECTED_COLUMNS)
_INSERT = (
    f"INSERT INTO tidemark.dead_letters (sink_key, {_COLUMNS}) VALUES %s "
    "ON CONFLICT (sink_key, source, relation, position) DO UPDATE SET code = excluded.code, "
    "reason = excluded.reason, desired = NULL"
)
_DELETE = (
    "DELETE FROM tidemark.dead_letters AS d "
    "USING (VALUES %s) AS v (sink_key, source, relation, position) "
    "WHERE (d.sink_key, d.source, d.relation, d.position) "
    "= (v.sink_key, v.source, v.relation, v.position)"
)
_PAGE = 500


def write_rejected(cursor: Any, sink_key: str, rejected: Delta) -> None:
    """Write an epoch's rejected rows: insert new ones, delete those that are resolved."""
    added, resolved = [], []
    for row, weight in rejected.rows():
        source, relation, position, code, reason, key, value = row
        words = [sink_key, *map(_text, (source, relation, position))]
        if weight < 0:
            resolved.append(words)
        else:
            added.append([*words, _text(code), _text(reason), _raw(key), _raw(value)])
    if resolved:
        execute_values(cursor, _DELETE, resolved, page_size=_PAGE)
    if added:
        # The last of several at one position counts.
        unique = {tuple(row[:4]): row for row in added}
        execute_values(cursor, _INSERT, list(unique.values()), page_size=_PAGE)


def _raw(value: bytes | str | None) -> Any:
    return None if value is None else Binary(value.encode() if isinstance(value, str) else value)


def _text(value: bytes | str | None) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else value or ""
    return text.replace("\x00", "\ufffd")
