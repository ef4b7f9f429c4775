"""Oracle: docs/MANAGED.md: its statements, run in order by those that it names, are enough."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from service.setup.bootstrap import Desired
from service.setup.doctor import PROBLEM, check_database
from tests.end_to_end.test_views import assert_equal, flush_position
from tests.harness.postgres import new_database, versions_to_test
from tests.harness.psql import as_role
from tests.harness.service import RunningService

PAGE = Path("docs/MANAGED.md")
SHOP = """
CREATE TABLE customers (id int PRIMARY KEY, region text NOT NULL);
CREATE TABLE orders (id int PRIMARY KEY, customer int NOT NULL, amount numeric(10, 2));
INSERT INTO customers VALUES (1, 'north'), (2, 'south');
INSERT INTO orders SELECT i, 1 + i % 2, i FROM generate_series(1, 50) AS i;
"""
QUERY = """SELECT c.region, sum(o.amount) AS total FROM orders o
    JOIN customers c ON c.id = o.customer GROUP BY c.region"""


def blocks() -> list[tuple[str, str]]:
    """Who runs what: the blocks of SQL of the section."""
    section = PAGE.read_text().split("## Without owning the tables")[1].split("\n## ")[0]
    found = re.findall(r"```sql\n-- as the (administrator|owner)[^\n]*\n(.*?)```", section, re.S)
    assert [who for who, _ in found] == ["administrator", "owner", "administrator"]
    return found


@pytest.mark.whole
@pytest.mark.timeout(300)
def test_the_statements_are_enough(
    servers: Callable[[int], EmbeddedPostgres], tmp_path: Path
) -> None:
    """The administrator is no superuser, as on a managed service."""
    server = servers(max(versions_to_test()))
    with new_database(server) as place:
        place.execute("CREATE ROLE page_admin LOGIN CREATEROLE REPLICATION")
        place.execute(f"ALTER DATABASE {place.name} OWNER TO page_admin")
        as_role(place, "page_admin", "CREATE ROLE shop_owner LOGIN")
        place.execute("GRANT CREATE ON SCHEMA public TO shop_owner")
        as_role(place, "shop_owner", SHOP)
        had_query_role = bool(place.rows("SELECT FROM pg_roles WHERE rolname = 'tidemark_query'"))
        if had_query_role:
            place.execute("GRANT tidemark_query TO page_admin WITH ADMIN OPTION")
        try:
            for who, statements in blocks():
                if had_query_role:
                    statements = re.sub("CREATE ROLE tidemark_query.*", "", statements)
                user = {"administrator": "page_admin", "owner": "shop_owner"}[who]
                as_role(place, user, statements.replace("DATABASE shop", f"DATABASE {place.name}"))
            dsn = f"{place.dsn} user=tidemark"
            tables = ("orders", "customers")
            desired = Desired(dsn, dsn, tables=tables, schemas=("live",), publication="shop")
            problems = [f.facts() for f in check_database(desired) if f.status == PROBLEM]
            assert problems == []
            with RunningService(dsn, tmp_path, publication="shop") as service:
                service.create("live.totals", QUERY, backfill="local")
                as_role(place, "shop_owner", "INSERT INTO orders VALUES (1000, 2, 7)")
                service.wait("live.totals", flush_position(place))
                assert_equal(place, "live.totals", QUERY, place)
                service.drop("live.totals")
            powers = "SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = 'tidemark'"
            assert place.rows(powers) == [(False,)]
        finally:
            for role in ("tidemark", "shop_owner", "page_admin"):
                if place.rows("SELECT FROM pg_roles WHERE rolname = %s", (role,)):
                    place.execute(f"REASSIGN OWNED BY {role} TO postgres")
                    place.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")
