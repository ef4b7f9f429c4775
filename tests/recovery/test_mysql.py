"""Oracle: the prefix that every epoch names (prefix.py); the tables are MariaDB's, the views are
in PostgreSQL. Kills and faults of the network: test_sources.py."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.harness import source_contract as contract
from tests.harness.mariadb import MariaDb, MariaDbServer
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.recovery.origins import mysql_origin

SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "11"))

pytestmark = pytest.mark.timeout(360)


@pytest.mark.whole
def test_restarts_and_kills_of_the_server(
    own_mariadb: MariaDbServer, database: Database, tmp_path: Path
) -> None:
    with (
        own_mariadb.database() as mariadb,
        contract.running(mysql_origin(mariadb, SEED), database, tmp_path) as (service, reader),
    ):
        for end in (own_mariadb.stop, own_mariadb.kill, own_mariadb.stop):
            end()
            reader.look_for(0.5)
            own_mariadb.start()
            reader.await_further(3, within_s=120, log=service.log_tail)


@pytest.mark.whole
@pytest.mark.parametrize("is_early", [False, True])
def test_a_log_that_was_purged_while_the_service_was_down(
    mariadb: MariaDb, database: Database, tmp_path: Path, is_early: bool
) -> None:
    mariadb.execute("CREATE TABLE marker (id bigint PRIMARY KEY)")
    mariadb.execute("INSERT INTO marker VALUES (1)")
    with RunningService(database.dsn, tmp_path) as service:
        contract.declare(service, "mysql", mariadb.options("marker"), is_discovered=True)
        service.create("prefix", "SELECT max(id) AS id FROM erp.marker")
        service.stop()
        mariadb.execute("INSERT INTO marker VALUES (2)")
        mariadb.execute("FLUSH BINARY LOGS")
        newest = mariadb.rows("SHOW MASTER STATUS")[0][0]
        deadline = time.monotonic() + 60
        while mariadb.rows("SHOW BINARY LOGS")[0][0] != newest:
            assert time.monotonic() < deadline
            mariadb.execute(f"PURGE BINARY LOGS TO '{newest}'")
            time.sleep(0.05)
        service.start()
        if is_early:
            # The view is live until the log was asked for: that fails it, and is why to rebuild it.
            assert service.call("POST", "/views/prefix/rebuild").status_code == 202
        else:
            failed = service.await_status("prefix", "failed")
            assert failed["error"]["code"] == "mysql.log_gone"
            assert database.rows("SELECT id FROM prefix") == [(1,)]
            answer = service.call("POST", "/views/prefix/rebuild")
            assert answer.status_code < 300, answer.text
        service.await_so(lambda: database.rows("SELECT id FROM prefix") == [(2,)])
        service.await_status("prefix")
