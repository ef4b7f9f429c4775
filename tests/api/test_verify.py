"""Oracle: PostgreSQL's own answer, and what the test itself has done to the rows of a sink.

Verification must find equal what is equal while the source is written to, and each kind of
difference where there is one; it must refuse by name what PostgreSQL cannot be asked.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService

TABLES = """
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, region text NOT NULL);
CREATE TABLE orders (
    id int PRIMARY KEY, customer_id int NOT NULL, amount numeric(12,2), weight float8, note text,
    twice numeric(13,1) GENERATED ALWAYS AS (amount * 2) STORED);
CREATE TABLE events (kind text, at timestamptz, load jsonb);
ALTER TABLE events REPLICA IDENTITY FULL;
ALTER TABLE orders ALTER note SET STORAGE EXTERNAL;
CREATE VIEW plain AS SELECT id, customer_id, amount FROM orders WHERE amount > 20;
INSERT INTO customers SELECT i, 'c' || i, 'r' || i % 5 FROM generate_series(1, 200) i;
INSERT INTO orders SELECT i, 1 + i % 220, i / 7.0, i / 3.0, nullif('n' || i % 9, 'n3')
FROM generate_series(1, 2000) i;
INSERT INTO orders SELECT i, 1 + i % 220, 1, 1, repeat(md5(i::text), 200)
FROM generate_series(90001, 90040) i;
INSERT INTO events SELECT 'k' || i % 3, timestamptz '2024-01-01' + i % 4 * interval '1 hour', '{}'
FROM generate_series(1, 300) i;
"""
VIEWS = {
    "by_region": """SELECT c.region, count(*) AS n, sum(o.amount) AS total, sum(o.weight) AS weight
        FROM orders o JOIN public.customers c ON c.id = o.customer_id GROUP BY c.region""",
    "noted": "SELECT o.note, customers.name, o.twice FROM orders o LEFT JOIN customers "
    "ON customers.id = o.customer_id WHERE o.amount < 200",
    "kinds": "SELECT kind, at, load FROM events WHERE kind <> 'k1'",
    "over_plain": "SELECT p.customer_id, to_jsonb(p) AS row FROM plain p",
}
CHILD = "SELECT n % 2 = 0 AS even, sum(total) AS total FROM by_region GROUP BY 1"
DIVIDED = "SELECT id, 100 / (customer_id - 7) AS x FROM orders WHERE id < 90000"
DIRECTIONS = ("ASC", "DESC")


@pytest.fixture(scope="module")
def sink(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """Another database than the source: its sessions see nothing of it."""
    with new_database(postgres) as made:
        yield made


@pytest.fixture(scope="module")
def service(
    place: Database, sink: Database, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("service")
    with RunningService(place.dsn, folder, sink.dsn, verify_interval_s=2) as running:
        for name, query in VIEWS.items():
            running.create(name, query, backfill="local")
        running.create("child", CHILD, backfill="local")
        running.create("divided", DIVIDED, backfill="local")
        yield running


def verified(service: RunningService, name: str, limit: int = 20) -> dict[str, Any]:
    answer = service.call("POST", f"/views/{name}/verify?limit={limit}")
    assert answer.status_code == 200, f"{answer.text}\n{service.log_tail()}"
    return answer.json()


@contextlib.contextmanager
def traffic(place: Database) -> Iterator[list[int]]:
    """Two writers, each some hundred transactions a second, of every kind of change."""
    stopping, counts = threading.Event(), [0, 0]

    def write(who: int) -> None:
        draw = random.Random(who)
        connection = place.connect(autocommit=False)
        with connection.cursor() as cursor:
            while not stopping.is_set():
                cursor.execute(_change(draw, who))
                connection.commit() if draw.random() < 0.9 else connection.rollback()
                counts[who] += 1
        connection.close()

    writers = [threading.Thread(target=write, args=(who,)) for who in range(2)]
    for writer in writers:
        writer.start()
    try:
        yield counts
    finally:
        stopping.set()
        for writer in writers:
            writer.join()


def _change(draw: random.Random, who: int) -> str:
    key, other = 2 * draw.randint(1, 1000) + who, 90001 + 2 * draw.randint(0, 19) + who
    return draw.choice(
        [
            f"UPDATE orders SET amount = amount + 1 WHERE id = {key}",
            f"UPDATE orders SET weight = weight * 1.01 WHERE id = {other}",
            f"UPDATE orders SET id = id + 200000 WHERE id = {key} AND id < 2100",
            f"DELETE FROM orders WHERE id = {key + 200000}",
            f"INSERT INTO orders VALUES ({key + 10000}, {key % 230}, {key}.5, 0.1, 'new') "
            f"ON CONFLICT (id) DO UPDATE SET note = 'again'",
            f"UPDATE customers SET region = 'r{key % 6}' WHERE id = {key % 200}",
            f"INSERT INTO events VALUES ('k{key % 4}', now(), '{{\"a\": {key}}}')",
            f"DELETE FROM events WHERE ctid = (SELECT ctid FROM events WHERE kind = 'k{key % 4}' "
            "LIMIT 1 FOR UPDATE SKIP LOCKED)",
        ]
    )


@pytest.mark.whole
def test_no_false_alarm_while_the_source_is_written_to(
    service: RunningService, place: Database
) -> None:
    names, seen = [*VIEWS, "child"], set()
    with traffic(place) as counts:
        for number in range(30):
            found = verified(service, names[number % len(names)])
            assert found["result"] == "equal", found
            assert not (found["alike"] or found["examples"] or found["reasons"]), found
            seen.add(found["positions"]["source"])
    assert min(counts) > 50
    assert len(seen) > 20, "the source has hardly moved"
    found = verified(service, "noted")
    assert found["rows"] == place.rows(f"SELECT count(*) FROM ({VIEWS['noted']}) q")[0][0]


def test_rows_altered_by_hand_are_found(service: RunningService, sink: Database) -> None:
    sink.forge("UPDATE by_region SET n = n + 1 WHERE region = 'r1'")
    sink.forge("INSERT INTO by_region VALUES ('nowhere', 1, 2, 3)")
    sink.forge("UPDATE by_region SET weight = weight * (1 + 1e-12) WHERE region = 'r2'")
    moved = sink.rows("SELECT * FROM by_region WHERE region = 'r3'")[0]
    sink.forge("DELETE FROM by_region WHERE region = 'r3'")
    found = verified(service, "by_region")
    assert found["result"] == "different"
    assert [found[kind] for kind in ("missing", "surplus", "different")] == [1, 1, 1]
    examples = {e["kind"]: e for e in found["examples"]}
    assert examples["different"]["key"] == {"region": "r1"}
    changed = examples["different"]
    assert int(changed["found"]["n"]) == int(changed["expected"]["n"]) + 1
    assert examples["surplus"]["found"]["region"] == "nowhere"
    assert examples["missing"]["expected"]["n"] == str(moved[1])
    assert len(verified(service, "by_region", limit=1)["examples"]) == 1
    sink.forge("DELETE FROM by_region WHERE region = 'nowhere'")
    sink.forge("UPDATE by_region SET n = n - 1 WHERE region = 'r1'")
    sink.forge("INSERT INTO by_region VALUES (%s, %s, %s, %s)", moved)
    assert verified(service, "by_region")["result"] == "equal"


def test_a_multiset_reports_how_often_rows_differ(service: RunningService, sink: Database) -> None:
    first, last = (f"SELECT __h FROM _kinds ORDER BY __h {w} LIMIT 1" for w in DIRECTIONS)
    sink.forge(f"UPDATE _kinds SET __n = __n + 2 WHERE __h = ({first})")
    gone = sink.rows(f"SELECT __n FROM _kinds WHERE __h = ({last})")[0][0]
    sink.forge(f"DELETE FROM _kinds WHERE __h = ({last})")
    found = verified(service, "kinds")
    assert (found["result"], found["surplus"], found["different"]) == ("different", 2, 0)
    assert found["missing"] == gone


def test_rows_that_fail_are_left_out_of_both_sides(
    service: RunningService, place: Database, sink: Database
) -> None:
    assert sink.rows("SELECT count(*) FROM tidemark.errors")[0][0] > 0
    assert verified(service, "divided")["result"] == "equal"
    sink.forge("UPDATE divided SET x = 77 WHERE id = (SELECT min(id) FROM divided)")
    assert verified(service, "divided")["different"] == 1


def test_each_view_is_verified_on_the_interval(service: RunningService) -> None:
    service.create("later", "SELECT id FROM customers WHERE id < 10", backfill="local")
    deadline = time.monotonic() + 60
    while (found := service.call("GET", "/views/later").json())["verification"] is None:
        assert time.monotonic() < deadline, service.log_tail()
        time.sleep(0.2)
    assert found["verification"]["result"] == "equal"
    metrics = service.call("GET", "/metrics").text
    assert 'tidemark_view_verification{result="equal",view="public.later"} 1.0' in metrics
    assert 'tidemark_view_differing_rows{view="public.later"} 0.0' in metrics


def test_what_cannot_be_verified_is_refused_by_name(service: RunningService) -> None:
    answer = service.call("POST", "/views/nosuch/verify")
    assert (answer.status_code, answer.json()["code"]) == (404, "view.not_found")
    summed = "SELECT sum(100 / (id - 5)) AS x FROM customers GROUP BY region"
    service.create("failing", f"SELECT x / (x - x) AS y FROM ({summed}) s", backfill="local")
    answer = service.call("POST", "/views/failing/verify")
    assert (answer.status_code, answer.json()["code"]) == (422, "verify.error_rows"), answer.text
    view = service.call("GET", "/views/failing").json()
    assert view["verification"]["result"] == "failed"


def test_what_was_computed_once_has_its_value(service: RunningService) -> None:
    query = """SELECT region, now() - interval '1 day' AS made, current_user AS who
        FROM customers WHERE name <> current_date::text GROUP BY region"""
    service.create("stamped", query, backfill="local", now="pinned")
    assert verified(service, "stamped")["result"] == "equal"
    service.create("over_stamped", "SELECT max(made) AS newest FROM stamped", backfill="local")
    assert verified(service, "over_stamped")["result"] == "equal"


def test_what_the_query_leaves_open_is_no_alarm(service: RunningService, sink: Database) -> None:
    query = "SELECT region, array_agg(name) AS names FROM customers GROUP BY region"
    service.create("gathered", query, backfill="local")
    sink.forge("UPDATE gathered SET names = '{}' WHERE region = 'r1'")
    found = verified(service, "gathered")
    assert (found["result"], found["different"] > 0) == ("open", True)
    assert "the order inside" in found["reasons"][0]
