"""Parse functions in FROM as pg_get_viewdef writes them: calls, ROWS FROM, XMLTABLE, JSON_TABLE.

Only parts that may name a column become tree nodes; types, paths and options stay PostgreSQL's own
text, found by its span. The alias always follows, with all column names or with definitions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.expressions.core import Expression
from sqlglot.parsers.postgres import PostgresParser
from sqlglot.tokenizer_core import TokenType

_QUERIES = (TokenType.SELECT, TokenType.VALUES, TokenType.WITH, TokenType.FROM)
_NAMELESS = ("ONLY", "LATERAL", "TABLE")


class RowsOf(Expression):
    """An entry of FROM that calls functions; expressions: a CalledSet for each call."""

    arg_types: ClassVar = {
        "expressions": True,
        "lateral": False,
        "ordinality": False,
        "alias": True,
        "joins": False,
    }


class CalledSet(Expression):
    """One call; definitions: its column definition list as written, "(a integer)", or ""."""

    arg_types: ClassVar = {"this": True, "definitions": False}


class TableSyntax(Expression, exp.Func):
    """XMLTABLE(...) or JSON_TABLE(...); expressions: the parts that may name columns."""

    arg_types: ClassVar = {"text": True, "expressions": True}


class FunctionsInFrom(PostgresParser):
    """The mixin of the parser for entries of FROM other than relations."""

    MODIFIABLES = (*PostgresParser.MODIFIABLES, RowsOf, exp.Lateral)
    _spanned: Callable[..., Any]

    def _parse_table(self, *args: Any, **kwargs: Any) -> exp.Expr | None:
        start = self._index
        found = self._read_lateral_join() or self._read_rows_of()
        if found is None:
            self._retreat(start)
            found = super()._parse_table(*args, **kwargs)
            if not isinstance(found, exp.Lateral):
                return found
        self._spanned(found, start)
        if kwargs.get("joins"):
            for join in self._parse_joins():
                found.append("joins", join)
        return found

    def _read_lateral_join(self) -> exp.Expr | None:
        """Parse (LATERAL (...) s JOIN ...), whose first entry may read the entries before it."""
        if not self._match(TokenType.L_PAREN):
            return None
        if self._curr.token_type != TokenType.LATERAL:
            self._retreat(self._index - 1)
            return None
        first = self._parse_table(joins=True)
        self._match_r_paren()
        return exp.Subquery(this=first, alias=self._parse_table_alias())

    def _read_rows_of(self) -> exp.Expr | None:
        is_lateral = bool(self._match(TokenType.LATERAL))
        if self._match_text_seq("ROWS", "FROM"):
            self._match_l_paren()
            calls = self._parse_csv(self._read_called)
            self._match_r_paren()
        elif self._is_call():
            calls = [CalledSet(this=self._read_call(), definitions="")]
        else:
            return None
        has_ordinality = bool(self._match_text_seq("WITH", "ORDINALITY"))
        alias = self._parse_id_var(any_token=True)
        columns: list[exp.Expr] = []
        if self._match(TokenType.L_PAREN):
            columns, definitions = self._read_columns()
            if definitions:
                calls[0].set("definitions", definitions)
        named = exp.TableAlias(this=alias, columns=columns)
        return RowsOf(expressions=calls, lateral=is_lateral, ordinality=has_ordinality, alias=named)

    def _is_call(self) -> bool:
        """Return whether a name, perhaps with its schema, and a parenthesis come next."""
        at = self._index
        while at + 1 < len(self._tokens):
            token, following = self._tokens[at], self._tokens[at + 1]
            is_word = token.token_type not in _QUERIES and token.text.upper() not in _NAMELESS
            if not is_word or token.token_type in (TokenType.L_PAREN, TokenType.R_PAREN):
                return False
            if following.token_type == TokenType.L_PAREN:
                return True
            if following.token_type != TokenType.DOT:
                return False
            at += 2
        return False

    def _read_called(self) -> exp.Expr:
        call, definitions = self._read_call(), ""
        if self._match(TokenType.ALIAS):
            self._match_l_paren()
            _, definitions = self._read_columns()
        return CalledSet(this=call, definitions=definitions)

    def _read_call(self) -> exp.Expr | None:
        if self._curr.text in ("XMLTABLE", "JSON_TABLE"):
            return self._read_table_syntax()
        return self._parse_type()

    def _read_columns(self) -> tuple[list[exp.Expr], str]:
        """Parse the names between parentheses, the opening one already consumed; return them, and
        their text if any has a type."""
        begin = self._prev.start
        names: list[exp.Expr] = []
        is_typed = False
        while self._curr and not self._match(TokenType.R_PAREN):
            names += [n for n in [self._parse_id_var(any_token=True)] if n is not None]
            is_typed |= self._skip_to(TokenType.COMMA)
            self._match(TokenType.COMMA)
        return names, self.sql[begin : self._prev.end + 1] if is_typed else ""

    def _skip_to(self, *ends: TokenType, words: tuple[str, ...] = ()) -> bool:
        """Skip tokens up to one of these or the closing parenthesis; return whether there were
        any."""
        start, depth = self._index, 0
        while self._curr:
            type = self._curr.token_type
            is_end = type in ends or type == TokenType.R_PAREN or self._curr.text.upper() in words
            if depth == 0 and is_end:
                break
            depth += (type == TokenType.L_PAREN) - (type == TokenType.R_PAREN)
            self._advance()
        return self._index > start

    def _read_table_syntax(self) -> exp.Expr:
        start, word = self._index, self._curr.text
        self._advance()
        self._match_l_paren()
        found = self._read_json_table() if word == "JSON_TABLE" else self._read_xml_table()
        self._match_r_paren()
        text = self.sql[self._tokens[start].start : self._prev.end + 1]
        parts = [part for part in found if part is not None]
        return self._spanned(TableSyntax(text=text, expressions=parts), start)

    def _read_json_table(self) -> list[exp.Expr | None]:
        """Parse the document and the arguments of the path; nothing else may name a column."""
        found = [self._parse_disjunction()]
        self._skip_to(words=("PASSING", "COLUMNS"))
        if self._match_text_seq("PASSING"):
            found += self._parse_csv(self._read_named)
        self._skip_to()
        return found

    def _read_named(self) -> exp.Expr | None:
        self._match_text_seq("DEFAULT")
        found = self._parse_disjunction()
        self._skip_to(TokenType.COMMA, words=("COLUMNS",))
        return found

    def _read_xml_table(self) -> list[exp.Expr | None]:
        found: list[exp.Expr | None] = []
        if self._match_text_seq("XMLNAMESPACES"):
            self._match_l_paren()
            found += self._parse_csv(self._read_named)
            self._match_r_paren()
            self._match(TokenType.COMMA)
        found.append(self._read_wrapped())
        self._match_text_seq("PASSING")
        found.append(self._read_wrapped())
        self._match_text_seq("COLUMNS")
        while self._curr and self._curr.token_type != TokenType.R_PAREN:
            self._parse_id_var(any_token=True)
            while self._skip_to(TokenType.COMMA, words=("DEFAULT", "PATH")) or self._curr.text in (
                "DEFAULT",
                "PATH",
            ):
                if not self._match_text_seq("DEFAULT") and not self._match_text_seq("PATH"):
                    break
                found.append(self._read_wrapped())
            self._match(TokenType.COMMA)
        return found

    def _read_wrapped(self) -> exp.Expr | None:
        self._match_l_paren()
        found = self._parse_disjunction()
        self._match_r_paren()
        return found
