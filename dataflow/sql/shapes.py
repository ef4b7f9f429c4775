"""Small facts about canonical shapes: operator names, conjuncts, literals.

Pure functions over sqlglot's tree; nothing here asks the database.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from dataflow.expressions.ir import Literal
from dataflow.sql.parse import Quantified
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
# Parts of an expression that are no values themselves.
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
    """The node without the parentheses around it."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def flatten(node: exp.Expr, kind: type[exp.And] | type[exp.Or]) -> list[exp.Expr]:
    """The operands of a chain of ANDs or ORs, parentheses around links taken away."""
    inner = bare(node)
    if isinstance(inner, kind):
        return flatten(inner.left, kind) + flatten(inner.right, kind)
    return [node]


def conjuncts(node: exp.Expr | None) -> list[exp.Expr]:
    """The conditions that must all hold; [] for none."""
    return flatten(node, exp.And) if node is not None else []


def plain_literal(node: exp.Expr, text: str, type: SqlType) -> Literal | None:
    """A constant that stands in the text as PostgreSQL prints it; None if it must be computed."""
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
    """The expressions directly inside a node, names and types left out."""
    if isinstance(node, exp.Cast | exp.Collate):
        yield node.this
        return
    for child in node.iter_expressions():
        if not isinstance(child, _NAMES):
            yield child


def pinned(value: Literal) -> str:
    """A constant as PostgreSQL reads it."""
    quoted = "NULL" if value.text is None else "'" + value.text.replace("'", "''") + "'"
    has_own = value.type.collation and value.type.oid != _NAME_OID
    collate = f" COLLATE {value.type.collation}" if has_own else ""
    return f"(({quoted})::{value.type.name}{collate})"


def is_value(node: exp.Expr) -> bool:
    """Whether a node may have a type: no part of another one, no ROW(...)."""
    is_row = isinstance(node, exp.Anonymous) and isinstance(node.this, str) and node.this == "ROW"
    return not isinstance(node, (*STRUCTURE, exp.Paren)) and not is_row
