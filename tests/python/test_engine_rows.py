"""Oracle: Python's own values; what goes in by a function comes out of a query as it was."""

from __future__ import annotations

import dataclasses
import datetime
import math
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pytest
from pydantic import BaseModel

import tidemark

# --- what may be registered -------------------------------------------------------------------


@dataclasses.dataclass
class Person:
    id: int
    name: str | None


class Pair(NamedTuple):
    id: int
    name: str | None


class Model(BaseModel):
    id: int
    name: str | None


PEOPLE = [(1, "Ada"), (2, None), (3, 'O"Hara\t\\N')]


def _dicts() -> list[dict[str, Any]]:
    return [{"id": i, "name": n} for i, n in PEOPLE]


def _generated() -> Iterator[dict[str, Any]]:
    yield from _dicts()


async def _awaited() -> list[dict[str, Any]]:
    return _dicts()


async def _streamed() -> Any:
    for row in _dicts():
        yield row


SHAPES: dict[str, tuple[Any, Any]] = {
    "list of dicts": (_dicts(), None),
    "function": (_dicts, None),
    "generator function": (_generated, None),
    "iterator": (iter(_dicts()), None),
    "coroutine function": (_awaited, None),
    "async generator": (_streamed, None),
    "tuples, names": (PEOPLE, ["id", "name"]),
    "tuples, types": (lambda: iter(PEOPLE), {"id": "int", "name": "varchar(20)"}),
    "dataclasses": ([Person(*p) for p in PEOPLE], None),
    "named tuples": ([Pair(*p) for p in PEOPLE], None),
    "models": ([Model(id=i, name=n) for i, n in PEOPLE], None),
    "arrow": (pa.Table.from_pylist(_dicts()), None),
    "pandas": (lambda: pd.DataFrame(_dicts()), None),
    "parts": ([pa.Table.from_pylist(_dicts()[:2]), pa.Table.from_pylist(_dicts()[2:])], None),
    "keys that come and go": ([{"id": 1, "name": "Ada"}, {"id": 2}, _dicts()[2]], None),
    "more than is declared": (
        [{**row, "more": object()} for row in _dicts()],
        {"id": "bigint", "name": "text"},
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_any_shape_are_a_table(engine: tidemark.Engine, shape: str) -> None:
    source, columns = SHAPES[shape]
    engine.register(shape, source, columns=columns)
    assert engine.query(f'SELECT id, name FROM "{shape}" ORDER BY id').rows == PEOPLE
    engine.unregister(shape)
    with pytest.raises(tidemark.TidemarkError) as caught:
        engine.query(f'SELECT FROM "{shape}"')
    assert caught.value.code == "sql.undefined_table"


VALUES: dict[str, tuple[list[Any], str]] = {
    "bool": ([True, False, None], "boolean"),
    "int": ([1, -(2**63), None, 2**63 - 1], "bigint"),
    "large int": ([2**63, 10**40], "numeric"),
    "float": ([1.5, -0.0, math.inf, None, 1e300, 5e-324], "double precision"),
    "mixed numbers": ([1, 2.5], "double precision"),
    "decimal": ([Decimal("1.50"), Decimal("-0.001"), None, 3], "numeric"),
    "text": (["", "\\N", "\\.", "a\tb\nc\rd\\", "'; DROP--", "{}", "ü€😀", None], "text"),
    "bytes": ([b"", b"\x00\xff\\x", None], "bytea"),
    "zone": (
        [datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=5)))],
        "timestamp with time zone",
    ),
    "no zone": ([datetime.datetime(1, 1, 1), None], "timestamp without time zone"),
    "date": ([datetime.date(2024, 2, 29)], "date"),
    "time": ([datetime.time(23, 59, 59, 999999)], "time without time zone"),
    "uuid": ([uuid.UUID(int=5)], "uuid"),
    "lists": ([[1, None, 3], [], None], "bigint[]"),
    "lists of texts": ([['a"b', "\\", "NULL", None, "{,}", ""]], "text[]"),
    "documents": ([{"a": [1, None, {"b": "ü\\\t"}], "": "'"}, None, {}], "jsonb"),
    "ragged": ([[[1], [2, 3]], [{"a": 1}]], "jsonb"),
}


@pytest.mark.parametrize("kind", VALUES)
def test_values_come_back_as_they_were(engine: tidemark.Engine, kind: str) -> None:
    values, type_name = VALUES[kind]
    name = 'we "ird; DROP TABLE %s'
    column = 'col"umn %s\t'
    rows = [{"i": i, column: value} for i, value in enumerate(values)]
    state = engine.register(name, rows, key="i")
    assert state.columns[column] == type_name
    found = engine.query('SELECT * FROM "we ""ird; DROP TABLE %s" ORDER BY i')
    assert [tuple(r) for r in found] == [(i, value) for i, value in enumerate(values)]
    # Whatever it is, nothing of it is different the second time.
    engine.register(name, list(reversed(rows)), key="i")
    assert not engine.refresh(name)[name].is_changed
    engine.unregister(name)


@pytest.mark.parametrize("key", ["i", ()], ids=["key", "bag"])
def test_decimals_keep_all_of_their_digits(engine: tidemark.Engine, key: Any) -> None:
    long = "12345678901234567890.12345678901234567890"
    rows = [{"i": 1, "n": Decimal("1.50"), "j": {"n": [Decimal(long)]}, "s": float("nan")}]
    engine.register("digits", lambda: rows, key=key)
    shown = engine.query("SELECT n::text, j::text, s::text FROM digits").rows
    assert shown == [("1.50", f'{{"n": [{long}]}}', "NaN")]
    rows[0]["n"] = Decimal("1.5")
    assert engine.refresh("digits")["digits"].is_changed, "1.5 does not look like 1.50"
