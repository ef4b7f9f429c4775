"""Apply deltas to sink tables, by size: prepared statements in one round trip, or COPY and a join.

A delta is split into deletes, updates in place and inserts. Each change must meet exactly the rows
it names, else the epoch fails and nothing is written. A wrong key or a table that someone else
changed is never hidden. Callers own the transaction.

Measured on tables of 200,000 and 2M rows: arrays in one statement take 0.2 to 0.8 of COPY's time
below 5,000 rows, and 0.6 to 1.1 of it up to 50,000. Beyond that, their text is the limit. COPY
looks up each row while the batch is small compared with the table; otherwise the planner reads the
whole table. New rows of a keyed table need no join: from some hundreds of rows on, COPY into the
table itself takes the server 0.4 of the time of arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from connectors.postgres.schema import sink_target
from connectors.postgres.schema.history_target import History, Recorded
from connectors.postgres.schema.sink_target import Change, Target
from connectors.postgres.session import copy_text
from connectors.postgres.session.quoting import quote_name
from dataflow.delta import Column, Delta, group_rows, row_hashes
from dataflow.errors import InvariantError

COPY_ROWS = 50_000
COPY_BYTES = 4 << 20
COPIED_ROWS = 2_000
INDEX_SHARE = 0.05

# Planner settings for a batch: look up each row by the index, the writing session's default; or
# join the whole table at once.
LOOKED_UP = {
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
    "enable_nestloop": "on",
}
_JOINED = {name: "on" if way == "off" else "off" for name, way in LOOKED_UP.items()}

Changes = list[tuple[str, list[Column], int]]
# A history that records changes, and the key of the sink's progress.
Past = tuple[History, str] | None


def split_delta(target: Target, delta: Delta) -> Changes:
    """Return [(letter, columns of that change, rows)] in order, without empty ones.

    InvariantError sink.key_violation when a key is inserted or deleted twice.
    """
    parts = _split_multiset(target, delta) if target.is_multiset else _split_keyed(target, delta)
    return [(letter, columns, n) for letter, columns, n in parts if n]


def _split_multiset(target: Target, delta: Delta) -> Changes:
    hashes = copy_text.uuid_texts(*row_hashes(delta.columns, len(delta)))
    out, up = np.flatnonzero(delta.weights < 0), np.flatnonzero(delta.weights > 0)
    types = [c.type for c in target.fields]
    counts = Column(delta.weights)
    added = delta.take(up) if len(out) else delta
    return [
        ("d", [hashes.take(out), _counts(counts.take(out))], len(out)),
        (
            "i",
            [hashes.take(up), _counts(counts.take(up)), *copy_text.texts_of(types, added.columns)],
            len(up),
        ),
    ]


def _split_keyed(target: Target, delta: Delta) -> Changes:
    n = len(delta)
    keys = [delta.columns[i] for i in target.key]
    group, first = group_rows(keys, n)
    is_new = delta.weights > 0
    news = np.bincount(group[is_new], minlength=len(first))
    olds = np.bincount(group[~is_new], minlength=len(first))
    if (
        news.max(initial=0) > 1
        or olds.max(initial=0) > 1
        or np.abs(delta.weights).max(initial=0) > 1
    ):
        row = int(np.flatnonzero((news > 1)[group] | (olds > 1)[group] | (delta.weights**2 > 1))[0])
        raise key_violation(target, _row_text(target, keys, row))
    rest = [i for i in range(len(target.fields)) if i not in target.key]
    by_letter = {
        "d": (np.flatnonzero(~is_new & (news[group] == 0)), list(target.key)),
        "u": (np.flatnonzero(is_new & (olds[group] == 1)), [*target.key, *rest]),
        "i": (np.flatnonzero(is_new & (olds[group] == 0)), list(range(len(target.fields)))),
    }
    parts: Changes = []
    for letter, (rows, index) in by_letter.items():
        picked = [delta.columns[i].take(rows) for i in index]
        types = [target.fields[i].type for i in index]
        parts.append((letter, copy_text.texts_of(types, picked) if len(rows) else [], len(rows)))
    return parts


def key_violation(target: Target, shown: str) -> InvariantError:
    """Return the error for a view whose derived key does not hold."""
    return InvariantError(
        "sink.key_violation",
        f'key of table "{target.schema}.{target.name}" does not hold',
        detail=shown,
        hint="Tidemark derived the view's key wrongly; please report the query",
    )


class Preparer:
    """The prepared statements of one session, by target and change."""

    def __init__(self) -> None:
        self._names: dict[tuple[Target, Past, str], str] = {}

    def statements(
        self, cursor: Any, target: Target, changes: Changes, past: Past = None
    ) -> list[bytes]:
        """Return EXECUTE statements that apply the changes; prepare new ones on `cursor`.

        past: where they are recorded.
        """
        available = sink_target.changes_of(target)
        out = []
        for letter, columns, n in changes:
            name = self._names.get((target, past, letter))
            if name is None:
                if letter not in available:
                    raise key_violation(target, "an update of a row that has only key columns")
                name = f"tm{len(self._names)}"
                recorded = Recorded(*past, letter) if past else None
                cursor.execute(_prepare(name, target, available[letter], recorded))
                self._names[target, past, letter] = name
            arrays = b",".join(copy_text.array_literal(c) for c in columns)
            out.append(b"EXECUTE %s(%d,%s)" % (name.encode(), n, arrays))
        return out


def _prepare(name: str, target: Target, change: Change, recorded: Recorded | None) -> str:
    types = ", ".join(sink_target.array_type(c.type) for c in change.columns)
    rows = sink_target.unnest_rows(change, 2)
    sql = recorded.expected(change, rows) if recorded else None
    return f"PREPARE {name}(bigint, {types}) AS {sql or sink_target.expected(target, change, rows)}"


def is_large(changes: Changes) -> bool:
    """Return whether COPY is faster, or the only way: a statement has a limit in bytes."""
    rows = sum(n for _, _, n in changes)
    return rows > COPY_ROWS or sum(_bytes(c) for _, cs, _ in changes for c in cs) > COPY_BYTES


def apply_by_copy(
    cursor: Any,
    target: Target,
    changes: Changes,
    around: tuple[str, str] = ("", ""),
    past: Past = None,
) -> None:
    """Apply each change through a temporary table, inside the caller's transaction.

    around: statements to run before and after each one that changes the target. past: as of
    `Preparer`.
    """
    before, after = around
    cursor.execute("SELECT reltuples FROM pg_class WHERE oid = %s::regclass", (target.sql,))
    total = max(float(cursor.fetchone()[0]), 0.0)
    available = sink_target.changes_of(target)
    for letter, columns, n in changes:
        if letter not in available:
            raise key_violation(target, "an update of a row that has only key columns")
        change = available[letter]
        fields = ", ".join(f"c{k} {c.type.name}" for k, c in enumerate(change.columns, 1))
        cursor.execute(f"CREATE TEMP TABLE tidemark_batch ({fields}) ON COMMIT DROP")
        reader = copy_text.ChunkReader(lines_of(columns, n))
        cursor.copy_expert("COPY pg_temp.tidemark_batch FROM STDIN", reader)
        is_looked_up = n < total * INDEX_SHARE
        if not is_looked_up:
            cursor.execute(f"{_set(_JOINED)} ANALYZE pg_temp.tidemark_batch")
        rows = "pg_temp.tidemark_batch AS u"
        counting = Recorded(*past, letter) if past else sink_target
        counted = counting.counted(change, rows, is_looked_up=is_looked_up)
        cursor.execute(f"{before};{counted}")
        met = cursor.fetchone()[0]
        if after:
            cursor.execute(after)
        if not is_looked_up:
            # Statements planned later in the transaction stay cached for the session, and are for
            # few rows.
            cursor.execute(_set(LOOKED_UP))
        cursor.execute("DROP TABLE pg_temp.tidemark_batch")
        if met != n:
            raise rows_missing(f"{met} of {n} rows found in {target.schema}.{target.name}")


def _set(ways: Mapping[str, str]) -> str:
    return "".join(f"SET LOCAL {name} = {way};" for name, way in ways.items())


def take_copied(target: Target, changes: Changes) -> Changes:
    """Remove and return the inserts, if they are many and can be copied into the table.

    Apply them after the other changes. Not for a multiset, whose rows may exist, nor for a wide
    key, where only the statement detects duplicates.
    """
    if target.is_multiset or target.is_wide or not changes:
        return []
    letter, _, n = changes[-1]
    return [changes.pop()] if letter == "i" and n >= COPIED_ROWS else []


def copy_rows(cursor: Any, target: Target, columns: Sequence[Column], n: int) -> None:
    """Insert n rows, passed as texts, inside the caller's transaction."""
    names = ", ".join(quote_name(c.name) for c in target.columns)
    reader = copy_text.ChunkReader(lines_of(columns, n))
    cursor.copy_expert(f"COPY {target.sql} ({names}) FROM STDIN", reader)
    if cursor.rowcount != n:
        raise rows_missing(f"{cursor.rowcount} of {n} rows went into {target.schema}.{target.name}")


def rows_missing(shown: str) -> InvariantError:
    """Return the error for a table without the rows that an epoch changes."""
    return InvariantError(
        "sink.row_missing",
        "the sink lacks rows that an epoch changes",
        detail=shown,
        hint="someone else wrote to the table; rebuild the view, or drop it",
    )


def lines_of(texts: Sequence[Column], n: int) -> Any:
    """Yield COPY lines of text columns, in chunks of bounded size; a row is never split."""
    ends = np.cumsum(sum((np.diff(c.values) for c in texts), np.zeros(n, np.int64)))
    start = sent = 0
    while start < n:
        fitting = int(np.searchsorted(ends, sent + copy_text.CHUNK_BYTES, "right"))
        stop = min(start + copy_text.CHUNK_ROWS, n, max(fitting, start + 1))
        yield copy_text.copy_lines([c.slice(start, stop) for c in texts], stop - start)
        start, sent = stop, int(ends[stop - 1])


def _counts(column: Column) -> Column:
    return copy_text.texts_of([sink_target.INT8], [column])[0]


def _bytes(column: Column) -> int:
    return int(column.values[-1] - column.values[0])


def _row_text(target: Target, keys: list[Column], row: int) -> str:
    types = [target.fields[i].type for i in target.key]
    index = np.array([row])
    texts = copy_text.texts_of(types, [k.take(index) for k in keys])
    names = [target.fields[i].name for i in target.key]
    return ", ".join(f"{n} = {t.texts()[0]}" for n, t in zip(names, texts, strict=True))
