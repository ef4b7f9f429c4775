"""Values that break engines: mixed scales, NaN, infinities, -0, padding, case and accents.

Equal values of one column print alike (no 1.5 beside 1.50, no '1 mon' beside '30 days'), because
which of them PostgreSQL shows for a group is not defined; across the two tables they differ.
"""

from __future__ import annotations

from tests.harness import draw
from tests.harness.schemas.base import TableSpec, TestSchema

DDL = """
CREATE TABLE measures (
    id integer PRIMARY KEY,
    free numeric,
    big numeric(38,10),
    small numeric(6,3),
    rounded numeric(5,-2),
    real4 real,
    real8 double precision,
    padded char(6),
    short varchar(3),
    loud text COLLATE "en-x-icu",
    day date,
    stamp timestamptz
);
CREATE TABLE lookups (
    id integer PRIMARY KEY,
    free numeric,
    real8 double precision,
    padded char(9),
    plain text,
    day timestamp
);
"""

MEASURES = {
    "id": draw.integers(1, 60),
    "free": draw.nullable(
        draw.raw(
            "1.5", "2.25", "3", "100.000", "0.10", "-7.0", "1e30", "1e-20", "'NaN'", "'Infinity'"
        )
    ),
    "big": draw.nullable(
        draw.raw("1234567890123456789012345678.0123456789", "-0.0000000001", "5", "'NaN'")
    ),
    "small": draw.nullable(draw.raw("999.999", "-0.001", "0", "1.5", "'NaN'"), 0.1),
    "rounded": draw.nullable(draw.integers(-5000, 99900)),
    "real4": draw.nullable(draw.raw("0.1", "1e10", "'NaN'", "'Infinity'", "16777217", "-0.0")),
    "real8": draw.nullable(draw.raw("0.1", "1e100", "'NaN'", "'-Infinity'", "-0.0", "1e-300")),
    "padded": draw.nullable(draw.choice("a", "a b", "abc   ", "", "ÄÖ", "zzzzzz")),
    "short": draw.nullable(draw.choice("a", "abc", "", "a ", "É")),
    "loud": draw.nullable(
        draw.choice("apple", "Apple", "éclair", "Eclair", "zebra", "Zebra", "a-b")
    ),
    "day": draw.nullable(
        draw.mixed(draw.dates(), draw.choice("infinity", "-infinity", "0001-01-01 BC"))
    ),
    "stamp": draw.nullable(draw.mixed(draw.instants(), draw.choice("infinity", "-infinity"))),
}

ODD = TestSchema(
    name="odd",
    ddl=DDL,
    tables=(
        TableSpec("measures", MEASURES, key=("id",), rows=45, weight=2),
        TableSpec(
            "lookups",
            {
                "id": draw.integers(1, 30),
                "free": draw.nullable(
                    draw.raw("1.50", "2.2500", "3.0", "100", "0.1", "'NaN'", "'Infinity'")
                ),
                "real8": draw.nullable(draw.raw("0.1", "0", "'NaN'", "'-Infinity'", "1e-300")),
                "padded": draw.nullable(draw.choice("a", "a b", "abc", "", "ÄÖ")),
                "plain": draw.nullable(draw.choice("a", "apple", "Apple", "abc", "zebra", "")),
                "day": draw.nullable(
                    draw.mixed(draw.instants(), draw.choice("infinity", "2024-01-01"))
                ),
            },
            key=("id",),
            rows=20,
        ),
    ),
    truncates=("lookups",),
)
