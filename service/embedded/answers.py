"""Rows of the engine's own queries, as the same Python values as rows of views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from connectors.postgres.embedded.engine_query import Answer
from service.client.answers import Field
from service.client.rows import RowSet, row_type
from service.client.values import base_type, parse_json, reader_of

_OWN: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("smallint", "integer", "bigint"), int),
    **dict.fromkeys(("real", "double precision"), float),
    **dict.fromkeys(("json", "jsonb"), parse_json),
    "boolean": lambda text: text == "t",
}


def row_set(answer: Answer) -> RowSet:
    """Return an answer as rows with column names."""
    fields = [Field(name=name, type=type_name) for name, type_name in answer.fields]
    kind = row_type(tuple(f.name for f in fields))
    columns = zip(*answer.rows, strict=True) if answer.rows else ()
    read = [_read(f.type, column) for f, column in zip(fields, columns, strict=False)]
    rows = zip(*read, strict=True) if read else answer.rows
    return RowSet(fields, [kind(row) for row in rows])


def _read(type_name: str, texts: Sequence[str | None]) -> Sequence[Any]:
    reader = _OWN.get(base_type(type_name)) or reader_of(type_name)
    if reader is None:
        return texts
    return [None if text is None else reader(text) for text in texts]
