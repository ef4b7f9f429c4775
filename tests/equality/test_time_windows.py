"""Oracle: PostgreSQL's answer to windows of time, after random transactions.

Tumbling and hopping windows, sessions and islands in every usual spelling. Rows come late, tie,
have no moment or an infinite one; they go, and move between users and moments.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

from dataflow.collect import ErrorRows
from dataflow.delta import Column, Delta
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.graph import ViewDataflow
from dataflow.plan.nodes import Plan, scans_of
from dataflow.sql.lower.lowering import lower
from tests.harness.compare import pin_session
from tests.harness.counting_store import CountingStore
from tests.harness.maintained import plan_all, play
from tests.harness.postgres import Database
from tests.harness.tiers import count, is_fast

SEED = count("TIDEMARK_TEST_SEED", 7, 7)
TRANSACTIONS = 20 if is_fast() else 40
DDL = """
CREATE TABLE event (
    id int PRIMARY KEY, usr int, ts timestamptz, at timestamp NOT NULL, day date, tick int, n int);
ALTER TABLE event REPLICA IDENTITY FULL;
"""
_BREAK = "CASE WHEN {0} - before > interval '30 min' THEN 1 ELSE 0 END"
_WHOLE = "usr, min({0}) AS since, max({0}) AS until, count(*) AS c, sum(n) AS s"


def _sessions(
    flag: str = _BREAK,
    number: str = "sum(flag)",
    *,
    of: str = "at",
    order: str = "{0}",
    frame: str = "",
    shown: str = _WHOLE,
    where: str = "",
    tail: str = "GROUP BY usr, number",
) -> str:
    """Return gaps and islands: flags, their running number, rows by number."""
    order = order.format(of)
    return (
        f"SELECT {shown.format(of)} FROM (SELECT *, {number} OVER (PARTITION BY usr "
        f"ORDER BY {order} {frame}) AS number FROM (SELECT *, {flag.format(of)} AS flag FROM "
        f"(SELECT *, lag({of}) OVER (PARTITION BY usr ORDER BY {order}) AS before FROM event) x "
        f"{where}) y) z {tail}"
    )


_ROWS = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
_ADDED = "before IS NULL OR {0} > before + interval '30 min'"
# Sessions whose number becomes their beginning.
BY_START = {
    "plain": _sessions(),
    "rows": _sessions("CASE WHEN {0} - before <= interval '30 min' THEN 0 ELSE 1 END", frame=_ROWS),
    "by id": _sessions(order="{0}, id"),
    "boolean": _sessions(_ADDED, "sum(flag::int)", order="{0}, id", frame=_ROWS),
    "counted": _sessions("{0} - before > '30 min'", "count(*) FILTER (WHERE flag)"),
    "counted rows": _sessions(
        "CASE WHEN NOT ({0} - before <= '30 min') THEN 1 END", "count(flag)", order="{0}, id DESC"
    ),
    "coalesced": _sessions(
        "coalesce({0} - before > '30 min', true)", "count(CASE WHEN flag THEN 1 END)", frame=_ROWS
    ),
    "seconds": _sessions(
        "CASE WHEN extract(epoch FROM {0} - before) > 1800 THEN 1 ELSE 0 END", order="{0}, n, id"
    ),
    "some rows": _sessions(where="WHERE n > 2", order="{0}, id", frame=_ROWS),
    "only some": _sessions(tail="WHERE n % 2 = 0 GROUP BY usr, number HAVING count(*) > 1"),
    "no moment": _sessions("CASE WHEN {0} > before + interval '30 min' THEN 1 ELSE 0 END", of="ts"),
    "no moment, counted": _sessions(
        _ADDED, "count(*) FILTER (WHERE flag)", of="ts", order="{0}, id"
    ),
    "days": _sessions("CASE WHEN {0} - before > 1 THEN 1 ELSE 0 END", of="day"),
    "ticks": _sessions("CASE WHEN {0} - before > 3 THEN 1 ELSE 0 END", of="tick", frame=_ROWS),
    "islands": _sessions("CASE WHEN n > 5 THEN 1 ELSE 0 END"),
    "all users": """
        SELECT min(at) AS since, array_agg(id ORDER BY id) AS ids
        FROM (SELECT *, sum(flag) OVER (ORDER BY at) AS number
              FROM (SELECT *, CASE WHEN at - lag(at) OVER (ORDER BY at) > interval '20 min'
                                   THEN 1 ELSE 0 END AS flag FROM event) x) y
        GROUP BY number""",
    "first": _sessions(
        shown="DISTINCT ON (usr, number) id, at", tail="ORDER BY usr, number, at, id"
    ),
    "places": _sessions(
        shown="id, row_number() OVER (PARTITION BY usr, number ORDER BY at, id) AS place", tail=""
    ),
}
# Sessions of which this is not certain: the general form.
BY_NUMBER = {
    "number": _sessions(shown="usr, number, count(*) AS c"),
    "latest": _sessions(shown="usr, max(number) AS m"),
    "descending": _sessions(order="{0} DESC"),
    "lowered": _sessions("CASE WHEN {0} - before > '30 min' THEN 1 ELSE -1 END"),
    "no flag, then 0": _sessions("({0} - before > '30 min')::int"),
    "at once": _sessions("CASE WHEN {0} - before >= '0 min' THEN 1 ELSE 0 END", order="{0}, id"),
    "infinite": _sessions(
        "CASE WHEN {0} >= before + interval '30 min' THEN 1 ELSE 0 END", of="ts", order="{0}, id"
    ),
    "not all keys": _sessions(shown="number, count(*) AS c", tail="GROUP BY number"),
}
WINDOWS = {
    "tumbling": """
        SELECT date_bin('5 min', at, '2024-01-01') AS w, count(*) AS c FROM event GROUP BY 1""",
    "tumbling, zoned": """
        SELECT date_bin('15 min', ts, 'epoch') AS w, usr, sum(n) AS s FROM event GROUP BY 1, 2""",
    "before the origin": """
        SELECT date_bin('1 hour', at, '2024-02-01') AS w, max(n) AS m FROM event GROUP BY 1""",
    "truncated": """
        SELECT date_trunc('hour', at) AS w, count(DISTINCT usr) AS c FROM event GROUP BY 1""",
    "hopping": """
        SELECT w.start, count(*) AS c FROM event CROSS JOIN LATERAL generate_series(
            date_bin('10 min', at, '2024-01-01') - interval '20 min',
            date_bin('10 min', at, '2024-01-01'), interval '10 min') AS w(start) GROUP BY 1""",
    "hopping, kept": """
        SELECT e.id, w.start, w.n FROM event e LEFT JOIN LATERAL generate_series(
            date_bin('10 min', at, '2024-01-01'), at, interval '4 min')
            WITH ORDINALITY AS w(start, n)
        ON w.n > 1""",
    "backwards": """
        SELECT id, w FROM event,
            generate_series(at, at - interval '1 hour', interval '-25 min') w""",
    "months": """
        SELECT id, w FROM event,
            generate_series(at, at + interval '3 months', interval '1 month') w""",
    "days": """
        SELECT id, w FROM event, generate_series(ts, ts + interval '2 days', interval '1 day') w
        WHERE isfinite(ts)""",
    "numbers": "SELECT id, w FROM event, generate_series(tick, n) w",
    "steps": """
        SELECT id, w FROM event,
            generate_series(n, tick, CASE WHEN n > 4 THEN 3 ELSE -2 END) w""",
    "numbered": """
        SELECT id, count(*) AS c, max(k) AS m FROM event,
            generate_series(tick::bigint, usr::bigint, -7::bigint) WITH ORDINALITY AS w(v, k)
        GROUP BY id""",
    "selected": "SELECT id, generate_series(1, n) AS w FROM event",
}


def _statements(rng: Random) -> Iterator[str]:
    """Rows in bursts of a few users, and everything that may happen to them."""
    last = 0
    while True:
        choice = rng.random()
        if choice < 0.55 or last < 20:
            rows = []
            for _ in range(rng.choice([1, 1, 3, 12])):
                last += 1
                rows.append(f"({last}, {_row(rng)})")
            yield f"INSERT INTO event VALUES {', '.join(rows)}"
        elif choice < 0.75:
            some = f"id % 7 = {rng.randrange(7)} AND n % 3 = {rng.randrange(3)}"
            yield f"DELETE FROM event WHERE {some}"
        elif choice < 0.85:
            minutes = rng.choice([-45, -10, 10, 45])
            yield (
                f"UPDATE event SET at = at + interval '{minutes} min', tick = tick + {minutes // 5}"
                f" WHERE id % 5 = {rng.randrange(5)}"
            )
        elif choice < 0.93:
            yield f"UPDATE event SET usr = {rng.randrange(3)} WHERE id % 6 = {rng.randrange(6)}"
        else:
            yield f"UPDATE event SET n = n + 1 WHERE id % 3 = {rng.randrange(3)}"


def _row(rng: Random) -> str:
    usr = rng.choice(["0", "0", "1", "2", "NULL"])
    minutes = rng.choice([rng.randrange(0, 400, 5), rng.randrange(0, 400)])
    moment = f"'2024-01-01 00:00+00'::timestamptz + interval '{minutes} min'"
    ts = rng.choice([moment] * 8 + ["NULL", "'infinity'", "'-infinity'"])
    day = rng.choice([f"date '2024-01-01' + {minutes // 20}", "NULL"])
    at = f"timestamp '2024-01-01' + interval '{minutes} min'"
    return f"{usr}, {ts}, {at}, {day}, {minutes // 5}, {rng.randrange(10)}"


@pytest.mark.parametrize("forms", [BY_START, BY_NUMBER, WINDOWS], ids=["start", "number", "bins"])
def test_windows_equal_postgres(database: Database, forms: dict[str, str]) -> None:
    print(f"repeat: TIDEMARK_TEST_SEED={SEED} pytest {__file__}")
    database.execute(DDL)
    connection = database.connect()
    pin_session(connection)
    statements = _statements(Random(SEED))
    changes = [next(statements) for _ in range(TRANSACTIONS)]
    play(database, connection, forms, [*changes, "DELETE FROM event", *changes[:2]])


def test_only_numbers_that_divide_become_beginnings(database: Database) -> None:
    database.execute(DDL)
    plans, refused = plan_all(database, {**BY_START, **BY_NUMBER})
    assert not refused
    by_start = {name for name, plan in plans.items() if "name='start'" in str(plan.root)}
    assert by_start == set(BY_START)


@pytest.mark.parametrize("name", ["plain", "boolean"])
def test_a_change_touches_its_session_only(database: Database, name: str) -> None:
    """As many rows at 64,000 of a user as at 8,000, but for a level of the trees."""
    database.execute(DDL)
    plans, refused = plan_all(database, {name: BY_START[name]})
    assert not refused
    few, many = (_touched(plans[name].root, rows) for rows in (8_000, 64_000))
    assert max(many) <= 2 * max(few)


def _touched(plan: Plan, rows: int) -> list[int]:
    """Rows touched by a late row between two sessions, one within, and by their deletion."""
    store: Any = CountingStore()
    flow = ViewDataflow(lower(plan), "v", store, NoEvaluator(), ErrorRows())
    flow.seed()
    (relation,) = flow.needed_columns()
    names = [f.name for f in scans_of(plan)[0].fields]
    # Sessions of ten rows, a minute between rows and an hour between sessions.
    number = np.arange(rows)
    at = (number + number // 10 * 60) * 60_000_000

    def made(ids: np.ndarray, moments: np.ndarray, weight: int) -> Delta:
        zeros = np.zeros(len(ids), np.int64)
        values = {"id": ids, "usr": zeros, "n": zeros, "at": moments}
        return Delta([Column(values[n]) for n in names], np.full(len(ids), weight))

    flow.step({relation: made(number, at, 1)})
    store.reset()
    counts = []
    middle = at[rows // 2]
    for minutes in (-30, 3):
        late = np.array([middle + minutes * 60_000_000])
        for weight in (1, -1):
            flow.step({relation: made(np.array([rows]), late, weight)})
            counts.append(store.reset())
    return counts
