"""Oracle: the prefix that every epoch names (prefix.py); the tables are in one database, the views
in another. Kills and faults of the network: test_sources.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.connectors.postgres_source.reading import options_of
from tests.harness import source_contract as contract
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService
from tests.recovery.origins import postgres_origin

SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "13"))

pytestmark = pytest.mark.timeout(360)


@pytest.mark.whole
def test_crashes_of_the_other_server(
    own_postgres: EmbeddedPostgres, database: Database, tmp_path: Path
) -> None:
    with (
        new_database(own_postgres) as other,
        contract.running(postgres_origin(other, SEED), database, tmp_path) as (service, reader),
    ):
        for is_immediate in (False, True, False):
            own_postgres.restart(immediate=is_immediate)
            reader.await_further(3, within_s=120, log=service.log_tail)


@pytest.mark.whole
def test_a_build_that_is_killed_begins_with_a_new_snapshot(
    postgres: EmbeddedPostgres, database: Database, tmp_path: Path
) -> None:
    with new_database(postgres) as other:
        _kill_builds(other, database, tmp_path)


def _kill_builds(other: Database, database: Database, folder: Path) -> None:
    other.execute("CREATE TABLE marker (id bigint PRIMARY KEY)")
    other.execute("INSERT INTO marker SELECT generate_series(1, 50000)")
    query = "SELECT count(*) AS n, max(id) AS id FROM erp.marker"
    with RunningService(database.dsn, folder, allow_own_database=True) as service:
        options = options_of(other, "public.marker")
        contract.declare(service, "postgres", options, is_discovered=True)
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
