"""Oracle: PostgreSQL's own answer, for a service whose role owns nothing at the source: whatever is
done there, a view that is called live shows its query's rows, and what is refused says what to run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.end_to_end.test_views import assert_equal, flush_position
from tests.harness.postgres import Database, new_database, versions_to_test
from tests.harness.psql import give_query_role, roles
from tests.harness.service import RunningService

TABLES = """
SET ROLE {owner};
CREATE TABLE orders (id int PRIMARY KEY, region text, amount numeric,
    doubled numeric GENERATED ALWAYS AS (amount * 2) STORED);
CREATE INDEX ON orders ((amount + 1));
CREATE TABLE parts (id int NOT NULL PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (1000);
CREATE TABLE later (id int PRIMARY KEY, v int);
CREATE TABLE bare (line text);
INSERT INTO orders SELECT i, 'r' || i % 3, i FROM generate_series(1, 100) AS i;
INSERT INTO parts SELECT i, i FROM generate_series(1, 50) AS i;
INSERT INTO later VALUES (1, 1), (2, 2);
GRANT SELECT ON ALL TABLES IN SCHEMA public TO {keeper};
ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO {keeper};
CREATE PUBLICATION given FOR TABLE orders, parts WITH (publish_via_partition_root = true);
"""
VIEWS = {
    "shown.totals": "SELECT region, count(*) AS n, sum(doubled) AS total FROM orders GROUP BY 1",
    "shown.joined": "SELECT o.id, o.amount, p.v FROM orders o JOIN parts p ON p.id = o.id",
}
LATER = "SELECT id, v + 1 AS w FROM later"
CHANGE = """
UPDATE orders SET amount = amount + 1 WHERE id % 7 = 0;
DELETE FROM orders WHERE id = (SELECT min(id) FROM orders);
INSERT INTO orders SELECT max(id) + 1, 'new', 3 FROM orders;
UPDATE parts SET v = v + 1 WHERE id % 3 = 0; INSERT INTO parts SELECT max(id) + 1, 5 FROM parts;
"""
# The statement of the owner at the source, and the code with which readers of `orders` fail.
REMOVALS = {
    "ALTER PUBLICATION given DROP TABLE orders": "source.not_published",
    "ALTER PUBLICATION given SET (publish = 'insert, update')": "source.publication_options",
}


class Shop:
    """The source's database, the sink's, and roles: of the tables' owner and of the service."""

    def __init__(self, source: Database, sink: Database) -> None:
        self.source, self.sink = source, sink
        self.owner, self.keeper = f"owner_{source.name}", f"keeper_{source.name}"

    def prepare(self) -> None:
        """What the administrator does once; the service's role owns nothing at the source."""
        give_query_role(self.source, self.keeper)
        self.source.execute(
            f"ALTER ROLE {self.keeper} REPLICATION; GRANT CREATE ON SCHEMA public TO {self.owner};"
            f" GRANT CREATE ON DATABASE {self.source.name} TO {self.owner};"
            + TABLES.format(owner=self.owner, keeper=self.keeper)
        )
        self.sink.execute(
            f"GRANT CREATE ON DATABASE {self.sink.name} TO {self.keeper};"
            f" CREATE SCHEMA shown AUTHORIZATION {self.keeper}"
        )

    def service(self, folder: Path) -> RunningService:
        source, sink = (f"{place.dsn} user={self.keeper}" for place in (self.source, self.sink))
        return RunningService(source, folder, sink, publication="given")

    def owned_there(self) -> list[tuple[Any, ...]]:
        """What the service's role owns at the source, and the publications there."""
        return self.source.rows(
            "SELECT classid::regclass::text, objid FROM pg_shdepend AS d"
            " WHERE deptype = 'o' AND refobjid = %s::regrole AND dbid ="
            " (SELECT oid FROM pg_database WHERE datname = current_database())"
            " UNION ALL SELECT pubname::text, pubowner FROM pg_publication"
            " WHERE pubname <> 'given'",
            (self.keeper,),
        )

    def as_owner(self, statements: str) -> None:
        self.source.execute(f"SET ROLE {self.owner}; {statements}")

    def check(self, service: RunningService) -> None:
        """After a change, the views are those of their queries."""
        self.as_owner(CHANGE)
        position = flush_position(self.source)
        for name, query in VIEWS.items():
            service.await_status(name)
            service.wait(name, position)
            assert_equal(self.source, name, query, self.sink)
        assert self.owned_there() == []


@pytest.fixture
def shop(servers: Callable[[int], EmbeddedPostgres]) -> Iterator[Shop]:
    server = servers(max(versions_to_test()))
    with new_database(server) as source, new_database(server) as sink:
        made = Shop(source, sink)
        with roles(source, made.owner, made.keeper):
            made.prepare()
            yield made
            sink.execute(f"DROP OWNED BY {made.keeper} CASCADE")


def publication_of(shop: Shop) -> list[tuple[Any, ...]]:
    return shop.source.rows(
        "SELECT p.xmin::text, r.oid, r.xmin::text FROM pg_publication p"
        " LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid ORDER BY 2"
    )


def refused(service: RunningService, name: str, query: str) -> dict[str, Any]:
    answer = service.call("POST", "/views", {"name": name, "query": query})
    assert answer.status_code in (400, 409, 422), answer.text
    return answer.json()


@pytest.mark.timeout(300)
def test_a_service_that_owns_nothing(shop: Shop, tmp_path: Path) -> None:
    """Create, changes, a table that is missing, a kill, and the end."""
    before = publication_of(shop)
    with shop.service(tmp_path) as service:
        for name, query in VIEWS.items():
            service.create(name, query, backfill="local")
        shop.check(service)
        error = refused(service, "shown.late", LATER)
        assert error["code"] == "source.not_published", error
        assert error["hint"] == 'ALTER PUBLICATION "given" ADD TABLE "public"."later";'
        bare = refused(service, "shown.none", "SELECT line FROM bare")
        assert (bare["code"], "REPLICA IDENTITY FULL" in bare["hint"]) == (
            "source.no_identity",
            True,
        ), bare
        assert publication_of(shop) == before
        service.kill()
        shop.as_owner(CHANGE)
        service.start()
        shop.check(service)
        shop.as_owner(error["hint"])
        service.create("shown.late", LATER, backfill="local")
        shop.as_owner("UPDATE later SET v = 7 WHERE id = 1; ALTER TABLE later ADD COLUMN x int")
        service.wait("shown.late", flush_position(shop.source))
        assert_equal(shop.source, "shown.late", LATER, shop.sink)
        recorded = "SELECT DISTINCT publication FROM tidemark.sources"
        assert shop.sink.rows(recorded) == [(None,)]
        added = publication_of(shop)
        for name in (*VIEWS, "shown.late"):
            service.drop(name)
        slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
        service.await_so(lambda: shop.source.rows(slots) == [])
        assert (publication_of(shop), shop.owned_there()) == (added, [])


@pytest.mark.whole
@pytest.mark.timeout(300)
@pytest.mark.parametrize("removal", REMOVALS)
def test_what_is_taken_out_later(shop: Shop, tmp_path: Path, removal: str) -> None:
    """The views fail by name, also if the service was down; the hint's statement repairs them."""
    with shop.service(tmp_path) as service:
        for name, query in VIEWS.items():
            service.create(name, query, backfill="local")
        for is_down in (False, True):
            if is_down:
                service.kill()
            shop.as_owner(f"{removal}; {CHANGE}")
            if is_down:
                service.start()
            found = service.await_status("shown.totals", "failed")["error"]
            assert found["code"] == REMOVALS[removal], found
            statement = found["hint"].split(" then ")[0]
            assert statement.startswith('ALTER PUBLICATION "given"'), found
            before = publication_of(shop)
            time.sleep(1)
            assert publication_of(shop) == before
            shop.as_owner(statement)
            for name in VIEWS:
                assert service.call("POST", f"/views/{name}/rebuild").status_code < 300
            shop.check(service)


@pytest.mark.whole
@pytest.mark.timeout(300)
def test_tables_of_a_source_change(shop: Shop, tmp_path: Path) -> None:
    """As with a publication of our own, without an event trigger or a table of ours there."""
    with shop.service(tmp_path) as service:
        for name, query in VIEWS.items():
            service.create(name, query, backfill="local")
        for statement in (
            "ALTER TABLE orders ADD COLUMN x int DEFAULT 3; ALTER TABLE orders RENAME region TO r;"
            " ALTER TABLE orders RENAME r TO region",
            "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (1000) TO (2000);"
            " INSERT INTO parts VALUES (1500, 3)",
            "ALTER TABLE orders ALTER COLUMN amount TYPE numeric(20, 4) USING amount * 2",
            "TRUNCATE parts; INSERT INTO parts SELECT id, 4 FROM orders",
            "ALTER PUBLICATION given DROP TABLE parts; ALTER PUBLICATION given ADD TABLE parts",
        ):
            if "COLUMN amount TYPE" in statement:
                statement = (
                    "ALTER TABLE orders DROP COLUMN doubled;"
                    " ALTER TABLE orders ALTER COLUMN amount TYPE numeric(20, 4) USING amount * 2;"
                    " ALTER TABLE orders ADD COLUMN doubled numeric"
                    " GENERATED ALWAYS AS (amount * 2) STORED"
                )
            shop.as_owner(statement)
            shop.check(service)
        shop.as_owner("DROP TABLE parts")
        assert service.await_status("shown.joined", "failed")["error"]["code"] == (
            "source.table_missing"
        )
        shop.as_owner("UPDATE orders SET amount = amount + 1 WHERE id % 2 = 0")
        service.wait("shown.totals", flush_position(shop.source))
        assert_equal(shop.source, "shown.totals", VIEWS["shown.totals"], shop.sink)


@pytest.mark.whole
@pytest.mark.timeout(300)
def test_all_tables_also_for_another_group(shop: Shop, tmp_path: Path) -> None:
    """One publication serves every group, each with its own slot; new tables need nobody."""
    shop.source.execute(
        "DROP PUBLICATION given;"
        " CREATE PUBLICATION given FOR ALL TABLES WITH (publish_via_partition_root = true)"
    )
    with shop.service(tmp_path) as service:
        first, second = VIEWS
        service.create(first, VIEWS[first], backfill="local")
        service.create(second, VIEWS[second], backfill="local", group="apart")
        shop.check(service)
        shop.as_owner(
            "CREATE TABLE fresh (id int PRIMARY KEY, v int); INSERT INTO fresh VALUES (1, 1)"
        )
        service.create("shown.fresh", "SELECT id, v FROM fresh", backfill="local")
        shop.check(service)
        service.kill()
        shop.as_owner(CHANGE)
        service.start()
        shop.check(service)
        part = refused(service, "shown.part", "SELECT id, v FROM parts_1")
        assert (part["code"], "parts" in part["hint"]) == ("source.partition_overlap", True)
