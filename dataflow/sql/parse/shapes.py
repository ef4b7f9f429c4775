"""Helpers for canonical syntax trees: operator names, conjuncts, literals.

Pure functions over sqlglot's tree; nothing here queries the database.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from dataflow.expressions.ir import Literal
from dataflow.sql.parse.canonical_form import Quantified
from dataflow.types import SqlType, TypeKind

OPERATORS = {
    **{name: name for name in ("+", "-", "*", "/", "%", "^", "||")},
    **{name: name for name in ("=", "<>", "<", ">", "<=", ">=")},
    "~~": "like",
    "!~~": "not like",
    "~~*": "ilike",
    "!~~*": "not ilike",
    "is distinct from": "is distinct from",
    "is not distinct from": "is not distinct from",
}
TRIMS = {"both": "btrim", "leading": "ltrim", "trailing": "rtrim"}
_NAMES = (exp.Identifier, exp.DataType, exp.DataTypeParam, exp.Var, exp.TableAlias, exp.Table)
# Parts of an expression that are not values.
STRUCTURE = (
    exp.If,
    exp.Tuple,
    exp.Distinct,
    exp.Order,
    exp.Ordered,
    exp.Where,
    exp.Slice,
    exp.Star,
    exp.Variadic,
    Quantified,
)
_NAME_OID = 19
_INTEGERS = (TypeKind.INT2, TypeKind.INT4, TypeKind.INT8, TypeKind.DECIMAL)


def bare(node: exp.Expr) -> exp.Expr:
    """Return the node without surrounding parentheses."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def row_parts(node: exp.Expr) -> list[exp.Expr]:
    """Return the columns of ROW(...), nested rows flattened; any other node by itself.

    Rows compare column by column.
    """
    inner = bare(node)
    if not is_row(inner):
        return [inner]
    return [part for column in inner.expressions for part in row_parts(column)]


def ordered_parts(order: exp.Expr | None) -> list[exp.Ordered]:
    """Return the parts of ORDER BY, a row as its columns: NULLs are the greatest values."""
    found: list[exp.Ordered] = []
    for ordered in order.expressions if order is not None else []:
        if not is_row(bare(ordered.this)) or ordered.meta.get("operator"):
            found.append(ordered)
            continue
        is_descending = bool(ordered.args.get("desc"))
        for part in row_parts(ordered.this):
            made = exp.Ordered(this=part, desc=is_descending, nulls_first=is_descending)
            found.append(made)
    if order is not None and len(found) != len(order.expressions):
        # Cached, so that every call returns the same nodes.
        order.set("expressions", found)
    return found


def is_row(node: exp.Expr) -> bool:
    """Return whether a node is ROW(...)."""
    return isinstance(node, exp.Anonymous) and isinstance(node.this, str) and node.this == "ROW"


def flatten(node: exp.Expr, kind: type[exp.And] | type[exp.Or]) -> list[exp.Expr]:
    """Return the operands of a chain of ANDs or ORs, without parentheses around links."""
    found: list[exp.Expr] = []
    waiting = [node]
    while waiting:
        link = waiting.pop()
        inner = bare(link)
        if isinstance(inner, kind):
            waiting += (inner.right, inner.left)
        else:
            found.append(link)
    return found


def conjuncts(node: exp.Expr | None) -> list[exp.Expr]:
    """Return the conditions that must all hold; [] for none."""
    return flatten(node, exp.And) if node is not None else []


def plain_literal(node: exp.Expr, text: str, type: SqlType) -> Literal | None:
    """Return a constant that the text has as PostgreSQL prints it; None if it must be computed."""
    if isinstance(node, exp.Boolean):
        return Literal("t" if node.this else "f", type)
    if isinstance(node, exp.Literal) and not node.is_string:
        is_number = type.kind in _INTEGERS and set(text) <= set("0123456789.")
        return Literal(text, type) if is_number else None
    if isinstance(node, exp.Null):
        return Literal(None, type)
    if not isinstance(node, exp.Cast) or type.kind == TypeKind.OPAQUE or type.oid >= 16384:
        return None
    if isinstance(node.this, exp.Null):
        return Literal(None, type)
    quoted = text[: text.rfind("::")]
    is_string = isinstance(node.this, exp.Literal) and node.this.is_string
    if not is_string or type.typmod != -1 or not quoted.startswith("'"):
        return None
    return Literal(quoted[1:-1].replace("''", "'"), type)


def operands(node: exp.Expr) -> Iterator[exp.Expr]:
    """Return the expressions directly inside a node, without names and types."""
    if isinstance(node, exp.Cast | exp.Collate):
        yield node.this
        return
    if isinstance(node, exp.And | exp.Or):
        # A chain is one expression: its links have no value of their own.
        yield from _links(node, type(node))
        return
    for child in node.iter_expressions():
        if not isinstance(child, _NAMES):
            yield child


def _links(node: exp.Expr, kind: type[exp.Expr]) -> Iterator[exp.Expr]:
    waiting = [node]
    while waiting:
        link = waiting.pop()
        if isinstance(link, kind):
            waiting += (link.args["expression"], link.this)
        else:
            yield link


def pinned(value: Literal) -> str:
    """Return a constant as PostgreSQL reads it."""
    quoted = "NULL" if value.text is None else "'" + value.text.replace("'", "''") + "'"
    has_own = value.type.collation and value.type.oid != _NAME_OID
    collate = f" COLLATE {value.type.collation}" if has_own else ""
    return f"(({quoted})::{value.type.name}{collate})"


def is_value(node: exp.Expr) -> bool:
    """Return whether a node may have a type: it is no mere part of another, and no ROW(...)."""
    return not isinstance(node, (*STRUCTURE, exp.Paren)) and not is_row(node)


def span_of(node: exp.Expr) -> tuple[int, int]:
    """Return the position of a node in the canonical text."""
    found = node.meta.get("span")
    if found:
        return found
    spans = [span_of(child) for child in node.iter_expressions() if _has_span(child)]
    assert spans, f"no text for {node!r}"
    return min(s[0] for s in spans), max(s[1] for s in spans)


def _has_span(node: exp.Expr) -> bool:
    return "span" in node.meta or any(_has_span(child) for child in node.iter_expressions())
