"""Tables without a key under REPLICA IDENTITY FULL: bags, with rows that are there many times."""

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
            "levels",
            {"level": _LEVELS, "weight": draw.nullable(draw.integers(1, 3))},
            key=("level",),
            rows=3,
            weight=0.5,
        ),
    ),
    truncates=("hosts", "lines, hosts"),
)
