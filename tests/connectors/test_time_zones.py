"""Oracle: PostgreSQL's own answers in a session with that TimeZone, around every change of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.postgres.evaluation.evaluator import PostgresEvaluator
from dataflow.delta import Column
from dataflow.expressions import time_zones
from dataflow.expressions.compile import compile_expression
from dataflow.expressions.ir import Call, ColumnRef, Expression, Literal
from dataflow.types import DATE, INTERVAL, TEXT, TIMESTAMP, TIMESTAMPTZ, SqlType
from dataflow.values import from_text, to_text
from tests.harness.compare import pin_session
from tests.harness.postgres import Database, new_database

ZONES = ["America/New_York", "Europe/Berlin", "Australia/Lord_Howe"]
MORE_ZONES = [
    *("Asia/Kolkata", "Africa/Casablanca", "Pacific/Apia", "America/Sao_Paulo", "Asia/Kathmandu"),
    *("Europe/Dublin", "Antarctica/Troll", "America/St_Johns", "Asia/Pyongyang"),
]
INTERVALS = [
    *("1 day", "-1 month", "7 days", "1 mon -3 days 02:30:00", "01:30:00", "-1 year", "00:00:00"),
    *("-25:00:00", "6 mons 1 day"),
]
UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "decade")
EDGES = ["infinity", "-infinity", "4713-01-01 00:00:00+00 BC", "294276-12-31 00:00:00+00", None]
HOUR_US = 3_600_000_000


@pytest.fixture(scope="module")
def shared_database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(postgres) as made:
        yield made


@pytest.fixture(scope="module")
def evaluator(shared_database: Database) -> Iterator[PostgresEvaluator]:
    made = PostgresEvaluator(shared_database.dsn)
    yield made
    made.close()


def _values(zone: str, evaluator: PostgresEvaluator) -> np.ndarray:
    """Instants, or local times, around each change of the zone, and between."""
    offsets = time_zones.offsets_of(zone, evaluator)
    assert offsets is not None
    shifts = [0, 1, -1, 1_000_000, -1_000_000, HOUR_US // 2, 59 * 60_000_000]
    shifts += [h * HOUR_US for h in (1, -1, 2, -2, 5, -6, 12, -13, 24, -25, 49, -168)]
    starts = offsets.starts[1:]
    found = (starts[:, None] + np.array(shifts)[None, :] + np.zeros((1, 1), np.int64)).ravel()
    local = found + np.repeat(offsets.us[1:], len(shifts))
    generator = np.random.default_rng(len(starts))
    rest = generator.integers(time_zones.FIRST_US * 2, time_zones.END_US * 2, 300)
    return np.unique(np.concatenate([found, local, rest]))


def _compare(
    database: Database,
    evaluator: PostgresEvaluator,
    zone: str,
    call: tuple[Expression, str],
    given: tuple[SqlType, Column],
) -> None:
    expression, sql = call
    type, column = given
    found, errors = compile_expression(expression, evaluator).evaluate([column], len(column))
    assert not errors, (zone, sql, next(iter(errors.by_row.items())))
    ours = to_text(expression.type, found).texts()
    texts = to_text(type, column).texts()
    with database.connect() as connection, connection.cursor() as cursor:
        pin_session(connection)
        cursor.execute(f"SET TimeZone TO '{zone}'")
        cursor.execute(
            f"CREATE FUNCTION pg_temp.f({type.name}[]) RETURNS SETOF {expression.type.name}"
            f" LANGUAGE plpgsql SET TimeZone TO '{zone}' AS"
            f" $$ BEGIN RETURN QUERY SELECT {sql} FROM unnest($1) WITH ORDINALITY AS u(x, at)"
            " ORDER BY at; END $$"
        )
        cursor.execute("SET TimeZone TO 'UTC'")
        cursor.execute(f"SELECT f::text FROM pg_temp.f(%s::{type.name}[]) f", (texts,))
        theirs = [value for (value,) in cursor.fetchall()]
        connection.rollback()
    wrong = [(t, a, b) for t, a, b in zip(texts, ours, theirs, strict=True) if a != b]
    assert not wrong, (zone, sql, len(wrong), wrong[:5])


@pytest.mark.parametrize(
    "zone", [*ZONES, *(pytest.param(z, marks=pytest.mark.whole) for z in MORE_ZONES)]
)
def test_every_change_of_a_zone(
    zone: str, shared_database: Database, evaluator: PostgresEvaluator
) -> None:
    name = Literal(zone, TEXT)
    numbers = _values(zone, evaluator)
    edges = from_text(TIMESTAMPTZ, Column.of("s", EDGES[:2] + EDGES[4:]))
    instants = Column.concat([Column(numbers), edges])
    x, local, day = ColumnRef(0, TIMESTAMPTZ), ColumnRef(0, TIMESTAMP), ColumnRef(0, DATE)
    cases: list[tuple[Expression, str, SqlType]] = [
        (Call("timezone", (name, x), TIMESTAMP), "x::timestamp", TIMESTAMPTZ),
        (Call("timezone", (name, local), TIMESTAMPTZ), "x::timestamptz", TIMESTAMP),
        (Call(time_zones.INSTANT, (local, name), TIMESTAMPTZ), "x::timestamptz", TIMESTAMP),
    ]
    for unit in UNITS:
        call = Call("date_trunc", (Literal(unit, TEXT), x, name), TIMESTAMPTZ)
        cases.append((call, f"date_trunc('{unit}', x)", TIMESTAMPTZ))
    for interval in INTERVALS:
        by = Literal(interval, INTERVAL)
        for function, symbol in ((time_zones.ADD, "+"), (time_zones.SUBTRACT, "-")):
            call = Call(function, (x, by, name), TIMESTAMPTZ)
            cases.append((call, f"x {symbol} interval '{interval}'", TIMESTAMPTZ))
    for expression, sql, type in cases:
        _compare(shared_database, evaluator, zone, (expression, sql), (type, instants))
    days = Column(np.unique(numbers // (24 * HOUR_US)))
    call = Call(time_zones.INSTANT, (day, name), TIMESTAMPTZ)
    _compare(shared_database, evaluator, zone, (call, "x::timestamptz"), (DATE, days))


def test_an_abbreviation_is_postgresqls(
    shared_database: Database, evaluator: PostgresEvaluator
) -> None:
    # As a zone CET has summer time; AT TIME ZONE 'CET' is one hour from UTC all year round.
    assert time_zones.offsets_of("CET", evaluator) is None
    assert time_zones.offsets_of("Not/A_Zone", evaluator) is None
