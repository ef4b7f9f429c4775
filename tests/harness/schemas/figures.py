"""What aggregates are made of: values of every type, with ties, scales and NULLs; own aggregates.

Equal values of a column print alike where a query shows one of them.
"""

from __future__ import annotations

from tests.harness import draw
from tests.harness.schemas.base import TableSpec, TestSchema

DDL = """
CREATE TYPE grade AS ENUM ('low', 'mid', 'high');
CREATE TABLE facts (
    id integer PRIMARY KEY,
    g text,
    k smallint NOT NULL,
    small smallint,
    whole integer,
    big bigint,
    fixed numeric(12,4),
    free numeric,
    single real,
    double float8,
    flag boolean,
    word text,
    loud text COLLATE "en-x-icu",
    code char(4),
    numbers integer[],
    document jsonb,
    plain json,
    span interval,
    day date,
    at timestamptz,
    range int4range,
    cash money,
    address inet,
    bits bit(6),
    body bytea,
    grade grade
);
CREATE TABLE marks (g integer, v integer, t varchar(5));
ALTER TABLE marks REPLICA IDENTITY FULL;
CREATE FUNCTION add_product(state numeric, value integer) RETURNS numeric
LANGUAGE sql IMMUTABLE AS 'SELECT state * coalesce(value, 1)';
CREATE AGGREGATE product(integer) (sfunc = add_product, stype = numeric, initcond = '1');
CREATE FUNCTION add_path(state text, a text, b integer) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN coalesce(state, '') || '/' || coalesce(a, '-') || coalesce(b::text, '?');
END
$$;
CREATE AGGREGATE path(text, integer) (sfunc = add_path, stype = text);
CREATE FUNCTION add_first(state anyelement, value anyelement) RETURNS anyelement
LANGUAGE sql IMMUTABLE STRICT AS 'SELECT state';
CREATE AGGREGATE "First"(anyelement) (sfunc = add_first, stype = anyelement);
CREATE FUNCTION add_all(state bigint, VARIADIC more integer[]) RETURNS bigint
LANGUAGE sql IMMUTABLE AS
    'SELECT coalesce(state, 0) + coalesce((SELECT sum(x) FROM unnest(more) AS x), 0)';
CREATE AGGREGATE sum_all(VARIADIC integer[]) (sfunc = add_all, stype = bigint);
"""

FIGURES = TestSchema(
    name="figures",
    ddl=DDL,
    tables=(
        TableSpec(
            "facts",
            {
                "id": draw.integers(1, 70),
                "g": draw.nullable(draw.choice("a", "b", "c", "d"), 0.15),
                "k": draw.integers(1, 3),
                "small": draw.nullable(draw.integers(-4, 9)),
                "whole": draw.nullable(draw.mixed(draw.integers(-5, 20), draw.raw("2147483647"))),
                "big": draw.nullable(draw.raw("0", "7", "-9223372036854775808", "10000000000")),
                "fixed": draw.nullable(draw.decimals(-50, 90, 4)),
                "free": draw.nullable(draw.raw("1.5", "2.25", "3", "100.000", "-7.0", "1e20")),
                "single": draw.nullable(draw.floats(-3, 9)),
                "double": draw.nullable(draw.floats(-9, 90)),
                "flag": draw.nullable(draw.booleans()),
                "word": draw.nullable(draw.choice("x", "yy", "", "it's", "a,b", "é")),
                "loud": draw.nullable(draw.choice("apple", "Apple", "éclair", "zebra", "a-b")),
                "code": draw.nullable(draw.choice("a", "ab", "abcd")),
                "numbers": draw.nullable(draw.arrays(draw.integers(1, 4), "integer", 3)),
                "document": draw.nullable(draw.documents()),
                "plain": draw.nullable(draw.documents()),
                "span": draw.nullable(draw.choice("1 day", "2 mons", "03:00:00", "-5 days")),
                "day": draw.nullable(draw.dates()),
                "at": draw.nullable(draw.instants()),
                "range": draw.nullable(draw.choice("[1,4)", "[3,9)", "empty", "[20,)")),
                "cash": draw.nullable(draw.choice("1.50", "-20", "1000.25")),
                "address": draw.nullable(draw.choice("10.0.0.1", "10.0.0.0/8", "::1")),
                "bits": draw.nullable(draw.raw("B'010101'", "B'110000'", "B'111111'")),
                "body": draw.nullable(draw.raw(r"'\x00ff'", r"'\x'", r"'\x61'")),
                "grade": draw.nullable(draw.choice("low", "mid", "high")),
            },
            ("id",),
            rows=30,
            weight=3,
        ),
        TableSpec(
            "marks",
            {
                "g": draw.nullable(draw.integers(1, 3), 0.1),
                "v": draw.nullable(draw.integers(1, 4)),
                "t": draw.nullable(draw.choice("p", "q", "rr")),
            },
            rows=25,
        ),
    ),
    truncates=("facts", "marks"),
)
