"""What to write where PostgreSQL refuses to compare columns of two types.

PostgreSQL names the types alone: "operator does not exist: bigint = text".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from dataflow.errors import SqlError
from dataflow.lexer import Token, tokens

_OPERATOR = re.compile(r"operator does not exist: (.+?) (=|<>|!=|<|<=|>|>=) (.+)")
_USING = re.compile(r"JOIN/USING types (.+) and (.+) cannot be matched")
_TEXTS = ("text", "character varying", "character")
_OPERATOR_CHARACTERS = frozenset("=<>!")


class Mismatch(NamedTuple):
    """detail: both columns with their types. hint: the casts. offset: where, None if unknown."""

    detail: str
    hint: str
    offset: int | None


def mismatch_of(message: str, sql: str, offset: int | None) -> Mismatch | None:
    """Return which columns are compared at an offset of a query, from PostgreSQL's message.

    None for another message, and where an operand is not a column.

    >>> sql = 'SELECT FROM orders o JOIN users u ON u."Id" = o.user_id'
    >>> found = mismatch_of("operator does not exist: text = bigint", sql, sql.index("="))
    >>> found.detail
    'u."Id" is text, o.user_id is bigint'
    >>> found.hint
    'cast one of them: u."Id"::bigint = o.user_id, or u."Id" = o.user_id::text'
    """
    try:
        found = tokens(sql)
    except SqlError:
        return None
    if (types := _USING.fullmatch(message)) is not None:
        return _in_using(sql, found, types[1], types[2])
    compared = _OPERATOR.fullmatch(message)
    at = next((i for i, token in enumerate(found) if token.offset == offset), None)
    if compared is None or at is None:
        return None
    left = _before(sql, found, at)
    right = _after(sql, found, at)
    if left is None or right is None:
        return None
    left_type, operator, right_type = compared.groups()
    detail = f"{left} is {left_type}, {right} is {right_type}"
    hint = f"cast one of them: {_casts(left, left_type, operator, right, right_type)}"
    return Mismatch(detail, hint, offset)


def _casts(left: str, left_type: str, operator: str, right: str, right_type: str) -> str:
    if left_type in _TEXTS:
        return f"{left}::{right_type} {operator} {right}, or {left} {operator} {right}::text"
    if right_type in _TEXTS:
        return f"{left} {operator} {right}::{left_type}, or {left}::text {operator} {right}"
    return f"{left}::text {operator} {right}::text"


def _in_using(sql: str, found: Sequence[Token], left_type: str, right_type: str) -> Mismatch | None:
    """Return the column of the only USING; PostgreSQL tells no position."""
    places = [i for i, token in enumerate(found) if (token.kind, token.text) == ("word", "using")]
    if len(places) != 1:
        return None
    named = found[places[0] + 1 : places[0] + 4]
    if [token.text for token in named[::2]] != ["(", ")"]:
        return None
    name = _text(sql, named[1])
    casts = _casts(f"a.{name}", left_type, "=", f"b.{name}", right_type)
    detail = f"{name} is {left_type} in one table and {right_type} in the other"
    return Mismatch(detail, f"join ON, and cast one of them: ON {casts}", named[1].offset)


def _before(sql: str, found: Sequence[Token], at: int) -> str | None:
    """Return the column that ends before a token."""
    first = at - 1
    if first < 0 or not _is_name(found[first]):
        return None
    while first >= 2 and found[first - 1].text == "." and _is_name(found[first - 2]):
        first -= 2
    if first and found[first - 1].text in (":", "."):
        # The type of a cast.
        return None
    return _column(sql, found[first:at])


def _after(sql: str, found: Sequence[Token], at: int) -> str | None:
    """Return the column that begins behind an operator."""
    while at < len(found) and found[at].text in _OPERATOR_CHARACTERS:
        at += 1
    first = at
    while at < len(found) and _is_name(found[at]):
        at += 1
        if at < len(found) and found[at].text == ".":
            at += 1
            continue
        break
    if at == first or (at < len(found) and found[at].text in ("(", ":", "[")):
        return None
    return _column(sql, found[first:at])


def _is_name(token: Token) -> bool:
    return token.kind in ("word", "quoted")


def _column(sql: str, parts: Sequence[Token]) -> str:
    return "".join(_text(sql, token) for token in parts)


def _text(sql: str, token: Token) -> str:
    """Return a token as it is written."""
    return sql[token.offset : token.offset + len(token.text)]
