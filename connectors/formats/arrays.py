"""Convert JSON arrays to texts of PostgreSQL's arrays, element by element in the declared type.

The output is that of array_out: nested braces, NULL for null, quotes where they are needed. All
arrays of one level have one length, as PostgreSQL requires; an empty array is {}.
"""

from __future__ import annotations

import re
from typing import Any

from connectors.formats.columns import Faults, column_of_texts, without
from connectors.formats.declared import DeclaredColumn
from connectors.formats.encoded import bytea_text, read_base64
from connectors.formats.jsonb_text import Numeral, load_json
from dataflow.delta import KIND_BYTES, Column
from dataflow.types import SqlType, TypeKind
from dataflow.values import to_text

_NEEDS_QUOTES = re.compile(r'[{}",\\ \t\n\r\v\f]|^$|^null$', re.IGNORECASE)
_LEVELS = 6
_NUMBERS = (
    *(TypeKind.INT2, TypeKind.INT4, TypeKind.INT8, TypeKind.FLOAT4, TypeKind.FLOAT8),
    *(TypeKind.FIXED, TypeKind.DECIMAL),
)


def column_of_arrays(column: DeclaredColumn, texts: Column) -> tuple[Column, Faults]:
    """Return PostgreSQL's texts of JSON arrays; other values are NULL and left to the caller."""
    assert column.element is not None
    faults: Faults = {}
    values: list[str | None] = []
    for row, text in enumerate(texts.texts()):
        values.append(None)
        if text is None or not text.startswith("["):
            continue
        try:
            values[row] = array_text(column.element, column.encoding, load_json(text))
        except ValueError as error:
            faults[row] = str(error)
    answer = Column.of(KIND_BYTES, values)
    return Column(answer.values, without(answer.valid, faults, len(texts)), answer.data), faults


def array_text(element: SqlType, encoding: str, values: list[Any]) -> str:
    """Return PostgreSQL's text of a nested list; ValueError.

    >>> from dataflow.types import TEXT
    >>> array_text(TEXT, "hex", [["a b", None], ["", "null"]])
    '{{"a b",NULL},{"","null"}}'
    """
    leaves: list[str | None] = []
    shape = _shape(values)
    if len(shape) > _LEVELS:
        raise ValueError(f"an array of more than {_LEVELS} dimensions")
    if 0 in shape:
        if len(shape) > 1 and any(shape[: shape.index(0)]) and shape.index(0) == 0:
            raise ValueError("arrays of one level differ in length")
        return "{}"
    _flatten(values, shape, leaves, (element, encoding))
    column, faults = column_of_texts(element, Column.of(KIND_BYTES, leaves))
    if faults:
        raise ValueError(f"an element is {next(iter(faults.values()))}")
    printed = iter(to_text(element, column).texts())
    return _nest(shape, printed)


def _shape(values: list[Any]) -> list[int]:
    shape = []
    level: Any = values
    while isinstance(level, list):
        shape.append(len(level))
        level = level[0] if level else None
    return shape


def _flatten(
    values: list[Any], shape: list[int], leaves: list[str | None], of: tuple[SqlType, str]
) -> None:
    if len(values) != shape[0]:
        raise ValueError("arrays of one level differ in length")
    for value in values:
        if len(shape) > 1:
            if not isinstance(value, list):
                raise ValueError("elements and arrays are mixed on one level")
            _flatten(value, shape[1:], leaves, of)
        else:
            leaves.append(_leaf(value, *of))


def _leaf(value: Any, element: SqlType, encoding: str) -> str | None:
    """Return the text of a JSON scalar for the element's type."""
    if value is None:
        return None
    is_text = element.kind in (TypeKind.TEXT, TypeKind.BPCHAR)
    if isinstance(value, bool):
        if is_text or element.kind is TypeKind.BOOL:
            return "true" if value else "false"
    elif isinstance(value, Numeral):
        if is_text or element.kind in _NUMBERS:
            return str(value)
    elif isinstance(value, str):
        if encoding == "base64":
            return bytea_text(read_base64(value.encode())).decode()
        value.encode()
        return value
    raise ValueError(f"a JSON {type(value).__name__} where {element.name} is declared")


def _nest(shape: list[int], printed: Any) -> str:
    if not shape:
        text = next(printed)
        if text is None:
            return "NULL"
        if _NEEDS_QUOTES.search(text):
            return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
        return text
    return "{" + ",".join(_nest(shape[1:], printed) for _ in range(shape[0])) + "}"
