"""Oracle: the list of hostile statements, each with its code, and a database that stays what it
was. Sizes: an answer within seconds, whatever is asked, from a process that continues."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from connectors.postgres.embedded.server import EmbeddedPostgres
from dataflow.errors import TidemarkError
from dataflow.sql.planner import plan_view
from tests.harness.postgres import Database, new_database
from tests.harness.psql import give_query_role
from tests.harness.service import RunningService
from tests.security.hostile_sql import HOSTILE, SCHEMA, UNTOUCHED

# What one answer may take; the machine of the tests does more than this at a time.
MAX_S = 30.0
_STATE = """
SELECT (SELECT array_agg(id) FROM victim), (SELECT last_value FROM s),
    (SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace),
    (SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace),
    (SELECT count(*) FROM pg_largeobject_metadata), (SELECT count(*) FROM pg_roles)
"""


@pytest.fixture(scope="module")
def place(postgres: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(postgres) as made:
        made.execute(SCHEMA)
        yield made


def _code(dsn: str, query: str) -> str:
    try:
        with PostgresAnalyzer(dsn, "source") as analyzer:
            plan_view(query, analyzer)
        return "planned"
    except TidemarkError as error:
        return error.code


def test_every_hostile_statement_is_refused_and_changes_nothing(place: Database) -> None:
    plain = f"plain_{place.name}"
    place.execute(
        f"CREATE ROLE {plain} LOGIN PASSWORD 'pw'; GRANT SELECT ON t, deleting TO {plain}"
    )
    give_query_role(place, plain)
    try:
        before = place.rows(_STATE)
        faults = []
        for dsn in (place.dsn, f"{place.dsn} user={plain} password=pw"):
            for query, wanted in HOSTILE:
                code = _code(dsn, query)
                is_known = wanted == UNTOUCHED or (code != "planned" and code.startswith(wanted))
                if not is_known:
                    faults.append(f"{query!r}: {code}, not {wanted}")
        assert not faults, "\n".join(faults)
        assert place.rows(_STATE) == before
        assert not Path("/tmp/owned").exists()
    finally:
        place.execute(f"DROP OWNED BY {plain}; DROP ROLE {plain}")


LARGE = {
    "nested parentheses": "SELECT " + "(" * 10_000 + "1" + ")" * 10_000 + " AS a",
    "nested subqueries": "SELECT * FROM " + "(SELECT * FROM " * 3000 + "t" + ") AS x" * 3000,
    "nested calls": "SELECT " + "abs(" * 9000 + "a" + ")" * 9000 + " AS a FROM t",
    "nested CASE": "SELECT "
    + "CASE WHEN a = 1 THEN " * 3000
    + "1"
    + " END" * 3000
    + " AS a FROM t",
    "a chain of operators": "SELECT id FROM t WHERE " + " OR ".join(["a = 1"] * 8_000),
    "a chain of unions": " UNION ALL ".join(["SELECT id FROM t"] * 2000),
    "many items": f"SELECT id FROM t WHERE a IN ({','.join(map(str, range(12_000)))})",
    "many columns": "SELECT " + ", ".join(f"a + {i} AS c{i}" for i in range(9000)) + " FROM t",
    "many joins": "SELECT 1 AS a FROM t "
    + " ".join(f"JOIN t AS t{i} USING (id)" for i in range(300)),
    "unended comment": "SELECT 1 /*" + "*" * 199_000,
    "many comments": "/*" * 60_000 + "*/" * 30_000,
    "unended string": "SELECT '" + "''" * 99_000,
    "unended dollars": "SELECT " + "$a$ $b$ " * 20_000,
    "unended quotes": 'SELECT "' + '""' * 99_000,
    "strings": "SELECT " + "'' \n" * 50_000,
    "escapes": "SELECT E'" + "\\" * 199_000,
    "words": "SELECT " + "a" * 199_000,
    "numbers": "SELECT " + "1" * 199_000 + " AS n FROM t",
    "a regular expression": "SELECT id FROM t WHERE b ~ '" + "(a*)*" * 2000 + "b'",
    "a power": "SELECT id, 10::numeric ^ 100000 ^ 2 AS x FROM t",
    "WITH upon WITH": "WITH a0 AS (SELECT * FROM t), "
    + ", ".join(f"a{i} AS (SELECT x.id FROM a{i - 1} x, a{i - 1} y)" for i in range(1, 60))
    + " SELECT * FROM a59",
}


@pytest.fixture(scope="module")
def service(place: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with RunningService(place.dsn, tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.mark.whole
def test_large_queries_are_answered_and_kill_nothing(service: RunningService) -> None:
    pid = service.pid_of("api")
    slow = []
    for title, query in LARGE.items():
        began = service.cpu_s()
        answer = service.call("POST", "/views/validate", {"query": query})
        took_s = service.cpu_s() - began
        assert answer.status_code in (200, 400, 422), (title, answer.status_code, answer.text[:300])
        assert answer.status_code == 200 or answer.json()["code"] != "internal", title
        if took_s > MAX_S:
            slow.append(f"{title}: {took_s:.1f} s of CPU")
        assert service.pid_of("api") == pid, title
    assert not slow, "\n".join(slow)
    huge = "SELECT id FROM t WHERE a IN (" + ",".join(map(str, range(100_000))) + ")"
    answer = service.call("POST", "/views/validate", {"query": huge})
    assert (answer.status_code, answer.json()["code"]) == (422, "request.invalid")
    assert service.call("GET", "/views").status_code == 200
