"""Parse nesting in first operands, or in ELSE, without recursion for each level.

PostgreSQL prints a + b + c as ((a + b) + c): a sum of thousands of terms begins with thousands of
parentheses. Beyond the innermost levels such a chain becomes one flat node, as does CASE in ELSE,
so that later walks of the tree never recurse deeply. The innermost levels stay nested: they may be
keys of GROUP BY.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.expressions.core import Expression
from sqlglot.parsers.postgres import PostgresParser
from sqlglot.tokenizer_core import TokenType

# This many innermost levels stay a tree.
NESTED = 16
_COMPARISONS = ("=", "<>", "<", ">", "<=", ">=")


class Chain(Expression, exp.Condition):
    """A flat chain: the first expression, then each operator with the next one, from left to
    right."""

    arg_types: ClassVar = {"words": True, "expressions": True}


class Chains(PostgresParser):
    """The mixin of the parser for these."""

    _spanned: Callable[..., Any]
    _read_operator: Callable[[], str]
    _read_suffix: Callable[[Any], Any]
    _closing: dict[int, int] | None = None

    def read_chain(self) -> exp.Expr | None:
        """Parse a chain of many opening parentheses at the current token, up to the last closing
        one and its suffix; return None, with nothing consumed, if it is no chain."""
        start = self._index
        count = self._leading_parens()
        if count <= 2 * NESTED:
            return None
        closing = self._closing_parens()
        self._advance(count - NESTED)
        first = self._parse_equality()
        words: list[str] = []
        others: list[exp.Expr | None] = []
        for opened in range(start + count - NESTED - 1, start - 1, -1):
            closed = closing.get(opened, -1)
            if self._index != closed or first is None:
                self._retreat(start)
                return None
            self._advance()
            word = "" if opened == start else self._read_operator()
            is_quantified = bool(self._curr) and self._curr.text in ("ANY", "ALL")
            if word and word not in _COMPARISONS and not is_quantified:
                words.append(word)
                others.append(self._parse_equality())
                continue
            self._retreat(closed + 1)
            if words:
                first = Chain(words=words, expressions=[first, *others])
                self._between(first, opened + 1, closed - 1)
                words, others = [], []
            first = self._between(exp.Paren(this=first), opened, closed)
            first = self._spanned(self._parse_column_ops(first), opened)
            while opened != start and (longer := self._read_suffix(first)) is not None:
                first = self._spanned(longer, opened)
        return first

    def _between(self, node: exp.Expr, first: int, last: int) -> exp.Expr:
        """Return the node with the text between two tokens as its span."""
        node.meta["span"] = (self._tokens[first].start, self._tokens[last].end + 1)
        return node

    def _leading_parens(self) -> int:
        """Return the number of consecutive opening parentheses here."""
        at = self._index
        while at < len(self._tokens) and self._tokens[at].token_type == TokenType.L_PAREN:
            at += 1
        return at - self._index

    def _closing_parens(self) -> dict[int, int]:
        """Return the index of the token that closes each parenthesis."""
        if self._closing is None:
            opened: list[int] = []
            self._closing = {}
            for i, token in enumerate(self._tokens):
                if token.token_type == TokenType.L_PAREN:
                    opened.append(i)
                elif token.token_type == TokenType.R_PAREN and opened:
                    self._closing[opened.pop()] = i
        return self._closing

    def _parse_case(self) -> exp.Expr | None:
        """Parse CASE up to END, together with nested CASEs in ELSE."""
        levels: list[tuple[int, exp.Expr | None, list[exp.Expr]]] = []
        default = None
        while True:
            begin = self._index - 1
            operand = None if self._curr.text == "WHEN" else self._parse_disjunction()
            levels.append((begin, operand, self._read_branches()))
            if not self._match(TokenType.ELSE):
                break
            if not self._match(TokenType.CASE):
                default = self._parse_disjunction()
                break
        # The branches of the outer levels, the last one first.
        flat: list[exp.Expr] = []
        for number in range(len(levels) - 1, -1, -1):
            begin, operand, branches = levels[number]
            if not self._match(TokenType.END):
                self.raise_error("no END")
            is_tree = len(levels) <= 2 * NESTED or number >= len(levels) - NESTED
            if number and not is_tree and operand is None and levels[number - 1][1] is None:
                flat += reversed(branches)
                continue
            node = exp.Case(this=operand, ifs=[*branches, *reversed(flat)], default=default)
            default, flat = self._spanned(node, begin), []
        return default

    def _read_branches(self) -> list[exp.Expr]:
        found: list[exp.Expr] = []
        while self._match(TokenType.WHEN):
            condition = self._parse_disjunction()
            self._match(TokenType.THEN)
            found.append(exp.If(this=condition, true=self._parse_disjunction()))
        return found
