"""Answers as bags of rows in PostgreSQL's own text, and the differences between two of them.

Invariant: equal means the same column names, the same types as format_type prints them, and the
same rows as often as each other, character for character (so numeric scale counts); only floats
may differ by 1e-9 of their size.
"""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dataflow.delta import Delta
from dataflow.schema import Field
from dataflow.types import SESSION_SETTINGS
from dataflow.values import to_text

Row = tuple[str | None, ...]
FLOATS = ("real", "double precision")
TOLERANCE = 1e-9
SHOWN_ROWS = 12
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


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


def columns_of_query(connection: Any, sql: str) -> tuple[tuple[str, str], ...]:
    """Names and types of a query's columns, from a temporary view that is rolled back.

    Types as with an empty search_path: with their schema, unless that is pg_catalog.
    """
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        try:
            cursor.execute(f"CREATE TEMP VIEW asked AS {sql}")
            cursor.execute("SET LOCAL search_path = ''")
            cursor.execute(
                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
                "WHERE attrelid = 'pg_temp.asked'::regclass AND attnum > 0 ORDER BY attnum"
            )
            return tuple(cursor.fetchall())
        finally:
            cursor.execute("ROLLBACK")


def rows_of_query(connection: Any, sql: str) -> Counter[Row]:
    """PostgreSQL's answer now, in the text of its output functions."""
    out = io.BytesIO()
    with connection.cursor() as cursor:
        cursor.copy_expert(f"COPY ({sql}) TO STDOUT", out)
    counts = Counter(out.getvalue().decode().split("\n")[:-1])
    return Counter({_parse(line): count for line, count in counts.items()})


def difference(expected: Answer, got: Answer) -> str:
    """What is wrong with `got`, for people; "" when nothing is."""
    if expected.columns != got.columns:
        return f"columns: expected {expected.columns}\n              got {got.columns}"
    if expected.rows == got.rows:
        return ""
    missing, surplus = expected.rows - got.rows, got.rows - expected.rows
    surplus += Counter({row: -count for row, count in got.rows.items() if count < 0})
    inexact = [i for i, (_, name) in enumerate(expected.columns) if name in FLOATS]
    if inexact:
        missing, surplus = _without_near(missing, surplus, inexact)
    if not missing and not surplus:
        return ""
    names = ", ".join(name for name, _ in expected.columns)
    return "\n".join([f"({names})", *_show("missing", missing), *_show("surplus", surplus)])


def _parse(line: str) -> Row:
    return tuple(None if cell == "\\N" else _unescape(cell) for cell in line.split("\t"))


def _unescape(cell: str) -> str:
    if "\\" not in cell:
        return cell
    out, at = [], 0
    while at < len(cell):
        if cell[at] == "\\":
            at += 1
            out.append(_ESCAPES.get(cell[at], cell[at]))
        else:
            out.append(cell[at])
        at += 1
    return "".join(out)


def _without_near(
    left: Counter[Row], right: Counter[Row], inexact: list[int]
) -> tuple[Counter[Row], Counter[Row]]:
    """Both bags without the rows that pair up when floats may differ a little."""
    rest = list(right.elements())
    unpaired = []
    for row in left.elements():
        match = next((r for r in rest if _is_near(row, r, inexact)), None)
        if match is None:
            unpaired.append(row)
        else:
            rest.remove(match)
    return Counter(unpaired), Counter(rest)


def _is_near(left: Row, right: Row, inexact: list[int]) -> bool:
    for i, (a, b) in enumerate(zip(left, right, strict=True)):
        if a == b:
            continue
        if i not in inexact or a is None or b is None:
            return False
        if not math.isclose(float(a), float(b), rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            return False
    return True


def _show(title: str, rows: Counter[Row]) -> list[str]:
    lines = [f"  {title} {count}x {row}" for row, count in list(rows.items())[:SHOWN_ROWS]]
    if len(rows) > SHOWN_ROWS:
        lines.append(f"  {title}: {len(rows) - SHOWN_ROWS} more")
    return lines
