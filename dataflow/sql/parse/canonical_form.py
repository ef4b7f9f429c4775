"""Parse PostgreSQL's canonical form of a view with sqlglot.

pg_get_viewdef parenthesizes every operator, writes every cast with ::, and function names as in
pg_proc. So this scalar grammar is smaller than SQL's, accepts any operator, built in or not, and
renames no function. Invariant: every scalar node remembers its text (`span`), so PostgreSQL always
receives its own text, never a reprint.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import SqlglotError
from sqlglot.expressions.core import Expression
from sqlglot.parsers.postgres import PostgresParser
from sqlglot.tokenizer_core import TokenType

from dataflow.errors import SqlError
from dataflow.lexer import on_one_line
from dataflow.sql.parse.parse_chains import Chain, Chains
from dataflow.sql.parse.parse_functions import CalledSet, FunctionsInFrom, RowsOf, TableSyntax
from dataflow.sql.parse.parse_keywords import KEYWORD_CALLS, KeywordCall, KeywordCalls
from dataflow.sql.parse.parse_names import SESSION_WORDS, Names, SessionWord, TypeName, as_names

_OPERATOR = re.compile(r"[~!@#^&|`?+\-*/%<>=]+|OPERATOR\([^()]*\)")
_SPANNED = (
    "_parse_disjunction",
    "_parse_conjunction",
    "_parse_column",
    "_parse_column_reference",
    "_parse_primary",
    "_parse_paren",
    "_parse_function",
    "_parse_field",
    "_parse_type",
    "_parse_lambda",
    "_parse_table",
)
_TESTS = ("NULL", "TRUE", "FALSE", "UNKNOWN", "DOCUMENT", "NORMALIZED")
_AROUND_CALLS = (exp.Filter, exp.WithinGroup, exp.Window)
_JSON_AGGREGATES = ("JSON_ARRAYAGG", "JSON_OBJECTAGG")
_SYNTAX = ("EXTRACT", "SUBSTRING", "POSITION", "TRIM", "OVERLAY")


class Operation(Expression, exp.Condition):
    """An operator. word: as written; left is absent for a prefix operator."""

    arg_types: ClassVar = {"word": True, "left": False, "right": True}


class Test(Expression, exp.Condition):
    """IS [NOT] NULL, TRUE, FALSE, UNKNOWN, ...: `word` is the test in lower case."""

    arg_types: ClassVar = {"this": True, "word": True}


class Quantified(Expression, exp.Condition):
    """ANY (...) or ALL (...) right of an operator; `this` is an expression or a query."""

    arg_types: ClassVar = {"this": True, "word": True}


class SyntaxCall(Expression, exp.Func):
    """A function with keyword syntax: EXTRACT, SUBSTRING, POSITION, TRIM, OVERLAY, JSON_*AGG.

    field: EXTRACT's field or TRIM's side; order: the ORDER BY of JSON_ARRAYAGG.
    """

    arg_types: ClassVar = {"word": True, "field": False, "expressions": True, "order": False}


class SearchClause(Expression):
    """SEARCH word ("depth" or "breadth") FIRST BY expressions (names) SET column."""

    arg_types: ClassVar = {"word": True, "expressions": True, "column": True}


class CycleClause(Expression):
    """CYCLE expressions (names) SET mark [TO value DEFAULT default] USING path."""

    arg_types: ClassVar = {
        "expressions": True,
        "mark": True,
        "value": False,
        "default": False,
        "path": True,
    }


class WithValues(exp.Values):
    """WITH entries before VALUES."""

    arg_types: ClassVar = {**exp.Values.arg_types, "with_": False}


class _Parser(FunctionsInFrom, KeywordCalls, Names, Chains):
    """A parser of PostgreSQL's canonical scalars; the rest is sqlglot's."""

    FUNCTIONS: ClassVar = {}
    QUOTED_TYPES_TO_PRESERVE: ClassVar = {"char", "bit"}
    FUNCTION_PARSERS: ClassVar = {
        **{name: lambda self, n=name: self.read_syntax_call(n) for name in _SYNTAX},
        **{name: lambda self, n=name: self.read_json_aggregate(n) for name in _JSON_AGGREGATES},
        **{name: lambda self, n=name: self.read_keyword_call(n) for name in KEYWORD_CALLS},
    }
    NO_PAREN_FUNCTION_PARSERS: ClassVar = {
        "VARIADIC": PostgresParser.NO_PAREN_FUNCTION_PARSERS["VARIADIC"],
        "CASE": lambda self: self._parse_case(),
        **{n: lambda self, n=n: self.read_session_word(n) for n in SESSION_WORDS},
    }
    NO_PAREN_FUNCTIONS: ClassVar = {}
    # A colon begins the upper bound of a slice.
    PLACEHOLDER_PARSERS: ClassVar = {}

    def _parse_statement(self) -> exp.Expr | None:
        """Parse a whole query, or what follows WITH."""
        found = super()._parse_statement()
        return WithValues(**found.args) if type(found) is exp.Values else found

    def _parse_locks(self) -> list[exp.Lock]:
        """Parse FOR UPDATE and the like, without the names after OF: they are no relations."""
        start = self._index
        locks = super()._parse_locks()
        for lock in locks:
            lock.set("expressions", None)
            lock.meta["span"] = (self._tokens[start].start, self._tokens[self._index - 1].end + 1)
        return locks

    def _parse_cte(self) -> Any:
        entry = super()._parse_cte()
        if entry is not None and self._match_text_seq("SEARCH"):
            word = self._curr.text.lower()
            self._advance()
            self._match_text_seq("FIRST", "BY")
            names = self._parse_csv(self._parse_id_var)
            self._match_text_seq("SET")
            found = SearchClause(word=word, expressions=names, column=self._parse_id_var())
            entry.set("search", found)
        if entry is not None and self._match_text_seq("CYCLE"):
            names = self._parse_csv(self._parse_id_var)
            self._match_text_seq("SET")
            found = CycleClause(expressions=names, mark=self._parse_id_var())
            if self._match_text_seq("TO"):
                found.set("value", self._parse_equality())
                self._match_text_seq("DEFAULT")
                found.set("default", self._parse_equality())
            self._match_text_seq("USING")
            found.set("path", self._parse_id_var())
            entry.set("cycle", found)
        return entry

    def _parse_equality(self, parse_is: bool = True) -> exp.Expr | None:
        start = self._index
        if self._match(TokenType.NOT):
            return self._spanned(exp.Not(this=self._parse_equality()), start)
        if operator := self._read_operator():
            node = Operation(word=operator, right=self._parse_equality())
            return self._spanned(node, start)
        is_wrapped = self._curr is not None and self._curr.token_type == TokenType.L_PAREN
        this = (self.read_chain() if is_wrapped else None) or self._parse_type()
        while this is not None and (longer := self._read_suffix(this)) is not None:
            this = self._spanned(longer, start)
        return this

    def _parse_bitwise(self) -> exp.Expr | None:
        return self._parse_equality()

    def _parse_unary(self) -> exp.Expr | None:
        return self._parse_equality()

    def _parse_ordered(self, parse_method=None) -> exp.Ordered | None:
        """Parse a part of ORDER BY; store the operator of USING in meta."""
        operators: list[str] = []

        def operand() -> exp.Expr | None:
            this = parse_method() if parse_method else self._parse_disjunction()
            if self._match(TokenType.USING):
                operators.append(self._read_operator())
            return this

        found = super()._parse_ordered(operand)
        if found is not None and operators:
            found.meta["operator"] = operators[0]
        return found

    def _parse_derived_table_values(self, *args, **kwargs) -> exp.Values | None:
        """Parse VALUES in FROM, which may have ORDER BY and LIMIT."""
        start = self._index
        if not self._match_pair(TokenType.L_PAREN, TokenType.VALUES):
            return super()._parse_derived_table_values(*args, **kwargs)
        values = exp.Values(expressions=self._parse_csv(self._parse_value))
        if self._match(TokenType.R_PAREN, advance=False):
            self._retreat(start)
            return super()._parse_derived_table_values(*args, **kwargs)
        found = self._parse_query_modifiers(values)
        self._match_r_paren()
        found.set("alias", self._parse_table_alias())
        return found

    def _parse_bracket(self, this: exp.Expr | None = None) -> exp.Expr | None:
        start = self._index - 1
        found = super()._parse_bracket(this)
        return self._spanned(found, start) if isinstance(found, exp.Array) else found

    def _parse_interval(self, *args, **kwargs) -> exp.Expr | None:
        """Parse nothing: canonical text has intervals only as casts."""
        return None

    def _read_suffix(self, this: exp.Expr) -> exp.Expr | None:
        """Parse a suffix of an operand, or return None."""
        if self._match(TokenType.IS):
            return self._read_test(this)
        if self._match(TokenType.IN):
            self._match(TokenType.L_PAREN)
            query = self._read_query()
            self._match_r_paren()
            return exp.In(this=this, query=exp.Subquery(this=query))
        if self._match_text_seq("AT", "TIME", "ZONE"):
            return exp.AtTimeZone(this=this, zone=self._parse_type())
        if self._match_text_seq("AT", "LOCAL"):
            return Test(this=this, word="at local")
        if self._match(TokenType.COLLATE):
            return exp.Collate(this=this, expression=self._parse_table_parts())
        if self._match(TokenType.OVERLAPS):
            return Operation(word="overlaps", left=this, right=self._parse_type())
        operator = self._read_operator()
        if not operator:
            return None
        if self._curr and self.sql[self._curr.start : self._curr.end + 1] in ("ANY", "ALL"):
            return Operation(word=operator, left=this, right=self._read_quantified())
        return Operation(word=operator, left=this, right=self._parse_equality())

    def _read_query(self) -> exp.Expr | None:
        found = self._parse_select()
        return self._parse_query_modifiers(found) if isinstance(found, exp.Values) else found

    def _read_test(self, this: exp.Expr) -> exp.Expr:
        negation = "not " if self._match(TokenType.NOT) else ""
        if self._match_text_seq("DISTINCT", "FROM"):
            name = f"is {negation}distinct from"
            return Operation(word=name, left=this, right=self._parse_equality())
        words = []
        while self._curr and self._curr.token_type not in (TokenType.R_PAREN, TokenType.COMMA):
            words.append(self._curr.text.lower())
            self._advance()
            if words[-1].upper() in _TESTS:
                break
        return Test(this=this, word=f"is {negation}{' '.join(words)}")

    def _read_operator(self) -> str:
        """Consume and return the operator at the current token; or ''."""
        if not self._curr or self._curr.token_type in (TokenType.STRING, TokenType.IDENTIFIER):
            return ""
        begin = self._curr.start
        found = _OPERATOR.match(self.sql, begin)
        if not found:
            return ""
        while self._curr and self._curr.start < found.end():
            self._advance()
        return found.group()

    def _read_quantified(self) -> exp.Expr:
        start = self._index
        name = self._curr.text.lower()
        self._advance()
        self._match_l_paren()
        this = self._read_query() or self._parse_assignment()
        self._match_r_paren()
        return self._spanned(Quantified(this=this, word=name), start)

    def read_syntax_call(self, name: str) -> exp.Expr:
        """Parse the inside of a function with keyword syntax; the caller parses the parentheses."""
        if self._tokens[self._index - 2].token_type == TokenType.IDENTIFIER:
            # An ordinary call of the function of that name.
            quoted = exp.to_identifier(name.lower(), quoted=True)
            return exp.Anonymous(this=quoted, expressions=self._parse_function_args())
        field, arguments = "", []
        if name == "EXTRACT" or (name == "TRIM" and self._curr.text.upper() != "FROM"):
            field = self._curr.text.lower()
            self._advance()
        while self._curr and self._curr.token_type != TokenType.R_PAREN:
            if self._curr.text.upper() in ("FROM", "FOR", "IN", "PLACING", ","):
                self._advance()
            elif self._curr.text in ("SIMILAR", "ESCAPE"):
                # The pattern is not a regular expression, so PostgreSQL computes it.
                name = "SIMILAR"
                self._advance()
            arguments.append(self._parse_type())
        return SyntaxCall(word=name.lower(), field=field, expressions=arguments)

    def read_json_aggregate(self, name: str) -> exp.Expr:
        """Parse the inside of JSON_ARRAYAGG or JSON_OBJECTAGG, whose options stay text.

        meta "order": where in the text an ORDER BY, or more sort keys, can be inserted.
        """
        arguments = [self._parse_type()]
        if name == "JSON_OBJECTAGG":
            if not self._match(TokenType.COLON):
                self._match_text_seq("VALUE")
            arguments.append(self._parse_type())
        if self._match_text_seq("FORMAT", "JSON") and self._match_text_seq("ENCODING"):
            self._advance()
        order = self._parse_order() if name == "JSON_ARRAYAGG" else None
        end = self._tokens[self._index - 1].end + 1
        depth = 0
        while self._curr and (depth or self._curr.token_type != TokenType.R_PAREN):
            depth += self._curr.token_type == TokenType.L_PAREN
            depth -= self._curr.token_type == TokenType.R_PAREN
            self._advance()
        node = SyntaxCall(word=name.lower(), field="", expressions=arguments)
        node.set("order", order)
        node.meta["order"] = end
        return node

    def _spanned(self, node: Any, start: int) -> Any:
        if node is not None and "span" not in node.meta and self._index > start:
            first, last = self._tokens[start], self._tokens[self._index - 1]
            node.meta["span"] = (first.start, last.end + 1)
            if isinstance(node, exp.Cast) and isinstance(node.this.this, exp.Star):
                # t.*::schema.t: the row below the cast has its own text.
                name = self.sql[first.start : last.end + 1].partition("::")[0]
                node.this.meta["span"] = (first.start, first.start + len(name))
        return node


def _with_span(name: str):
    inherited = getattr(_Parser, name)

    def method(self, *args, **kwargs):
        start = self._index
        node = inherited(self, *args, **kwargs)
        if isinstance(node, exp.Column) and isinstance(node.this, _AROUND_CALLS):
            node = _qualified_call(node)
        if isinstance(node, exp.Window) and isinstance(node.this, exp.Dot):
            begin, _ = node.meta.get("span", (0, 0))
            if begin > self._tokens[start].start:
                # sqlglot parsed it as schema.(f(x) OVER ...).
                node.meta.pop("span")
        return self._spanned(node, start) if isinstance(node, exp.Expr) else node

    return method


def _qualified_call(node: exp.Column) -> exp.Expr:
    """Return schema.f(x) FILTER (...), parsed as a column of the schema, as a filtered call."""
    whole = call = node.this
    while isinstance(call.this, _AROUND_CALLS):
        call = call.this
    call.set("this", exp.Dot(this=node.args["table"], expression=call.this))
    whole.meta.pop("span", None)
    return whole


for _name in _SPANNED:
    setattr(_Parser, _name, _with_span(_name))


class Canonical(Postgres):
    """The dialect of pg_get_viewdef; subscripts stay as written."""

    INDEX_OFFSET = 0

    Parser = _Parser

    def tokenize(self, sql: str, *args: Any, **kwargs: Any) -> Any:
        """Return the tokens; every word that PostgreSQL prints as a name is a name."""
        return as_names(sql, super().tokenize(sql, *args, **kwargs))

    class Generator(Postgres.Generator):
        """Prints our nodes; tests use it to show that parsing loses nothing."""

        TRANSFORMS: ClassVar = {
            **Postgres.Generator.TRANSFORMS,
            Operation: lambda self, e: " ".join(
                self.sql(e, part) if part != "word" else e.args["word"]
                for part in ("left", "word", "right")
                if e.args.get(part)
            ),
            Test: lambda self, e: f"{self.sql(e, 'this')} {e.args['word']}",
            SyntaxCall: lambda self, e: _print_syntax_call(self, e),
            Quantified: lambda self, e: f"{e.args['word']} ({self.sql(e, 'this')})",
            TableSyntax: lambda self, e: e.args["text"],
            KeywordCall: lambda self, e: e.args["text"],
            CalledSet: lambda self, e: _print_called(self, e),
            RowsOf: lambda self, e: _print_rows_of(self, e),
            Chain: lambda self, e: _print_chain(self, e),
            TypeName: lambda self, e: e.args["text"],
            SessionWord: lambda self, e: e.args["text"],
        }

        def join_sql(self, expression: exp.Join) -> str:
            """Return the SQL of a join with the alias of USING."""
            alias = expression.meta.get("alias")
            return super().join_sql(expression) + (f" AS {alias.sql(Canonical)}" if alias else "")


def _print_chain(generator: Any, node: Chain) -> str:
    first, *others = [generator.sql(e) for e in node.expressions]
    opened = "(" * (len(others) - 1)
    parts = [f" {w} {o}" for w, o in zip(node.args["words"], others, strict=True)]
    return opened + first + ")".join(parts)


def _print_called(generator: Any, node: CalledSet) -> str:
    definitions = node.args["definitions"]
    return generator.sql(node, "this") + (f" AS {definitions}" if definitions else "")


def _print_rows_of(generator: Any, node: RowsOf) -> str:
    calls = [generator.sql(e) for e in node.expressions]
    is_syntax = isinstance(node.expressions[0].this, TableSyntax)
    called = calls[0] if is_syntax else f"ROWS FROM ({', '.join(calls)})"
    ordinality = " WITH ORDINALITY" if node.args["ordinality"] else ""
    joins = "".join(generator.sql(j) for j in node.args.get("joins") or [])
    lateral = "LATERAL " if node.args["lateral"] else ""
    return f"{lateral}{called}{ordinality} AS {generator.sql(node, 'alias')}{joins}"


def _print_syntax_call(generator: Any, node: SyntaxCall) -> str:
    word, field = node.args["word"].upper(), node.args["field"]
    first, *rest = [generator.sql(e) for e in node.expressions]
    if word == "EXTRACT":
        return f"EXTRACT({field} FROM {first})"
    if word == "POSITION":
        return f"POSITION({first} IN {rest[0]})"
    if word == "TRIM":
        return f"TRIM({field} {first} FROM {rest[0]})" if rest else f"TRIM({field} FROM {first})"
    words = ("PLACING", "FROM", "FOR") if word == "OVERLAY" else ("FROM", "FOR")
    if word == "SIMILAR":
        word, words = "SUBSTRING", ("SIMILAR", "ESCAPE")
    return f"{word}({' '.join([first, *(f'{w} {r}' for w, r in zip(words, rest, strict=False))])})"


# Exceptions that sqlglot's parser may raise at text that it misreads.
_UNREAD = (SqlglotError, AttributeError, IndexError, KeyError, TypeError, ValueError)


def parse(text: str) -> exp.Expr:
    """Return the tree of one canonical query. Raise SqlError for an unsupported form."""
    parser = _Parser(dialect=Canonical)
    try:
        found = parser.parse(Canonical().tokenize(text), text)
    except _UNREAD as error:
        raise SqlError(
            "sql.not_maintained",
            "the query has a form that is not maintained",
            detail=f'the form is "{_words_at(text, parser)}" in PostgreSQL\'s text of it',
            hint="write it with simpler expressions, or compute that part in a function",
        ) from error
    assert len(found) == 1 and found[0] is not None
    return found[0]


def _words_at(text: str, parser: _Parser) -> str:
    """Return the text around a parser's current position, on one line."""
    token = parser._curr or parser._prev
    position = token.start if token else 0
    around = on_one_line(text[max(position - 40, 0) : position + 40])
    before = "..." if position > 40 else ""
    return f"{before}{around.strip()}{'...' if position + 40 < len(text) else ''}"
