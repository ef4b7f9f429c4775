"""Compare a function's new rows with its table's rows, and write only the difference.

The rows are copied into a temporary table, which costs no WAL, and compared there: by key if there
is one, else as multisets. Two values are the same only when they are identical in PostgreSQL's
binary form, since 1.0 and 1.00 are equal but do not look alike. The caller owns the transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any

from psycopg2.sql import SQL, Composable, Identifier

_WORK_MEM = "256MB"


class BadKeys(Exception):
    """Rows without a key, or with a duplicate one. where: which row."""

    def __init__(self, is_null: bool, where: str, detail: str) -> None:
        super().__init__(where)
        self.is_null = is_null
        self.where = where
        self.detail = detail


def fill(
    cursor: Any,
    title: Composable,
    columns: Sequence[tuple[str, str]],
    key: Sequence[str],
    lines: IO[bytes],
    *,
    number: int,
) -> tuple[int, int, int, int]:
    """Return (rows, inserted, updated, deleted). number: of the reading in its transaction.

    BadKeys.
    """
    names = [n for n, _ in columns]
    # Keep both sides in memory, if they fit; JIT takes longer than statements that run once.
    cursor.execute(f"SET LOCAL work_mem = '{_WORK_MEM}'; SET LOCAL jit = off")
    cursor.execute(SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(title))
    cursor.execute(SQL("SELECT FROM {} LIMIT 1").format(title))
    if cursor.rowcount == 0:
        rows = _copy(cursor, title, names, lines)
        cursor.execute(SQL("ANALYZE {}").format(title))
        return rows, rows, 0, 0
    new = Identifier("pg_temp", f"tidemark_new_{number}")
    cursor.execute(SQL("CREATE TEMP TABLE {} (LIKE {})").format(_last(new), title))
    # Key columns are checked for NULL below.
    for name in key:
        loosen = SQL("ALTER TABLE {} ALTER COLUMN {} DROP NOT NULL")
        cursor.execute(loosen.format(new, Identifier(name)))
    rows = _copy(cursor, new, names, lines)
    cursor.execute(SQL("ANALYZE {}").format(new))
    if key:
        changes = _by_key(cursor, title, new, names, key)
    else:
        changes = _as_multisets(cursor, title, new, names)
    cursor.execute(SQL("DROP TABLE {}").format(new))
    return rows, *changes


def _last(name: Identifier) -> Identifier:
    return Identifier(name.strings[-1])


def _copy(cursor: Any, table: Composable, names: Sequence[str], lines: IO[bytes]) -> int:
    columns = SQL(", ").join(map(Identifier, names))
    statement = SQL("COPY {} ({}) FROM STDIN").format(table, columns).as_string(cursor)
    cursor.copy_expert(statement, lines, 1 << 18)
    return cursor.rowcount


def _row(alias: str, names: Sequence[str]) -> Composable:
    return SQL("ROW({})").format(SQL(", ").join(Identifier(alias, n) for n in names))


_KEYED = """
CREATE TEMP TABLE {difference} AS
SELECT o.ctid AS old_ctid, n.ctid AS new_ctid FROM {old} AS o FULL JOIN {new} AS n ON {match}
WHERE o.ctid IS NULL OR n.ctid IS NULL
    OR {old_row}::record OPERATOR(pg_catalog.*<>) {new_row}::record
"""
_COUNTS = """
SELECT count(*) FILTER (WHERE old_ctid IS NULL), count(*) FILTER (WHERE new_ctid IS NULL),
    (SELECT count(*) FROM {old}) FROM {difference}
"""
_DELETE = """
DELETE FROM {old} WHERE ctid = ANY (ARRAY(
    SELECT old_ctid FROM {difference} WHERE new_ctid IS NULL))
"""
_UPDATE = """
UPDATE {old} AS o SET ({names}) = ROW({values}) FROM {difference} AS d, {new} AS n
WHERE o.ctid = d.old_ctid AND n.ctid = d.new_ctid
"""
_INSERT = """
INSERT INTO {old} ({names}) SELECT {values} FROM {difference} AS d, {new} AS n
WHERE d.old_ctid IS NULL AND n.ctid = d.new_ctid
"""


def _by_key(
    cursor: Any, old: Composable, new: Identifier, names: Sequence[str], key: Sequence[str]
) -> tuple[int, int, int]:
    parts = _parts(old, new, names)
    parts["match"] = SQL(" AND ").join(
        SQL("{} = {}").format(Identifier("o", k), Identifier("n", k)) for k in key
    )
    cursor.execute(SQL(_KEYED).format(**parts))
    different = cursor.rowcount
    cursor.execute(SQL(_COUNTS).format(**parts))
    inserted, deleted, before = cursor.fetchone()
    cursor.execute(SQL("SELECT count(*) FROM {}").format(new))
    (after,) = cursor.fetchone()
    # Each row of one side matched at most one of the other, unless a key is duplicate.
    if inserted or after != before - deleted:
        _require_keys(cursor, new, key)
    updated = different - inserted - deleted
    for count, statement in ((deleted, _DELETE), (updated, _UPDATE), (inserted, _INSERT)):
        if count:
            cursor.execute(SQL(statement).format(**parts))
    cursor.execute(SQL("DROP TABLE {difference}").format(**parts))
    return inserted, updated, deleted


def _parts(old: Composable, new: Identifier, names: Sequence[str]) -> dict[str, Composable]:
    difference = f"{new.strings[-1]}_difference"
    return {
        "old": old,
        "new": new,
        "difference": Identifier(difference),
        "names": SQL(", ").join(map(Identifier, names)),
        "values": SQL(", ").join(Identifier("n", n) for n in names),
        "old_row": _row("o", names),
        "new_row": _row("n", names),
    }


def _require_keys(cursor: Any, new: Composable, key: Sequence[str]) -> None:
    """Raise BadKeys when a row has no key, or two rows share one."""
    keys = SQL(", ").join(map(Identifier, key))
    lacks = SQL(" OR ").join(SQL("{} IS NULL").format(Identifier(k)) for k in key)
    cursor.execute(SQL("SELECT min(ctid) FROM {} WHERE {}").format(new, lacks))
    (row_ctid,) = cursor.fetchone()
    if row_ctid is not None:
        raise BadKeys(True, f"row {_number(cursor, new, row_ctid)}", f"key: {', '.join(key)}")
    cursor.execute(
        SQL(
            "SELECT (array_agg(ctid ORDER BY ctid))[2], min(ROW({keys})::text) FROM {new} "
            "GROUP BY {keys} HAVING count(*) > 1 ORDER BY 1 LIMIT 1"
        ).format(new=new, keys=keys)
    )
    found = cursor.fetchone()
    if found is not None:
        row_ctid, shown = found
        raise BadKeys(False, f"row {_number(cursor, new, row_ctid)}", f"key: {shown}")


def _number(cursor: Any, new: Composable, row_ctid: str) -> int:
    """Return the number of a reading's row from its ctid: rows are stored in order of arrival."""
    cursor.execute(SQL("SELECT count(*) FROM {} WHERE ctid <= %s::tid").format(new), (row_ctid,))
    return cursor.fetchone()[0]


_MULTISETS = """
CREATE TEMP TABLE {difference} AS
SELECT line, sum(count)::bigint AS count FROM (
    SELECT {new_row}::text COLLATE "C" AS line, 1 AS count FROM {new} AS n
    UNION ALL SELECT {old_row}::text COLLATE "C", -1 FROM {old} AS o
) AS both_sides GROUP BY line HAVING sum(count) <> 0
"""
# Of equal rows, delete any, but only so many.
_FEWER = """
DELETE FROM {old} WHERE ctid = ANY (ARRAY(
    SELECT row_ctid FROM (
        SELECT o.ctid AS row_ctid, row_number() OVER (PARTITION BY d.line) AS turn, -d.count AS most
        FROM {old} AS o JOIN {difference} AS d ON {old_row}::text COLLATE "C" = d.line
        WHERE d.count < 0
    ) AS r WHERE turn <= most))
"""
_MORE = """
INSERT INTO {old} ({names}) SELECT {names} FROM {new} WHERE ctid = ANY (ARRAY(
    SELECT row_ctid FROM (
        SELECT n.ctid AS row_ctid, row_number() OVER (PARTITION BY d.line) AS turn, d.count AS most
        FROM {new} AS n JOIN {difference} AS d ON {new_row}::text COLLATE "C" = d.line
        WHERE d.count > 0
    ) AS r WHERE turn <= most))
"""


def _as_multisets(
    cursor: Any, old: Composable, new: Identifier, names: Sequence[str]
) -> tuple[int, int, int]:
    parts = _parts(old, new, names)
    cursor.execute(SQL(_MULTISETS).format(**parts))
    inserted = deleted = 0
    if cursor.rowcount:
        cursor.execute(SQL(_FEWER).format(**parts))
        deleted = cursor.rowcount
        cursor.execute(SQL(_MORE).format(**parts))
        inserted = cursor.rowcount
    cursor.execute(SQL("DROP TABLE {difference}").format(**parts))
    return inserted, 0, deleted
