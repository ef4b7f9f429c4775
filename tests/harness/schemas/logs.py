"""Tables without a key under REPLICA IDENTITY FULL: bags, with rows that are there many times.

And a partitioned table, whose rows move from one partition to another.
"""

from __future__ import annotations

from tests.harness import draw
from tests.harness.schemas.base import TableSpec, TestSchema

DDL = """
CREATE TABLE lines (
    host text,
    level text NOT NULL,
    code smallint,
    elapsed_ms double precision,
    at timestamp
);
ALTER TABLE lines REPLICA IDENTITY FULL;
CREATE TABLE hosts (host text, rack text, note text);
ALTER TABLE hosts REPLICA IDENTITY FULL;
ALTER TABLE hosts ALTER COLUMN note SET STORAGE EXTERNAL;
CREATE TABLE levels (level text PRIMARY KEY, weight integer);
CREATE TABLE readings (
    site text, seq integer, value numeric(8,3), flag boolean,
    PRIMARY KEY (site, seq)
) PARTITION BY LIST (site);
CREATE TABLE readings_north PARTITION OF readings FOR VALUES IN ('n1', 'n2');
CREATE TABLE readings_south PARTITION OF readings FOR VALUES IN ('s1')
    PARTITION BY RANGE (seq);
CREATE TABLE readings_south_low PARTITION OF readings_south FOR VALUES FROM (0) TO (10);
CREATE TABLE readings_south_rest PARTITION OF readings_south DEFAULT;
CREATE TABLE readings_rest PARTITION OF readings DEFAULT;
"""

_HOSTS = draw.choice("alpha", "beta", "gamma", "delta")
_LEVELS = draw.choice("debug", "info", "warn")

LOGS = TestSchema(
    name="logs",
    ddl=DDL,
    tables=(
        TableSpec(
            "lines",
            {
                "host": draw.nullable(_HOSTS, 0.1),
                "level": _LEVELS,
                "code": draw.nullable(draw.integers(0, 2)),
                "elapsed_ms": draw.nullable(draw.raw("0.1", "0.25", "1e3", "1e-7")),
                "at": draw.nullable(draw.choice("2024-01-01 00:00:00", "2024-01-01 00:00:01")),
            },
            rows=60,
            weight=3,
        ),
        TableSpec(
            "hosts",
            {
                "host": draw.nullable(_HOSTS, 0.1),
                "rack": draw.nullable(draw.choice("r1", "r2")),
                "note": draw.mixed(draw.raw("NULL"), draw.words(), draw.long_texts(2500)),
            },
            rows=6,
        ),
        TableSpec(
            "readings",
            {
                "site": draw.choice("n1", "n2", "s1", "x"),
                "seq": draw.integers(0, 20),
                "value": draw.nullable(draw.decimals(-5, 99, 3), 0.1),
                "flag": draw.nullable(draw.booleans()),
            },
            key=("site", "seq"),
            rows=40,
            weight=2,
        ),
        TableSpec(
            "levels",
            {"level": _LEVELS, "weight": draw.nullable(draw.integers(1, 3))},
            key=("level",),
            rows=3,
            weight=0.5,
        ),
    ),
    truncates=("hosts", "lines, hosts", "readings"),
)
