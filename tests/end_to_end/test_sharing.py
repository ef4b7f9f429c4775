"""Oracle: PostgreSQL's own answer to each query, while views that have much in common come and go.

A writer runs all the time, the pipeline is killed in the middle, columns leave with their last
reader. What a plan says of sharing is checked against what is known of the queries.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.test_views import assert_equal, flush_position
from tests.harness.postgres import Database
from tests.harness.service import RunningService

pytestmark = pytest.mark.timeout(900)

SHOP = """
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, region text NOT NULL);
CREATE TABLE orders (id int PRIMARY KEY, customer int NOT NULL, amount int NOT NULL, note text);
CREATE TABLE visits (customer int, page text, seconds int);
ALTER TABLE visits REPLICA IDENTITY FULL;
INSERT INTO customers SELECT i, 'c' || i, 'r' || i % 5 FROM generate_series(1, 60) i;
INSERT INTO orders SELECT i, 1 + i % 70, i % 13, 'n' || i % 9 FROM generate_series(1, 400) i;
INSERT INTO visits SELECT i % 60, 'p' || i % 7, i % 3 FROM generate_series(1, 300) i;
"""
JOINED = "FROM orders o JOIN customers c ON c.id = o.customer"
SUMS = f"SELECT c.region, sum(o.amount) AS total {JOINED} GROUP BY c.region"
VIEWS = {
    "sums": SUMS,
    "sums_again": SUMS.replace("total", "revenue"),
    "large": f"SELECT * FROM ({SUMS}) s WHERE total > 100",
    "share": f"SELECT customer, 10 / amount AS share {JOINED} WHERE c.region <> 'r9'",
    "notes": "SELECT note, count(*) AS n FROM orders GROUP BY note",
    "pages": "SELECT page, count(*) AS n FROM visits GROUP BY page",
    "long_pages": "SELECT page, sum(seconds) AS s FROM visits GROUP BY page",
}
WRITES = (
    "UPDATE orders SET amount = amount + 1 WHERE id % 7 = {0} AND amount > 0",
    "UPDATE orders SET note = 'n' || {0} WHERE id % 11 = {0}",
    "DELETE FROM orders WHERE id % 40 = {0}",
    "INSERT INTO orders SELECT i, {0}, 5, NULL FROM generate_series(1, 400) i WHERE i % 9 = {0} "
    "ON CONFLICT DO NOTHING",
    "UPDATE customers SET region = 'r' || {0} WHERE id % 5 = {0}",
    "UPDATE visits SET seconds = seconds + 1 WHERE customer % 8 = {0}",
    "DELETE FROM visits WHERE customer = {0}",
    "INSERT INTO visits VALUES ({0}, 'p{0}', {0})",
)


@pytest.fixture
def service(database: Database, tmp_path: Path) -> Iterator[RunningService]:
    database.execute(SHOP)
    with RunningService(database.dsn, tmp_path) as running:
        yield running


@contextmanager
def writing(database: Database, seed: int) -> Iterator[None]:
    """Small transactions all the time; failures fail the test."""
    stopping, failed = threading.Event(), []

    def write() -> None:
        pick = random.Random(seed)
        try:
            while not stopping.is_set():
                database.execute(pick.choice(WRITES).format(pick.randrange(7)))
                time.sleep(0.01)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
    assert not failed


def check(service: RunningService, database: Database, names: list[str]) -> None:
    """All these views are their queries' answers, error rows left out."""
    position = flush_position(database)
    for name in names:
        service.wait(name, position, timeout_s=120)
        query = VIEWS[name]
        assert_equal(database, name, query.replace("WHERE c", "WHERE amount <> 0 AND c"))
    found = dict(database.rows("SELECT view, sum(count)::int FROM tidemark.errors GROUP BY view"))
    failing = database.rows(f"SELECT count(*)::int {JOINED} WHERE amount = 0 AND c.region <> 'r9'")
    if "share" in names:
        assert found.get("public.share", 0) == failing[0][0]


def shared(service: RunningService, name: str) -> list[dict[str, Any]]:
    """What the plan says of sharing, when the pipeline has told of its dataflow since the call."""
    called_at = time.time()
    deadline = time.monotonic() + 60
    while (service.call("GET", f"/views/{name}/dataflow").json()["at"] or 0.0) <= called_at:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    plan = service.call("GET", f"/views/{name}/plan").json()
    assert all(f"shared with {', '.join(s['shared_with'])}" in plan["text"] for s in plan["shared"])
    return plan["shared"]


@pytest.mark.whole
def test_views_come_and_go_while_the_source_is_written(
    service: RunningService, database: Database
) -> None:
    database.execute("UPDATE orders SET amount = 0 WHERE id = 77")
    with writing(database, 3):
        for name, query in VIEWS.items():
            service.create(name, query, backfill="local")
        kept = {s["what"]: s for s in shared(service, "sums_again")}
        (join,) = [s for what, s in kept.items() if what.startswith("inner join")]
        assert join["shared_with"] == ["public.sums", "public.large"]
        assert join["rows"] > 0 and join["saved_bytes"] == 2 * join["bytes"]
        (table,) = [s for what, s in kept.items() if what.startswith("rows of public.orders")]
        assert table["shared_with"] == [f"public.{n}" for n in ("sums", "large", "share", "notes")]
        service.drop("sums")
        service.drop("pages")
        time.sleep(1)
    left = [name for name in VIEWS if name not in ("sums", "pages")]
    check(service, database, left)
    for name in ("notes", "large", "share"):
        service.drop(name)
        left.remove(name)
        database.execute(WRITES[0].format(3))
        check(service, database, left)
    assert not shared(service, "sums_again")


@pytest.mark.whole
def test_killed_while_views_join_and_leave(service: RunningService, database: Database) -> None:
    pick = random.Random(5)
    with writing(database, 5):
        for name, query in VIEWS.items():
            service.create(name, query, wait_s=0, backfill="local")
        for _ in range(6):
            time.sleep(pick.uniform(0.2, 2.0))
            service.kill_child("pipeline")
        for name in VIEWS:
            service.await_status(name, timeout_s=240)
        for name in ("sums", "notes", "pages"):
            service.call("DELETE", f"/views/{name}?wait_s=0")
            time.sleep(pick.uniform(0.0, 0.4))
            service.kill_child("pipeline")
    left = [name for name in VIEWS if name not in ("sums", "notes", "pages")]
    check(service, database, left)
    for name in ("sums", "notes", "pages"):
        service.drop(name) if service.call("GET", f"/views/{name}").status_code == 200 else None
    for _ in range(3):
        database.execute(";".join(write.format(2) for write in WRITES))
        service.kill_child("pipeline")
    check(service, database, left)


@pytest.mark.whole
def test_a_column_may_leave_with_its_last_reader(
    service: RunningService, database: Database
) -> None:
    for name in ("notes", "sums", "pages", "long_pages"):
        service.create(name, VIEWS[name], backfill="local")
    for name in ("notes", "long_pages"):
        service.drop(name)
    # The stream asks for what is read when it is opened: as for the next view.
    count = "SELECT count(*) AS n FROM customers"
    service.create("people", count, backfill="local")
    database.execute("ALTER TABLE orders DROP COLUMN note; ALTER TABLE visits DROP COLUMN seconds")
    for write in ("UPDATE orders SET amount = amount + 1", "DELETE FROM orders WHERE id < 50"):
        database.execute(write)
    database.execute("DELETE FROM visits WHERE customer < 20; INSERT INTO visits VALUES (1, 'p1')")
    check(service, database, ["sums", "pages"])
    service.kill_child("pipeline")
    database.execute("UPDATE visits SET page = page || '!' WHERE customer % 2 = 0")
    check(service, database, ["sums", "pages"])
    database.execute("TRUNCATE visits; INSERT INTO visits VALUES (1, 'p9'); TRUNCATE orders")
    check(service, database, ["sums", "pages"])
