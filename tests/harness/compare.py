"""Answers as multisets of rows in PostgreSQL's own text, and the differences between two of them.

Invariant: equal means the same column names, the same types as format_type prints them, and the
same rows as often as each other, character for character (so numeric scale counts); only floats
may differ by 1e-9 of their size.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from connectors.postgres.query.answer_comparison import Row, parse_line, without_near
from dataflow.delta import Delta
from dataflow.schema import Field
from dataflow.types import SESSION_SETTINGS, UTC
from dataflow.values import to_text

FLOATS = ("real", "double precision")
SHOWN_ROWS = 12


@dataclass
class Answer:
    """Columns as (name, type) and rows with how often each is there."""

    columns: tuple[tuple[str, str], ...]
    rows: Counter[Row] = field(default_factory=Counter)

    def add(self, delta: Delta, fields: Sequence[Field]) -> None:
        """Apply a delta of these fields."""
        for row, weight in zip(texts_of(delta, fields), delta.weights.tolist(), strict=True):
            self.rows[row] += weight
            if self.rows[row] == 0:
                del self.rows[row]


def empty_answer(fields: Sequence[Field]) -> Answer:
    """No rows yet, in the columns of these fields."""
    return Answer(tuple((f.name, f.type.name) for f in fields))


def texts_of(delta: Delta, fields: Sequence[Field]) -> Iterable[Row]:
    """The rows of a delta as PostgreSQL prints them."""
    if not fields:
        return [()] * len(delta)
    columns = [to_text(f.type, c).texts() for f, c in zip(fields, delta.columns, strict=True)]
    return zip(*columns, strict=True)


def pin_session(connection: Any) -> None:
    """Set what the text output of values depends on."""
    with connection.cursor() as cursor:
        for name, value in SESSION_SETTINGS.items():
            cursor.execute(f"SET {name} = %s", (value,))


_ASKED = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = 'pg_temp.asked'::regclass AND attnum > 0 ORDER BY attnum
"""
_KEPT = """
WITH RECURSIVE kept AS (
    SELECT attnum, attname, atttypid AS type, atttypmod AS modifier FROM pg_attribute
    WHERE attrelid = 'pg_temp.asked'::regclass AND attnum > 0
    UNION ALL
    SELECT attnum, attname, typbasetype, typtypmod FROM kept JOIN pg_type t ON t.oid = kept.type
    WHERE typtype = 'd')
SELECT attname, format_type(type, modifier) FROM kept JOIN pg_type t ON t.oid = type
WHERE typtype <> 'd' ORDER BY attnum
"""


def columns_of_query(
    connection: Any, sql: str, *, is_kept: bool = False
) -> tuple[tuple[str, str], ...]:
    """Names and types of a query's columns, from a temporary view that is rolled back.

    Types as with an empty search_path: with their schema, unless that is pg_catalog. is_kept: as a
    view's table has them, which keeps a domain as the type below it.
    """
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        try:
            cursor.execute(f"CREATE TEMP VIEW asked AS {sql}")
            cursor.execute("SET LOCAL search_path = ''")
            cursor.execute(_KEPT if is_kept else _ASKED)
            return tuple(cursor.fetchall())
        finally:
            cursor.execute("ROLLBACK")


def rows_of_query(connection: Any, sql: str, time_zone: str = UTC) -> Counter[Row]:
    """PostgreSQL's answer now, computed in a time zone, in the text of its output functions."""
    out = io.BytesIO()
    with connection.cursor() as cursor:
        if time_zone != UTC:
            cursor.execute(
                f"SET TimeZone TO '{time_zone}'; CREATE TEMP TABLE zoned AS {sql};"
                " SET TimeZone TO 'UTC'"
            )
            sql = "SELECT * FROM zoned"
        cursor.copy_expert(f"COPY ({sql}) TO STDOUT", out)
        if time_zone != UTC:
            cursor.execute("DROP TABLE zoned")
    counts = Counter(out.getvalue().decode().split("\n")[:-1])
    return Counter({parse_line(line): count for line, count in counts.items()})


def difference(expected: Answer, got: Answer) -> str:
    """Return what is wrong with `got`, for human readers; "" when nothing is."""
    if expected.columns != got.columns:
        return f"columns: expected {expected.columns}\n              got {got.columns}"
    if expected.rows == got.rows:
        return ""
    missing, surplus = expected.rows - got.rows, got.rows - expected.rows
    surplus += Counter({row: -count for row, count in got.rows.items() if count < 0})
    inexact = [i for i, (_, name) in enumerate(expected.columns) if name in FLOATS]
    if inexact:
        missing, surplus = without_near(missing, surplus, inexact)
    if not missing and not surplus:
        return ""
    names = ", ".join(name for name, _ in expected.columns)
    return "\n".join([f"({names})", *_show("missing", missing), *_show("surplus", surplus)])


def _show(title: str, rows: Counter[Row]) -> list[str]:
    lines = [f"  {title} {count}x {row}" for row, count in list(rows.items())[:SHOWN_ROWS]]
    if len(rows) > SHOWN_ROWS:
        lines.append(f"  {title}: {len(rows) - SHOWN_ROWS} more")
    return lines
