"""Oracle: PostgreSQL's answer to joins in which a value lies between two of the other input."""

from __future__ import annotations

import pytest

from tests.harness.compare import pin_session
from tests.harness.maintained import plan_all, play
from tests.harness.postgres import Database
from tests.harness.tiers import some

DDL = """
CREATE TABLE calls (
    id int PRIMARY KEY, k int, ts timestamptz, stop timestamptz, day date, last date, n int,
    least bigint, most bigint, price numeric(10,2), w float8);
CREATE TABLE events (
    id int PRIMARY KEY, k int, ts timestamptz, local timestamp, day date, n int,
    price numeric(10,2), w float8);
CREATE TABLE plain (k int, ts int, v int);
CREATE TABLE probes (k int, low int, high int);
ALTER TABLE plain REPLICA IDENTITY FULL;
ALTER TABLE probes REPLICA IDENTITY FULL;
INSERT INTO calls SELECT i, i % 4, timestamptz '2024-01-01 00:00+00' + i * interval '7 min',
    timestamptz '2024-01-01 00:00+00' + i * interval '7 min' + (i % 5) * (i % 5) * interval '9 min',
    date '2024-01-01' + i / 3, date '2024-01-01' + i / 3 + i % 4, i % 11, i * 3, i * 3 + i % 7 * 20,
    i / 8.0, i / 3.0 FROM generate_series(1, 120) i;
INSERT INTO events SELECT i, i % 5, timestamptz '2024-01-01 00:00+00' + i * interval '11 min',
    timestamp '2024-01-01 00:00' + i * interval '10 hours', date '2024-01-01' + i / 2, i % 13,
    i / 4.0, i / 5.0 FROM generate_series(1, 90) i;
INSERT INTO calls (id) VALUES (1000), (1001);
INSERT INTO events (id, k) VALUES (1000, 1), (1001, NULL);
INSERT INTO plain SELECT i % 3, i % 10, i % 2 FROM generate_series(1, 60) i;
INSERT INTO probes SELECT i % 4, i % 6, i % 12 FROM generate_series(1, 60) i;
"""
NEAR = "e.ts BETWEEN c.ts - interval '15 min' AND c.ts + interval '10 min'"
INSIDE = "e.ts >= c.ts AND e.ts < c.stop"


def _pairs(kind: str, condition: str, more: str = "") -> str:
    """Calls beside events."""
    shown = "c.id, e.id AS event"
    return f"SELECT {shown} FROM calls c {kind} JOIN events e ON {condition}{more}"


QUERIES = {
    "inner": _pairs("", f"e.k = c.k AND {NEAR}"),
    "left": _pairs("LEFT", f"e.k = c.k AND {NEAR}"),
    "right": _pairs("RIGHT", f"e.k = c.k AND {NEAR}"),
    "full": _pairs("FULL", f"e.k = c.k AND {NEAR}"),
    "no key": _pairs("", NEAR),
    "left without keys": _pairs("LEFT", NEAR),
    "own lengths": _pairs("", f"e.k = c.k AND {INSIDE}"),
    "left of own lengths": _pairs("LEFT", f"e.k = c.k AND {INSIDE}"),
    "right of own lengths": _pairs("RIGHT", f"e.k = c.k AND {INSIDE}"),
    "no key of own lengths": _pairs("RIGHT", INSIDE),
    "mirrored": "SELECT e.id, c.id AS call FROM events e LEFT JOIN calls c "
    "ON c.k = e.k AND c.ts <= e.ts AND c.stop > e.ts",
    "value on the left": _pairs("", "c.ts BETWEEN e.ts - interval '1 hour' AND e.ts AND c.n = e.n"),
    "months": _pairs("", "e.k = c.k AND e.day BETWEEN c.day - interval '1 month' AND c.day"),
    "strict": _pairs("LEFT", "e.k = c.k AND e.day > c.day AND e.day < c.last"),
    "further conditions": _pairs("LEFT", f"e.k = c.k AND {NEAR} AND e.n <> c.n AND e.n > 3"),
    "where": _pairs("", f"e.k = c.k AND {NEAR}", " WHERE e.n < c.n OR c.n = 3"),
    "failing": _pairs("", f"e.k = c.k AND {NEAR} AND e.n / (c.n + 1) >= 0"),
    "semi": f"SELECT c.id FROM calls c WHERE EXISTS (SELECT FROM events e WHERE e.k = c.k "
    f"AND {NEAR})",
    "anti": f"SELECT c.id FROM calls c WHERE NOT EXISTS (SELECT FROM events e WHERE e.k = c.k "
    f"AND {INSIDE})",
    "integers": _pairs("", "e.n BETWEEN c.least AND c.most"),
    "computed integers": _pairs("LEFT", "e.k = c.k AND e.n * 2 BETWEEN c.n - 1 AND c.n + c.k"),
    "numeric": _pairs("", "e.k = c.k AND e.price >= c.price AND e.price <= c.price"),
    "mixed times": _pairs("", "e.k = c.k AND e.local BETWEEN c.day AND c.last"),
    "counted": f"SELECT c.n, count(e.id) AS c FROM calls c LEFT JOIN events e ON e.k = c.k "
    f"AND {NEAR} GROUP BY c.n",
    "of groups": "SELECT g.k, g.day, e.id FROM (SELECT k, day, n, count(*) FROM calls "
    "GROUP BY 1, 2, 3) g JOIN events e ON e.k = g.k AND e.day BETWEEN g.day - 1 AND g.day + 1",
    "bag": "SELECT a.k, a.low, b.v FROM probes a LEFT JOIN plain b ON b.k = a.k "
    "AND b.ts BETWEEN a.low AND a.high",
    "full bag": "SELECT a.k, a.low, b.v, b.ts FROM probes a FULL JOIN plain b ON b.k = a.k "
    "AND a.low <= b.ts AND b.ts < a.high",
    "self": "SELECT a.id, b.id AS other FROM events a JOIN events b ON b.k = a.k "
    "AND b.ts BETWEEN a.ts AND a.ts + interval '30 min' AND b.id <> a.id",
}
# Joins that are not stored in order: one row at most of a key, one bound, a type without distances.
OTHERS = {
    "one row": "SELECT e.id, c.id AS call FROM events e JOIN calls c ON c.id = e.n "
    "AND e.ts BETWEEN c.ts AND c.stop",
    "one bound": _pairs("", "e.k = c.k AND e.n = c.n AND e.ts > c.ts"),
    "float": _pairs("", "e.k = c.k AND e.w BETWEEN c.w - 2 AND c.w"),
    "overlap": _pairs("", "e.k = c.k AND e.day >= c.day AND e.ts <= c.ts"),
}
CHANGES = [
    "INSERT INTO events SELECT 2000 + i, i % 4, timestamptz '2024-01-01 01:00+00' "
    "+ i * interval '13 min', '2024-01-05', '2024-01-04', i, i / 3.0, i "
    "FROM generate_series(1, 40) i",
    "DELETE FROM events WHERE id % 3 = 0",
    "UPDATE events SET ts = ts - interval '40 min', n = n + 1 WHERE id % 4 = 0",
    "UPDATE calls SET ts = ts + interval '35 min', n = n - 1 WHERE id % 3 = 0",
    "UPDATE calls SET stop = stop + interval '3 hours' WHERE id % 10 = 0",
    "INSERT INTO events (id, k, ts, day, n, price) VALUES (3000, 1, '-infinity', '-infinity', 1, "
    "'NaN'), (3001, 2, 'infinity', 'infinity', NULL, -5)",
    "INSERT INTO calls (id, k, ts, stop, day, last, n, least, most, price) VALUES "
    "(3000, 1, '-infinity', 'infinity', '-infinity', 'infinity', 0, -9223372036854775808, "
    "9223372036854775807, 'NaN'), "
    "(3001, 2, 'infinity', '-infinity', 'infinity', NULL, 9, 5, 4, 1), "
    "(3002, 2, '-infinity', '-infinity', '2024-01-03', '2024-01-03', 9, 5, 5, -5), "
    "(3003, 2, '2024-01-01 02:00+00', 'infinity', '2024-01-03', '2024-01-09', 9, -5, "
    "9223372036854775807, -5)",
    "BEGIN; UPDATE calls SET k = 3 WHERE k = 1; DELETE FROM events WHERE k = 2; "
    "INSERT INTO events (id, k, ts, n) VALUES (4000, 3, '2024-01-01 05:00+00', 7); COMMIT",
    "UPDATE events SET ts = NULL WHERE id % 5 = 0",
    "UPDATE calls SET stop = NULL, most = NULL WHERE id % 7 = 0",
    "DELETE FROM plain WHERE ts = 4 OR v = 1 AND ts > 7",
    "INSERT INTO plain SELECT i % 2, 4, 1 FROM generate_series(1, 6) i",
    "INSERT INTO probes SELECT 1, 3, 9 FROM generate_series(1, 6) i; "
    "DELETE FROM probes WHERE low = 2",
    "DELETE FROM events",
    "INSERT INTO events (id, k, ts, n, price, day) VALUES (1, 3, '2024-01-01', 2, 3, '2024-01-01')",
    "TRUNCATE calls",
    "INSERT INTO calls (id, k, ts, stop, n, least, most) VALUES "
    "(1, 3, '2023-12-31', '2024-01-02', 3, 1, 3), (2, NULL, '2023-01-02', '2025-01-01', 4, 0, 9)",
]


def test_a_value_between_two_of_the_other_input(database: Database) -> None:
    database.execute(DDL)
    connection = database.connect()
    pin_session(connection)
    queries = {**QUERIES, **OTHERS}
    plans, refused = plan_all(database, queries)
    assert refused == {}
    text = {name: str(plan.root) for name, plan in plans.items()}
    assert [name for name in QUERIES if "Bounds(" not in text[name]] == []
    assert [name for name in OTHERS if "Bounds(" in text[name]] == []
    play(database, connection, some(QUERIES, 10) | some(OTHERS, 2), CHANGES)


# Where local time goes back an hour; days and months are not of one length.
ZONE = "America/New_York"
CHANGE_OF_CLOCKS = """
UPDATE calls SET ts = ts + interval '307 days -3 hours', stop = stop + interval '307 days';
UPDATE events SET ts = ts + interval '307 days -3 hours', local = local + interval '307 days';
"""
IN_A_ZONE = {
    "a day": _pairs("LEFT", "e.k = c.k AND e.ts BETWEEN c.ts - interval '1 day' AND c.ts"),
    "a month": _pairs("", "e.k = c.k AND e.ts > c.ts - interval '1 month' AND e.ts <= c.stop"),
    "as of": "SELECT c.id, (SELECT e.id FROM events e WHERE e.k = c.k AND e.ts <= c.ts "
    "AND e.ts > c.ts - interval '1 day' ORDER BY e.ts DESC, e.id LIMIT 1) AS event FROM calls c",
}
# Local times are compared as moments; only "as of local" is ordered by another value than that.
LOCAL = {
    "local": _pairs("", "e.k = c.k AND e.local BETWEEN c.ts AND c.stop"),
    "as of local": "SELECT c.id, (SELECT e.id FROM events e WHERE e.k = c.k AND e.local <= c.ts "
    "ORDER BY e.local DESC, e.id LIMIT 1) AS event FROM calls c",
    "as of a local": "SELECT c.id, (SELECT e.id FROM events e WHERE e.k = c.k AND e.ts <= c.day "
    "ORDER BY e.ts DESC, e.id LIMIT 1) AS event FROM calls c",
}


@pytest.mark.whole
def test_intervals_in_a_time_zone(database: Database) -> None:
    database.execute(DDL + CHANGE_OF_CLOCKS)
    connection = database.connect()
    pin_session(connection)
    play(database, connection, IN_A_ZONE | LOCAL, CHANGES, time_zone=ZONE)
