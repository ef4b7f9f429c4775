"""Parse calls with keyword syntax: XML and JSON constructors and queries, NORMALIZE.

PostgreSQL prints keywords in capitals and quotes every name with capitals. So a word in capitals is
never a column here. Between keywords are values, which become tree nodes, or names and types, which
are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.expressions.core import Expression
from sqlglot.parsers.postgres import PostgresParser
from sqlglot.tokenizer_core import TokenType

KEYWORD_CALLS = (
    *("XMLELEMENT", "XMLFOREST", "XMLPARSE", "XMLPI", "XMLSERIALIZE", "XMLROOT", "XMLEXISTS"),
    *("JSON_OBJECT", "JSON_ARRAY", "JSON_VALUE", "JSON_QUERY", "JSON_EXISTS", "JSON_SERIALIZE"),
    *("JSON", "NORMALIZE"),
)
# A name or a type comes after these.
_BEFORE_NAMES = ("NAME", "AS", "RETURNING")
_WORDS = {
    *("CONTENT", "DOCUMENT", "PASSING", "VERSION", "STANDALONE", "YES", "NO", "VALUE", "INDENT"),
    *("FORMAT", "JSON", "ENCODING", "UTF8", "ABSENT", "ON", "EMPTY", "ERROR", "WITH", "WITHOUT"),
    *("UNIQUE", "KEYS", "DEFAULT", "OBJECT", "UNKNOWN", "CONDITIONAL", "UNCONDITIONAL"),
    *("WRAPPER", "KEEP", "OMIT", "QUOTES", "SCALARS", "STRING", "BY", "REF", "STRIP", "PRESERVE"),
    *("WHITESPACE", "NFC", "NFD", "NFKC", "NFKD", "XMLATTRIBUTES"),
}
# Keywords before ON, values elsewhere.
_BEHAVIOURS = ("NULL", "TRUE", "FALSE")


class KeywordCall(Expression, exp.Func):
    """A call with keyword syntax; expressions: its values, in the order of the text."""

    arg_types: ClassVar = {"text": True, "expressions": False}


class KeywordCalls(PostgresParser):
    """The mixin of the parser for these."""

    _spanned: Callable[..., Any]

    def read_keyword_call(self, name: str) -> exp.Expr:
        """Parse the inside of a call; the caller parses the parentheses."""
        start = self._index - 2
        if self._text_at(start) != name:
            quoted = exp.to_identifier(name.lower(), quoted=True)
            return exp.Anonymous(this=quoted, expressions=self._parse_function_args())
        values: list[exp.Expr] = []
        depth = 0
        while self._curr and (depth or self._curr.token_type != TokenType.R_PAREN):
            word = self._text_at(self._index)
            if self._curr.token_type == TokenType.R_PAREN:
                depth -= 1
                self._advance()
            elif word in ("XMLATTRIBUTES", "ARRAY") and self._next.text != "[":
                depth += word == "XMLATTRIBUTES"
                self._advance(2 if word == "XMLATTRIBUTES" else 1)
            elif word in _BEFORE_NAMES:
                self._advance()
                self._skip_name()
            elif self._is_keyword(word):
                self._advance()
            else:
                values += [v for v in [self._parse_disjunction()] if v is not None]
        end = self._curr.end if self._curr else len(self.sql) - 1
        text = self.sql[self._tokens[start].start : end + 1]
        return KeywordCall(text=text, expressions=values)

    def _parse_type(self, *args: Any, **kwargs: Any) -> exp.Expr | None:
        begin = self._curr.start if self._curr else 0
        if self._match_text_seq("COLLATION", "FOR"):
            value = self._parse_paren()
            return KeywordCall(text=self.sql[begin : self._prev.end + 1], expressions=[value])
        return super()._parse_type(*args, **kwargs)

    def _text_at(self, index: int) -> str:
        """Return a token as written, quotes included."""
        token = self._tokens[index]
        return self.sql[token.start : token.end + 1]

    def _is_keyword(self, word: str) -> bool:
        if word in _BEHAVIOURS:
            return self._next is not None and self._next.text == "ON"
        return word in _WORDS or word in (",", ":")

    def _skip_name(self) -> None:
        """Skip a name or type: up to a keyword, a comma or the closing parenthesis."""
        self._advance()
        depth = 0
        while self._curr:
            type = self._curr.token_type
            word = self._text_at(self._index)
            if depth == 0 and (type == TokenType.R_PAREN or self._is_keyword(word)):
                return
            if depth == 0 and word in _BEHAVIOURS:
                return
            depth += (type == TokenType.L_PAREN) - (type == TokenType.R_PAREN)
            self._advance()
