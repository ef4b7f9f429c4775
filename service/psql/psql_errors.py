"""Our errors in psql's form: the query line with a caret, and the error code in the detail.

PL/pgSQL's RAISE cannot set a position, so the detail contains the line and the caret. They look
like psql's own (libpq's reportErrorPosition): at most 60 columns; wide characters count as two.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

from connectors.postgres.catalog.requests import Outcome
from connectors.postgres.session.sqlstates import sqlstate_of
from dataflow.errors import Position, TidemarkError
from service.runtime.redaction import scrub

WIDTH = 60
RIGHT = 10


def failure_of(
    error: TidemarkError, query: str = "", facts: Mapping[str, Any] | None = None
) -> Outcome:
    """Return the outcome that makes the calling procedure raise the error, without secrets.

    facts: further results, stored with the request.
    """
    details = [error.detail] if error.detail else []
    details.append(f"code: {error.code}")
    if error.position is not None and query:
        details.append(marked_line(query, error.position))
    return Outcome(
        facts=facts or {},
        code=error.code,
        sqlstate=sqlstate_of(error.code),
        error=scrub(error.what),
        detail=scrub("\n".join(details)),
        hint=scrub(error.hint),
    )


def marked_line(query: str, position: Position) -> str:
    """Return the query line with a caret below the position.

    >>> print(marked_line("SELECT id FRM t x", Position(1, 15)))
    LINE 1: SELECT id FRM t x
                          ^
    """
    lines = query.splitlines() or [""]
    line = lines[min(position.line, len(lines)) - 1].expandtabs(1)
    begin, end = _cut(line, position.column - 1)
    before = f"LINE {position.line}: " + ("..." if begin else "")
    shown = line[begin:end] + ("..." if end < len(line) else "")
    return f"{before}{shown}\n{' ' * (len(before) + _width(line[begin : position.column - 1]))}^"


def _cut(line: str, column: int) -> tuple[int, int]:
    """Return (begin, end) of the part to show: the whole line, or WIDTH columns around `column`."""
    if _width(line) <= WIDTH:
        return 0, len(line)
    end = min(len(line), column + RIGHT) if _width(line[: column + RIGHT]) > WIDTH else len(line)
    begin = 0
    while _width(line[begin:end]) > WIDTH:
        if begin < column and end - column <= RIGHT:
            begin += 1
        else:
            end -= 1
    return begin, end


def _width(text: str) -> int:
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )
