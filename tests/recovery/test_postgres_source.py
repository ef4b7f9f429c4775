"""Oracle: the prefix that every epoch names (prefix.py); the tables are in one database, the views
in another."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.connectors.postgres_source.reading import options_of
from tests.harness.postgres import Database, new_database
from tests.harness.proxy import Fault, Proxy
from tests.harness.service import RunningService
from tests.harness.tiers import count
from tests.recovery import prefix
from tests.recovery.prefix import Checker, Writer

KILLS = count("TIDEMARK_TEST_KILLS", 1, 20)
FAULTS = count("TIDEMARK_TEST_FAULTS", 1, 20)
SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "13"))
TABLES = ("marker", "accounts", "entries")

pytestmark = pytest.mark.timeout(300 + 60 * (KILLS + FAULTS))


def declare(service: RunningService, database: Database, *tables: str, **more: object) -> None:
    """Discover the tables as users do, and declare the source "erp"."""
    titles = [f"public.{table}" for table in tables]
    body = {"type": "postgres", "options": options_of(database, *titles, **more)}
    found = service.call("POST", "/sources/discover", body)
    assert found.status_code == 200, found.text
    declared = {"name": "erp", **body, "options": found.json()["options"]}
    answer = service.call("POST", "/sources", declared)
    assert answer.status_code == 201, answer.text


@contextlib.contextmanager
def _scene(
    other: Database, database: Database, folder: Path, port: int = 0
) -> Iterator[tuple[RunningService, Writer, Checker]]:
    other.execute(prefix.SCHEMA)
    more = {"port": port} if port else {}
    with RunningService(database.dsn, folder) as service:
        declare(service, other, *TABLES, **more)
        writer = Writer(other, SEED)
        checker = Checker(database, writer)
        # The views are built while the tables change.
        writer.start()
        try:
            for name, query in prefix.VIEWS.items():
                for table in TABLES:
                    query = query.replace(f"FROM {table}", f"FROM erp.{table}")
                    query = query.replace(f"JOIN {table}", f"JOIN erp.{table}")
                service.create(name, query)
            checker.await_further(2, within_s=90, log=service.log_tail)
            yield service, writer, checker
            last = writer.stop()
            service.await_so(lambda: checker.check() == last)
        finally:
            writer._stopping.set()
            checker.close()


@pytest.fixture
def other(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """The database whose tables are read."""
    with new_database(postgres) as made:
        yield made


def test_kills_of_the_service_under_writes(
    other: Database, database: Database, tmp_path: Path
) -> None:
    pick = random.Random(SEED)
    with _scene(other, database, tmp_path) as (service, _, checker):
        for number in range(KILLS):
            checker.look_for(pick.uniform(0.1, 0.8))
            if number % 2:
                service.kill()
                service.start()
            else:
                service.await_so(lambda: service.kill_child("pipeline"))
            checker.await_further(2, within_s=90, log=service.log_tail)


@pytest.mark.whole
def test_faults_between_us_and_the_database(
    other: Database, database: Database, tmp_path: Path
) -> None:
    pick = random.Random(SEED)
    with (
        Proxy(other.server.port) as proxy,
        _scene(other, database, tmp_path, proxy.port) as (service, _, checker),
    ):
        for _ in range(FAULTS):
            proxy.begin(Fault.draw(pick))
            checker.look_for(pick.choice((0.2, 1.0, 2.0)))
            proxy.heal()
            checker.await_further(2, within_s=90, log=service.log_tail)
            proxy.terminate_orphan()


@pytest.mark.whole
def test_crashes_of_the_other_server(
    own_postgres: EmbeddedPostgres, database: Database, tmp_path: Path
) -> None:
    with (
        new_database(own_postgres) as other,
        _scene(other, database, tmp_path) as (service, _, checker),
    ):
        for is_immediate in (False, True, False):
            own_postgres.restart(immediate=is_immediate)
            checker.await_further(3, within_s=120, log=service.log_tail)


@pytest.mark.whole
def test_a_build_that_is_killed_begins_with_a_new_snapshot(
    other: Database, database: Database, tmp_path: Path
) -> None:
    other.execute("CREATE TABLE marker (id bigint PRIMARY KEY)")
    other.execute("INSERT INTO marker SELECT generate_series(1, 50000)")
    query = "SELECT count(*) AS n, max(id) AS id FROM erp.marker"
    with RunningService(database.dsn, tmp_path) as service:
        declare(service, other, "marker")
        for number in range(5):
            service.call("POST", "/views", {"name": f"v{number}", "query": query})
            other.execute(f"INSERT INTO marker VALUES ({60_000 + number})")
            service.kill()
            service.start()
            other.execute(f"DELETE FROM marker WHERE id = {number + 1}")
        expected = other.rows("SELECT count(*), max(id) FROM marker")
        for number in range(5):
            service.await_status(f"v{number}", "live")
            service.await_so(
                lambda name=f"v{number}": database.rows(f"SELECT n, id FROM {name}") == expected
            )
