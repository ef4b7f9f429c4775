"""Oracle: what each managed service's pages say: its roles and settings, made on a plain server,
and who runs which command there. What `tidemark doctor DSN` prints as SQL is run, and is enough."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.postgres.session.hosting import MANAGED, Hosting, hosting_of
from connectors.postgres.session.session import Session
from service.setup.bootstrap import Desired
from service.setup.doctor import check_database
from tests.harness.pooler import TransactionPooler
from tests.harness.postgres import SERVER_SETTINGS, Database, versions_to_test
from tests.harness.psql import psql, session_of
from tests.harness.standby import Standby
from tests.harness.waiting import wait_until

SHOP = """
CREATE ROLE poor LOGIN; CREATE ROLE shop_owner; GRANT shop_owner TO admin;
CREATE SCHEMA sales; GRANT USAGE, CREATE ON SCHEMA sales TO shop_owner;
SET ROLE shop_owner;
CREATE TABLE sales.orders (id int PRIMARY KEY, amount numeric);
CREATE TABLE sales.lines (line text);
CREATE UNLOGGED TABLE sales.cache (id int PRIMARY KEY);
CREATE TABLE sales.parts (id int PRIMARY KEY) PARTITION BY RANGE (id);
"""


@dataclass(frozen=True)
class Service:
    """setup: what the service has, besides a role `admin` of its customers that is no superuser.
    wal_level, slots: what has to be printed for these settings. replication: for the right."""

    name: str
    setup: str
    wal_level: str
    slots: str
    replication: str = 'ALTER ROLE "poor" REPLICATION;'


SERVICES = (
    Service(
        "Amazon RDS",
        "CREATE ROLE rds_superuser; CREATE ROLE rds_replication;"
        " GRANT rds_replication TO admin WITH ADMIN OPTION;"
        " ALTER DATABASE shop SET rds.logical_replication = 'off'",
        "aws rds modify-db-parameter-group --db-parameter-group-name GROUP --parameters"
        " ParameterName=rds.logical_replication,ParameterValue=1,ApplyMethod=pending-reboot;"
        " aws rds reboot-db-instance --db-instance-identifier INSTANCE",
        "ParameterName=max_replication_slots,ParameterValue=11,ApplyMethod=pending-reboot",
        'GRANT rds_replication TO "poor";',
    ),
    Service(
        "Amazon Aurora",
        "CREATE ROLE rds_superuser; CREATE ROLE rds_replication;"
        " GRANT rds_replication TO admin WITH ADMIN OPTION;"
        " SET allow_system_table_mods = on; CREATE FUNCTION pg_catalog.aurora_version()"
        " RETURNS text LANGUAGE sql AS $$SELECT '16.4'$$",
        "aws rds modify-db-cluster-parameter-group --db-cluster-parameter-group-name GROUP"
        " --parameters ParameterName=rds.logical_replication,ParameterValue=1",
        "modify-db-cluster-parameter-group",
        'GRANT rds_replication TO "poor";',
    ),
    Service(
        "Google Cloud SQL",
        "CREATE ROLE cloudsqlsuperuser; GRANT cloudsqlsuperuser TO admin;"
        " ALTER DATABASE shop SET cloudsql.logical_decoding = 'off'",
        "gcloud sql instances patch INSTANCE --database-flags=cloudsql.logical_decoding=on",
        "--database-flags=max_replication_slots=11",
    ),
    Service(
        "Azure Database for PostgreSQL",
        "CREATE ROLE azure_pg_admin; GRANT azure_pg_admin TO admin;"
        " ALTER DATABASE shop SET azure.extensions = ''",
        "az postgres flexible-server parameter set --resource-group GROUP --server-name SERVER"
        " --name wal_level --value logical; az postgres flexible-server restart",
        "--name max_replication_slots --value 11",
    ),
    Service(
        "Supabase",
        "CREATE ROLE supabase_admin",
        "--config wal_level=logical",
        "supabase --experimental --project-ref PROJECT postgres-config update"
        " --config max_replication_slots=11",
    ),
    Service(
        "Neon",
        "CREATE ROLE neon_superuser; GRANT neon_superuser TO admin;"
        " ALTER DATABASE shop SET neon.timeline_id = 'f00d'",
        "Logical Replication, Enable",
        "Neon sets it itself",
    ),
    Service(
        "self-hosted",
        "SELECT 1",
        "ALTER SYSTEM SET wal_level = logical; then restart the server",
        "ALTER SYSTEM SET max_replication_slots = '11'; then restart the server",
    ),
)
CLEAN = """
DO $$ DECLARE one name; BEGIN
FOR one IN SELECT rolname FROM pg_roles WHERE rolname = ANY (ARRAY['rds_superuser',
    'rds_replication', 'cloudsqlsuperuser', 'azure_pg_admin', 'supabase_admin', 'neon_superuser'])
LOOP EXECUTE format('DROP ROLE %I', one); END LOOP; END $$;
"""


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """A server as a managed service starts it: nobody can follow it yet, and it has one slot."""
    settings = {**SERVER_SETTINGS, "wal_level": "replica", "max_replication_slots": 1}
    newest = max(versions_to_test())
    with EmbeddedPostgres(newest, {**settings, "autovacuum": "off"}) as made:
        postgres = Database(made, "postgres")
        postgres.execute("SELECT pg_create_physical_replication_slot('taken')")
        postgres.execute("CREATE ROLE admin LOGIN CREATEROLE REPLICATION")
        yield made


@pytest.fixture
def shop(server: EmbeddedPostgres) -> Iterator[Database]:
    """A database of `admin`, who made `poor`, a role without any right, and the tables' owner."""
    postgres, shop = Database(server, "postgres"), Database(server, "shop")
    postgres.execute("CREATE DATABASE shop OWNER admin")
    as_admin(shop, SHOP)
    yield shop
    shop.execute("DROP OWNED BY poor CASCADE")
    postgres.execute("DROP DATABASE shop WITH (FORCE)")
    postgres.execute(f"DROP ROLE poor, shop_owner; DROP ROLE IF EXISTS tidemark_query; {CLEAN}")


def as_admin(shop: Database, statements: str) -> None:
    session = session_of(shop, "admin")
    try:
        session.cursor().execute(statements)
    finally:
        session.close()


def dsn_of(shop: Database, user: str = "poor", port: int = 0) -> str:
    return f"host=127.0.0.1 port={port or shop.server.port} user={user} dbname={shop.name}"


def doctor(
    dsn: str,
    tables: str = "",
    *,
    role: str | None = None,
    schemas: str = "public",
    publication: str = "",
) -> list[dict[str, str]]:
    """What `tidemark doctor DSN` finds, as it prints it with --json."""
    desired = Desired(
        dsn,
        dsn,
        role,
        tables=tuple(tables.split(",")) if tables else None,
        schemas=(schemas,),
        publication=publication,
    )
    return [finding.facts() for finding in check_database(desired)]


def problems(found: list[dict[str, str]], *statuses: str) -> dict[str, dict[str, str]]:
    return {f["name"]: f for f in found if f["status"] in (statuses or ("problem",))}


def is_sql(hint: str) -> bool:
    return re.match(r"(GRANT|ALTER ROLE|ALTER TABLE|CREATE|DO) ", hint) is not None


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.name)
def test_what_doctor_prints_is_enough(shop: Database, service: Service) -> None:
    """Its SQL is run as the service's customer, who is no superuser; settings are left."""
    shop.execute(service.setup)
    asked = {"tables": "sales.orders,sales.lines", "schemas": "sales"}
    found = doctor(dsn_of(shop), **asked)
    named = {f["name"]: f for f in found}
    assert named["source: hosting"]["found"] == service.name
    assert service.wal_level in named["source: wal_level"]["hint"]
    assert service.slots in named["source: max_replication_slots"]["hint"]
    right = named["source: REPLICATION"]
    assert right["hint"] == service.replication
    assert right["as_whom"], right
    for _ in range(4):
        for fact in problems(found, "problem", "note").values():
            if is_sql(fact.get("hint", "")):
                as_admin(shop, fact["hint"])
            elif fact.get("code") == "source.no_replica_identity":
                as_admin(shop, fact["hint"].removeprefix("add a PRIMARY KEY, or "))
        found = doctor(dsn_of(shop), **asked)
    left = problems(found)
    assert left.keys() == {"source: wal_level", "source: max_replication_slots"}, left
    is_member = shop.rows("SELECT rolsuper FROM pg_roles WHERE rolname IN ('poor', 'admin')")
    assert is_member == [(False,), (False,)]


@pytest.mark.parametrize("service", SERVICES[:3], ids=lambda service: service.name)
def test_the_script_needs_no_superuser(shop: Database, service: Service) -> None:
    """deploy/role.sql, run by the service's customer."""
    shop.execute(service.setup)
    names = {"role": "poor", "schemas": "sales", "views": "sales"}
    for _ in range(2):
        ended = psql(shop, Path("deploy/role.sql").read_text(), user="admin", **names)
        assert ended.returncode == 0, ended.stderr
    left = problems(doctor(dsn_of(shop), "sales.orders", schemas="sales"))
    assert left.keys() == {"source: wal_level", "source: max_replication_slots"}, left


def test_nothing_is_written(shop: Database) -> None:
    """No transaction gets a number, whoever looks, and the settings of nobody change."""
    facts = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text, (SELECT count(*) FROM pg_class)"
    before = shop.rows(facts)
    for user in ("poor", "admin", "postgres"):
        assert any(f["name"].startswith("sink: ") for f in doctor(dsn_of(shop, user))), user
        assert doctor(dsn_of(shop, user), role="nobody", publication="none"), user
    assert shop.rows(facts) == before


@pytest.mark.whole
def test_the_command(shop: Database) -> None:
    """It prints what it finds, and exits with 1 while something is missing."""
    command = [sys.executable, "-m", "service.cli.main", "doctor", dsn_of(shop)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 1, ended.stderr
    said = ended.stdout.splitlines()
    assert "ok      source: hosting: self-hosted" in said
    at = said.index('        hint: ALTER ROLE "poor" REPLICATION;')
    assert said[at + 1] == "        as: a superuser"


def test_tables_that_cannot_be_followed_say_why(shop: Database) -> None:
    found = {f["name"]: f for f in doctor(dsn_of(shop, "admin"))}
    assert found["source: table sales.lines"]["code"] == "source.no_replica_identity"
    assert found["source: table sales.cache"]["detail"] == "it is unlogged"
    assert found["source: tables"]["found"] == "2 of 4 can be published"


def test_a_publication_of_the_administrator(shop: Database) -> None:
    """It needs no right to create one, and no ownership: each table says what is lacking."""
    shop.execute("CREATE PUBLICATION given FOR TABLE sales.parts WITH (publish = 'insert')")
    as_admin(shop, "GRANT USAGE ON SCHEMA sales TO poor")
    as_admin(shop, "GRANT SELECT ON ALL TABLES IN SCHEMA sales TO poor")
    asked = {"publication": "given", "tables": "sales.orders,sales.parts"}
    found = problems(doctor(dsn_of(shop), **asked))
    assert "source: publication" not in found
    given = found["source: publication given"]
    assert given["code"] == "source.publication_options"
    for fact in (given, found["source: table sales.orders"], found["source: table sales.parts"]):
        shop.execute(fact["hint"])
    named = problems(doctor(dsn_of(shop), **asked))
    assert not [name for name in named if "publication" in name or "table" in name], named


def test_a_pooler_of_transactions(shop: Database) -> None:
    shop.execute("CREATE ROLE azure_pg_admin")
    with TransactionPooler(shop.server.port) as pooler:
        found = problems(doctor(dsn_of(shop, port=pooler.port)))["source: connection"]
    assert (found["code"], "6432" in found["hint"]) == ("source.pooler", True), found


@pytest.mark.whole
def test_a_standby_names_its_primary(server: EmbeddedPostgres) -> None:
    with EmbeddedPostgres(settings=SERVER_SETTINGS) as primary, Standby(primary) as standby:
        mine = Database(standby, "postgres")
        wait_until(lambda: bool(mine.rows("SELECT FROM pg_stat_wal_receiver")))
        found = problems(doctor(standby.dsn))
        assert found["source: server"]["code"] == "source.standby"
        assert found["source: server"]["hint"].endswith(f":{primary.port}")


@pytest.mark.parametrize("kind", MANAGED, ids=lambda kind: kind.name)
def test_a_host_by_its_name(kind: Hosting) -> None:
    """Where roles and settings say nothing, the address does."""

    class Plain(Session):
        def rows(self, *_: object, **__: object) -> list[tuple]:
            return [([], [], kind.name == "Amazon Aurora", False)]

    for ending in kind.hosts:
        assert hosting_of(Plain(f"host=db.example{ending} dbname=shop")) == kind
        assert hosting_of(Plain(f"host=db.example{ending}.org dbname=shop")) != kind
