"""Many columns, mostly NULL, under a composite key; and a narrow partner with NULLs in keys."""

from __future__ import annotations

from tests.harness import draw
from tests.harness.schemas.base import TableSpec, TestSchema

_TYPES = {
    "i": ("integer", draw.integers(-5, 5)),
    "b": ("bigint", draw.integers(-(10**12), 10**12)),
    "s": ("smallint", draw.integers(-3, 3)),
    "t": (
        "text",
        draw.mixed(draw.words(), draw.choice("", " ", "ünï", "tab\there", "back\\slash")),
    ),
    "n": ("numeric(12,4)", draw.decimals(-9, 9, 4)),
    "f": ("double precision", draw.floats(0, 9)),
    "o": ("boolean", draw.booleans()),
    "d": ("date", draw.dates()),
}
COLUMNS = {f"{letter}{number}": _TYPES[letter] for letter in _TYPES for number in range(1, 6)}

_DEFINITIONS = ",\n    ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())

DDL = f"""
CREATE TABLE sparse (
    part integer,
    code text,
    {_DEFINITIONS},
    PRIMARY KEY (part, code)
);
CREATE TABLE partners (
    id integer PRIMARY KEY,
    i1 integer,
    s1 smallint,
    t1 text,
    o1 boolean
);
CREATE FUNCTION longer(one text, other text) RETURNS text LANGUAGE sql IMMUTABLE
    AS $$ SELECT CASE WHEN (length(other), other COLLATE "C") > (length(one), one COLLATE "C")
        OR one IS NULL THEN other ELSE one END $$;
CREATE AGGREGATE longest(text) (SFUNC = longer, STYPE = text);
CREATE FUNCTION place() RETURNS bigint LANGUAGE internal WINDOW IMMUTABLE AS 'window_row_number';
CREATE FUNCTION standing() RETURNS bigint LANGUAGE internal WINDOW IMMUTABLE AS 'window_rank';
CREATE FUNCTION beginning(anyelement) RETURNS anyelement LANGUAGE internal WINDOW IMMUTABLE
    AS 'window_first_value';
"""

WIDE = TestSchema(
    name="wide",
    ddl=DDL,
    tables=(
        TableSpec(
            "sparse",
            {
                "part": draw.integers(1, 6),
                "code": draw.choice("a", "b", "c", "A", "ab", ""),
                **{name: draw.nullable(of, 0.6) for name, (_, of) in COLUMNS.items()},
            },
            key=("part", "code"),
            rows=25,
        ),
        TableSpec(
            "partners",
            {
                "id": draw.integers(1, 30),
                "i1": draw.nullable(draw.integers(-5, 5), 0.4),
                "s1": draw.nullable(draw.integers(-3, 3), 0.4),
                "t1": draw.nullable(draw.words(), 0.4),
                "o1": draw.nullable(draw.booleans(), 0.4),
            },
            key=("id",),
            rows=15,
        ),
    ),
    truncates=("partners",),
)
