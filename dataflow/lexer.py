"""Tokens of the user's SQL text, as PostgreSQL's lexer splits them, and positions in it.

It ensures that a text is a single SELECT before any of it is sent to PostgreSQL. So it must read
strings, comments and quotes exactly as PostgreSQL does (src/backend/parser/scan.l) with
standard_conforming_strings on. Grammar is left to PostgreSQL.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from dataflow.errors import Position, SqlError

_SPACE = re.compile(r"""('(?:[^']|'')*'|"(?:[^"]|"")*")|\s+""")
_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\n\r\f\v]+|--[^\n\r]*)
  | (?P<string>[eE]'(?:[^'\\]|\\.|'')*+'
      (?:(?:[ \t\f\v]|--[^\n\r]*)*[\n\r](?:[ \t\n\r\f\v]|--[^\n\r]*[\n\r])*'(?:[^'\\]|\\.|'')*+')*
      | (?:[bBxXnN]|[uU]&)?'(?:[^']|'')*+')
  | (?P<quoted>(?:[uU]&)?"(?:[^"]|"")++")
  | (?P<word>[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*)
  | (?P<dollar>\$(?P<tag>(?:[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_\x80-\U0010ffff]*)?)\$
      .*?\$(?P=tag)\$)
  | (?P<number>[0-9][0-9_]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)
  | (?P<parameter>\$[0-9]+)
    """,
    re.VERBOSE | re.DOTALL,
)
_UNENDED = {"'": "string", '"': "quoted identifier", "$": "dollar-quoted string"}
# Between operands, and where a chain of operands ends.
_LINKS = frozenset({*"+-/%^|", "and", "or", "union", "intersect", "except", "join"})
_ENDS = frozenset({",", ";", "from", "where", "when", "then", "else", "as", "on"})
_STARTS = ("select", "with", "values", "table", "(")


@dataclass(frozen=True)
class Token:
    """A word, quoted name, string, number or single character. text: lower case for a word."""

    kind: str
    text: str
    offset: int


@lru_cache(maxsize=8)
def tokens(sql: str) -> tuple[Token, ...]:
    """Return all tokens without spaces and comments. Raise SqlError sql.syntax_error for an
    unterminated one.

    >>> [t.text for t in tokens("SELECT 'a;' /* ; /* ; */ */ ;")]
    ['select', "'a;'", ';']
    """
    if "\x00" in sql:
        raise _syntax_error(sql, sql.index("\x00"), "the query has a zero character")
    found: list[Token] = []
    at = 0
    while at < len(sql):
        if sql.startswith("/*", at):
            at = _comment_end(sql, at)
            continue
        match = _TOKEN.match(sql, at)
        if match is None:
            what = _UNENDED.get(sql[at])
            if what:
                raise _syntax_error(sql, at, f"unterminated {what}")
            found.append(Token("character", sql[at], at))
            at += 1
            continue
        kind = match.lastgroup if match.lastgroup != "tag" else "dollar"
        if kind != "space":
            text = match.group().lower() if kind == "word" else match.group()
            found.append(Token(str(kind), text, at))
        at = match.end()
    return tuple(found)


def one_query(sql: str) -> str:
    """Return the text without trailing semicolons if it is exactly one query.

    Raise SqlError sql.syntax_error (empty, unbalanced), sql.many_statements or sql.not_a_select.
    """
    found = list(tokens(sql))
    while found and found[-1].text == ";":
        sql = sql[: found.pop().offset]
    if not found:
        raise SqlError("sql.syntax_error", "the query is empty", position=Position(1, 1))
    for token in found:
        if token.text == ";":
            raise SqlError(
                "sql.many_statements",
                "the text has more than one statement",
                hint="a view is one SELECT",
                position=position_of(sql, token.offset),
            )
    if found[0].text not in _STARTS:
        raise SqlError(
            "sql.not_a_select",
            f'a view is one SELECT, not "{found[0].text}"',
            hint="start with SELECT, WITH or VALUES",
            position=position_of(sql, found[0].offset),
        )
    if [t.text for t in found[-2:]] == ["check", "option"]:
        raise _syntax_error(sql, found[-2].offset, 'syntax error at or near "check"')
    _check_balance(sql, found)
    return sql


def on_one_line(sql: str) -> str:
    """Return the text with one blank for each run of space outside quotes.

    >>> on_one_line("CASE\\n    WHEN a = '  ' THEN 1")
    "CASE WHEN a = '  ' THEN 1"
    """
    return _SPACE.sub(lambda found: found[1] or " ", sql)


def position_of(sql: str, offset: int) -> Position:
    """Return line and column, from 1, of a character.

    >>> position_of("a\\nbc", 3)
    Position(line=2, column=2)
    """
    before = sql[:offset]
    return Position(before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1)


def deepest(sql: str) -> tuple[int, int]:
    """Return the position of the deepest nesting in a text, and its number of levels.

    Parentheses and CASE are levels, and so is each operator, since the first of a + b + c is
    inside the second.

    >>> deepest("SELECT f(g(a)), b + c"), deepest("SELECT a + b - c, (d)")
    ((10, 2), (13, 2))
    """
    found, position = 0, 0
    outside, links = 0, [0]
    for token in tokens(sql):
        if token.text in ("(", "case"):
            outside += 1 + links[-1]
            links.append(0)
        elif token.text in (")", "end") and len(links) > 1:
            links.pop()
            outside -= 1 + links[-1]
        elif token.text in _ENDS:
            links[-1] = 0
        elif token.text in _LINKS and token.text != "*":
            links[-1] += 1
        else:
            continue
        if outside + links[-1] > found:
            found, position = outside + links[-1], token.offset
    return position, found


def find_words(sql: str, words: Sequence[str]) -> Position | None:
    """Return the position where these words (or single characters, lower case) first follow one
    another.

    >>> find_words("select 1\\nLIMIT  3", ["limit"])
    Position(line=2, column=1)
    """
    found = tokens(sql)
    required = list(words)
    for i in range(len(found) - len(required) + 1):
        if [_plain(t) for t in found[i : i + len(required)]] == required:
            return position_of(sql, found[i].offset)
    return None


def _plain(token: Token) -> str:
    if token.kind == "quoted" and token.text[0] == '"':
        return token.text[1:-1].replace('""', '"')
    return token.text


def _comment_end(sql: str, at: int) -> int:
    """Return the position after the comment that begins at `at`; comments nest."""
    depth, i = 0, at
    while i < len(sql):
        pair = sql[i : i + 2]
        if pair == "/*":
            depth, i = depth + 1, i + 2
        elif pair == "*/":
            depth, i = depth - 1, i + 2
            if depth == 0:
                return i
        else:
            i += 1
    raise _syntax_error(sql, at, "unterminated comment")


def _check_balance(sql: str, found: Sequence[Token]) -> None:
    opened: list[Token] = []
    for token in found:
        if token.text == "(":
            opened.append(token)
        elif token.text == ")":
            if not opened:
                raise _syntax_error(sql, token.offset, 'syntax error at or near ")"')
            opened.pop()
    if opened:
        raise _syntax_error(sql, opened[-1].offset, "a parenthesis is not closed")


def _syntax_error(sql: str, offset: int, what: str) -> SqlError:
    return SqlError("sql.syntax_error", what, position=position_of(sql, offset))
