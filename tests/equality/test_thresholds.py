"""Oracle: PostgreSQL's answer to conditions that compare rows with one value that moves."""

from __future__ import annotations

from tests.harness.compare import pin_session
from tests.harness.maintained import plan_all, play
from tests.harness.postgres import Database
from tests.harness.tiers import some

DDL = """
CREATE TABLE clock (id int PRIMARY KEY, now timestamptz, today date, tick bigint);
CREATE TABLE events (
    id int PRIMARY KEY, at timestamptz, local timestamp, day date, n int, price numeric, w float8,
    code text COLLATE "C");
INSERT INTO clock VALUES (1, '2024-01-10 00:00+00', '2024-01-10', 50);
INSERT INTO events SELECT i, timestamptz '2024-01-01 00:00+00' + i * interval '3 hours',
    timestamp '2024-01-01 00:00' + i * interval '3 hours', date '2024-01-01' + i / 8, i % 7 * 10,
    i / 4.0, i / 3.0, 'c' || i % 5 FROM generate_series(1, 120) i;
INSERT INTO events (id) VALUES (1000), (1001);
"""
NOW = "(SELECT c.now FROM clock c)"
QUERIES = {
    "after": f"SELECT id, at FROM events WHERE at > {NOW} - interval '7 days'",
    "window": f"SELECT id FROM events WHERE at BETWEEN {NOW} - interval '7 days' AND {NOW}",
    "bag": f"SELECT n FROM events WHERE {NOW} >= at",
    "local": f"SELECT id FROM events WHERE local < {NOW}",
    "day": f"SELECT id FROM events WHERE day >= {NOW} - interval '2 days' AND n <> 10",
    "today": "SELECT id FROM events WHERE day > (SELECT today FROM clock) - 3",
    "ticks": "SELECT id FROM events WHERE n <= (SELECT tick FROM clock)",
    "shifted": f"SELECT id FROM events WHERE at + n * interval '1 hour' > {NOW}",
    "joined": "SELECT e.id FROM events e, clock c WHERE c.id = 1 AND e.at > c.now",
    "below": "SELECT e.id, f.n FROM events e JOIN events f ON f.id = e.id + 1 "
    f"WHERE e.at > {NOW} - interval '1 day' AND f.n <= (SELECT tick FROM clock)",
    "padded": "SELECT e.id, f.n FROM events e LEFT JOIN events f ON f.id = e.id + 1 AND f.n > 20 "
    f"WHERE e.at > {NOW} - interval '1 day' AND e.n + coalesce(f.n, 0) < (SELECT tick FROM clock)",
    "shared": f"WITH late AS (SELECT * FROM events WHERE at > {NOW}) "
    "SELECT a.id, b.id AS other FROM late a JOIN late b ON b.n = a.n AND b.id > a.id",
    "counted": f"SELECT n, count(*) AS c FROM events WHERE at > {NOW} GROUP BY n",
    "having": f"SELECT n, max(at) AS m FROM events GROUP BY n HAVING max(at) >= {NOW}",
    "numeric": "SELECT id FROM events WHERE price > (SELECT avg(price) FROM events)",
    "float": "SELECT id FROM events WHERE w >= (SELECT avg(w) FROM events)",
    "not": f"SELECT id FROM events WHERE NOT at > {NOW}",
    "text": "SELECT id FROM events WHERE code < (SELECT max(code) FROM events WHERE n > 20)",
}
CHANGES = [
    "UPDATE clock SET now = '2024-01-10 09:00+00', today = '2024-01-11', tick = 40",
    "UPDATE clock SET now = '2024-01-05 00:00+00', today = '2024-01-05', tick = 60",
    "UPDATE clock SET now = '2024-01-05 00:00+00', tick = 10 WHERE id = 1",
    "UPDATE events SET at = at + interval '5 days', n = n - 10 WHERE id % 3 = 0",
    "UPDATE clock SET now = NULL, today = NULL, tick = NULL",
    "DELETE FROM events WHERE id % 5 = 0",
    "UPDATE clock SET now = '2024-01-12 00:00+00', today = 'infinity', tick = 20",
    "UPDATE clock SET now = 'infinity', today = '-infinity'",
    "DELETE FROM clock",
    "INSERT INTO events (id, at, day, n) VALUES (2000, '2024-01-09', '2024-01-09', 20)",
    "INSERT INTO clock VALUES (1, '2024-01-08 00:00+00', '2024-01-08', 30)",
    "UPDATE events SET at = NULL, price = NULL, w = 'NaN' WHERE id % 4 = 0",
    "DELETE FROM events",
    "INSERT INTO events (id, at, day, n) VALUES (1, '2024-01-09', '2024-01-09', 20)",
]


# Anywhere else than in a condition that must be true, they are flags. In the words of a scalar
# subquery that always has a row: without one a flag has no threshold.
LAST = "(SELECT max(c.now) FROM clock c)"
FLAGS = {
    "either": f"SELECT id FROM events WHERE at > {LAST} - interval '7 days' OR n = 10",
    "neither": f"SELECT id FROM events WHERE NOT (at > {LAST} OR local < {LAST} OR n = 10)",
    "shown": f"SELECT id, at <= {LAST} AS a, day > {LAST} AS b, at + span > {LAST} AS c FROM "
    "(SELECT *, n * interval '1 hour' AS span FROM events) e",
    "bag": f"SELECT n, at > {LAST} AS is_new FROM events",
    "filtered": f"SELECT n, count(*) FILTER (WHERE at > {LAST}) AS a, "
    f"sum(CASE WHEN at > {LAST} - interval '2 days' THEN n ELSE -1 END) AS b, "
    f"max(id) FILTER (WHERE day >= {LAST}) AS c FROM events GROUP BY n",
    "grouped": f"SELECT at > {LAST} AS is_new, count(*) AS c FROM events GROUP BY 1",
    "having": f"SELECT n, max(at) AS m FROM events GROUP BY n HAVING max(at) >= {LAST} OR n = 20",
    "beside": f"SELECT id, at > {LAST} AS a, {LAST} AS now FROM events WHERE n < 30 OR at < {LAST}",
    "numbers": "SELECT id, n > (SELECT max(tick) FROM clock) AS a, code < (SELECT max(code) FROM "
    "events WHERE n > 20) AS b, price >= (SELECT avg(price) FROM events) AS c FROM events",
    "padded": f"SELECT e.id, f.id AS other FROM events e LEFT JOIN events f ON f.n = e.n + 10 "
    f"AND f.at > {LAST} - interval '1 day' AND (f.day < {LAST} OR e.id < 50)",
    "alone": f"SELECT e.id, f.id AS other FROM (SELECT * FROM events WHERE id < 9) e LEFT JOIN "
    f"events f ON f.id < 30 AND (f.at > {LAST} OR f.n = e.n)",
    "own side": "SELECT e.id, f.id AS other FROM events e LEFT JOIN events f "
    f"ON f.n = e.n + 10 AND e.at > {LAST} - interval '1 day' WHERE e.id < 40 OR e.id > 999",
    "own side, and its value": f"SELECT e.id, f.id AS other, {LAST} AS now FROM events e "
    f"LEFT JOIN events f ON f.id = e.id + 1 AND e.at > {LAST}",
    "both sides": "SELECT e.id, f.n FROM events e LEFT JOIN events f ON f.id = e.id + 1 "
    f"AND (e.at > {LAST} OR f.day < {LAST}) AND f.local > {LAST} - interval '9 days'",
    "full": "SELECT e.id, f.id AS other FROM events e FULL JOIN (SELECT * FROM events WHERE n > 10)"
    f" f ON f.id = e.id + 1 AND (e.at > {LAST} OR f.day < {LAST}) AND f.at > {LAST}",
    "full, grouped": "SELECT f.n, count(*) AS c, count(e.id) AS d FROM (SELECT * FROM events WHERE "
    f"n < 40) e FULL JOIN events f ON f.id = e.id + 8 AND e.at <= {LAST} GROUP BY f.n",
    "window": f"SELECT id, n, count(*) FILTER (WHERE at > {LAST}) OVER (PARTITION BY n ORDER BY "
    f"day < {LAST}, id) AS c FROM events",
    "window, some": f"SELECT id, sum(n) OVER (PARTITION BY at > {LAST} ORDER BY id) AS s "
    f"FROM events WHERE local < {LAST} OR n = 20",
    "sums": "SELECT id, 100 / n > (SELECT max(tick) FROM clock) AS a FROM events WHERE n > 0",
}


def test_comparisons_anywhere_are_flags(database: Database) -> None:
    database.execute(DDL)
    connection = database.connect()
    pin_session(connection)
    plans, refused = plan_all(database, FLAGS)
    assert not refused
    text = {name: str(plan.root) for name, plan in plans.items()}
    # Where the value itself is read too, or the row's expression may fail, they stay as they are.
    assert [name for name in FLAGS if "ThresholdFlag" not in text[name]] == ["beside", "sums"]
    play(database, connection, some(FLAGS, 7), CHANGES)


def test_rows_are_compared_with_a_value_that_moves(database: Database) -> None:
    database.execute(DDL)
    connection = database.connect()
    pin_session(connection)
    plans, _ = plan_all(database, QUERIES)
    text = {name: str(plan.root) for name, plan in plans.items()}
    assert [name for name in QUERIES if "ThresholdFilter" not in text[name]] == []
    play(database, connection, QUERIES, CHANGES)
