"""Oracle: PostgreSQL's answer in a session with the view's TimeZone, after every change."""

from __future__ import annotations

import pytest

from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from dataflow.errors import SqlError
from dataflow.sql.planner import plan_view
from tests.harness.compare import pin_session
from tests.harness.maintained import SOURCE, plan_all, play
from tests.harness.postgres import Database
from tests.harness.tiers import some

# By zone, the middle of what happens: both changes of the clock, a month's end, a leap day.
MOMENTS = {
    "America/New_York": "2024-11-03 06:30+00",
    "Europe/Berlin": "2024-03-31 01:10+00",
    "Australia/Lord_Howe": "2024-04-06 15:20+00",
    "Asia/Kolkata": "2024-02-29 18:40+00",
}
DDL = """
CREATE TABLE clock (id int PRIMARY KEY, at timestamptz);
INSERT INTO clock VALUES (1, '{0}');
CREATE DOMAIN moment AS timestamptz;
CREATE TABLE events (id int PRIMARY KEY, at timestamptz, local timestamp, day date, n int,
    during tstzrange, hour time, spoken text, span interval);
INSERT INTO events SELECT i, t, t AT TIME ZONE 'UTC', (t AT TIME ZONE 'UTC')::date, i % 5,
    tstzrange(t, t + interval '1 day'), (t AT TIME ZONE 'UTC')::time,
    to_char(t AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI'),
    (ARRAY['1 day', '1 month -2 days', '90 minutes', '-1 year 3 hours'])[1 + i % 4]::interval
FROM (SELECT i, timestamptz '{0}' + (i - 60) * interval '37 minutes'
        + (i % 7 - 3) * interval '29 days' AS t FROM generate_series(1, 120) i) s;
INSERT INTO events (id, at, day) VALUES (900, 'infinity', '-infinity'), (901, NULL, NULL);
"""
NOW = "(SELECT c.at FROM clock c)"
QUERIES = {
    "casts": "SELECT id, at::date AS d, at::timestamp AS t, at::time AS h, at::timestamp(0) AS s, "
    "local::timestamptz AS a, day::timestamptz AS b FROM events",
    "texts": "SELECT id, at::text AS a, to_char(at, 'YYYY-MM-DD HH24:MI TZH') AS c, "
    "concat(at, '|', local) AS d, to_jsonb(at) AS j, during::text AS r, "
    "ARRAY[at, local::timestamptz] AS both, spoken::timestamptz AS s FROM events",
    "fields": "SELECT id, extract(hour FROM at) AS h, date_part('doy', at) AS y, "
    "extract(epoch FROM at) AS e, extract(timezone FROM at) AS z, extract(dow FROM at) AS w "
    "FROM events",
    "truncated": "SELECT date_trunc('day', at) AS day, count(*) AS n, min(at) AS first, "
    "date_trunc('hour', max(at)) AS last FROM events GROUP BY 1",
    "sums": "SELECT id, at + span AS a, at - interval '1 month' AS b, span + at AS c, "
    "at - interval '1 day' AS d, at - at AS e, at + interval '36 hours' AS f FROM events",
    "compared": "SELECT id, at > local AS a, day <= at AS b, at IS DISTINCT FROM local AS c, "
    "at IN ('2024-11-03', '2024-03-31 03:00') AS d, nullif(at, local) AS e, "
    "greatest(at, local) AS f FROM events",
    "literals": "SELECT id FROM events WHERE at >= '2024-03-30' AND at < '2024-11-04 01:30'",
    "joined": "SELECT a.id, b.id AS other FROM events a JOIN events b ON a.at = b.local",
    "recent": f"SELECT id FROM events WHERE at > {NOW} - interval '1 day'",
    "month": f"SELECT id FROM events WHERE at > {NOW} - interval '1 month'",
    "binned": "SELECT date_bin('1 day', at, '2023-12-31 22:00+00') AS bin, count(*) AS n "
    "FROM events GROUP BY 1",
    "hopping": "SELECT w.start, count(*) AS n FROM events, LATERAL generate_series("
    "date_bin('6 hours', at, 'epoch') - interval '1 day', date_bin('6 hours', at, 'epoch'), "
    "interval '6 hours') w(start) WHERE id < 900 GROUP BY 1",
    "today": f"SELECT id FROM events WHERE at >= date_trunc('day', {NOW})",
    "days": f"SELECT id, {NOW}::date - day AS days FROM events",
    "local": f"SELECT id FROM events WHERE local < {NOW} AND day > {NOW} - interval '2 days'",
    "either": f"SELECT id FROM events WHERE at < {NOW} - interval '1 day' OR n = 1",
    "aged": f"SELECT id, age({NOW}, at) AS age FROM events",
    "hours": "SELECT id, sum(n) OVER (ORDER BY at RANGE BETWEEN '24:00:00' PRECEDING "
    "AND CURRENT ROW) AS n FROM events",
    "spread": "SELECT e.id, g.at FROM events e, LATERAL generate_series(e.at, "
    "e.at + interval '2 days', interval '1 day') g(at) WHERE e.n = 2 AND e.id < 900",
    "gathered": "SELECT n, json_agg(at ORDER BY id) AS all, string_agg(day::timestamptz::text, ',' "
    "ORDER BY id) AS days FROM events GROUP BY n",
    "zoned": "SELECT id, at AT TIME ZONE 'Asia/Kathmandu' AS a, local AT TIME ZONE 'CET' AS b, "
    "date_trunc('day', at, 'Pacific/Apia') AS c, at AT TIME ZONE interval '5 hours' AS d "
    "FROM events",
    "chain": "SELECT id, at - interval '1 day' + interval '1 month' - interval '30 minutes' AS a "
    "FROM events",
    "cases": "SELECT id, CASE n WHEN 1 THEN at WHEN 2 THEN local ELSE day END AS a, "
    "coalesce(at, day) AS b FROM events",
}
CHANGES = [
    *(f"UPDATE clock SET at = at + interval '{by}'" for by in ("20 minutes", "31 minutes")),
    *(f"UPDATE clock SET at = at + interval '{by}'" for by in ("9 minutes", "1 hour", "23 hours")),
    "UPDATE events SET at = at + interval '1 hour', local = local - interval '25 hours' "
    "WHERE id % 3 = 0",
    "UPDATE clock SET at = '2024-03-29 12:00+00'",
    "UPDATE clock SET at = '2024-03-31 22:30+00'",
    "DELETE FROM events WHERE id % 4 = 0",
    "UPDATE clock SET at = NULL",
]


@pytest.mark.parametrize(
    "zone",
    [
        "America/New_York",
        "Australia/Lord_Howe",
        pytest.param("Europe/Berlin", marks=pytest.mark.whole),
        pytest.param("Asia/Kolkata", marks=pytest.mark.whole),
    ],
)
def test_views_are_computed_in_their_zone(database: Database, zone: str) -> None:
    database.execute(DDL.format(MOMENTS[zone]))
    connection = database.connect()
    pin_session(connection)
    play(database, connection, some(QUERIES, 12), CHANGES, time_zone=zone)


@pytest.mark.whole
def test_the_same_in_utc(database: Database) -> None:
    database.execute(DDL.format(MOMENTS["Europe/Berlin"]))
    connection = database.connect()
    pin_session(connection)
    play(database, connection, QUERIES, CHANGES[:3])


def test_keys_are_known_in_any_zone(database: Database) -> None:
    database.execute("CREATE TABLE seen (id int PRIMARY KEY, at timestamptz NOT NULL)")
    queries = {
        "days": "SELECT at::date AS day, count(*) AS n FROM seen GROUP BY 1",
        "weeks": "SELECT date_trunc('week', at) AS week, count(*) AS n FROM seen GROUP BY 1",
        "ends": "SELECT at + interval '1 month' AS ends, count(*) AS n FROM seen GROUP BY 1",
    }
    plans, refused = plan_all(database, queries, "America/New_York")
    assert not refused and [plan.key for plan in plans.values()] == [(0,)] * 3


REFUSED = {
    "SELECT id FROM events WHERE at IN (SELECT local FROM events)": "cast",
    "SELECT a.n FROM events a JOIN (SELECT local AS at, id FROM events) b USING (at)": "cast",
    "SELECT at FROM events UNION SELECT local FROM events": "cast",
    "SELECT id, sum(n) OVER (ORDER BY at RANGE '1 day' PRECEDING) AS s FROM events": "hours",
    "SELECT id, (spoken::moment) AS m FROM events": "built-in",
}


def test_what_would_depend_on_a_session_is_refused(database: Database) -> None:
    database.execute(DDL.format("2024-01-01"))
    for query, word in REFUSED.items():
        with PostgresAnalyzer(database.dsn, SOURCE, time_zone="Europe/Berlin") as analyzer:
            with pytest.raises(SqlError) as caught:
                plan_view(query, analyzer)
            assert caught.value.code in ("sql.time_zone", "sql.not_maintained"), query
            assert word in caught.value.hint, (query, caught.value.hint)
    _, refused = plan_all(database, dict(enumerate(REFUSED)))  # type: ignore[arg-type]
    assert not refused


@pytest.mark.parametrize(
    ("name", "hint"),
    [("Europe/berlin", "Europe/Berlin"), ("CET", "region"), ("Nowhere", "pg_timezone_names")],
)
def test_a_wrong_name_is_refused(database: Database, name: str, hint: str) -> None:
    with PostgresAnalyzer(database.dsn, SOURCE, time_zone=name) as analyzer:
        with pytest.raises(SqlError) as caught:
            analyzer.check_time_zone()
        assert caught.value.code == "sql.time_zone" and hint in caught.value.hint
