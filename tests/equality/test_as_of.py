"""Oracle: PostgreSQL's answer to as-of joins: the last row up to a value of another row."""

from __future__ import annotations

from tests.harness.compare import pin_session
from tests.harness.maintained import plan_all, play
from tests.harness.postgres import Database
from tests.harness.tiers import some

DDL = """
CREATE TABLE trades (
    id int PRIMARY KEY, sym text, ts timestamptz, local timestamp, day date, n int, big bigint,
    price numeric(10,2), w float8, code text COLLATE "C");
CREATE TABLE ticks (
    id int PRIMARY KEY, sym text, venue int, ts timestamptz, local timestamp, day date, n int,
    price numeric, w float8, code text COLLATE "C");
CREATE TABLE plain (k int, ts int, v int);
CREATE TABLE probes (k int, ts int);
ALTER TABLE plain REPLICA IDENTITY FULL;
ALTER TABLE probes REPLICA IDENTITY FULL;
INSERT INTO trades SELECT i, 's' || i % 4, timestamptz '2024-01-01 00:00+00' + i * interval '7 min',
    timestamp '2024-01-01 00:00' + i * interval '9 hours', date '2024-01-01' + i / 3, i % 11, i * 3,
    i / 8.0, i / 3.0, 'c' || i % 9 FROM generate_series(1, 150) i;
INSERT INTO ticks SELECT i, 's' || i % 5, i % 3, timestamptz '2024-01-01 00:00+00'
    + i * interval '11 min', timestamp '2024-01-01 00:00' + i * interval '10 hours',
    date '2024-01-01' + i / 2, i % 13, i / 4.0, i / 5.0, 'c' || i % 7 FROM generate_series(1, 90) i;
INSERT INTO trades (id) VALUES (1000), (1001);
INSERT INTO ticks (id, sym, ts) VALUES (1000, 's1', NULL), (1001, NULL, '2024-01-01 03:00+00');
INSERT INTO plain SELECT i % 3, i % 10, i % 2 FROM generate_series(1, 60) i;
INSERT INTO probes SELECT i % 4, i % 12 FROM generate_series(1, 60) i;
"""


def _last(condition: str, order: str, shown: str = "k.id AS tick, k.price", join: str = "") -> str:
    """Trades beside the first tick in an order."""
    one = f"SELECT {shown} FROM ticks k {join}WHERE {condition} ORDER BY {order} LIMIT 1"
    return f"SELECT t.id, p.* FROM trades t LEFT JOIN LATERAL ({one}) p ON true"


QUERIES = {
    "as of": _last("k.sym = t.sym AND k.ts <= t.ts", "k.ts DESC, k.id"),
    "before": _last("k.sym = t.sym AND k.ts < t.ts", "k.ts DESC, k.id"),
    "from": _last("k.sym = t.sym AND t.ts <= k.ts", "k.ts, k.id"),
    "after": _last("k.sym = t.sym AND k.ts > t.ts", "k.ts, k.id DESC"),
    "inner": _last("k.sym = t.sym AND k.ts <= t.ts", "k.ts DESC, k.id").replace("LEFT", "INNER"),
    "cross": _last("k.sym = t.sym AND k.ts <= t.ts", "k.ts DESC, k.id")
    .replace("LEFT", "CROSS")
    .replace(" ON true", ""),
    "no key": _last("k.ts <= t.ts", "k.ts DESC, k.id"),
    "two keys": _last("k.sym = t.sym AND k.n = t.n AND k.ts <= t.ts", "k.ts DESC, k.id"),
    "computed key": _last("k.venue = t.n - 3 AND k.ts <= t.ts", "k.ts DESC, k.id"),
    "own filters": _last(
        "k.sym = t.sym AND k.ts <= t.ts AND k.n > 3 AND k.price IS NOT NULL", "k.ts DESC, k.id"
    ),
    "left filters": _last("t.n > 3 AND k.sym = t.sym AND k.ts <= t.ts", "k.ts DESC, k.id"),
    "tie breaks": _last(
        "k.sym = t.sym AND k.day <= t.day", "k.day DESC, k.n NULLS FIRST, k.w DESC, k.id"
    ),
    "nulls last": _last("k.sym = t.sym AND k.ts <= t.ts", "k.ts DESC NULLS LAST, k.id"),
    "at most so old": _last(
        "k.sym = t.sym AND k.ts <= t.ts AND k.ts > t.ts - interval '20 min'", "k.ts DESC, k.id"
    ),
    "at most so far": _last(
        "k.venue = t.n AND k.ts >= t.ts AND k.ts <= t.ts + interval '1 hour'", "k.ts, k.id"
    ),
    "on": _last("k.sym = t.sym AND k.ts <= t.ts", "k.ts DESC, k.id").replace(
        "ON true", "ON p.price > t.n AND t.n <> 5"
    ),
    "inner on": _last("k.sym = t.sym AND k.ts <= t.ts", "k.ts DESC, k.id")
    .replace("ON true", "ON p.price > t.n")
    .replace("LEFT", "INNER"),
    "scalar": "SELECT t.id, (SELECT k.price FROM ticks k WHERE k.sym = t.sym AND k.ts <= t.ts "
    "ORDER BY k.ts DESC, k.id LIMIT 1) AS price FROM trades t",
    "compared scalar": "SELECT t.id FROM trades t WHERE t.n < (SELECT k.n FROM ticks k "
    "WHERE k.sym = t.sym AND k.ts <= t.ts ORDER BY k.ts DESC, k.id LIMIT 1)",
    "computed": _last(
        "k.sym = t.sym AND k.ts <= t.ts",
        "k.ts DESC, k.id",
        "k.price * 2 AS twice, t.n, 100 / (k.n + 1) AS part, k.n + t.n AS both, 'x' AS word",
    ),
    "filtered above": "SELECT t.id, p.price FROM trades t LEFT JOIN LATERAL (SELECT * FROM ("
    "SELECT k.price, k.n FROM ticks k WHERE k.sym = t.sym AND k.ts <= t.ts ORDER BY k.ts DESC, "
    "k.id LIMIT 1) x WHERE x.n > t.n) p ON true",
    "joined": _last(
        "j.sym = t.sym AND k.ts <= t.ts", "k.ts DESC, k.id", join="JOIN ticks j ON j.id = k.id + 1 "
    ),
    "of groups": "SELECT t.id, p.* FROM trades t LEFT JOIN LATERAL (SELECT k.day, k.c FROM ("
    "SELECT day, sym, count(*) AS c FROM ticks GROUP BY 1, 2) k WHERE k.sym = t.sym "
    "AND k.day <= t.day ORDER BY k.day DESC LIMIT 1) p ON true",
    "over groups": "SELECT t.sym, t.m, p.id FROM (SELECT sym, max(ts) AS m FROM trades "
    "GROUP BY sym) t LEFT JOIN LATERAL (SELECT k.id FROM ticks k WHERE k.sym = t.sym "
    "AND k.ts <= t.m ORDER BY k.ts DESC, k.id LIMIT 1) p ON true",
    "two": "SELECT t.id, p.id AS last, q.id AS next FROM trades t LEFT JOIN LATERAL (SELECT k.id "
    "FROM ticks k WHERE k.sym = t.sym AND k.ts <= t.ts ORDER BY k.ts DESC, k.id LIMIT 1) p ON true "
    "LEFT JOIN LATERAL (SELECT k.id FROM ticks k WHERE k.sym = t.sym AND k.ts > t.ts "
    "ORDER BY k.ts, k.id LIMIT 1) q ON true",
    "nested": "SELECT v.n, p.* FROM (SELECT DISTINCT n FROM trades) v LEFT JOIN LATERAL ("
    "SELECT t.id, x.id AS tick FROM trades t LEFT JOIN LATERAL (SELECT k.id FROM ticks k WHERE "
    "k.sym = t.sym AND k.ts <= t.ts ORDER BY k.ts DESC, k.id LIMIT 1) x ON true WHERE t.n = v.n "
    "AND t.big > v.n ORDER BY t.id LIMIT 2) p ON true",
    "grouped": "SELECT p.sym, sum(t.n) AS s, count(*) AS c FROM trades t LEFT JOIN LATERAL ("
    "SELECT k.sym FROM ticks k WHERE k.ts <= t.ts ORDER BY k.ts DESC, k.id LIMIT 1) p ON true "
    "GROUP BY 1",
    "recursive": "WITH RECURSIVE r(id, ts, depth) AS (SELECT id, ts, 0 FROM trades WHERE n = 3 "
    "UNION SELECT p.id, p.ts, depth + 1 FROM r LEFT JOIN LATERAL (SELECT u.id, u.ts FROM trades u "
    "WHERE u.ts < r.ts ORDER BY u.ts DESC, u.id LIMIT 1) p ON true WHERE depth < 3) "
    "SELECT id, depth FROM r",
    "self": "SELECT t.id, (SELECT u.id FROM trades u WHERE u.sym = t.sym AND u.ts < t.ts "
    "ORDER BY u.ts DESC, u.id LIMIT 1) AS previous FROM trades t",
    "bag": "SELECT a.k, a.ts, p.ts AS found, p.v FROM probes a LEFT JOIN LATERAL (SELECT b.ts, b.v "
    "FROM plain b WHERE b.k = a.k AND b.ts <= a.ts ORDER BY b.ts DESC, b.v LIMIT 1) p ON true",
    "inner bag": "SELECT a.k, p.v FROM probes a CROSS JOIN LATERAL (SELECT b.v FROM plain b WHERE "
    "b.k = a.k AND b.ts > a.ts ORDER BY b.ts, b.v DESC LIMIT 1) p",
    "dates": _last("k.sym = t.sym AND k.day <= t.local", "k.day DESC, k.id"),
    "stamps": _last("k.local <= t.day", "k.local DESC, k.id"),
    "local": _last("k.sym = t.sym AND k.local < t.local", "k.local DESC, k.id"),
    "integers": _last("k.n <= t.big", "k.n DESC, k.id"),
    "numeric": _last("k.price <= t.price", "k.price DESC, k.id"),
    "numeric of int": _last("k.price >= t.n", "k.price, k.id"),
    "float": _last("k.w <= t.w", "k.w DESC, k.id"),
    "float of int": _last("k.n <= t.w", "k.n DESC, k.id"),
    "text": _last("k.code <= t.code", "k.code DESC, k.id"),
    "expression": _last(
        "k.sym = t.sym AND k.ts + interval '1 hour' <= t.ts", "k.ts + interval '1 hour' DESC, k.id"
    ),
    "sums": _last("k.n + k.venue <= t.n", "k.n + k.venue DESC, k.id"),
}
# Forms that are not as-of joins: the rule leaves them to the general way.
OTHERS = {
    "first of all": _last("k.sym = t.sym AND k.ts <= t.ts", "k.ts, k.id"),
    "other order": _last("k.sym = t.sym AND k.ts <= t.ts", "k.day DESC, k.id"),
    "two bounds": _last("k.ts <= t.ts AND k.ts <= t.local", "k.ts DESC, k.id"),
    "mixed": _last("k.ts - t.ts <= interval '1 hour'", "k.ts DESC, k.id"),
    "unequal": _last("k.sym <> t.sym AND k.ts <= t.ts", "k.ts DESC, k.id"),
    "second": _last("k.sym = t.sym AND k.ts <= t.ts", "k.ts DESC, k.id").replace(
        "LIMIT 1", "LIMIT 1 OFFSET 1"
    ),
    "ties": _last("k.sym = t.sym AND k.day <= t.day", "k.day DESC").replace(
        "LIMIT 1", "FETCH FIRST 1 ROW WITH TIES"
    ),
}
CHANGES = [
    "INSERT INTO ticks SELECT 2000 + i, 's' || i % 4, i % 3, timestamptz '2024-01-01 01:00+00' "
    "+ i * interval '13 min', '2024-01-05', '2024-01-04', i, i / 3.0, i, 'c3' "
    "FROM generate_series(1, 40) i",
    "DELETE FROM ticks WHERE id % 3 = 0",
    "UPDATE ticks SET ts = ts - interval '40 min', n = n + 1 WHERE id % 4 = 0",
    "UPDATE trades SET ts = ts + interval '35 min', n = n - 1 WHERE id % 3 = 0",
    "UPDATE ticks SET price = price + 1",
    "INSERT INTO ticks (id, sym, ts, day, n, price, w, code) VALUES "
    "(3000, 's1', '-infinity', '-infinity', 1, 'NaN', 'NaN', ''), "
    "(3001, 's2', 'infinity', 'infinity', NULL, -5, '-Infinity', 'zz'), "
    "(3002, 's1', '2024-01-01 03:00+00', '2024-01-09', 5, 1.50, '-0', 'c1'), "
    "(3003, 's1', '2024-01-01 03:00+00', '2024-01-09', 5, 1.5, '0', 'c1')",
    "INSERT INTO trades (id, sym, ts, local, day, n, big, price, w, code) VALUES "
    "(3000, 's1', '-infinity', '-infinity', '-infinity', 0, -1, 'NaN', 'NaN', ''), "
    "(3001, 's2', 'infinity', 'infinity', 'infinity', 9, 99, -5, 'Infinity', 'zzz'), "
    "(3002, 's1', '2024-01-01 03:00+00', '2024-01-09', '2024-01-09', 5, 5, 1.5, '0', 'c1')",
    "BEGIN; UPDATE trades SET sym = 's3' WHERE sym = 's1'; DELETE FROM ticks WHERE sym = 's2'; "
    "INSERT INTO ticks (id, sym, ts) VALUES (4000, 's3', '2024-01-01 05:00+00'); COMMIT",
    "UPDATE ticks SET ts = NULL WHERE id % 5 = 0",
    "UPDATE trades SET ts = NULL, w = NULL WHERE id % 7 = 0",
    "DELETE FROM plain WHERE ts = 4 OR v = 1 AND ts > 7",
    "INSERT INTO plain SELECT i % 2, 4, 1 FROM generate_series(1, 6) i",
    "INSERT INTO probes SELECT 1, 5 FROM generate_series(1, 6) i; DELETE FROM probes WHERE ts = 8",
    "DELETE FROM ticks",
    "INSERT INTO ticks (id, sym, ts, n, price, day) VALUES "
    "(1, 's3', '2024-01-01', 2, 3, '2024-01-01')",
    "TRUNCATE trades",
    "INSERT INTO trades (id, sym, ts, n) VALUES (1, 's3', '2024-01-02', 3), "
    "(2, NULL, '2024-01-02', 4)",
]


def test_the_last_row_up_to_a_value(database: Database) -> None:
    database.execute(DDL)
    connection = database.connect()
    pin_session(connection)
    queries = {**QUERIES, **OTHERS}
    plans, refused = plan_all(database, queries)
    assert refused == {}
    text = {name: str(plan.root) for name, plan in plans.items()}
    assert [name for name in QUERIES if "AsOfJoin" not in text[name]] == []
    assert [name for name in OTHERS if "AsOfJoin" in text[name]] == []
    play(database, connection, some(QUERIES, 14) | some(OTHERS, 4), CHANGES)
