"""Oracle: pg_roles, pg_auth_members and PostgreSQL's own answers about rights: the role
tidemark_query has none, and the service's role may act as it, whoever has made it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.postgres.evaluation.query_role import QUERY_ROLE
from service.runtime.settings import Settings
from service.setup.bootstrap import Desired, Step, prepare
from service.setup.doctor import NOTE, check_all
from tests.harness.postgres import SERVER_SETTINGS, Database, new_database, versions_to_test
from tests.harness.psql import as_role, psql

pytestmark = pytest.mark.versions

ROLE_SQL = Path("deploy/role.sql").read_text()
ATTRIBUTES = "rolcanlogin, rolsuper, rolcreatedb, rolcreaterole, rolinherit, rolreplication"
NAMES = {f"{side}: role {QUERY_ROLE}" for side in ("source", "sink")}


@pytest.fixture(scope="module", params=versions_to_test(), ids=lambda v: f"pg{v}")
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedPostgres]:
    """A server of the module's own: roles are the whole server's."""
    with EmbeddedPostgres(request.param, SERVER_SETTINGS) as made:
        Database(made, "postgres").execute(
            "CREATE ROLE svc LOGIN REPLICATION; CREATE ROLE maker LOGIN REPLICATION CREATEROLE"
        )
        yield made


@pytest.fixture
def shop(server: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(server) as made:
        made.execute(
            "CREATE SCHEMA sales; CREATE SCHEMA shown;"
            "CREATE TABLE sales.orders (id int PRIMARY KEY)"
        )
        yield made
        made.execute(
            f"DROP SCHEMA IF EXISTS tidemark CASCADE; DROP OWNED BY svc, maker CASCADE;"
            f" DO $$ BEGIN DROP OWNED BY {QUERY_ROLE}; DROP ROLE {QUERY_ROLE};"
            " EXCEPTION WHEN undefined_object THEN NULL; END $$"
        )


def init(shop: Database, user: str, role: str | None = None) -> dict[str, Step]:
    dsn = f"host=127.0.0.1 port={shop.server.port} user={user} dbname={shop.name}"
    wanted = Desired(dsn, dsn, role, tables=("sales.orders",), schemas=("shown",))
    return {step.check.name: step for step in prepare(wanted, is_dry=False)}


def faults_of(shop: Database, role: str) -> list[str]:
    """What is not as it is to be."""
    found = []
    if shop.rows(
        f"SELECT {ATTRIBUTES}, rolbypassrls FROM pg_roles WHERE rolname = %s", (QUERY_ROLE,)
    ) != [(False,) * 7]:
        found.append("attributes")
    if shop.rows("SELECT FROM pg_auth_members WHERE member = to_regrole(%s)", (QUERY_ROLE,)):
        found.append("memberships")
    for schema, right, wanted in (
        ("sales", "USAGE", True),
        ("shown", "USAGE", True),
        ("sales", "CREATE", False),
        ("shown", "CREATE", False),
        ("tidemark", "USAGE", False),
        ("tidemark", "CREATE", False),
    ):
        query = "SELECT has_schema_privilege(%s, oid, %s) FROM pg_namespace WHERE nspname = %s"
        if shop.rows(query, (QUERY_ROLE, right, schema)) not in ([(wanted,)], []):
            found.append(f"{right} on {schema}")
    query = "SELECT has_database_privilege(%s, current_database(), 'TEMPORARY')"
    if shop.rows(query, (QUERY_ROLE,)) != [(True,)]:
        found.append("TEMPORARY")
    try:
        as_role(shop, role, f"SET ROLE {QUERY_ROLE}")
    except psycopg2.Error:
        found.append("the service may not act as it")
    return found


def test_the_script_makes_it_and_makes_it_powerless_again(shop: Database) -> None:
    shop.execute(f"REVOKE TEMPORARY ON DATABASE {shop.name} FROM PUBLIC")
    for spoil in (
        "SELECT",
        f"ALTER ROLE {QUERY_ROLE} LOGIN SUPERUSER CREATEDB CREATEROLE"
        " INHERIT REPLICATION BYPASSRLS",
        f"GRANT postgres, pg_read_all_data TO {QUERY_ROLE}",
        f"CREATE SCHEMA tidemark; GRANT USAGE, CREATE ON SCHEMA tidemark TO {QUERY_ROLE}",
    ):
        shop.execute(spoil)
        ended = psql(shop, ROLE_SQL, role="svc", schemas="sales", views="shown")
        assert ended.returncode == 0, ended.stderr
        assert faults_of(shop, "svc") == [], spoil
    shop.execute("DROP SCHEMA tidemark")
    said = init(shop, "svc")
    assert {said[name].outcome for name in NAMES} == {"ok"}


def test_init_makes_it_where_it_may(shop: Database) -> None:
    shop.execute(f"REVOKE TEMPORARY ON DATABASE {shop.name} FROM PUBLIC")
    said = init(shop, "postgres", "svc")
    assert {said[name].outcome for name in NAMES} == {"done"}, said
    assert faults_of(shop, "svc") == []
    for spoil in (
        f"ALTER ROLE {QUERY_ROLE} LOGIN BYPASSRLS",
        f"GRANT pg_read_all_data TO {QUERY_ROLE}",
        f"REVOKE {QUERY_ROLE} FROM svc",
        f"REVOKE USAGE ON SCHEMA sales, shown FROM {QUERY_ROLE}",
        f"REVOKE TEMPORARY ON DATABASE {shop.name} FROM {QUERY_ROLE}",
        f"GRANT USAGE ON SCHEMA tidemark TO {QUERY_ROLE}",
    ):
        shop.execute(spoil)
        assert faults_of(shop, "svc"), spoil
        said = init(shop, "postgres", "svc")
        assert {said[name].outcome for name in NAMES} <= {"ok", "done"}, spoil
        assert faults_of(shop, "svc") == [], spoil
        assert {init(shop, "svc")[name].outcome for name in NAMES} == {"ok"}


def test_init_as_a_role_that_may_make_roles(shop: Database) -> None:
    """It need not be a superuser; what it may not grant is said."""
    shop.execute(f"GRANT CREATE ON DATABASE {shop.name} TO maker")
    shop.execute("GRANT ALL ON SCHEMA sales, shown TO maker WITH GRANT OPTION")
    said = init(shop, "maker")
    assert {said[name].outcome for name in NAMES} == {"done"}, said
    assert faults_of(shop, "maker") == []


def test_where_init_may_not_it_says_what_to_run(shop: Database, tmp_path: Path) -> None:
    """And makes schema tidemark all the same: the service runs without the role."""
    shop.execute(f"GRANT CREATE ON DATABASE {shop.name} TO svc; GRANT ALL ON SCHEMA shown TO svc")
    said = init(shop, "svc")
    assert said["sink: schema tidemark"].outcome == "done"
    settings = {"source": f"host=127.0.0.1 port={shop.server.port} user=svc dbname={shop.name}"}
    settings["state"] = str(tmp_path / "state")
    found = {f.name: f for f in check_all(Settings.model_validate(settings))}
    for name in NAMES:
        assert (said[name].outcome, found[name].status) == ("to do", NOTE)
        assert said[name].left.startswith("DO $$ BEGIN CREATE ROLE")
        shop.execute(said[name].left)
    assert faults_of(shop, "svc") == []
    assert {init(shop, "svc")[name].outcome for name in NAMES} == {"ok"}
