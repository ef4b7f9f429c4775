"""Oracle: PostgreSQL's answer to each query, for the views that nothing has happened to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService


@pytest.fixture(scope="module")
def database(postgres) -> Iterator[Database]:
    with new_database(postgres) as made:
        made.execute("CREATE TABLE t (id int PRIMARY KEY, a int, s text, n numeric)")
        yield made


@pytest.fixture(scope="module")
def service(
    database: Database, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    with RunningService(database.dsn, tmp_path_factory.mktemp("blame")) as running:
        running.create("steady", "SELECT id, a FROM t", backfill="local")
        yield running


def settle(service: RunningService, database: Database, *views: str) -> None:
    position = database.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
    for view in ("steady", *views):
        service.wait(view, position)


def test_a_function_that_raises_since_its_rows_came(service, database) -> None:
    database.execute("CREATE FUNCTION f(a int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT a'")
    service.create("own", "SELECT id, f(a) AS x FROM t", backfill="local")
    database.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 5) i")
    settle(service, database, "own")
    database.execute(
        "CREATE OR REPLACE FUNCTION f(a int) RETURNS int IMMUTABLE LANGUAGE plpgsql "
        "AS $$BEGIN RAISE EXCEPTION 'no'; END$$"
    )
    database.execute("DELETE FROM t WHERE id = 1")
    settle(service, database, "own")
    print(database.rows("TABLE own"), database.rows("TABLE tidemark.errors"), service.view("own"))
    assert 0


def test_a_type_made_again(service, database) -> None:
    for turn in range(2):
        database.execute(
            "CREATE TYPE e AS ENUM ('x', 'y'); CREATE TABLE te (id int PRIMARY KEY, e e)"
        )
        service.create(
            "typed", "SELECT id, upper(e::text) || md5(e::text) AS x FROM te", backfill="local"
        )
        database.execute("INSERT INTO te VALUES (1, 'x')")
        settle(service, database, "typed")
        print(database.rows("TABLE typed"), database.rows("TABLE tidemark.errors"))
        if turn == 0:
            service.drop("typed")
            database.execute("DROP TABLE te; DROP TYPE e")
    assert 0
