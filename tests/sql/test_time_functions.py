"""Oracle: PostgreSQL runs the functions; the plan of the same query with date_bin and
generate_series."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connectors.postgres.analysis import time_functions
from connectors.postgres.embedded.server import EmbeddedPostgres
from dataflow.errors import SqlError
from dataflow.types import UTC
from tests.harness.maintained import plan_all
from tests.harness.postgres import Database, new_database
from tests.sql.planning import plan

_BIN = "date_bin('1 min', at, 'epoch')"
# A query with the functions, and the same one without them.
PAIRS = {
    "tumbling": (
        "SELECT tidemark_time.tumble('1 min', at) AS w, count(*) AS c FROM event GROUP BY 1",
        f"SELECT {_BIN} AS w, count(*) AS c FROM event GROUP BY 1",
    ),
    "tumbling, zoned": (
        "SELECT tidemark_time.tumble('7 min', ts) AS w, sum(n) AS s FROM event GROUP BY 1",
        "SELECT date_bin('7 min', ts, 'epoch') AS w, sum(n) AS s FROM event GROUP BY 1",
    ),
    "dates": (
        "SELECT DISTINCT tidemark_time.tumble('7 days', day, '2024-01-01') AS w FROM event",
        "SELECT DISTINCT date_bin('7 days', day, '2024-01-01') AS w FROM event",
    ),
    "named arguments": (
        "SELECT id, tidemark_time.tumble(at => at, width => '9 min', origin => '2024-01-01') AS w"
        " FROM event",
        "SELECT id, date_bin('9 min', at, '2024-01-01') AS w FROM event",
    ),
    "hopping": (
        "SELECT w.start, count(*) AS c FROM event e CROSS JOIN LATERAL"
        " tidemark_time.hop('5 min', '1 min', e.at) AS w(start) GROUP BY 1",
        "SELECT w.start, count(*) AS c FROM event e CROSS JOIN LATERAL generate_series("
        "date_bin('1 min', e.at - interval '5 min', 'epoch') + interval '1 min',"
        " date_bin('1 min', e.at, 'epoch'), interval '1 min') AS w(start) GROUP BY 1",
    ),
    "hopping, zoned": (
        "SELECT e.id, w FROM event e LEFT JOIN LATERAL"
        " tidemark_time.hop('3 hours', '2 hours', e.ts, '2024-01-01 01:00+00') w ON true"
        " WHERE isfinite(e.ts)",
        "SELECT e.id, w FROM event e LEFT JOIN LATERAL generate_series(date_bin('2 hours',"
        " e.ts - interval '3 hours', '2024-01-01 01:00+00') + interval '2 hours', date_bin("
        "'2 hours', e.ts, '2024-01-01 01:00+00'), interval '2 hours') w ON true"
        " WHERE isfinite(e.ts)",
    ),
    "nested": (
        "SELECT id, tidemark_time.tumble('1 hour', tidemark_time.tumble('7 min', at)) AS w"
        " FROM event WHERE 'tidemark_time.tumble(x)' <> n::text",
        "SELECT id, date_bin('1 hour', date_bin('7 min', at, 'epoch'), 'epoch') AS w"
        " FROM event WHERE 'tidemark_time.tumble(x)' <> n::text",
    ),
    "full join": (
        "SELECT a.id, b.id AS other FROM event a FULL JOIN event b"
        " ON a.id = b.n AND tidemark_time.tumble('1 min', a.at) = b.at",
        "SELECT a.id, b.id AS other FROM event a FULL JOIN event b"
        " ON a.id = b.n AND date_bin('1 min', a.at, 'epoch') = b.at",
    ),
    "an ordinary view": ("SELECT w, c FROM per_minute", "SELECT w, c FROM per_minute_plain"),
}
DDL = f"""
CREATE TABLE event (id int PRIMARY KEY, ts timestamptz, at timestamp NOT NULL, day date, n int);
CREATE VIEW per_minute AS {PAIRS["tumbling"][0]};
CREATE VIEW per_minute_plain AS {PAIRS["tumbling"][1]};
"""


@pytest.fixture(scope="module")
def database(every_postgres: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(every_postgres) as made:
        for statement in [*time_functions.statements()] * 2:
            made.execute(statement)
        made.execute(DDL)
        made.execute(
            "INSERT INTO event SELECT i, t, t AT TIME ZONE 'UTC', t::date, i % 7 FROM"
            " (SELECT i, timestamptz '2024-03-30 20:00+00' + i * interval '217 s' AS t"
            " FROM generate_series(1, 500) i) x"
        )
        yield made


@pytest.mark.parametrize("zone", [UTC, "Europe/Berlin"])
def test_plans_are_those_without_functions(database: Database, zone: str) -> None:
    queries = {f"{name} {i}": pair[i] for name, pair in PAIRS.items() for i in (0, 1)}
    plans, refused = plan_all(database, queries, zone)
    assert not refused
    for name in PAIRS:
        called, plain = plans[f"{name} 0"], plans[f"{name} 1"]
        assert called.root == plain.root, name
        assert called.warnings == plain.warnings, name


@pytest.mark.parametrize("zone", [UTC, "Europe/Berlin"])
def test_postgres_runs_the_same(database: Database, zone: str) -> None:
    database.execute(f"ALTER DATABASE {database.name} SET TimeZone TO '{zone}'")
    for name, (called, plain) in PAIRS.items():
        assert database.rows(f"{called} ORDER BY 1, 2" if "DISTINCT" not in called else called)
        differing = f"(({called}) EXCEPT ALL ({plain})) UNION ALL (({plain}) EXCEPT ALL ({called}))"
        assert database.rows(differing) == [], name


@pytest.mark.parametrize(("width", "slide"), [(5, 1), (5, 2), (7, 3), (2, 5), (4, 4)])
def test_a_hop_is_in_exactly_the_windows_that_hold_it(
    database: Database, width: int, slide: int
) -> None:
    """Every aligned start whose window holds the time, also if the width is no multiple."""
    given = f"interval '{width} min', interval '{slide} min'"
    found = f"SELECT id, tidemark_time.hop({given}, at) AS w FROM event WHERE id < 60"
    every = (
        f"SELECT id, w FROM event, generate_series(date_bin('{slide} min', timestamp '2024-03-30"
        f" 19:00', 'epoch'), '2024-03-31 03:00', '{slide} min') w"
        f" WHERE id < 60 AND w <= at AND at < w + interval '{width} min'"
    )
    assert database.rows(f"{found} ORDER BY 1, 2") == database.rows(f"{every} ORDER BY 1, 2")


def test_another_body_is_not_replaced(database: Database) -> None:
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "CREATE OR REPLACE FUNCTION tidemark_time.tumble(width interval, at timestamp,"
            " origin timestamp DEFAULT 'epoch') RETURNS timestamp LANGUAGE sql IMMUTABLE"
            " AS 'SELECT at - width'"
        )
        assert time_functions.installed(cursor) == {"hop"}
        connection.rollback()
        assert time_functions.installed(cursor) == time_functions.NAMES


@pytest.mark.parametrize("is_partly_there", [False, True])
def test_missing_functions_are_named(
    every_postgres: EmbeddedPostgres, is_partly_there: bool
) -> None:
    with new_database(every_postgres) as database:
        database.execute("CREATE TABLE orders (id int PRIMARY KEY, placed timestamptz)")
        if is_partly_there:
            database.execute("CREATE SCHEMA tidemark_time")
            database.execute("GRANT USAGE ON SCHEMA tidemark_time TO PUBLIC")
        with pytest.raises(SqlError) as caught:
            plan(database, "SELECT tidemark_time.tumble('1 h', placed) AS w, id FROM orders")
        code = "sql.undefined_function" if is_partly_there else "sql.invalid_schema_name"
        assert caught.value.code == code
        assert caught.value.hint == time_functions.MISSING_HINT
