"""Oracle: PostgreSQL's own answers for the views that continue, and a table that nobody may touch.

An event trigger takes the view's name just after its rows were staged, which no check foresees.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.test_views import assert_equal, flush_position
from tests.harness.postgres import Database
from tests.harness.service import RunningService

SETUP = """
CREATE TABLE items (id int PRIMARY KEY, label text);
INSERT INTO items SELECT i, 'l' || i % 7 FROM generate_series(1, 300) i;
CREATE FUNCTION take_name() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
  IF to_regclass('public.late') IS NULL AND EXISTS (
    SELECT FROM pg_event_trigger_ddl_commands()
    WHERE object_type = 'table' AND object_identity LIKE '%\\_tidemark\\_%') THEN
    CREATE TABLE public.late (label text, n bigint);
  END IF;
END $$;
"""
TAKEN = "CREATE EVENT TRIGGER take_name ON ddl_command_end EXECUTE FUNCTION take_name()"
LATE = "SELECT label, count(*) AS n FROM items GROUP BY label"
ALL = "SELECT id, label FROM items"
CHANGE = "UPDATE items SET label = label || 'x' WHERE id % 5 = 0"


@pytest.fixture
def service(database: Database, tmp_path: Path) -> Iterator[RunningService]:
    database.execute(SETUP)
    with RunningService(database.dsn, tmp_path) as running:
        yield running


def check(service: RunningService, database: Database, **queries: str) -> None:
    for name, query in queries.items():
        service.wait(name, flush_position(database))
        assert_equal(database, name, query)


@pytest.mark.whole
def test_only_the_view_fails_whose_name_was_taken(
    service: RunningService, database: Database
) -> None:
    service.create("everything", ALL, backfill="local")
    database.execute(TAKEN)
    answer = service.call(
        "POST",
        "/views?wait_s=60",
        {"name": "late", "query": LATE, "options": {"backfill": "local"}},
    )
    view = answer.json()
    assert (view["status"], view["error"]["code"]) == ("failed", "sink.name_taken"), view
    for _ in range(3):
        database.execute(CHANGE)
        check(service, database, everything=ALL)
    assert database.rows("SELECT * FROM late") == []
    assert service.kill_child("pipeline")
    database.execute(CHANGE)
    check(service, database, everything=ALL)
    assert service.await_status("late", "failed", 5)["error"]["code"] == "sink.name_taken"
    assert database.rows("SELECT * FROM late") == []
    service.drop("late")
    assert database.rows("SELECT to_regclass('public.late') IS NULL") == [(False,)]
    database.execute("DROP EVENT TRIGGER take_name; DROP TABLE late")
    service.create("late", LATE, backfill="local")
    database.execute(CHANGE)
    check(service, database, everything=ALL, late=LATE)
