"""Oracle: docs/PSQL.md: what `tidemark init` says to run is enough, and so is deploy/role.sql: the
service runs as that role, from init to a live view and its end, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness.postgres import SERVER_SETTINGS, Database
from tests.harness.psql import as_role, psql, refusal
from tests.harness.service import RunningService

SHOP = """
CREATE ROLE owner_of_shop; CREATE ROLE ann LOGIN;
GRANT CREATE ON DATABASE shop TO owner_of_shop;
CREATE SCHEMA sales AUTHORIZATION owner_of_shop;
SET ROLE owner_of_shop;
CREATE TABLE sales.orders (id int PRIMARY KEY, region text, amount numeric);
INSERT INTO sales.orders SELECT i, 'r' || i % 3, i FROM generate_series(1, 100) AS i;
CREATE TABLE sales.log (line text);
GRANT USAGE ON SCHEMA sales TO ann; GRANT SELECT ON sales.orders TO ann;
RESET ROLE;
CREATE TABLE sales.secrets (id int PRIMARY KEY);
"""


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(settings=SERVER_SETTINGS) as made:
        Database(made, "postgres").execute("CREATE DATABASE shop")
        Database(made, "postgres").execute("CREATE DATABASE views")
        Database(made, "shop").execute(SHOP)
        yield made


def init(dsn: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "service.cli.main", "init", dsn, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def to_run(said: subprocess.CompletedProcess[str]) -> list[str]:
    assert said.returncode == 1, said.stdout + said.stderr
    return [line.split("run: ")[1] for line in said.stdout.splitlines() if "run: " in line]


def dsn_of(server: EmbeddedPostgres, user: str, database: str) -> str:
    return f"host=127.0.0.1 port={server.port} user={user} dbname={database}"


def test_what_init_says_is_enough(server: EmbeddedPostgres) -> None:
    """A role without any right: run what is said, as a superuser, until nothing is said."""
    shop = Database(server, "shop")
    shop.execute("CREATE ROLE poor LOGIN; REVOKE TEMPORARY ON DATABASE shop FROM PUBLIC")
    dsn = dsn_of(server, "poor", "shop")
    options = ("--tables", "sales.orders", "--schemas", "sales")
    said = to_run(init(dsn, *options))
    assert 'ALTER ROLE "poor" REPLICATION;' in said
    assert to_run(init(dsn, *options, "--dry-run")) == said
    for statement in said:
        shop.execute(statement)
    then = to_run(init(dsn, *options))  # what could be seen only now
    assert then == ['GRANT "owner_of_shop" TO "poor";']
    shop.execute(then[0])
    ended = init(dsn, *options)
    assert (ended.returncode, "ready" in ended.stdout) == (0, True), ended.stdout
    assert shop.rows("SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'tidemark'")
    shop.execute("DROP OWNED BY poor CASCADE; DROP ROLE poor")


def test_init_by_an_administrator(server: EmbeddedPostgres) -> None:
    """It grants by itself what it may, for a role; schema tidemark is the role's."""
    shop = Database(server, "shop")
    missing = init(dsn_of(server, "postgres", "shop"), "--role", "helper")
    assert (missing.returncode, "deploy/role.sql" in missing.stdout) == (1, True)
    shop.execute("CREATE ROLE helper LOGIN")
    options = ("--role", "helper", "--schemas", "sales")
    ended = init(dsn_of(server, "postgres", "shop"), *options)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "done   source: REPLICATION" in ended.stdout
    # Tables that no view has asked for are notes.
    assert "note   source: table sales.log" in ended.stdout
    owner = "SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'tidemark'"
    assert shop.rows(owner) == [("helper",)]
    shop.execute("DROP OWNED BY helper CASCADE; DROP ROLE helper")


@pytest.mark.whole
def test_a_server_that_is_not_ready() -> None:
    """Its settings are its administrator's: they are changed only when that was asked for."""
    settings = {"wal_level": "minimal", "max_wal_senders": 0, "max_slot_wal_keep_size": "16MB"}
    with EmbeddedPostgres(settings=settings) as server:
        auto = server.directory / "data" / "postgresql.auto.conf"
        before = auto.read_text()
        for options in ([], ["--dry-run"], ["--alter-system", "--dry-run"]):
            said = init(server.dsn, *options)
            assert said.returncode == 1
            for word in ("source.wal_level", "source.slot_limit", "source.no_free_wal_sender"):
                assert f"[{word}]" in said.stdout, said.stdout
            assert "run: ALTER SYSTEM SET wal_level = logical; then restart" in said.stdout
            assert ("use --alter-system to change it" in said.stdout) == (not options)
            assert auto.read_text() == before
        said = init(server.dsn, "--alter-system")
        assert "run: restart the server" in said.stdout
        written = "SELECT name, setting FROM pg_file_settings WHERE sourcefile LIKE '%auto.conf'"
        assert Database(server, "postgres").rows(written) == [("wal_level", "logical")]


@pytest.mark.whole
def test_the_role_is_enough(server: EmbeddedPostgres, tmp_path: Path) -> None:
    """Source and sink are two databases; the creator is somebody else than the service."""
    shop, views = Database(server, "shop"), Database(server, "views")
    script = Path("deploy/role.sql").read_text()
    ended = psql(shop, script, role="keeper", schemas="sales", views="sales")
    assert ended.returncode == 0, ended.stderr
    assert "sales.secrets" in ended.stdout
    views.execute("CREATE SCHEMA shown; GRANT USAGE, CREATE ON SCHEMA shown TO ann")
    ended = psql(views, script, role="keeper", views="shown", sink_only="yes")
    assert ended.returncode == 0, ended.stderr
    source, sink = dsn_of(server, "keeper", "shop"), dsn_of(server, "keeper", "views")
    options = ("--sink", sink, "--tables", "sales.orders", "--schemas", "shown")
    ended = init(source, *options)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert psql(views, Path("deploy/creators.sql").read_text(), creators="ann").returncode == 0
    powers = "SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = 'keeper'"
    assert shop.rows(powers) == [(False,)]
    with RunningService(source, tmp_path, sink):
        query = "SELECT region, sum(amount) AS total FROM sales.orders GROUP BY region"
        create = f"CALL tidemark.create_view('shown.totals', '{query}')"
        as_role(views, "ann", create)
        error = refusal(lambda: as_role(views, "ann", create.replace("orders", "secrets")))
        assert error.pgcode == "42703" or error.pgcode == "42501", error
        shop.execute("INSERT INTO sales.orders VALUES (1000, 'new', 1)")
        apart = refusal(lambda: as_role(views, "ann", "SELECT tidemark.wait()"))
        assert (apart.pgcode, "there" in apart.diag.message_hint) == ("55000", True)
        ((position,),) = shop.rows("SELECT pg_current_wal_insert_lsn()")
        as_role(views, "ann", f"SELECT tidemark.wait('{position}', '30 s')")
        found = as_role(views, "ann", "SELECT total FROM shown.totals WHERE region = 'new'")
        assert found == [(1,)]
        # The service is no member of ann: she reads, and lets others read, what is not hers.
        assert as_role(views, "ann", "SELECT owner, lag_bytes FROM tidemark.status") == [
            ("ann", None)
        ]
        as_role(views, "ann", "GRANT SELECT ON shown.totals TO PUBLIC")
        not_hers = refusal(lambda: as_role(views, "ann", "DROP VIEW shown.totals"))
        assert isinstance(not_hers, psycopg2.errors.InsufficientPrivilege)
        as_role(views, "ann", "CALL tidemark.pause_view('shown.totals')")
        assert as_role(views, "ann", "SELECT status FROM tidemark.status") == [("paused",)]
        as_role(views, "ann", "CALL tidemark.drop_view('shown.totals')")
        assert views.rows("SELECT to_regclass('shown.totals')") == [(None,)]
    assert shop.rows("SELECT count(*) FROM pg_replication_slots") == [(0,)]
    assert shop.rows("SELECT count(*) FROM pg_publication") == [(0,)]


@pytest.mark.whole
def test_the_time_functions_are_made_on_request(server: EmbeddedPostgres) -> None:
    """--functions creates them once; everybody may call them, and nobody gets schema tidemark."""
    shop = Database(server, "shop")
    shop.execute("CREATE ROLE clerk LOGIN")
    options = ("--role", "clerk", "--schemas", "sales", "--functions")
    dsn = dsn_of(server, "postgres", "shop")
    before = init(dsn, *options, "--dry-run")
    assert "to do  source: time functions  some are missing" in before.stdout
    assert "done   source: time functions  schema tidemark_time" in init(dsn, *options).stdout
    assert "ok     source: time functions  schema tidemark_time" in init(dsn, *options).stdout
    asked = (
        "SET ROLE tidemark_query; SELECT tidemark_time.tumble('1 h', timestamp '2024-01-01 1:30')"
    )
    with shop.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SET ROLE tidemark_query; {asked}")
        assert str(cursor.fetchone()[0]) == "2024-01-01 01:00:00"
        cursor.execute("SELECT has_schema_privilege('tidemark', 'USAGE')")
        assert cursor.fetchone() == (False,)
    shop.execute("DROP SCHEMA tidemark_time CASCADE; DROP OWNED BY clerk CASCADE; DROP ROLE clerk")
