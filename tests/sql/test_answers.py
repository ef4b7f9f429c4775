"""Oracle: PostgreSQL's answer to shapes that planners get wrong, after every transaction."""

from __future__ import annotations

from pathlib import Path

from connectors.postgres.embedded.server import EmbeddedPostgres
from storage.memory import MemoryStore
from tests.equality.history import History, run_history
from tests.harness import draw
from tests.harness.postgres import new_database
from tests.harness.schemas.base import TableSpec, TestSchema, read_queries

QUERIES = read_queries(Path(__file__).parent / "fixtures" / "answers.txt")
# The failure's command is for the harness; a failing query is repeated by its name in the report.
DDL = """
CREATE TABLE l (
    id integer PRIMARY KEY, a integer, b text, c varchar(4), d char(3), n numeric(6,2), day date);
CREATE TABLE r (
    id bigint PRIMARY KEY, a bigint, b text, c varchar(3), d char(5), n numeric, at timestamp);
CREATE TABLE g (
    id integer PRIMARY KEY, a integer, twice integer GENERATED ALWAYS AS (a * 2) STORED, b text,
    shout text GENERATED ALWAYS AS (upper(b) || '!') STORED);
CREATE VIEW v AS SELECT a, count(*) AS n FROM r GROUP BY a;
"""
SMALL = draw.nullable(draw.integers(1, 3))
TEXTS = draw.nullable(draw.choice("x", "y", "z", "x "))
DAYS = draw.nullable(draw.choice("2024-01-01", "2024-01-02", "2024-01-03"))
SCHEMA = TestSchema(
    "planner",
    DDL,
    (
        TableSpec(
            "l",
            {
                "id": draw.integers(1, 20),
                "a": SMALL,
                "b": TEXTS,
                "c": draw.nullable(draw.choice("x", "yy", "x ")),
                "d": draw.nullable(draw.choice("x", "yy", "z")),
                "n": draw.nullable(draw.raw("1", "2.5", "2")),
                "day": DAYS,
            },
            ("id",),
            12,
        ),
        TableSpec(
            "r",
            {
                "id": draw.integers(1, 20),
                "a": SMALL,
                "b": TEXTS,
                "c": draw.nullable(draw.choice("x", "yy", "x ")),
                "d": draw.nullable(draw.choice("x", "yy", "z")),
                "n": draw.nullable(draw.raw("1", "2.5", "3")),
                "at": DAYS,
            },
            ("id",),
            12,
        ),
        TableSpec("g", {"id": draw.integers(1, 9), "a": SMALL, "b": TEXTS}, ("id",), 4),
    ),
)


def test_every_shape_equals_postgresql(every_postgres: EmbeddedPostgres) -> None:
    history = History(SCHEMA, seed=5, singles=25, batches=2)
    with new_database(every_postgres) as database:
        outcome = run_history(database, MemoryStore(), history, QUERIES)
    assert not outcome.refused, outcome.refused
    assert not outcome.faults, outcome.text(QUERIES, "pytest tests/sql/test_answers.py")
