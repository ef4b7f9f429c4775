"""Three small tables for queries inside queries: few values, many NULLs, every group often empty.

`m` holds equal numbers of different scales: what reads it shows which row it came from.
"""

from __future__ import annotations

from tests.harness import draw
from tests.harness.schemas.base import TableSpec, TestSchema

DDL = """
CREATE TABLE a (
    id integer PRIMARY KEY, x integer, y text, n numeric(6,2), k integer NOT NULL, m numeric,
    tags text[], d char(4));
CREATE TABLE b (
    id integer PRIMARY KEY, a_id integer, x bigint, y varchar(8), n numeric(8,3), f float8);
CREATE TABLE c (
    id bigint PRIMARY KEY, b_id integer NOT NULL, x smallint, y text NOT NULL, day date);
"""
_SMALL = draw.nullable(draw.integers(1, 4), 0.25)
_TEXT = draw.nullable(draw.choice("x", "y", "xy", ""), 0.2)

NESTED = TestSchema(
    name="nested",
    ddl=DDL,
    tables=(
        TableSpec(
            "a",
            {
                "id": draw.integers(1, 14),
                "x": _SMALL,
                "y": _TEXT,
                "n": draw.nullable(draw.raw("1", "2.5", "2")),
                "k": draw.integers(1, 3),
                "m": draw.nullable(draw.raw("1.5", "1.50", "2", "2.000")),
                "tags": draw.nullable(draw.arrays(draw.choice("x", "y", "z"), "text"), 0.2),
                "d": draw.nullable(draw.choice("x", "xy", "y")),
            },
            ("id",),
            9,
        ),
        TableSpec(
            "b",
            {
                "id": draw.integers(1, 14),
                "a_id": draw.nullable(draw.integers(1, 14), 0.1),
                "x": _SMALL,
                "y": _TEXT,
                "n": draw.nullable(draw.raw("1", "2.5", "2.500", "3")),
                "f": draw.nullable(draw.raw("1", "2.5", "'NaN'", "0")),
            },
            ("id",),
            10,
        ),
        TableSpec(
            "c",
            {
                "id": draw.integers(1, 14),
                "b_id": draw.integers(1, 14),
                "x": _SMALL,
                "y": draw.choice("x", "y", "xy"),
                "day": draw.nullable(draw.choice("2024-01-01", "2024-01-02", "2024-01-03")),
            },
            ("id",),
            10,
        ),
    ),
    truncates=("b", "c"),
)
