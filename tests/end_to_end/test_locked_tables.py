"""Oracle: PostgreSQL's own locks, and its answer for the views whose tables nobody has locked.

Whoever locks a view's table is named wherever people look; the others do not wait for long, and the
locked one shows the answer again once it is free.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.end_to_end.test_views import assert_equal, flush_position
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService
from tests.harness.tiers import is_fast

LOCK_S = 3
KEYED, COUNTED = "SELECT id, a FROM t", "SELECT count(*) AS n FROM t"
# What somebody does within a transaction that does not end. A reader can go on under most of them.
LOCKS = {
    "share": "LOCK TABLE locked IN SHARE MODE",
    "exclusive": "LOCK TABLE locked IN ACCESS EXCLUSIVE MODE",
    "altered": "ALTER TABLE locked ALTER a SET DEFAULT 1",
    "rows": "SELECT FROM locked FOR UPDATE",
    "shared rows": "SELECT FROM locked FOR SHARE",
    "a trigger's table": "LOCK TABLE seen IN EXCLUSIVE MODE",
}
TRIED = [name for name in LOCKS if not (is_fast() and name in ("altered", "shared rows"))]


@pytest.fixture(scope="module")
def database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(postgres) as made:
        made.execute("CREATE TABLE t (id int PRIMARY KEY, a int); CREATE TABLE seen (id int)")
        made.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 5) i")
        yield made


@pytest.fixture(scope="module")
def service(
    database: Database, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    folder: Path = tmp_path_factory.mktemp("locks")
    with RunningService(database.dsn, folder, sink_lock_s=LOCK_S) as running:
        running.create("locked", KEYED, backfill="local")
        running.create("other", COUNTED, backfill="local")
        yield running


@contextmanager
def held(database: Database, statement: str) -> Iterator[int]:
    """The pid of a session of somebody, in a transaction that has done this."""
    session = database.connect(autocommit=False)
    try:
        with session.cursor() as cursor:
            cursor.execute("SET application_name = 'somebody'")
            cursor.execute(statement)
        yield session.info.backend_pid
    finally:
        session.close()


def problem(service: RunningService, name: str) -> dict[str, Any]:
    return service.call("GET", f"/views/{name}").json().get("error") or {}


def names(text: object, pid: int) -> bool:
    """Whether a text tells which session it is, and how to end it."""
    return all(word in str(text) for word in (str(pid), "somebody", "pg_terminate_backend"))


@pytest.mark.parametrize("what", TRIED)
def test_a_locked_table_is_named_and_set_aside(
    service: RunningService, database: Database, what: str
) -> None:
    observes = (
        "CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO seen VALUES (1); RETURN NULL; END $$;"
        "CREATE TRIGGER sees AFTER UPDATE ON locked FOR EACH ROW EXECUTE FUNCTION see()"
    )
    if "trigger" in what:
        database.execute(observes)
    pipeline = service.pid_of("pipeline")
    with held(database, LOCKS[what]) as pid:
        database.execute("UPDATE t SET a = a + 1; INSERT INTO t SELECT max(id) + 1, 0 FROM t")
        position = flush_position(database)
        # While all wait, both tell so, and so does the service's health.
        service.await_so(lambda: names(problem(service, "other"), pid))
        found = {name: problem(service, name) for name in ("locked", "other")}
        assert {f["code"] for f in found.values()} == {"sink.locked"}, found
        assert names(service.call("GET", "/health").json()["reasons"], pid)
        service.await_so(lambda: names(database.rows("TABLE tidemark.health"), pid))
        # After a while the others go on.
        service.wait("other", position)
        assert_equal(database, "other", COUNTED)
        service.await_so(lambda: not problem(service, "other"))
        service.await_so(lambda: names(problem(service, "locked"), pid))
        assert problem(service, "locked")["code"] == "sink.locked"
        database.execute("INSERT INTO t SELECT max(id) + 1, 0 FROM t")
        service.wait("other", flush_position(database))
        assert_equal(database, "other", COUNTED)
        assert service.call("GET", "/views/locked").json()["status"] != "live"
    service.await_status("locked")
    service.wait("locked", flush_position(database))
    assert_equal(database, "locked", KEYED)
    assert service.pid_of("pipeline") == pipeline
    locked = [e for e in service.events() if e.get("event") == "sink.locked"]
    assert names(locked[-1], pid)


def test_a_long_reader_delays_only_the_view_that_is_replaced_or_dropped(
    service: RunningService, database: Database
) -> None:
    service.create("dropped", KEYED, backfill="local")
    pipeline = service.pid_of("pipeline")
    with held(database, "SELECT FROM locked, dropped") as pid:
        wider = {"query": "SELECT id, a, a + 1 AS b FROM t"}
        assert service.call("POST", "/views/locked/replace", wider).status_code < 300
        assert service.call("DELETE", "/views/dropped").status_code < 300
        replaced = lambda: service.call("GET", "/views/locked").json()  # noqa: E731
        service.await_so(lambda: names(replaced().get("replacing"), pid))
        service.await_so(lambda: names(problem(service, "dropped"), pid))
        for _ in range(3):
            database.execute("INSERT INTO t SELECT max(id) + 1, 0 FROM t")
            service.wait("other", flush_position(database), timeout_s=LOCK_S)
            assert_equal(database, "other", COUNTED)
        assert not problem(service, "other")
    service.await_so(lambda: service.call("GET", "/views/dropped").status_code == 404)
    service.await_so(lambda: not replaced().get("replacing"))
    service.wait("locked", flush_position(database))
    assert_equal(database, "locked", wider["query"])
    assert service.pid_of("pipeline") == pipeline
