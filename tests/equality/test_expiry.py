"""Oracle: PostgreSQL, with now() at each value of the clock.

What a threshold will never be less than is compared with its values at all later clocks. Rows that
have expired are then updated, dated again and deleted, and each view must be PostgreSQL's answer.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from connectors.postgres.evaluation.evaluator import PostgresEvaluator
from dataflow.delta import Column
from dataflow.expressions.compile import compile_expression
from dataflow.expressions.ir import ColumnRef, Expression, substitute
from dataflow.expressions.lower_bound import lower_bound
from dataflow.expressions.time_zones import offsets_of
from dataflow.plan.nodes import Project, Scan, ThresholdFilter
from dataflow.plan.walk import nodes_of
from dataflow.sql.moving_now import MovingNow
from dataflow.sql.planner import plan_view
from dataflow.types import TypeKind
from storage.rocks import RocksStore
from tests.harness.changes import Statement, Transaction
from tests.harness.compare import pin_session
from tests.harness.maintained import (
    MARKER,
    MARKER_QUERY,
    SOURCE,
    ask,
    create_marker,
    plan_each,
    run_numbered,
)
from tests.harness.moving_clock import CLOCK_NAME, CLOCK_RELATION, clock_us, set_clock
from tests.harness.postgres import Database
from tests.harness.together import Together

DAY_US = 86_400_000_000
# By zone, moments around which the clocks change, months end and leap days are.
MOMENTS = {
    "UTC": ["2024-02-29 00:00+00", "2023-03-31 12:00+00", "2024-12-31 22:00+00"],
    "America/New_York": ["2024-11-03 06:00+00", "2024-03-10 07:00+00"],
    "Australia/Lord_Howe": ["2024-04-06 15:00+00", "2024-10-05 15:30+00"],
}
# Thresholds, and by how many days at most the bound is less than the least of them to come.
THRESHOLDS = {
    "now()": 0,
    "now() - interval '1 hour'": 0,
    "now() - interval '1 day'": 0,
    "now() + interval '7 days 90 minutes'": 0,
    "now() - interval '1 month'": 1,
    "now() - interval '1 month 1 day' - interval '1 second'": 1,
    "now() + interval '1 year -1 month'": 1,
    "date_trunc('hour', now())": 0,
    "date_trunc('month', now()) - interval '1 month'": 32,
    "date_bin('15 minutes', now(), '2000-01-01')": 0,
    "CURRENT_DATE - 7": 1,
    "LOCALTIMESTAMP - interval '1 month'": 1,
    "(now() AT TIME ZONE 'Asia/Kolkata')::date": 1,
    "(LOCALTIMESTAMP + interval '3 hours') AT TIME ZONE 'Europe/Berlin'": 0,
}
DDL = "CREATE TABLE events (id int PRIMARY KEY, at timestamptz, n int)"


@pytest.mark.parametrize("zone", MOMENTS)
def test_no_later_threshold_is_less_than_the_bound(database: Database, zone: str) -> None:
    database.execute(DDL)
    connection = database.connect()
    pin_session(connection)
    evaluator = PostgresEvaluator(database.dsn, time_zone=zone)

    def spread_of(name: str) -> int:
        offsets = offsets_of(name, evaluator)
        assert offsets is not None
        return int(offsets.us.max() - offsets.us.min())

    try:
        for text, days in THRESHOLDS.items():
            threshold = _threshold(database, text, zone)
            bound = lower_bound(threshold, spread_of)
            assert bound is not None, (text, threshold)
            for moment in MOMENTS[zone]:
                at = np.array(_clocks(connection, moment), np.int64)
                exact = _evaluated(threshold, at, evaluator)
                assert exact.tolist() == _asked(connection, text, moment, zone), text
                found = _evaluated(bound, at, evaluator)
                least = np.minimum.accumulate(exact[::-1])[::-1]
                assert (found <= least).all(), (text, moment)
                # A local time may be behind by all that its zone's offsets differ by.
                zones = ("Europe/Berlin",) if zone == "UTC" else (zone, "Europe/Berlin")
                is_exact = zone == "UTC" and "ZONE" not in text
                slack = days * DAY_US + (0 if is_exact else 4 * max(map(spread_of, zones)))
                assert (least - found <= slack).all(), (text, moment)
    finally:
        evaluator.close()
        connection.close()


def test_thresholds_without_a_bound(database: Database) -> None:
    database.execute(DDL)
    for text in (
        "now() - extract(day FROM now()) * interval '1 day'",
        "CASE WHEN extract(hour FROM now()) < 12 THEN now() ELSE now() - interval '1 year' END",
        "timestamptz '2024-01-01' + (timestamptz '2030-01-01' - now())",
    ):
        assert lower_bound(_threshold(database, text, "UTC"), lambda zone: 0) is None, text


def _threshold(database: Database, text: str, zone: str) -> Expression:
    """Return what rows are compared with, over the clock's own column."""
    query = f"SELECT id FROM events WHERE at > {text}"
    with PostgresAnalyzer(database.dsn, SOURCE, feeds=[CLOCK_RELATION], time_zone=zone) as analyzer:
        plan = plan_view(query, MovingNow(analyzer, CLOCK_NAME))
    [node] = [n for n in nodes_of(plan.root) if isinstance(n, ThresholdFilter)]
    found: Expression = ColumnRef(0, node.threshold.fields[0].type)
    below = node.threshold
    while not isinstance(below, Scan):
        if isinstance(below, Project):
            found = substitute(found, below.expressions)
            below = below.input
        else:
            below = below.left  # type: ignore[attr-defined]
    return found


def _clocks(connection, moment: str) -> list[int]:
    """Return every ten minutes of five days around a moment, since 2000."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (extract(epoch FROM c) * 1000000)::bigint - 946684800000000 FROM"
            " generate_series(%s::timestamptz - interval '60 hours', %s::timestamptz"
            " + interval '60 hours', '10 minutes') c ORDER BY c",
            (moment, moment),
        )
        return [us for (us,) in cursor.fetchall()]


def _asked(connection, text: str, moment: str, zone: str) -> list[int]:
    """Return PostgreSQL's thresholds at the clocks, as what a timestamptz is compared with."""
    value = text.replace("now()", "c").replace("CURRENT_DATE", "c::date")
    value = value.replace("LOCALTIMESTAMP", "c::timestamp")
    with connection.cursor() as cursor:
        cursor.execute(f"SET TimeZone = '{zone}'")
        cursor.execute(
            f"SELECT (extract(epoch FROM ({value})::timestamptz) * 1000000)::bigint"
            f" - 946684800000000 FROM generate_series(timestamptz '{moment}'"
            f" - interval '60 hours', timestamptz '{moment}' + interval '60 hours',"
            " '10 minutes') c ORDER BY c"
        )
        found = [us for (us,) in cursor.fetchall()]
        cursor.execute("SET TimeZone = 'UTC'")
    return found


def _evaluated(expression: Expression, at: np.ndarray, evaluator) -> np.ndarray:
    assert expression.type.kind in (TypeKind.TIMESTAMP, TypeKind.TIMESTAMPTZ)
    column, errors = compile_expression(expression, evaluator).evaluate([Column(at)], len(at))
    assert not errors and column.valid is None
    return np.broadcast_to(column.values, len(at))


KEEPING = {
    "recent": "SELECT id, n FROM events WHERE at > now() - interval '1 day'",
    "counted": "SELECT n % 5 AS k, count(*) AS c FROM events "
    "WHERE at >= now() - interval '1 month' GROUP BY 1",
    "valid": "SELECT id FROM events WHERE at <= now() AND until > now()",
    "today": "SELECT id, at FROM events WHERE at >= CURRENT_DATE",
    "joined": "SELECT e.id, l.name FROM events e JOIN labels l ON l.n = e.n % 5 "
    "WHERE e.at > date_trunc('day', now()) - interval '2 days' AND e.n <> 3",
}
SQL = (
    "CREATE TABLE events (id int PRIMARY KEY, at timestamptz, until timestamptz, n int, note text)",
    "CREATE TABLE labels (n int PRIMARY KEY, name text)",
    "INSERT INTO labels SELECT i, 'label ' || i FROM generate_series(0, 4) i",
)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
@pytest.mark.parametrize("identity", ["DEFAULT", "FULL", "NOTHING KEYED"])
def test_rows_change_after_they_have_expired(
    database: Database, tmp_path: Path, zone: str, identity: str
) -> None:
    random = Random(f"{zone} {identity}")
    for statement in SQL:
        database.execute(statement)
    if identity == "FULL":
        database.execute("ALTER TABLE events REPLICA IDENTITY FULL")
    if identity == "NOTHING KEYED":
        database.execute("ALTER TABLE events DROP CONSTRAINT events_pkey")
        database.execute("ALTER TABLE events REPLICA IDENTITY FULL")
    connection = database.connect()
    pin_session(connection)
    create_marker(connection)
    hours = 0
    _move(connection, hours)
    database.execute(
        "INSERT INTO events SELECT i, timestamptz '2024-10-30 00:00+00' - i * interval '1 hour',"
        " timestamptz '2024-10-30 00:00+00' - i * interval '50 minutes', i % 50, "
        "repeat('x', i % 60) FROM generate_series(1, 400) i"
    )
    planned = plan_each(database, KEEPING, zone, is_moving=True)
    assert not planned.refused, planned.refused
    plans = {**planned.plans, **plan_each(database, {MARKER: MARKER_QUERY}).plans}
    store = RocksStore(tmp_path)
    views = Together(database, plans, store, clock_us(connection))
    # The views that are dropped on the way are not of this test.
    views._drop_first = lambda: None  # type: ignore[method-assign]
    max_freed = 0
    try:
        for number in range(1, 26):
            statements = [_change(random, hours) for _ in range(random.randint(1, 4))]
            run_numbered(connection, Transaction(tuple(map(Statement, statements))), number)
            views.follow(number)
            hours += random.choice((0, 3, 20, 40, 100))
            _move(connection, hours)
            views.move_clock(clock_us(connection), number)
            faults = views.compare(number, ask(connection, KEEPING, time_zone=zone))
            assert not faults, (number, faults)
            if number % 7 == 0:
                views.restart()
            tables = [t.state for t in views._engine.dataflow.tables.tables if _is_events(t)]
            max_freed = max([max_freed, *(state.freed.count for state in tables)])
        assert max_freed > 100
    finally:
        views.close()
        connection.close()
        store.close()


def _is_events(table) -> bool:
    return table.location.relation.name.name == "events"


def _move(connection, hours: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (timestamptz '2024-10-30 00:00+00' + %s * interval '1 hour')::text", (hours,)
        )
        ((at,),) = cursor.fetchall()
        cursor.execute(set_clock(at))
    connection.commit()


def _change(random: Random, hours: int) -> str:
    now = f"(timestamptz '2024-10-30 00:00+00' + {hours} * interval '1 hour')"
    first = random.randint(1, 420)
    some = f"id BETWEEN {first} AND {first + random.randint(0, 40)}"
    return random.choice(
        (
            f"UPDATE events SET n = n + 1 WHERE {some}",
            f"UPDATE events SET note = note || 'y' WHERE {some}",
            f"UPDATE events SET at = {now} + n * interval '17 minutes' WHERE {some}",
            f"UPDATE events SET at = NULL WHERE id = {first}",
            f"UPDATE events SET id = id + 1000 WHERE id = {first} "
            f"AND NOT EXISTS (SELECT 1 FROM events WHERE id = {first + 1000})",
            f"DELETE FROM events WHERE {some}",
            "INSERT INTO events SELECT i, "
            f"{now} - i % 90 * interval '1 hour', {now} + i % 9 * interval '1 hour', i % 40, 'new' "
            f"FROM generate_series({first}, {first + 20}) i "
            "WHERE NOT EXISTS (SELECT 1 FROM events WHERE id = i)",
        )
    )
