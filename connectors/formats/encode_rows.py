"""Encode rows as JSON or Avro, a whole batch at a time.

Values are exact in both formats. Integers, floats and booleans are native; everything else is a
string of PostgreSQL's text (including numerics, since readers round numbers). JSON columns are JSON
in JSON. Invariant: equal rows are equal bytes, so a record's key never changes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from tidemark_native import formats

from dataflow.delta import Column
from dataflow.schema import Field
from dataflow.types import TypeKind
from dataflow.values import to_text

_NO_MASK = np.empty(0, np.bool_)
_INTEGERS = (TypeKind.INT2, TypeKind.INT4, TypeKind.INT8)
_FLOATS = (TypeKind.FLOAT4, TypeKind.FLOAT8)
_DOCUMENTS = (TypeKind.JSON, TypeKind.JSONB)
_AVRO = {
    TypeKind.BOOL: "boolean",
    TypeKind.INT2: "int",
    TypeKind.INT4: "int",
    TypeKind.INT8: "long",
    TypeKind.FLOAT4: "float",
    TypeKind.FLOAT8: "double",
}
_NOT_AVRO = re.compile(r"[^A-Za-z0-9_]")

# Literal bytes, the same for each row, or a column with one value a row.
Piece = bytes | Column


def joined(pieces: Sequence[Piece], n: int) -> Column:
    """Return a bytes column of n values, each the concatenation of the pieces.

    >>> joined([b"<", Column.of("s", ["a", "bc"]), b">"], 2).to_list()
    [b'<a>', b'<bc>']
    """
    sizes = np.full(n, sum(len(p) for p in pieces if isinstance(p, bytes)), np.int64)
    for piece in pieces:
        if isinstance(piece, Column):
            sizes += np.diff(piece.values)
    offsets = np.zeros(n + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    out, at = np.empty(int(offsets[-1]), np.uint8), offsets[:-1].copy()
    for piece in pieces:
        if isinstance(piece, bytes):
            formats.put_literal(out, at, np.frombuffer(piece, np.uint8))
        else:
            formats.put_values(out, at, piece.values, piece.data)
    return Column(offsets, None, out)


def one_of(texts: Sequence[bytes], index: np.ndarray) -> Column:
    """Return a bytes column that selects one of a few texts for each row."""
    return Column.of("s", texts).take(index)


def json_column(field: Field, column: Column) -> Column:
    """Encode each value as JSON."""
    mask = _NO_MASK if column.valid is None else column.valid
    kind = field.type.kind
    if kind is TypeKind.BOOL:
        ends, out = formats.json_bools(column.values, mask)
        return Column(ends, None, out)
    texts = to_text(field.type, column)
    is_plain = kind in _INTEGERS or kind in _FLOATS or kind in _DOCUMENTS
    encode = formats.json_plain if is_plain else formats.json_texts
    ends, out = encode(texts.values, texts.data, mask)
    return Column(ends, None, out)


def avro_column(field: Field, column: Column) -> Column:
    """Encode each value in Avro's binary encoding; nullable fields are a union with null."""
    mask = _NO_MASK if column.valid is None else column.valid
    kind, in_union = field.type.kind, field.is_nullable
    if kind in _INTEGERS:
        ends, out = formats.avro_longs(column.values, mask, in_union)
    elif kind in _FLOATS:
        width = 4 if kind is TypeKind.FLOAT4 else 8
        raw = column.values.astype(f"<f{width}").view(np.uint8).reshape(len(column), width)
        ends, out = formats.avro_fixed(raw, mask, in_union)
    elif kind is TypeKind.BOOL:
        raw = column.values.astype(np.uint8).reshape(-1, 1)
        ends, out = formats.avro_fixed(raw, mask, in_union)
    else:
        texts = to_text(field.type, column)
        ends, out = formats.avro_texts(texts.values, texts.data, mask, in_union)
    return Column(ends, None, out)


def long_text(value: int) -> bytes:
    """Encode an Avro long.

    >>> long_text(-2), long_text(64)
    (b'\\x03', b'\\x80\\x01')
    """
    return formats.avro_long(value)


def string_text(value: str) -> bytes:
    """Encode an Avro string."""
    raw = value.encode()
    return long_text(len(raw)) + raw


def avro_names(names: Sequence[str]) -> list[str]:
    """Return unique names that Avro allows; the schema stores the column's own name beside.

    >>> avro_names(["a", "a b", "a_b", "1", ""])
    ['a', 'a_b', 'a_b_', '_1', '_']
    """
    found: list[str] = []
    for name in names:
        plain = _NOT_AVRO.sub("_", name)
        plain = plain if plain and not plain[0].isdigit() else f"_{plain}"
        while plain in found:
            plain += "_"
        found.append(plain)
    return found


def avro_record(name: str, fields: Sequence[Field]) -> dict[str, Any]:
    """Return the schema of a row; `column` and `sqlType` describe each field in the view."""
    names = avro_names([f.name for f in fields])
    return {
        "type": "record",
        "name": name,
        "namespace": "tidemark",
        "fields": [
            {
                "name": plain,
                "type": ["null", avro_type(f)] if f.is_nullable else avro_type(f),
                "column": f.name,
                "sqlType": f.type.name,
            }
            for plain, f in zip(names, fields, strict=True)
        ],
    }


def avro_type(field: Field) -> str:
    """Return the Avro type of a field's values."""
    return _AVRO.get(field.type.kind, "string")


def json_row(fields: Sequence[Field], columns: Sequence[Column]) -> list[Piece]:
    """Return the pieces of JSON objects."""
    pieces: list[Piece] = []
    for k, (field, column) in enumerate(zip(fields, columns, strict=True)):
        opening = "{" if k == 0 else ","
        pieces.append(f"{opening}{json.dumps(field.name, ensure_ascii=False)}:".encode())
        pieces.append(json_column(field, column))
    return [*pieces, b"}"] if fields else [b"{}"]


def avro_row(fields: Sequence[Field], columns: Sequence[Column]) -> list[Piece]:
    """Return the pieces of Avro records."""
    return [avro_column(f, c) for f, c in zip(fields, columns, strict=True)]
