"""Oracle: PostgreSQL's answer with now() at the clock that the epoch was committed with."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from connectors.postgres.analysis import time_functions
from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService
from tests.harness.tiers import some

QUERIES = {
    "recent": "SELECT id FROM events WHERE at > now() - interval '3 seconds'",
    "between": "SELECT id FROM events WHERE at BETWEEN now() - interval '1 hour' AND now()",
    "is_past": "SELECT id, at < now() AS is_past FROM events",
    "either": "SELECT id, at < now() AS is_past FROM events "
    "WHERE at < CURRENT_TIMESTAMP - interval '1 month' OR kind = 'a' AND NOT at < now()",
    "counted": "SELECT kind, count(*) FILTER (WHERE at > now() - interval '3 seconds') AS n, "
    "max(CASE WHEN at < LOCALTIMESTAMP THEN id END) AS newest FROM events GROUP BY kind",
    "having": "SELECT kind FROM events GROUP BY kind HAVING max(at) < now() + interval '2 seconds'",
    "padded": "SELECT k.kind, e.id FROM kinds k LEFT JOIN events e "
    "ON e.kind = k.kind AND e.at > now() - interval '3 seconds'",
    "values": "SELECT id, CURRENT_DATE - at::date AS days, date_trunc('day', now()) AS today "
    "FROM events",
    "ages": "SELECT id, now() - at AS age FROM events",
    "berlin": "SELECT id, at::date AS day, date_trunc('day', now()) AS today FROM events "
    "WHERE at > now() - interval '1 month'",
    "lord_howe": "SELECT at::date AS day, count(*) AS n, min(to_char(at, 'HH24:MI TZH:TZM')) AS t "
    "FROM events WHERE at BETWEEN CURRENT_DATE - 60 AND CURRENT_TIMESTAMP GROUP BY 1",
    "tumbled": "SELECT tidemark_time.tumble('2 s', at) AS w, count(*) AS n FROM events "
    "WHERE at > now() - interval '3 seconds' GROUP BY 1",
    "hopped": "SELECT w.start, count(*) AS n FROM events CROSS JOIN LATERAL "
    "tidemark_time.hop('5 s', '2 s', at) AS w(start) WHERE w.start <= now() GROUP BY 1",
    "over_view": "SELECT count(*) AS n FROM old_events WHERE at < now()",
}
# What the tests look at by name, and of the others some.
NAMED = ("recent", "between", "values", "ages", "lord_howe")
VIEWS = {n: QUERIES[n] for n in NAMED} | some(
    {n: q for n, q in QUERIES.items() if n not in NAMED}, 4
)

OPTIONS = {
    "ages": {"refresh": "2 s"},
    "berlin": {"time_zone": "Europe/Berlin"},
    "lord_howe": {"time_zone": "Australia/Lord_Howe", "backfill": "local"},
}


@pytest.fixture(scope="module")
def database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(postgres) as made:
        made.execute("CREATE TABLE kinds (kind text PRIMARY KEY)")
        made.execute("INSERT INTO kinds VALUES ('a'), ('b'), ('c')")
        made.execute(
            "CREATE TABLE events (id integer PRIMARY KEY, kind text, at timestamptz NOT NULL)"
        )
        made.execute(
            "CREATE VIEW old_events AS SELECT * FROM events WHERE at < now() - interval '1 day'"
        )
        for statement in time_functions.statements():
            made.execute(statement)
        yield made


@pytest.fixture(scope="module")
def service(
    database: Database, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    with RunningService(database.dsn, tmp_path_factory.mktemp("service")) as started:
        for name, query in VIEWS.items():
            started.create(name, query, **OPTIONS.get(name, {}))
        yield started


def _insert(database: Database, first: int) -> None:
    """Events of long ago, of now and of soon."""
    offsets = ("-40 days", "-2 days", "-10 minutes", "-1 second", "0", "2 seconds", "1 day")
    for number, offset in enumerate(offsets):
        kind = "abc"[number % 3]
        database.execute(
            "INSERT INTO events VALUES (%s, %s, clock_timestamp() + %s::interval)",
            (first + number, kind, offset),
        )


def _verify_all(service: RunningService) -> list[dict]:
    found = [service.call("POST", f"/views/{name}/verify").json() for name in VIEWS]
    assert [f.get("result") for f in found] == ["equal"] * len(VIEWS), found
    return found


def test_every_moment_is_postgresqls_answer(service: RunningService, database: Database) -> None:
    _insert(database, 0)
    service.await_so(lambda: len(database.rows("SELECT 1 FROM values")) >= 7)
    seen = set()
    for round_ in range(3):
        if round_ == 1:
            _insert(database, 100)
        for found in _verify_all(service):
            seen.add(found["positions"]["clock"])
        time.sleep(0.6)
    # The comparisons were at different moments.
    assert len(seen) > 2


def test_rows_leave_and_come_without_a_change_of_a_table(
    service: RunningService, database: Database
) -> None:
    database.execute(
        "INSERT INTO events VALUES (1000, 'a', clock_timestamp() + interval '2 seconds')"
    )
    recent = "SELECT 1 FROM recent WHERE id = 1000"
    service.await_so(lambda: database.rows("SELECT 1 FROM values WHERE id = 1000"))
    # Of the future: not yet between an hour ago and now, and then it is.
    between = "SELECT 1 FROM between WHERE id = 1000"
    service.await_so(lambda: database.rows('SELECT 1 FROM "between" WHERE id = 1000'))
    assert between and database.rows(recent)
    service.await_so(lambda: not database.rows(recent))


def test_the_clock_continues_after_a_kill(service: RunningService, database: Database) -> None:
    def clock() -> int:
        [(positions,)] = database.rows(
            "SELECT positions FROM tidemark.progress WHERE positions ? 'clock'"
        )
        return positions["clock"]["now"]["us"]

    before = clock()
    assert service.kill_child("pipeline")
    service.await_so(lambda: clock() > before)
    last = clock()
    for _ in range(10):
        assert clock() >= last
        last = clock()
        time.sleep(0.1)
    _verify_all(service)


def test_what_no_epoch_has_is_refused(service: RunningService) -> None:
    query = "SELECT id FROM events WHERE at < statement_timestamp()"
    body = {"name": "refused", "query": query}
    answer = service.call("POST", "/views", body)
    assert answer.status_code == 400
    assert answer.json()["code"] == "sql.not_maintained" and "now()" in answer.json()["hint"]


def test_a_pinned_view_stays(service: RunningService, database: Database) -> None:
    service.create("pinned", "SELECT id, now() AS at FROM events WHERE id = 0", now="pinned")
    [before] = database.rows("SELECT at FROM pinned")
    time.sleep(1.2)
    assert database.rows("SELECT at FROM pinned") == [before]
    answer = service.call("POST", "/views/pinned/verify").json()
    assert answer["result"] in ("equal", "open"), answer


def test_validate_says_what_now_is(service: RunningService) -> None:
    def validated(query: str, **options: str) -> dict:
        answer = service.call("POST", "/views/validate", {"query": query, "options": options})
        return answer.json()

    recent = "SELECT id FROM events WHERE at > now() - interval '1 day'"
    found = validated(recent, time_zone="Asia/Kolkata")
    assert (found["now"], found["time_zone"]) == ("moving", "Asia/Kolkata")
    assert validated(recent, now="pinned")["now"] == "pinned"
    assert validated("SELECT id FROM events")["now"] is None
    ages = "SELECT id, now() - at AS age FROM events"
    refused = validated(ages)
    assert refused["code"] == "sql.clock_value" and "options.refresh" in refused["hint"]
    assert any("10 s" in warning for warning in validated(ages, refresh="10 s")["warnings"])
    assert validated(recent, time_zone="Mars/Olympus")["code"] == "sql.time_zone"
