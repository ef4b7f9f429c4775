"""Oracle: PostgreSQL's answer to the same expression over a plain table of the same values."""

from __future__ import annotations

import math
import pickle
import time
from contextlib import AbstractContextManager, nullcontext
from threading import Timer

import numpy as np
import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.postgres.evaluation.evaluator import PostgresEvaluator
from connectors.postgres.session.session import LIMITS
from dataflow.delta import Column
from dataflow.errors import OverBudgetError, TemporaryError, ViewError
from dataflow.types import (
    BOOL,
    DATE,
    FLOAT8,
    INT4,
    INT8,
    INTERVAL,
    JSONB,
    NUMERIC,
    TEXT,
    TIMESTAMPTZ,
    SqlType,
    fixed,
    sql_type,
)
from dataflow.values import from_text, to_text
from tests.connectors.postgres.reading import raw_rows
from tests.harness.postgres import Database, new_database

INT_ARRAY = sql_type("integer[]", 1007)
CHAR5 = sql_type("character(5)", 1042, 9)
BOX = sql_type("box", 603)
INET = sql_type("inet", 869)
BYTEA = sql_type("bytea", 17)
POSIX_TEXT = sql_type("text", 25, collation='"POSIX"')

CASES: list[tuple[str, list[SqlType], list[list[str | None]], SqlType]] = [
    (
        "upper($1) || ' costs $1 ' || $2",
        [TEXT, INT4],
        [["a'b", 'q"\\', None, "", "é\n\t,{}"], ["1", "2", "3", None, "5"]],
        TEXT,
    ),
    (
        "regexp_replace($1, '[aeiou]', '$1', 'g')",
        [TEXT],
        [["lorem ipsum", None, "NULL", "null"]],
        TEXT,
    ),
    ("$1 + $1 * 2", [fixed(12, 2)], [["1.50", "-0.05", None, "NaN"]], NUMERIC),
    ("$1 / 7", [NUMERIC], [["1.0", "Infinity", "123456789012345678901234567890"]], NUMERIC),
    ("$1 / 3", [FLOAT8], [["0.1", "NaN", "-Infinity", "1e+300"]], FLOAT8),
    (
        "$1 + '1 day'::interval",
        [TIMESTAMPTZ],
        [["2026-02-03 04:05:06.7+00", "infinity", None]],
        TIMESTAMPTZ,
    ),
    ("to_char($1, 'YYYY BC')", [DATE], [["0044-03-15 BC", "2026-01-01"]], TEXT),
    ("$1 * 2", [INTERVAL], [["1 year 2 mons 3 days 04:05:06.7", "-1 days"]], INTERVAL),
    ("$1 || 9", [INT_ARRAY], [["{}", "{1,NULL}", None, "{3,4,5}"]], INT_ARRAY),
    ("$1[1] + $2[2]", [INT_ARRAY, INT_ARRAY], [["{1,2}", "{}"], ["{3,4}", "{5}"]], INT4),
    # The column's collation is implicit: an explicit one in the expression goes before it.
    ("$1 < 'b' COLLATE \"C\"", [POSIX_TEXT], [["a", "B", "c", None]], BOOL),
    ("length($1) || '<' || $1 || '>'", [CHAR5], [["ab   ", "abcde", None]], TEXT),
    ("$1", [CHAR5], [["ab   ", None]], CHAR5),
    ("area($1)", [BOX], [["(3,4),(1,2)", None]], FLOAT8),
    ("host($1)", [INET], [["10.0.0.1/8", "10.0.0.1", None]], TEXT),
    ("$1", [INET], [["10.0.0.1/8", "10.0.0.1"]], INET),
    ("md5($1)", [BYTEA], [["\\xdeadbeef", "\\x"]], TEXT),
    ("$1 -> 'a'", [JSONB], [['{"a": {"b": [1, "x\\"y"]}}', "null", None]], JSONB),
    ("$1 IS NULL AND NOT $2", [INT4, BOOL], [["1", None, None], ["t", "f", None]], BOOL),
    ("to_tsvector('english', $1)", [TEXT], [["the fat cats", None]], sql_type("tsvector", 3614)),
    ("coalesce(score($1), 0)", [INT4], [["1", "20", None]], INT8),
    ("$1::text || ($1 > 'sad'::mood)", [sql_type("mood", 0)], [["sad", "very ok", None]], TEXT),
    ("CASE WHEN $1 % 2 = 0 THEN 10 %% 4 ELSE 1 END".replace("%%", "%"), [INT4], [["1", "2"]], INT4),
]


@pytest.fixture
def functions(every_database: Database) -> Database:
    every_database.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'very ok');"
        "CREATE FUNCTION score(x integer) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$"
        " BEGIN IF x < 0 THEN RAISE EXCEPTION 'no score for %', x USING ERRCODE = 'P0077'; END IF;"
        " RETURN x * 1000; END $$"
    )
    return every_database


def column(type: SqlType, texts: list[str | None]) -> Column:
    return from_text(type, Column.of("s", texts))


def test_every_kind_of_expression(functions: Database) -> None:
    evaluator = PostgresEvaluator(functions.dsn)
    for sql, types, values, result in CASES:
        n = len(values[0])
        columns = [column(t, v) for t, v in zip(types, values, strict=True)]
        got, errors = evaluator.evaluate(sql, types, columns, n, result)
        assert not errors, (sql, errors)
        names = ", ".join(f"v{i} {t.name}" for i, t in enumerate(types, 1))
        connection = functions.connect()
        with connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS w; CREATE TABLE w (id int, {names})")
            for i, row in enumerate(zip(*values, strict=True)):
                marks = ", ".join(["%s"] * (len(types) + 1))
                cursor.execute(f"INSERT INTO w VALUES ({marks})", (i, *row))
        connection.close()
        plain = sql.replace("costs $1", "costs DOLLAR").replace("'$1'", "'DOLLAR'")
        for i in range(len(types), 0, -1):
            plain = plain.replace(f"${i}", f"v{i}")
        plain = plain.replace("costs DOLLAR", "costs $1").replace("'DOLLAR'", "'$1'")
        expected = raw_rows(functions, f"SELECT {plain} FROM w ORDER BY id")
        assert to_text(result, got).texts() == [v for (v,) in expected], sql
    evaluator.close()


def test_constants_and_empty_input(functions: Database) -> None:
    evaluator = PostgresEvaluator(functions.dsn)
    got, errors = evaluator.evaluate("1 + 1", [], [], 3, INT4)
    assert (got.to_list(), errors.by_row) == ([2, 2, 2], {})
    got, errors = evaluator.evaluate("1 / 0", [], [], 2, INT4)
    assert got.to_list() == [None, None] and set(errors.by_row) == {0, 1}
    assert len(evaluator.evaluate("$1", [INT4], [column(INT4, [])], 0, INT4)[0]) == 0
    assert len(evaluator.rank(TEXT, column(TEXT, []))) == 0


def test_failing_rows_stand_alone(functions: Database) -> None:
    evaluator = PostgresEvaluator(functions.dsn)
    values = [str(i % 50) for i in range(25_000)]
    got, errors = evaluator.evaluate("10 / $1", [INT4], [column(INT4, values)], len(values), INT4)
    assert set(errors.by_row) == {i for i in range(25_000) if i % 50 == 0}
    assert set(errors.by_row.values()) == {("22012", "division by zero")}
    expected = [None if i % 50 == 0 else 10 // (i % 50) for i in range(25_000)]
    assert got.to_list() == expected
    got, errors = evaluator.evaluate(
        "score($1)", [INT4], [column(INT4, ["1", "-2", None])], 3, INT8
    )
    assert got.to_list() == [1000, None, None]
    assert errors.by_row == {1: ("P0077", "no score for -2")}


def test_what_is_no_fault_of_a_row(functions: Database) -> None:
    evaluator = PostgresEvaluator(functions.dsn)
    numbers = column(INT4, ["1", "2"])
    for sql in ("nowhere($1)", "$1 +", "$1 || '{}'::jsonb"):
        with pytest.raises(ViewError) as caught:
            evaluator.evaluate(sql, [INT4], [numbers], 2, INT4)
        assert caught.value.code == "source.evaluation" and caught.value.detail
    assert evaluator.evaluate("score($1)", [INT4], [numbers], 2, INT8)[0].to_list() == [1000, 2000]
    functions.execute("DROP FUNCTION score")
    with pytest.raises(ViewError) as caught:
        evaluator.evaluate("score($1)", [INT4], [numbers], 2, INT8)
    assert caught.value.code == "source.evaluation"
    functions.execute(
        "CREATE FUNCTION score(x integer) RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT x + 7'"
    )
    assert evaluator.evaluate("score($1)", [INT4], [numbers], 2, INT8)[0].to_list() == [8, 9]


def test_not_supported_is_a_fault_of_the_row(functions: Database) -> None:
    """SQLSTATE 0A000 is a row's own as well as that of a plan gone stale."""
    functions.execute(
        "CREATE FUNCTION part(x integer) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$"
        " BEGIN IF x > 1 THEN RETURN extract(hour FROM date '2026-02-03'); END IF;"
        " RETURN x; END $$"
    )
    evaluator = PostgresEvaluator(functions.dsn)
    unsupported = ("0A000", 'unit "hour" not supported for type date')
    numbers = column(INT4, ["1", "2"])
    started = time.monotonic()
    for _ in range(3):
        got, errors = evaluator.evaluate("part($1)", [INT4], [numbers], 2, TEXT)
        assert got.texts() == ["1", None] and errors.by_row == {1: unsupported}
        _, errors = evaluator.evaluate(
            "extract(hour FROM $1)", [DATE], [column(DATE, ["2026-02-03"])], 1, NUMERIC
        )
        assert errors.by_row == {0: unsupported}
    assert time.monotonic() - started < 2


def test_a_stale_plan_is_prepared_again(functions: Database) -> None:
    evaluator = PostgresEvaluator(functions.dsn)
    numbers = column(INT4, ["1", "2"])
    make = "CREATE FUNCTION pick(x integer) RETURNS {} LANGUAGE sql IMMUTABLE AS 'SELECT x + {}'"
    for i, name in enumerate(("bigint", "integer", "bigint")):
        functions.execute("DROP FUNCTION IF EXISTS pick(integer);" + make.format(name, i))
        got, errors = evaluator.evaluate("pick($1)", [INT4], [numbers], 2, INT8)
        assert not errors and got.to_list() == [1 + i, 2 + i]


def test_nothing_can_be_written(functions: Database) -> None:
    functions.execute(
        "CREATE TABLE t (a int); CREATE FUNCTION sneaky(x integer) RETURNS integer LANGUAGE sql"
        " AS 'INSERT INTO t VALUES (x) RETURNING a'"
    )
    evaluator = PostgresEvaluator(functions.dsn)
    _, errors = evaluator.evaluate("sneaky($1)", [INT4], [column(INT4, ["1"])], 1, INT4)
    assert errors.by_row[0][0] == "25006"
    assert functions.rows("SELECT count(*) FROM t") == [(0,)]


def test_rank(functions: Database) -> None:
    evaluator = PostgresEvaluator(functions.dsn)
    assert evaluator.rank(NUMERIC, column(NUMERIC, ["10", "9.0", "9", "NaN"])).tolist() == [
        2,
        1,
        1,
        3,
    ]
    words = ["b", "a", "B", "Z", "a"]
    assert (
        evaluator.rank(TEXT, column(TEXT, words)).tolist()[1]
        == evaluator.rank(TEXT, column(TEXT, words)).tolist()[4]
    )
    bytewise = sql_type("text", 25, collation="C")
    assert evaluator.rank(bytewise, column(TEXT, words)).tolist() == [4, 3, 1, 2, 3]
    for spelled in ("default", 'pg_catalog."POSIX"', "pg_catalog.C"):
        evaluator.rank(sql_type("text", 25, collation=spelled), column(TEXT, words))
    assert evaluator.rank(INT_ARRAY, column(INT_ARRAY, ["{2}", "{1,5}", "{}"])).tolist() == [
        3,
        2,
        1,
    ]
    mixed = evaluator.rank(INTERVAL, column(INTERVAL, ["1 mon", "30 days", None, "29 days"]))
    assert mixed[0] == mixed[1] > mixed[3]
    with pytest.raises(ViewError):
        json = sql_type("json", 114)
        evaluator.rank(json, column(json, ["1", "2"]))


def test_it_travels_without_its_session(functions: Database) -> None:
    evaluator = PostgresEvaluator(functions.dsn, {"search_path": "elsewhere, public"})
    numbers = column(INT4, ["1"])
    evaluator.evaluate("$1", [INT4], [numbers], 1, INT4)
    copy = pickle.loads(pickle.dumps(evaluator))
    got, _ = copy.evaluate("current_setting('search_path')", [], [], 1, TEXT)
    assert got.texts() == ["elsewhere, public"]


def test_a_lost_session_is_replaced(functions: Database) -> None:
    evaluator = PostgresEvaluator(functions.dsn)
    numbers = column(INT4, ["4", "5"])
    for _ in range(3):
        got, _ = evaluator.evaluate("$1 * 2", [INT4], [numbers], 2, INT4)
        assert got.to_list() == [8, 10]
        functions.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'tidemark evaluator'"
        )


@pytest.mark.whole
def test_a_server_that_is_down_is_temporary(own_postgres: EmbeddedPostgres) -> None:
    with new_database(own_postgres) as database:
        evaluator = PostgresEvaluator(database.dsn)
        numbers = column(INT4, ["4"])
        evaluator.evaluate("$1", [INT4], [numbers], 1, INT4)
        own_postgres.stop()
        with pytest.raises(TemporaryError):
            evaluator.evaluate("$1", [INT4], [numbers], 1, INT4)
        own_postgres.start()
        assert evaluator.evaluate("$1", [INT4], [numbers], 1, INT4)[0].to_list() == [4]


def test_speed_is_of_the_measured_order(functions: Database) -> None:
    """Far below what was measured: it shows that nothing is done row by row."""
    evaluator = PostgresEvaluator(functions.dsn)
    texts = column(TEXT, [f"row {i}" for i in range(10_000)])
    best = 10.0
    for _ in range(3):
        started = time.perf_counter()
        evaluator.evaluate("regexp_replace($1, '[aeiou]', 'x')", [TEXT], [texts], 10_000, TEXT)
        best = min(best, time.perf_counter() - started)
    assert 10_000 / best > 50_000


def test_groups_are_computed_together_and_fail_alone(functions: Database) -> None:
    evaluator = PostgresEvaluator(functions.dsn)
    values = Column.of("s", ["b", "a", "x", None, "c"])
    numbers = Column.of("i", [1, 0, 2, 3, 0])
    groups = np.array([7, 7, -2, 7, 9], np.int64)
    sql = (
        "SELECT tidemark_row.g, string_agg($1, ',' ORDER BY $1), sum(10 / $2)"
        " FROM tidemark_row GROUP BY 1"
    )
    found, columns, errors = evaluator.evaluate_groups(
        sql, [TEXT, INT4], [values, numbers], groups, [TEXT, INT8]
    )
    assert found.tolist() == [-2]
    assert [c.to_list() for c in columns] == [[b"x"], [5]]
    assert {g: e[0] for g, e in errors.by_row.items()} == {7: "22012", 9: "22012"}
    sql = "SELECT tidemark_row.g, u FROM tidemark_row, generate_series(1, $1) AS u"
    found, columns, errors = evaluator.evaluate_groups(sql, [INT4], [numbers], groups, [INT4])
    assert sorted(zip(found.tolist(), columns[0].to_list(), strict=True)) == [
        (-2, 1), (-2, 2), (7, 1), (7, 1), (7, 2), (7, 3)
    ]  # fmt: skip
    assert not errors
    evaluator.close()


class _Left:
    """A limit that leaves so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.waits = 0

    def seconds_left(self) -> float:
        return self.seconds

    def waiting(self) -> AbstractContextManager[None]:
        self.waits += 1
        return nullcontext()

    def exceeded(self) -> Exception:
        return OverBudgetError("view.over_budget", "too long")


def test_a_statement_ends_with_the_time_that_its_caller_has_left(functions: Database) -> None:
    limit = _Left(math.inf)
    evaluator = PostgresEvaluator(functions.dsn, limit=limit)
    values = column(INT4, ["1", "2"])

    def asked() -> list[object]:
        sql = "(SELECT $1 FROM (SELECT pg_sleep(0.2)) AS waits)"
        return evaluator.evaluate(sql, [INT4], [values], 2, INT4)[0].to_list()

    assert asked() == [1, 2] and limit.waits == 1
    for seconds in (0.05, 0.0, -1.0):
        limit.seconds = seconds
        with pytest.raises(OverBudgetError):
            asked()
    with pytest.raises(OverBudgetError):
        evaluator.evaluate_groups(
            "SELECT tidemark_row.g, $1 FROM tidemark_row, pg_sleep(5)",
            [INT4],
            [values],
            np.arange(2),
            [INT4],
        )
    # Neither the session nor what it has prepared is lost.
    limit.seconds = 30.0
    assert asked() == [1, 2]
    # What somebody else cancels is no matter of time.
    cancel = (
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND state = 'active' AND pid <> pg_backend_pid() AND query LIKE '%tidemark_call_%'"
    )
    Timer(0.3, functions.execute, [cancel]).start()
    with pytest.raises(TemporaryError, match=r"source\.busy"):
        evaluator.evaluate("(SELECT $1 FROM pg_sleep(5))", [INT4], [column(INT4, ["1"])], 1, INT4)
    evaluator.close()


def test_a_row_that_takes_as_long_as_any_statement_may_fails_alone(
    functions: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LIMITS, "statement_s", 1.0)
    evaluator = PostgresEvaluator(functions.dsn)
    values = column(INT4, ["0", "30", "0"])
    sql = "(SELECT $1 FROM pg_sleep($1))"
    got, errors = evaluator.evaluate(sql, [INT4], [values], 3, INT4)
    assert got.to_list() == [0, None, 0]
    [(row, (state, text))] = errors.by_row.items()
    assert (row, state) == (1, "57014") and "TIDEMARK_STATEMENT_TIMEOUT_S" in text
    got, errors = evaluator.evaluate("(SELECT 1 FROM pg_sleep(30))", [], [], 2, INT4)
    assert got.to_list() == [None, None] and {s for s, _ in errors.by_row.values()} == {"57014"}
    # The session serves what comes after it.
    assert evaluator.evaluate(sql, [INT4], [column(INT4, ["0"])], 1, INT4)[0].to_list() == [0]
