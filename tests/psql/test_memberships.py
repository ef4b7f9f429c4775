"""Oracle: pg_auth_members before and after: whoever prepares a database, in whatever order, the
service's role becomes a member of the roles that docs/PSQL.md names, and of no superuser."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from service.setup.bootstrap import Desired, Step, prepare
from tests.harness.postgres import Database, new_database
from tests.harness.psql import as_role, psql, refusal
from tests.harness.service import RunningService

ROLE_SQL = Path("deploy/role.sql").read_text()
VERSIONS = "SELECT name, version, created_at, live_at FROM tidemark.views ORDER BY 1"
MEMBERS = "SELECT roleid::regrole::text, member::regrole::text FROM pg_auth_members"
OWNERS = """
SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'tidemark'
UNION SELECT relowner::regrole::text FROM pg_class WHERE relnamespace = 'tidemark'::regnamespace
UNION SELECT proowner::regrole::text FROM pg_proc WHERE pronamespace = 'tidemark'::regnamespace
UNION SELECT typowner::regrole::text FROM pg_type WHERE typnamespace = 'tidemark'::regnamespace
"""
# All of it: a plain owner, a superuser, and one who is no superuser but may become one.
SHOP = """
CREATE ROLE svc LOGIN REPLICATION; CREATE ROLE plain_owner;
CREATE ROLE second_admin LOGIN SUPERUSER;
CREATE ROLE between; GRANT postgres TO between; CREATE ROLE half_admin; GRANT between TO half_admin;
CREATE TABLE plain (id int PRIMARY KEY); ALTER TABLE plain OWNER TO plain_owner;
CREATE TABLE admins (id int PRIMARY KEY);
CREATE TABLE halves (id int PRIMARY KEY); ALTER TABLE halves OWNER TO half_admin;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO svc;
"""
DROP = "svc, plain_owner, second_admin, half_admin, between"


@pytest.fixture
def shop(every_postgres: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(every_postgres) as made:
        yield made


def forget(shop: Database) -> None:
    shop.execute(
        "DROP SCHEMA IF EXISTS tidemark CASCADE; DROP TABLE IF EXISTS plain, admins, halves;"
        "DO $$ DECLARE one text; BEGIN FOR one IN SELECT rolname FROM pg_roles WHERE rolname ="
        f" ANY (string_to_array('{DROP}', ', ')) LOOP EXECUTE format('DROP OWNED BY %I CASCADE',"
        " one); EXECUTE format('DROP ROLE %I', one); END LOOP; END $$"
    )


def dsn_of(shop: Database, user: str) -> str:
    return f"host=127.0.0.1 port={shop.server.port} user={user} dbname={shop.name}"


def init(shop: Database, user: str, role: str | None = None) -> list[Step]:
    dsn = dsn_of(shop, user)
    return prepare(Desired(dsn, dsn, role), is_dry=False)


def role_sql(shop: Database) -> None:
    ended = psql(shop, ROLE_SQL, role="svc")
    assert ended.returncode == 0, ended.stderr


WAYS: dict[str, Callable[[Database], object]] = {
    "init": lambda shop: init(shop, "postgres"),
    "role.sql": role_sql,
    "init for the role": lambda shop: init(shop, "postgres", "svc"),
    "init by another": lambda shop: init(shop, "second_admin"),
    "init for the role by another": lambda shop: init(shop, "second_admin", "svc"),
    "init as the role": lambda shop: init(shop, "svc"),
}
# As docs/PSQL.md says: from role.sql alone, membership in the owners of tables; and in the role
# without rights.
POWERLESS = {("tidemark_query", "svc")}
DOCUMENTED = {("plain_owner", "svc"), *POWERLESS}


def members(shop: Database) -> set[tuple[str, str]]:
    return set(shop.rows(MEMBERS))


@pytest.mark.whole
def test_no_order_makes_the_role_a_member_of_a_superuser(shop: Database) -> None:
    faults = []
    orders = [*itertools.permutations(WAYS, 2), *itertools.permutations(list(WAYS)[:4])]
    for order in orders:
        forget(shop)
        shop.execute(SHOP)
        before = members(shop)
        for way in order:
            WAYS[way](shop)
        known = before | (DOCUMENTED if "role.sql" in order else POWERLESS)
        more = members(shop) - known
        said = [s for s in init(shop, "postgres", "svc") if s.outcome == "to do"]
        more |= members(shop) - known
        ((rights,),) = shop.rows("SELECT pg_has_role('svc', 'postgres', 'MEMBER')")
        owners = shop.rows(OWNERS)
        if more or rights or owners != [("svc",)] or said:
            faults.append(f"{order}: {more}, {rights}, {owners}, {[s.check.name for s in said]}")
    forget(shop)
    assert not faults, "\n".join(faults)


def test_no_hint_names_a_superuser(shop: Database) -> None:
    """What is said of tables and of the schema gives the thing away, and is enough."""
    shop.execute(SHOP)
    before = members(shop)
    dsn = dsn_of(shop, "svc")
    shop.execute(f"GRANT CREATE, TEMPORARY ON DATABASE {shop.name} TO svc")
    shop.execute("GRANT CREATE, USAGE ON SCHEMA public TO svc")
    init(shop, "postgres")
    tables = ("plain", "admins", "halves")
    said = [s for s in prepare(Desired(dsn, dsn, None, tables=tables), is_dry=False) if s.left]
    assert {s.check.name for s in said} == {
        *(f"source: table public.{name}" for name in tables),
        "sink: schema tidemark",
        "source: role tidemark_query",
        "sink: role tidemark_query",
    }
    for step in said:
        assert "\n" not in step.left
        shop.execute(step.left)
    ended = prepare(Desired(dsn, dsn, None, tables=tables), is_dry=False)
    assert [s.check.name for s in ended if s.outcome == "to do"] == []
    assert members(shop) - before == DOCUMENTED
    owners = "SELECT relname, relowner::regrole::text FROM pg_class WHERE relname = ANY (%s)"
    assert dict(shop.rows(owners, (list(tables),))) == {
        "plain": "plain_owner",
        "admins": "svc",
        "halves": "svc",
    }
    assert shop.rows(OWNERS) == [("svc",)]
    forget(shop)


def test_another_services_schema_is_not_taken_from_it(shop: Database) -> None:
    """It may still run: who gives it away is told so, and does it himself."""
    shop.execute(SHOP)
    before = members(shop)
    role_sql(shop)
    shop.execute("CREATE ROLE other LOGIN REPLICATION")
    shop.execute(
        f"GRANT CREATE ON DATABASE {shop.name} TO other; GRANT ALL ON SCHEMA public TO other"
    )
    init(shop, "other")
    (step,) = [s for s in init(shop, "postgres", "svc") if s.outcome == "to do"]
    assert step.check.name == "sink: schema tidemark"
    assert (
        step.check.problem is not None
        and 'runs as "other" would lose access' in step.check.problem.detail
    )
    assert shop.rows(OWNERS) == [("other",)]
    assert members(shop) - before == DOCUMENTED
    shop.execute(step.left)
    assert shop.rows(OWNERS) == [("svc",)]
    shop.execute("DROP OWNED BY other; DROP ROLE other")
    forget(shop)


@pytest.mark.whole
def test_a_service_that_was_a_superuser_continues_as_its_own_role(
    database: Database, tmp_path: Path
) -> None:
    """The views' tables come along, their rows are kept, and changes arrive."""
    database.execute(SHOP)
    database.execute("INSERT INTO plain SELECT generate_series(1, 3)")
    before = members(database)
    with RunningService(database.dsn, tmp_path) as service:
        service.create("counted", "SELECT count(*) AS n FROM plain", backfill="local")
        service.create("every", "SELECT id % 2 AS odd FROM plain", backfill="local")
    versions = database.rows(VERSIONS)
    role_sql(database)
    assert not [s for s in init(database, "postgres", "svc") if s.outcome == "to do"]
    with RunningService(dsn_of(database, "svc"), tmp_path) as service:
        database.execute("INSERT INTO plain VALUES (4)")
        service.await_so(lambda: database.rows("SELECT n FROM counted") == [(4,)])
        service.await_so(lambda: len(database.rows("SELECT odd FROM every")) == 4)
        # The publication has another owner now, and nothing else has changed.
        assert database.rows(VERSIONS) == versions
        for name in ("counted", "every"):
            service.drop(name)
    assert members(database) - before == DOCUMENTED
    forget(database)


@pytest.mark.whole
def test_who_may_not_change_a_view_is_not_sent_to_become_a_superuser(
    database: Database, tmp_path: Path
) -> None:
    database.execute(SHOP)
    database.execute("CREATE ROLE ann LOGIN; CREATE ROLE bob LOGIN")
    database.execute("GRANT CREATE, USAGE ON SCHEMA public TO bob; GRANT SELECT ON plain TO bob")
    with RunningService(database.dsn, tmp_path) as service:
        creators = Path("deploy/creators.sql").read_text()
        for role in ("ann", "bob"):
            assert psql(database, creators, creators=role).returncode == 0
        service.create("own", "SELECT count(*) AS n FROM plain", backfill="local")
        query = "SELECT id FROM plain"
        as_role(database, "bob", f"CALL tidemark.create_view('bobs', '{query}')")
        for view, hint in (
            ("own", "ask its owner"),
            ("bobs", 'ask its owner, or GRANT "bob" TO "ann";'),
        ):
            error = refusal(
                lambda v=view: as_role(database, "ann", f"CALL tidemark.drop_view('{v}')")
            )
            assert (error.pgcode, error.diag.message_hint) == ("42501", hint)
        for view in ("own", "bobs"):
            service.drop(view)
    database.execute("DROP OWNED BY ann, bob CASCADE; DROP ROLE ann, bob")
    forget(database)
