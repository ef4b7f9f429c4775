"""Oracle: PostgreSQL's own answer to the query that a view has at the moment, asked when the view
has reached the position of the last commit; and the catalog's word on what is the user's."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg2
import pytest

from connectors.postgres.catalog import change_requests
from connectors.postgres.catalog.catalog import Control
from connectors.postgres.embedded.server import EmbeddedPostgres
from service.views.requested_changes import new_version
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService
from tests.harness.verdicts import require_same_rows

SHOP = """
CREATE TABLE orders (id int PRIMARY KEY, region text NOT NULL, amount numeric(12,2), note text);
INSERT INTO orders SELECT i, 'r' || i % 7, i / 7.0, nullif('n' || i % 9, 'n3')
FROM generate_series(1, 2000) i;
CREATE ROLE life_reader;
"""
SUMS = "SELECT region, count(*) AS n, sum(amount) AS total FROM orders GROUP BY region"
ABOVE = "SELECT region, total FROM sums WHERE n > 3"
LARGE = SUMS.replace("GROUP BY", "WHERE amount > 50 GROUP BY")
MORE = SUMS.replace("AS total", "AS total, max(amount) AS most")
CHANGES = """
UPDATE orders SET amount = amount + 100 WHERE id % 10 = 3;
DELETE FROM orders WHERE id % 50 = 7;
INSERT INTO orders SELECT i, 'new' || i % 3, i, 'x' FROM
    generate_series((SELECT max(id) + 1 FROM orders), (SELECT max(id) + 20 FROM orders)) i;
"""


@pytest.fixture(scope="module")
def shop(postgres: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(postgres) as database:
        database.execute(SHOP)
        yield database
        database.execute("DROP OWNED BY life_reader; DROP ROLE life_reader")


@pytest.fixture(scope="module")
def service(shop: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with RunningService(shop.dsn, tmp_path_factory.mktemp("life")) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_left(service: RunningService, shop: Database) -> Iterator[None]:
    yield
    shop.execute("DROP VIEW IF EXISTS mine")
    service.clear()


def create_two(service: RunningService) -> None:
    """A view, and one that reads it."""
    service.create("sums", SUMS, backfill="local")
    service.create("above", ABOVE, backfill="local")


def ask(service: RunningService, path: str, body: Any = None, method: str = "POST") -> dict:
    """A change of a view, done when this returns."""
    word = "&" if "?" in path else "?"
    answer = service.call(method, f"/views/{path}{word}wait_s=40", body)
    assert answer.status_code == 200, f"{answer.text}\n{service.log_tail()}"
    return answer.json()


def refused(service: RunningService, path: str, body: Any = None) -> dict:
    """The problem with which a change is refused."""
    answer = service.call("POST", f"/views/{path}", body)
    assert answer.status_code >= 400, answer.text
    return answer.json()


def assert_follows(service: RunningService, shop: Database, views: dict[str, str]) -> None:
    """Each view is its query's answer, now and after more changes."""
    for change in ("SELECT 1", CHANGES):
        shop.execute(change)
        position = shop.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
        for name, query in views.items():
            service.wait(name, position)
            require_same_rows(shop, name, query)


def oid_of(shop: Database, name: str) -> int:
    return shop.rows("SELECT %s::regclass::oid::bigint", (name,))[0][0]


def test_the_same_columns_are_replaced_in_place(service: RunningService, shop: Database) -> None:
    above = "SELECT n, count(*) AS regions FROM sums GROUP BY n"
    service.create("sums", SUMS, backfill="local")
    service.create("above", above, backfill="local")
    shop.execute(
        "CREATE VIEW mine AS SELECT region FROM sums; CREATE INDEX by_total ON sums (total);"
        "GRANT SELECT ON sums TO life_reader; COMMENT ON COLUMN sums.n IS 'how many'"
    )
    oid = oid_of(shop, "sums")
    view = ask(service, "sums/replace", {"query": LARGE})
    assert (view["query"], view["version"], view["replacing"]) == (LARGE, 1, None)
    assert_follows(service, shop, {"sums": LARGE, "above": above.replace("sums", f"({LARGE}) s")})
    assert oid_of(shop, "sums") == oid
    assert shop.rows("SELECT count(*) FROM mine") == shop.rows("SELECT count(*) FROM sums")
    ask(service, "sums/rebuild")
    assert_follows(service, shop, {"sums": LARGE, "above": above})


def test_other_columns_take_the_users_things_along(service: RunningService, shop: Database) -> None:
    create_two(service)
    shop.execute(
        "CREATE VIEW mine AS SELECT region FROM sums; CREATE UNIQUE INDEX by_n ON sums (n, region);"
        "GRANT SELECT ON sums TO life_reader; GRANT UPDATE (total) ON sums TO life_reader;"
        "COMMENT ON COLUMN sums.n IS 'how many'; COMMENT ON TABLE sums IS 'my own words'"
    )
    problem = refused(service, "sums/replace", {"query": MORE})
    assert (problem["code"], "public.mine" in problem["detail"]) == ("view.has_dependents", True)
    shop.execute("DROP VIEW mine")
    view = ask(service, "sums/replace", {"query": MORE})
    assert [f["name"] for f in view["fields"]] == ["region", "n", "total", "most"]
    assert_follows(service, shop, {"sums": MORE, "above": ABOVE})
    assert shop.rows(
        "SELECT has_table_privilege('life_reader', 'sums', 'SELECT'), "
        "has_column_privilege('life_reader', 'sums', 'total', 'UPDATE'), "
        "obj_description('sums'::regclass), col_description('sums'::regclass, 2), "
        "pg_get_indexdef('by_n'::regclass)"
    ) == [
        (
            *(True, True, "my own words", "how many"),
            "CREATE UNIQUE INDEX by_n ON public.sums USING btree (n, region)",
        )
    ]
    problem = refused(service, "sums/replace", {"query": SUMS.replace("sum(amount)", "'x'::text")})
    assert problem["code"] == "view.children_refuse"
    assert 'public.above: column "total" is text now' in problem["detail"]
    problem = refused(service, "sums/replace", {"query": "SELECT total FROM above"})
    assert problem["code"] == "view.cycle"
    assert_follows(service, shop, {"sums": MORE, "above": ABOVE})


@pytest.mark.whole
def test_a_swap_waits_for_who_reads_and_lets_others_read(
    service: RunningService, shop: Database
) -> None:
    """A transaction that has read the view holds up the swap, but nobody else's reading."""
    service.create("sums", SUMS, backfill="local")
    holder = shop.connect(autocommit=False)
    with ThreadPoolExecutor(1) as threads, closing(holder), holder.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM sums")
        replaced = threads.submit(ask, service, "sums/replace", {"query": MORE})
        reader = str(holder.info.backend_pid)
        view = lambda: service.call("GET", "/views/sums").json()  # noqa: E731
        service.await_so(lambda: reader in str(view()["replacing"]))
        for _ in range(10):
            shop.rows("SET statement_timeout = '2s'; SELECT count(*) FROM sums")
            assert not replaced.done()
        cursor.execute("SELECT * FROM sums")
        assert len(cursor.description or ()) == 3
        holder.commit()
        replaced.result()
    assert_follows(service, shop, {"sums": MORE})


@pytest.mark.whole
def test_what_an_older_snapshot_sees_of_a_new_table(
    service: RunningService, shop: Database
) -> None:
    """docs/VIEWS.md: the rows that the new table was built with, not those that came after."""
    service.create("sums", SUMS, backfill="local")
    older = shop.connect(autocommit=False)
    older.set_session(isolation_level="REPEATABLE READ")
    with closing(older), older.cursor() as cursor:
        cursor.execute("SELECT 1")
        ask(service, "sums/replace", {"query": LARGE})
        cursor.execute("TABLE sums")
        in_place = cursor.fetchall()
        assert sum(n for _, n, _ in in_place) == shop.rows("SELECT count(*) FROM orders")[0][0]
    older = shop.connect(autocommit=False)
    older.set_session(isolation_level="REPEATABLE READ")
    with closing(older), older.cursor() as cursor:
        cursor.execute("SELECT 1")
        built = shop.rows(f"{MORE} ORDER BY 1")
        ask(service, "sums/replace", {"query": MORE})
        assert_follows(service, shop, {"sums": MORE})
        cursor.execute("TABLE sums ORDER BY 1")
        assert cursor.fetchall() == built != shop.rows("TABLE sums ORDER BY 1")


def test_multisets_and_failing_rows(service: RunningService, shop: Database) -> None:
    query = "SELECT region, 100 / (amount - 999) AS ratio FROM orders WHERE id < 300"
    other = query.replace("300", "100")
    service.create("bag", query, backfill="local")
    shop.execute("UPDATE orders SET amount = 999 WHERE id IN (50, 150)")
    position = shop.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
    service.wait("bag", position)
    errors = "SELECT view, sum(count)::int FROM tidemark.errors GROUP BY view"
    assert shop.rows(errors) == [("public.bag", 2)]
    ask(service, "bag/replace", {"query": other})
    assert shop.rows(errors) == [("public.bag", 1)]
    require_same_rows(shop, "bag", f"{other} AND amount <> 999")
    shop.execute("CREATE SCHEMA elsewhere")
    view = ask(service, "bag/move", {"schema": "elsewhere"})
    assert (view["schema"], view["errors"]) == ("elsewhere", 1)
    view = ask(service, "elsewhere.bag/rename", {"name": '"The Bag"'})
    name = 'elsewhere."The Bag"'
    assert shop.rows(errors) == [("elsewhere.The Bag", 1)]
    shop.execute("UPDATE orders SET amount = 4 WHERE id IN (50, 150)")
    service.wait(name, shop.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0])
    assert shop.rows(errors) == []
    assert_follows(service, shop, {name: other})


@pytest.mark.whole
def test_names_change_and_readers_follow(service: RunningService, shop: Database) -> None:
    above = "SELECT sums.region, sums.total FROM sums WHERE n > 3"
    service.create("sums", SUMS, backfill="local")
    service.create("above", above, backfill="local")
    service.create("taken", "SELECT id FROM orders", backfill="local")
    problem = refused(service, "sums/rename", {"name": "taken"})
    assert problem["code"] == "view.name_taken"
    problem = refused(service, "sums/rename", {"name": "orders"})
    assert problem["code"] == "sink.name_taken"
    oid = oid_of(shop, "sums")
    view = ask(service, "sums/rename", {"name": "totals"})
    assert (view["name"], oid_of(shop, "totals")) == ("totals", oid)
    child = service.call("GET", "/views/above").json()
    assert child["query"] == above.replace("FROM sums", 'FROM "public"."totals" AS "sums"')
    assert_follows(service, shop, {"totals": SUMS, "above": child["query"]})
    ask(service, "above/rebuild")
    # The old name is free, and nothing of it is mistaken for the renamed view.
    service.create("sums", LARGE, backfill="local")
    service.create("below", "SELECT region, total FROM sums WHERE n > 3", backfill="local")
    small = "SELECT region, total FROM sums WHERE n > 3"
    assert_follows(service, shop, {"above": child["query"], "sums": LARGE, "below": small})
    answer = service.call("DELETE", "/views/totals")
    assert (answer.status_code, answer.json()["code"]) == (409, "view.has_children")


def test_a_pause_and_its_end(service: RunningService, shop: Database) -> None:
    create_two(service)
    assert refused(service, "sums/pause")["code"] == "view.has_children"
    assert refused(service, "sums/resume")["code"] == "view.not_paused"
    stood = shop.rows("SELECT * FROM sums ORDER BY 1")
    view = ask(service, "sums/pause?cascade=true")
    assert (view["status"], set(view["positions"])) == ("paused", {"source"})
    shop.execute(CHANGES)
    assert shop.rows("SELECT * FROM sums ORDER BY 1") == stood
    answer = service.call("GET", "/views/sums/wait?position=0/1")
    assert (answer.status_code, answer.json()["code"]) == (409, "view.paused")
    # Nothing is retained for views that are all paused or failed.
    slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    service.await_so(lambda: shop.rows(slots) == [(0,)], 20)
    page = service.call("GET", "/views/sums/rows").json()
    assert page["positions"] == view["positions"] and len(page["rows"]) == len(stood)
    problem = refused(service, "above/resume")
    assert problem["code"] == "view.parent_not_live"
    ask(service, "sums/resume?cascade=true")
    assert_follows(service, shop, {"sums": SUMS, "above": ABOVE})


@pytest.mark.whole
def test_what_reads_a_view_that_was_paused_just_then_is_refused(
    service: RunningService, shop: Database
) -> None:
    create_two(service)
    ask(service, "sums/pause?cascade=true")
    # As a resume that had looked at the view below before the pause asked for it.
    with closing(Control(shop.dsn)) as control:
        row = next(r for r in control.list_views() if r.name == "above")
        change, told = new_version(row, row.query, row.options, [], "resume")
        told = {"replacing": told, "desired": "live"}
        assert change_requests.request_change(control, row.identity, "paused", change, **told)
    asked = lambda: service.call("GET", "/views/above").json()  # noqa: E731
    service.await_so(lambda: asked()["replacing"]["status"] == "failed", 20)
    view = asked()
    assert view["status"] == "paused"
    assert view["replacing"]["code"] == "view.parent_not_live"
    ask(service, "sums/resume?cascade=true")
    assert_follows(service, shop, {"sums": SUMS, "above": ABOVE})


def test_rows_of_a_paused_view_name_where_it_stands(
    service: RunningService, shop: Database
) -> None:
    create_two(service)
    paused = ask(service, "above/pause")["positions"]
    shop.execute(CHANGES)
    assert_follows(service, shop, {"sums": SUMS})
    stood = service.call("GET", "/views/above/rows").json()
    moved = service.call("GET", "/views/sums/rows").json()
    assert stood["positions"] == paused != moved["positions"]
    assert stood["epoch"] < moved["epoch"]


def test_a_failed_view_is_rebuilt(service: RunningService, shop: Database) -> None:
    shop.execute("CREATE TABLE odd (id int PRIMARY KEY, v int); INSERT INTO odd VALUES (1, 1)")
    query = "SELECT id, v FROM odd"
    service.create("odds", query, backfill="local")
    shop.execute("ALTER TABLE odd ALTER v TYPE text; INSERT INTO odd VALUES (2, 'more')")
    service.await_status("odds", "failed")
    assert shop.rows("SELECT * FROM odds") == [(1, 1)]
    view = ask(service, "odds/rebuild")
    assert (view["status"], view["error"]) == ("live", None)
    assert_follows(service, shop, {"odds": query})


@pytest.mark.whole
def test_a_change_is_given_up(service: RunningService, shop: Database) -> None:
    service.create("sums", SUMS, backfill="local")
    shop.execute("CREATE VIEW mine AS SELECT region FROM sums")
    answer = service.call("DELETE", "/views/sums")
    assert (answer.status_code, answer.json()["code"]) == (409, "view.has_dependents")
    answer = service.call("POST", "/views/sums/replace", {"query": LARGE})
    assert (answer.status_code, answer.json()["replacing"]["status"]) == (202, "in progress")
    assert refused(service, "sums/pause")["code"] == "view.busy"
    answer = service.call("DELETE", "/views/sums/replace")
    if answer.status_code == 200:
        assert answer.json()["replacing"]["status"] == "cancelled"
        assert_follows(service, shop, {"sums": SUMS})
    assert refused(service, "sums/replace", {"query": "SELECT nothing FROM orders"})["code"] == (
        "sql.undefined_column"
    )
    shop.execute("CALL tidemark.replace_view('sums', %s)", (LARGE,))
    assert_follows(service, shop, {"sums": LARGE})
    with pytest.raises(psycopg2.Error, match="would read itself"):
        shop.execute("CALL tidemark.replace_view('sums', 'SELECT * FROM sums')")
