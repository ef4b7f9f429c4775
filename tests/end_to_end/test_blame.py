"""Oracle: PostgreSQL's answer to each query, and to views beside one that something has happened
to: what a function answered when a row came leaves with it, and nothing stops the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService

# Not what it says: a table that nobody follows decides what it answers.
FUNCTION = """
CREATE TABLE ways (way text); INSERT INTO ways VALUES ('plain'); GRANT SELECT ON ways TO PUBLIC;
CREATE FUNCTION f(a int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
DECLARE now_way text := (SELECT way FROM public.ways);
BEGIN
    IF now_way = 'raises' THEN RAISE EXCEPTION 'no longer'; END IF;
    RETURN CASE now_way WHEN 'plain' THEN a ELSE a + 100 END;
END $$
"""


@pytest.fixture(scope="module")
def database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(postgres) as made:
        made.execute(f"CREATE TABLE t (id int PRIMARY KEY, a int); {FUNCTION}")
        yield made


@pytest.fixture(scope="module")
def service(
    database: Database, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    folder: Path = tmp_path_factory.mktemp("blame")
    with RunningService(database.dsn, folder) as running:
        running.create("steady", "SELECT id, a FROM t", backfill="local")
        yield running


def settle(service: RunningService, database: Database, *views: str) -> None:
    """Until these and the steady view show all that is there."""
    position = database.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
    for view in ("steady", *views):
        service.wait(view, position)
    assert database.rows("TABLE steady ORDER BY 1") == database.rows("TABLE t ORDER BY 1")


VIEWS = {
    "cells": "SELECT id, f(a) AS x FROM t",
    "passing": "SELECT id, a FROM t WHERE f(a) > 2",
    "summed": "SELECT f(a) % 2 AS k, sum(f(a)) AS n FROM t GROUP BY f(a) % 2",
    "met": "SELECT t.id, u.id AS other FROM t JOIN t AS u ON f(t.a) = u.a",
    "beyond": "SELECT t.id, u.id AS other FROM t JOIN t AS u ON t.id = u.id AND f(t.a + u.a) > 5",
    "guarded": "SELECT id, CASE WHEN a < 5 THEN f(a) END AS x FROM t",
    "least": "SELECT id, f(a) AS x FROM t ORDER BY f(a), id LIMIT 3",
}


@pytest.mark.whole
def test_rows_leave_with_the_answers_that_they_came_with(
    service: RunningService, database: Database
) -> None:
    database.execute("INSERT INTO t SELECT i, i % 7 FROM generate_series(1, 8) i")
    for name, query in VIEWS.items():
        service.create(name, query, backfill="local")
    kept = {name: database.rows(f"TABLE {name}") for name in VIEWS}
    for way in ("raises", "other"):
        database.execute("UPDATE ways SET way = %s", (way,))
        # With arguments that are known, as all rows were until now.
        database.execute("INSERT INTO t VALUES (11, 3); UPDATE t SET id = 12 WHERE id = 2")
        settle(service, database, *VIEWS)
        database.execute("DELETE FROM t WHERE id = 11; UPDATE t SET id = 2 WHERE id = 12")
        settle(service, database, *VIEWS)
        for name, rows in kept.items():
            assert sorted(map(repr, database.rows(f"TABLE {name}"))) == sorted(map(repr, rows)), (
                name
            )
    database.execute("DELETE FROM t")
    settle(service, database, *VIEWS)
    assert not any(database.rows(f"TABLE {name}") for name in VIEWS)
    assert database.rows("TABLE tidemark.errors") == []
    for name in VIEWS:
        service.drop(name)


def test_error_rows_leave_with_what_was_said(service: RunningService, database: Database) -> None:
    database.execute("UPDATE ways SET way = 'raises'")
    service.create("cells", VIEWS["cells"], backfill="local")
    database.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
    settle(service, database, "cells")
    assert len(database.rows("TABLE tidemark.errors")) == 2
    database.execute("UPDATE ways SET way = 'plain'")
    database.execute("DELETE FROM t WHERE id = 1; INSERT INTO t VALUES (3, 3)")
    settle(service, database, "cells")
    assert database.rows("TABLE cells") == [(3, 3)]
    assert len(database.rows("TABLE tidemark.errors")) == 1


def test_error_rows_that_somebody_has_removed_fail_their_view_alone(
    service: RunningService, database: Database
) -> None:
    database.execute("DELETE FROM tidemark.errors")
    database.execute("DELETE FROM t WHERE id = 2; INSERT INTO t VALUES (4, 4)")
    failed = service.await_status("cells", "failed")
    assert failed["error"]["code"] == "sink.row_missing"
    settle(service, database)
    assert service.call("POST", "/views/cells/rebuild").status_code < 300
    service.await_status("cells")
    settle(service, database, "cells")
    assert sorted(database.rows("TABLE cells")) == [(3, 3), (4, 4)]
    database.execute("DELETE FROM t")
    settle(service, database, "cells")
    service.drop("cells")


def test_a_function_that_is_gone_fails_its_view_alone(
    service: RunningService, database: Database
) -> None:
    service.create("cells", VIEWS["cells"], backfill="local")
    database.execute("DROP FUNCTION f")
    database.execute("INSERT INTO t VALUES (1, 1)")
    failed = service.await_status("cells", "failed")
    assert failed["error"]["code"] == "source.definition_changed"
    settle(service, database)
    service.drop("cells")


@pytest.mark.whole
def test_a_type_that_is_made_again(service: RunningService, database: Database) -> None:
    """The session in which expressions are evaluated knows the one before."""
    for turn in range(3):
        database.execute("CREATE TYPE e AS ENUM ('x', 'y')")
        database.execute("CREATE TABLE te (id int PRIMARY KEY, e e)")
        query = "SELECT id, upper(e::text) || md5(e::text) AS x FROM te"
        service.create("typed", query, backfill="local")
        database.execute("INSERT INTO te VALUES (1, 'x'), (2, NULL)")
        settle(service, database, "typed")
        assert sorted(database.rows("TABLE typed")) == sorted(database.rows(query)), turn
        assert database.rows("TABLE tidemark.errors") == []
        service.drop("typed")
        database.execute("DROP TABLE te; DROP TYPE e")
    assert "process.ended" not in {event.get("event") for event in service.events()}
