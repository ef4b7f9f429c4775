"""Queries of ours over columns c1, c2 ... of given types: what an expression is, and may be.

Invariant: a column has its type's own collation, as a column of a table has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dataflow.types import SqlType, TypeKind

# A value of each type that an expression can be computed over; NULL would end it early.
_PLAIN = {
    **dict.fromkeys((TypeKind.INT2, TypeKind.INT4, TypeKind.INT8), "1"),
    **dict.fromkeys((TypeKind.FLOAT4, TypeKind.FLOAT8, TypeKind.FIXED, TypeKind.DECIMAL), "1"),
    **dict.fromkeys((TypeKind.TEXT, TypeKind.BPCHAR), "a"),
    **dict.fromkeys((TypeKind.DATE, TypeKind.TIMESTAMP, TypeKind.TIMESTAMPTZ), "2000-01-01"),
    TypeKind.BOOL: "t",
}


def probe(columns: Sequence[SqlType], expressions: Sequence[str]) -> str:
    """A query whose outputs are expressions over c1, c2 ... of the given types."""
    text = "SELECT " + ", ".join(f"{e} AS t{i}" for i, e in enumerate(expressions))
    return text + (f" FROM {row_of_nulls(columns)}" if columns else "")


def row_of_nulls(columns: Sequence[SqlType]) -> str:
    """A row of NULLs named c1, c2 ..."""
    return _row(columns, lambda type: None)


def plain_row(columns: Sequence[SqlType]) -> str:
    """A row of plain values named c1, c2 ..., over which most expressions can be computed."""
    return _row(columns, lambda type: _PLAIN.get(type.kind))


def _row(columns: Sequence[SqlType], text_of: Callable[[SqlType], str | None]) -> str:
    """A row of constants named c1, c2 ..., each under the collation of its type."""
    values = []
    for i, type in enumerate(columns):
        text = text_of(type)
        value = f"{'NULL' if text is None else _literal(text)}::{type.name}"
        collate = f" COLLATE {type.collation}" if type.collation else ""
        values.append(f"({value}{collate}) AS c{i + 1}")
    return f"(SELECT {', '.join(values)}) AS tidemark_row"


def _literal(text: str) -> str:
    return "'" + text + "'"
