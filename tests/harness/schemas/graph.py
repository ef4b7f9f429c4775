"""Graphs for recursion: roads in circles, parts of parts, staff under bosses, chained lists.

Roads go anywhere. Parts hold parts of higher numbers only and bosses have lower numbers, by
constraints, so that what follows those without UNION ends.
"""

from __future__ import annotations

from tests.harness import draw
from tests.harness.schemas.base import TableSpec, TestSchema

DDL = """
CREATE TABLE places (
    place integer PRIMARY KEY,
    name text NOT NULL,
    is_closed boolean,
    height numeric
);
CREATE TABLE roads (
    id integer PRIMARY KEY,
    a integer NOT NULL,
    b integer,
    cost numeric NOT NULL,
    kind text
);
CREATE TABLE parts (
    part integer PRIMARY KEY,
    name varchar(20) NOT NULL,
    price numeric(10,2)
);
CREATE TABLE contents (
    holder integer,
    part integer,
    quantity integer NOT NULL,
    PRIMARY KEY (holder, part),
    CHECK (holder < part)
);
CREATE TABLE staff (
    id integer PRIMARY KEY,
    boss integer CHECK (boss < id),
    name text NOT NULL,
    salary numeric(9,2)
);
CREATE TABLE links (source text, target text);
ALTER TABLE links REPLICA IDENTITY FULL;
"""

_PLACES = draw.integers(1, 8)
_LETTERS = draw.choice("a", "b", "c", "d", "e", "É", "")

GRAPH = TestSchema(
    name="graph",
    ddl=DDL,
    tables=(
        TableSpec(
            "places",
            {
                "place": _PLACES,
                "name": draw.words(),
                "is_closed": draw.nullable(draw.raw("false", "false", "true"), 0.2),
                "height": draw.nullable(draw.decimals(0, 3, 1), 0.2),
            },
            key=("place",),
            rows=8,
            weight=0.7,
        ),
        TableSpec(
            "roads",
            {
                "id": draw.integers(1, 20),
                "a": _PLACES,
                "b": draw.nullable(_PLACES, 0.1),
                "cost": draw.raw("1", "2", "0.5", "0"),
                "kind": draw.nullable(draw.choice("rail", "road"), 0.2),
            },
            key=("id",),
            rows=14,
            weight=2.0,
        ),
        TableSpec(
            "parts",
            {
                "part": draw.integers(1, 10),
                "name": draw.words(),
                "price": draw.nullable(draw.decimals(0, 90, 2), 0.2),
            },
            key=("part",),
            rows=8,
        ),
        TableSpec(
            "contents",
            {
                "holder": draw.integers(1, 9),
                "part": draw.integers(2, 10),
                "quantity": draw.integers(0, 4),
            },
            key=("holder", "part"),
            rows=20,
        ),
        TableSpec(
            "staff",
            {
                "id": draw.integers(1, 20),
                "boss": draw.nullable(draw.integers(1, 19), 0.1),
                "name": draw.words(),
                "salary": draw.nullable(draw.decimals(1, 99, 2), 0.1),
            },
            key=("id",),
            rows=25,
        ),
        TableSpec(
            "links",
            {"source": draw.nullable(_LETTERS, 0.05), "target": draw.nullable(_LETTERS, 0.05)},
            rows=6,
        ),
    ),
    truncates=("roads", "staff, contents", "links, places"),
)
