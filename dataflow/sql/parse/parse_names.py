"""Parse names as pg_get_viewdef writes them: types, entries of FROM, session values.

PostgreSQL prints keywords in capitals and quotes every name that is not plain lower case. So a word
in lower case is a name, even if it is an SQL keyword elsewhere; except true and false.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.expressions.core import Expression
from sqlglot.parsers.postgres import PostgresParser
from sqlglot.tokenizer_core import Token, TokenType

# Session values without parentheses, except for a precision.
SESSION_WORDS = (
    *("CURRENT_DATE", "CURRENT_TIME", "CURRENT_TIMESTAMP", "LOCALTIME", "LOCALTIMESTAMP"),
    *("CURRENT_ROLE", "CURRENT_USER", "USER", "SESSION_USER", "SYSTEM_USER"),
    *("CURRENT_CATALOG", "CURRENT_SCHEMA"),
)
_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_CONSTANTS = ("true", "false")
# The output of format_type (src/backend/utils/adt/format_type.c).
_TYPE = re.compile(
    r"""
    (?:(?:"(?:[^"]|"")*"|[a-z_][a-z0-9_]*)\.)?
    (?: bit\ varying | character\ varying | double\ precision
      | interval(?:\ (?:year|month|day|hour|minute|second)(?:\ to\ (?:month|hour|minute|second))?)?
      | "(?:[^"]|"")*" | [a-z_][a-z0-9_]* )
    (?:\([^()]*\))?
    (?:\ with(?:out)?\ time\ zone)?
    (?:\[\])*
    """,
    re.VERBOSE,
)


class TypeName(Expression):
    """The type of a cast; text: as written."""

    arg_types: ClassVar = {"text": True}


class SessionWord(Expression, exp.Func):
    """CURRENT_DATE, USER and similar words; text: as written."""

    arg_types: ClassVar = {"text": True}


class Names(PostgresParser):
    """The mixin of the parser for these."""

    def _parse_type(self, *args: Any, **kwargs: Any) -> exp.Expr | None:
        """Parse an operand. Canonical text has no constants with a preceding type."""
        del args, kwargs
        return self._parse_column()

    def _parse_dcolon(self) -> exp.Expr | None:
        begin = self._curr.start
        found = _TYPE.match(self.sql, begin)
        if found is None:
            return None
        while self._curr and self._curr.start < found.end():
            self._advance()
        return TypeName(text=found.group())

    def read_session_word(self, name: str) -> exp.Expr:
        """Parse the word before the current token, and its precision."""
        begin = self._prev.start
        if self._match(TokenType.L_PAREN):
            self._advance()
            self._match_r_paren()
        del name
        return SessionWord(text=self.sql[begin : self._prev.end + 1])

    def _parse_table_alias(self, *args: Any, **kwargs: Any) -> exp.TableAlias | None:
        del args, kwargs
        if not self._match(TokenType.ALIAS) and not self._is_name():
            return None
        alias = self._parse_id_var(any_token=True)
        columns = None
        if self._match(TokenType.L_PAREN):
            columns = self._parse_csv(self._parse_id_var)
            self._match_r_paren()
        return exp.TableAlias(this=alias, columns=columns)

    def _is_name(self) -> bool:
        """Return whether the current token is a name, quoted or not."""
        token = self._curr
        if not token or token.token_type == TokenType.IDENTIFIER:
            return bool(token)
        return token.token_type == TokenType.VAR and _NAME.fullmatch(token.text) is not None

    def _parse_join(self, *args: Any, **kwargs: Any) -> exp.Join | None:
        found = super()._parse_join(*args, **kwargs)
        if found is not None and found.args.get("using") and self._match(TokenType.ALIAS):
            found.meta["alias"] = self._parse_id_var(any_token=True)
        return found

    def _parse_using_identifiers(self) -> list[exp.Expr]:
        return self._parse_wrapped_csv(self._parse_id_var)


def as_names(sql: str, tokens: list[Token]) -> list[Token]:
    """Return the tokens, those in lower case as plain names."""
    for token in tokens:
        text = sql[token.start : token.end + 1]
        if text not in _CONSTANTS and _NAME.fullmatch(text):
            token.token_type = TokenType.VAR
    return tokens
