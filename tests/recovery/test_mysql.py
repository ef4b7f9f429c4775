"""Oracle: the prefix that every epoch names (prefix.py); the tables are MariaDB's, the views are
in PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from tests.end_to_end.test_mysql import declare
from tests.harness.mariadb import MariaDb, MariaDbServer
from tests.harness.postgres import Database
from tests.harness.proxy import Fault, Proxy
from tests.harness.service import RunningService
from tests.harness.tiers import count
from tests.recovery import prefix
from tests.recovery.prefix import ACCOUNTS, Checker

KILLS = count("TIDEMARK_TEST_KILLS", 1, 20)
FAULTS = count("TIDEMARK_TEST_FAULTS", 1, 20)
SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "11"))

pytestmark = pytest.mark.timeout(300 + 60 * (KILLS + FAULTS))

SCHEMA = (
    "CREATE TABLE marker (id bigint PRIMARY KEY)",
    "INSERT INTO marker VALUES (0)",
    "CREATE TABLE accounts (id int PRIMARY KEY, owner varchar(20) NOT NULL, "
    "balance bigint NOT NULL)",
    f"INSERT INTO accounts SELECT seq, concat('owner ', seq % 7), 0 FROM seq_1_to_{ACCOUNTS}",
    "CREATE TABLE entries (id bigint PRIMARY KEY, account int NOT NULL, amount bigint NOT NULL)",
)


class _Writer(prefix.Writer):
    """Commits to MariaDB, in tables that it finds again after a restart of the server."""

    def __init__(self, mariadb: MariaDb, seed: int) -> None:
        super().__init__(None, seed)  # type: ignore[arg-type]
        self._mariadb = mariadb

    def _commit(self, connection, number, statements):
        while True:
            try:
                connection = connection or self._mariadb.server.connect(self._mariadb.name)
                with connection.cursor() as cursor:
                    connection.begin()
                    if not cursor.execute("SELECT 1 FROM marker WHERE id = %s", (number,)):
                        for sql, values in statements:
                            cursor.execute(sql, values)
                    connection.commit()
                return connection
            except (pymysql.Error, OSError):
                # Whether the commit was taken is looked up the next time.
                connection = None
                time.sleep(0.05)


@contextlib.contextmanager
def _scene(
    mariadb: MariaDb, database: Database, folder: Path, port: int = 0
) -> Iterator[tuple[RunningService, _Writer, Checker]]:
    for statement in SCHEMA:
        mariadb.execute(statement)
    more = {"port": port} if port else {}
    with RunningService(database.dsn, folder) as service:
        declare(service, mariadb, "marker", "accounts", "entries", **more)
        for name, query in prefix.VIEWS.items():
            for table in ("marker", "accounts", "entries"):
                query = query.replace(f"FROM {table}", f"FROM shop.{table}")
                query = query.replace(f"JOIN {table}", f"JOIN shop.{table}")
            service.create(name, query)
        writer = _Writer(mariadb, SEED)
        checker = Checker(database, writer)
        writer.start()
        try:
            checker.await_further(2, log=service.log_tail)
            yield service, writer, checker
            last = writer.stop()
            service.await_so(lambda: checker.check() == last)
        finally:
            writer._stopping.set()
            checker.close()


def test_kills_of_the_service_under_writes(
    mariadb: MariaDb, database: Database, tmp_path: Path
) -> None:
    pick = random.Random(SEED)
    with _scene(mariadb, database, tmp_path) as (service, _, checker):
        for number in range(KILLS):
            checker.look_for(pick.uniform(0.1, 0.8))
            if number % 2:
                service.kill()
                service.start()
            else:
                service.await_so(lambda: service.kill_child("pipeline"))
            checker.await_further(2, within_s=90, log=service.log_tail)


def test_faults_between_us_and_the_server(
    mariadb: MariaDb, database: Database, tmp_path: Path
) -> None:
    pick = random.Random(SEED)
    with (
        Proxy(mariadb.server.port) as proxy,
        _scene(mariadb, database, tmp_path, proxy.port) as (service, _, checker),
    ):
        for _ in range(FAULTS):
            proxy.begin(Fault.draw(pick))
            checker.look_for(pick.choice((0.2, 1.0, 2.0)))
            proxy.heal()
            checker.await_further(2, within_s=90, log=service.log_tail)
            proxy.terminate_orphan()


@pytest.mark.whole
def test_restarts_and_kills_of_the_server(
    own_mariadb: MariaDbServer, database: Database, tmp_path: Path
) -> None:
    with (
        own_mariadb.database() as mariadb,
        _scene(mariadb, database, tmp_path) as (service, _, checker),
    ):
        for end in (own_mariadb.stop, own_mariadb.kill, own_mariadb.stop):
            end()
            checker.look_for(0.5)
            own_mariadb.start()
            checker.await_further(3, within_s=120, log=service.log_tail)


def test_a_log_that_was_purged_while_the_service_was_down(
    mariadb: MariaDb, database: Database, tmp_path: Path
) -> None:
    mariadb.execute("CREATE TABLE marker (id bigint PRIMARY KEY)")
    mariadb.execute("INSERT INTO marker VALUES (1)")
    with RunningService(database.dsn, tmp_path) as service:
        declare(service, mariadb, "marker")
        service.create("prefix", "SELECT max(id) AS id FROM shop.marker")
        service.stop()
        mariadb.execute("INSERT INTO marker VALUES (2)")
        mariadb.execute("FLUSH BINARY LOGS")
        newest = mariadb.rows("SHOW MASTER STATUS")[0][0]
        deadline = time.monotonic() + 30
        while mariadb.rows("SHOW BINARY LOGS")[0][0] != newest:
            assert time.monotonic() < deadline
            mariadb.execute(f"PURGE BINARY LOGS TO '{newest}'")
            time.sleep(0.05)
        service.start()
        failed = service.await_status("prefix", "failed")
        assert failed["error"]["code"] == "mysql.log_gone"
        assert database.rows("SELECT id FROM prefix") == [(1,)]
        answer = service.call("POST", "/views/prefix/rebuild")
        assert answer.status_code < 300, answer.text
        service.await_so(lambda: database.rows("SELECT id FROM prefix") == [(2,)])
