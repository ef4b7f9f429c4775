"""Arrays, documents and composite values, and functions of a user that return sets.

Arrays hold NULLs, repeats, quotes and nothing at all; documents are objects in one column and
arrays of objects in another, so that a function of one never fails over the other.
"""

from __future__ import annotations

from random import Random

from tests.harness import draw
from tests.harness.schemas.base import TableSpec, TestSchema

DDL = """
CREATE TYPE place AS (street text, city text);
CREATE TYPE trip AS (start place, days integer);
CREATE TABLE notes (
    id integer PRIMARY KEY,
    title text,
    tags text[],
    scores integer[],
    grid integer[],
    body jsonb NOT NULL,
    parts jsonb,
    home place,
    trip trip,
    many place[],
    since date,
    n smallint
);
CREATE TABLE links (
    note integer,
    target integer,
    label varchar(12),
    weight numeric(8,2)
);
ALTER TABLE links REPLICA IDENTITY FULL;
CREATE FUNCTION public.digits(n integer) RETURNS SETOF integer LANGUAGE sql IMMUTABLE
    AS 'SELECT s::text::integer FROM string_to_table(abs(n)::text, NULL) s';
CREATE FUNCTION public.split_pairs(t text) RETURNS TABLE(at integer, "Letter" text)
    LANGUAGE plpgsql IMMUTABLE AS
    'BEGIN RETURN QUERY SELECT i, substr(t, i, 1) FROM generate_series(1, length(t)) i; END';
CREATE FUNCTION public.places(n integer) RETURNS SETOF place LANGUAGE sql IMMUTABLE
    AS 'SELECT ROW(''s'' || i, CASE WHEN i > 1 THEN ''c'' END)::place FROM generate_series(1, n) i';
CREATE FUNCTION public.loose_rows(n integer) RETURNS SETOF record LANGUAGE sql IMMUTABLE
    AS 'SELECT i, i::text FROM generate_series(1, n) i';
CREATE FUNCTION public.halves(n integer, OUT low integer, OUT high integer) LANGUAGE sql IMMUTABLE
    AS 'SELECT n / 2, n - n / 2';
"""


def _texts(rng: Random) -> str:
    return rng.choice(["'a'", "'b'", "'a b'", "''", "NULL", "'NULL'", "'q\"z'", "'{x}'", "'ü,y'"])


def _object(rng: Random) -> str:
    fields = {
        "a": rng.choice(["1", "2", "null", "1.50"]),
        "b": rng.choice(['"x"', '"y z"', '""', "null"]),
        "c": rng.choice(["[]", "[1, 2]", "[3, null]", "[1, 1]"]),
    }
    kept = [f'"{k}": {v}' for k, v in fields.items() if rng.random() < 0.7]
    return "{" + ", ".join(kept) + "}"


def _objects(rng: Random) -> str:
    return draw.quote("[" + ", ".join(_object(rng) for _ in range(rng.randint(0, 3))) + "]")


def _place(rng: Random) -> str:
    street = rng.choice(["'main'", "''", "NULL", "'a,b'", "'(q)'", "'x\"y'"])
    return f"ROW({street}, {rng.choice(['NULL', chr(39) + 'Oslo' + chr(39)])})::place"


LISTS = TestSchema(
    name="lists",
    ddl=DDL,
    tables=(
        TableSpec(
            "notes",
            {
                "id": draw.integers(1, 40),
                "title": draw.nullable(draw.choice("abab", "", "a1b22", "x,y,,z", "ÄÖ a")),
                "tags": draw.nullable(draw.arrays(_texts, "text")),
                "scores": draw.nullable(draw.arrays(draw.raw("1", "2", "2", "NULL", "-5"), "int")),
                "grid": draw.nullable(
                    draw.raw("'{{1,2},{3,4}}'", "'{{5}}'", "'{}'", "'[0:1]={7,8}'")
                ),
                "body": lambda rng: draw.quote(_object(rng)),
                "parts": draw.nullable(_objects),
                "home": draw.nullable(_place),
                "trip": draw.nullable(
                    lambda rng: f"ROW({_place(rng)}, {rng.choice(['3', 'NULL'])})::trip"
                ),
                "many": draw.nullable(draw.arrays(draw.nullable(_place), "place")),
                "since": draw.nullable(draw.dates()),
                "n": draw.nullable(draw.integers(-2, 4)),
            },
            key=("id",),
            rows=30,
            weight=2,
        ),
        TableSpec(
            "links",
            {
                "note": draw.nullable(draw.integers(1, 40)),
                "target": draw.nullable(draw.integers(1, 40)),
                "label": draw.nullable(draw.choice("a", "b", "a b", "")),
                "weight": draw.nullable(draw.decimals(-9, 9, 2)),
            },
            rows=25,
        ),
    ),
    truncates=("links", "notes"),
)
