"""Oracle: PostgreSQL's answer to the same query, for a view that Spark maintains in buckets.

The master is local[2]: its tasks are those of a cluster, and tests/connectors/spark/maintained has
one with two workers.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from connectors.kafka.embedded import EmbeddedKafka
from connectors.objects.storage_mark import NAME
from connectors.postgres.embedded.server import free_port
from storage.process_title import title_of
from tests.connectors.spark.clusters import HOST, connect_server, standalone
from tests.connectors.spark.maintained.test_spark_scheduler import descendants
from tests.harness.broker import new_topic, send
from tests.harness.object_store import object_server, object_store
from tests.harness.postgres import Database
from tests.harness.proxy import Fault, Proxy
from tests.harness.service import RunningService
from tests.harness.tiers import count
from tests.harness.verdicts import require_same_rows

pytestmark = [
    pytest.mark.skipif(shutil.which("java") is None, reason="no Java here, Spark needs it"),
    pytest.mark.timeout(600),
]

SPENT = """SELECT c.name, count(*) AS n, sum(o.amount) AS spent, max(o.amount) AS most
FROM orders o JOIN customers c ON c.id = o.customer GROUP BY c.name"""
LARGE = "SELECT c.name, o.id, o.amount FROM orders o JOIN customers c ON c.id = o.customer {}"
SETTINGS = {"spark": "local[2]", "spark_buckets": 4}


@pytest.fixture
def shop(database: Database) -> Database:
    database.execute("CREATE TABLE customers (id integer PRIMARY KEY, name text NOT NULL)")
    database.execute(
        "CREATE TABLE orders (id integer PRIMARY KEY, customer integer, amount numeric(10, 2))"
    )
    database.execute("INSERT INTO customers SELECT n, 'c' || n % 40 FROM generate_series(1, 60) n")
    database.execute(
        "INSERT INTO orders SELECT n, 1 + n % 70, n % 97 FROM generate_series(1, 3000) n"
    )
    return database


def change(shop: Database, draw: random.Random) -> None:
    """One transaction: rows come, change (also their keys), and go."""
    first = draw.randrange(100_000, 10_000_000)
    kind = draw.randrange(4)
    if kind == 0:
        shop.execute(
            f"INSERT INTO orders SELECT {first} + n, 1 + n % 70, n FROM generate_series(1, 50) n"
            " ON CONFLICT DO NOTHING"
        )
    elif kind == 1:
        shop.execute(f"UPDATE orders SET amount = amount + 1 WHERE id % 50 = {first % 50}")
    elif kind == 2:
        shop.execute(f"UPDATE orders SET id = -id WHERE id % 200 = {first % 200}")
    else:
        shop.execute(f"DELETE FROM orders WHERE id % 300 = {first % 300}")
        shop.execute(f"UPDATE customers SET name = 'n{first % 9}' WHERE id = {1 + first % 60}")


def require_equal(
    service: RunningService, shop: Database, name: str, query: str, within_s: float = 120
) -> None:
    """The view is PostgreSQL's answer, at once and in the eyes of `verify`."""
    position = shop.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
    service.wait(name, position, timeout_s=within_s)
    require_same_rows(shop, name, query)
    answer = service.call("POST", f"/views/{name}/verify").json()
    assert answer["result"] == "equal", answer


def pipelines(service: RunningService) -> Iterator[psutil.Process]:
    """The pipeline processes of groups on Spark."""
    assert service.pid is not None
    for child in psutil.Process(service.pid).children(recursive=True):
        try:
            title = title_of(child.cmdline())
        except psutil.Error:
            continue
        if title.startswith("pipeline spark"):
            yield child


def require_warned(service: RunningService, view: str) -> None:
    """Check that the view says what of it one bucket maintains."""
    warnings = service.call("GET", f"/views/{view}").json()["warnings"]
    assert any("in one bucket" in warning for warning in warnings), warnings


@pytest.mark.whole
def test_the_life_of_a_view_on_spark(shop: Database, tmp_path: Path) -> None:
    draw = random.Random(4)
    with RunningService(shop.dsn, tmp_path, **SETTINGS) as service:
        service.create("local_one", LARGE.format("WHERE o.amount > 90"), backfill="local")
        made = service.create("spent", SPENT, wait_s=180, runtime="spark", backfill="local")
        assert made["group"].startswith("spark") and made["options"]["runtime"] == "spark"
        require_equal(service, shop, "spent", SPENT)
        for _ in range(8):
            change(shop, draw)
        require_equal(service, shop, "spent", SPENT)
        # Its epochs come from Spark, and the engine's own store has none of its rows.
        nodes = service.call("GET", "/views/spent/dataflow").json()["nodes"]
        assert [n["detail"] for n in nodes if n["what"] == "table"] == [
            "rows of public.orders in 4 buckets",
            "rows of public.customers in 4 buckets",
        ]
        assert sum(n["bytes"] for n in nodes) > 10_000
        # Another query and another name; the state before is deleted.
        storage = service.state / "groups" / made["group"] / "buckets"
        before = {p.name for p in storage.glob("v*/*")}
        new = LARGE.format("WHERE o.amount > 50").replace(
            "o.amount FROM", "o.amount, rank() OVER (ORDER BY o.amount) AS place FROM"
        )
        answer = service.call("POST", "/views/spent/replace?wait_s=120", {"query": new})
        assert answer.status_code in (200, 202), answer.text
        service.await_so(
            lambda: service.call("GET", "/views/spent").json()["query"] == new, within_s=120
        )
        require_warned(service, "spent")
        change(shop, draw)
        require_equal(service, shop, "spent", new)
        after = {p.name for p in storage.glob("v*/*") if any(p.rglob("manifest/*"))}
        assert len(before) == len(after) == 1 and before != after
        answer = service.call("POST", "/views/spent/rename", {"name": "sold"})
        assert answer.status_code in (200, 202), answer.text
        service.await_status("sold", timeout_s=60)
        change(shop, draw)
        require_equal(service, shop, "sold", new)
        # Paused, nothing moves it; resumed, it is built again.
        assert service.call("POST", "/views/sold/pause").status_code in (200, 202)
        service.await_status("sold", "paused")
        change(shop, draw)
        assert service.call("POST", "/views/sold/resume").status_code in (200, 202)
        service.await_status("sold", timeout_s=180)
        require_equal(service, shop, "sold", new)
        require_warned(service, "sold")
        answer = service.call("POST", "/views/sold/rebuild?wait_s=120")
        assert answer.status_code in (200, 202), answer.text
        service.await_so(
            lambda: not service.call("GET", "/views/sold").json().get("replacing"), within_s=120
        )
        require_equal(service, shop, "sold", new)
        require_warned(service, "sold")
        require_equal(service, shop, "local_one", LARGE.format("WHERE o.amount > 90"))
        service.drop("sold")
        service.await_so(lambda: not (service.state / "groups" / made["group"]).exists())
        slots = shop.rows("SELECT count(*) FROM pg_replication_slots WHERE slot_name ~ 'spark'")
        assert slots == [(0,)]


@pytest.mark.whole
def test_frequent_keys_are_spread(shop: Database, tmp_path: Path) -> None:
    """Half of all orders are of one customer, and later most new ones are of another; many have
    none."""
    query = (
        "SELECT coalesce(c.name, 'none') AS name, count(*) AS n, sum(o.amount) AS spent,"
        " max(o.amount) AS most FROM orders o LEFT JOIN customers c ON c.id = o.customer GROUP BY 1"
    )
    shop.execute(
        "INSERT INTO orders SELECT n, CASE WHEN n % 2 = 0 THEN 1 WHEN n % 10 > 1 THEN n % 90 END,"
        " n / 100.0 FROM generate_series(10000, 130000) n"
    )

    def spread(service: RunningService) -> list[str]:
        nodes = service.call("GET", "/views/spent/dataflow").json()["nodes"]
        return [n["detail"].partition(" in ")[2] for n in nodes if "spread" in n["detail"]]

    with RunningService(shop.dsn, tmp_path, **SETTINGS) as service:
        service.create("spent", query, wait_s=240, runtime="spark", backfill="local")
        require_equal(service, shop, "spent", query)
        service.await_so(lambda: spread(service) == ["4 buckets, 1 key spread over them"])
        shop.execute(
            "INSERT INTO orders SELECT n, CASE WHEN n % 10 > 0 THEN 2 ELSE n % 90 END, n / 100.0"
            " FROM generate_series(200000, 330000) n"
        )
        shop.execute("UPDATE customers SET name = 'first' WHERE id = 1")
        require_equal(service, shop, "spent", query)
        shop.execute("UPDATE orders SET amount = amount + 1 WHERE id % 100 = 7")
        require_equal(service, shop, "spent", query)
        service.await_so(lambda: spread(service) == ["4 buckets, 2 keys spread over them"])
        (event,) = (e for e in service.events() if e["event"] == "buckets.spread")
        assert event["keys"] == 2
        for victim in list(pipelines(service)):
            victim.kill()
        shop.execute("UPDATE customers SET name = 'second' WHERE id = 2")
        shop.execute("DELETE FROM customers WHERE id IN (1, 3)")
        shop.execute("DELETE FROM orders WHERE id % 30 = 0")
        require_equal(service, shop, "spent", query, within_s=300)
        service.await_so(lambda: spread(service) == ["4 buckets, 2 keys spread over them"])


@pytest.mark.whole
@pytest.mark.parametrize("storage", ["own", "shared"])
def test_a_build_by_tasks_whatever_is_killed(shop: Database, tmp_path: Path, storage: str) -> None:
    """A backfill's tasks write the state, and tasks put it into buckets; changes come meanwhile."""
    draw, points = random.Random(14), tmp_path / "points"
    points.mkdir()
    kept = tmp_path / "shared" if storage == "shared" else tmp_path / "state" / "groups"
    settings: dict[str, object] = {**SETTINGS, "failpoints_folder": points}
    if storage == "shared":
        settings["spark_storage"] = kept
    query = SPENT.replace("o.amount", "o.amount + 1")
    with RunningService(shop.dsn, tmp_path, **settings) as service:
        # A task, then the pipeline's process, in each phase of a build.
        for point in ("spark.import.cut", "spark.state.moved", "build.catchup.replay"):
            (points / point).write_text("kill")
        asked = {"query": SPENT, "options": {"runtime": "spark", "backfill": "spark"}}
        assert service.call("POST", "/views", {"name": "spent", **asked}).status_code == 201
        deadline = time.monotonic() + 300
        while service.call("GET", "/views/spent").json()["status"] != "live":
            _one_of_many(shop, draw)
            assert time.monotonic() < deadline, service.call("GET", "/views/spent").json()
        require_equal(service, shop, "spent", SPENT)
        reached = {path.stem for path in points.glob("*.reached")}
        assert reached == {"spark.import.cut", "spark.state.moved", "build.catchup.replay"}
        # The next version, beside the live one.
        (points / "view.join.before").write_text("kill")
        again = {"query": query, "options": {"backfill": "spark"}}
        assert service.call("POST", "/views/spent/replace", again).status_code == 202
        while service.call("GET", "/views/spent").json()["query"] != query:
            _one_of_many(shop, draw)
            assert time.monotonic() < deadline + 300, service.call("GET", "/views/spent").json()
        require_equal(service, shop, "spent", query)
        assert (points / "view.join.before.reached").exists()
        # One state is left, and no file of a backfill.
        heads = {folder for folder in _with_files(kept) if folder.endswith("/manifest")}
        assert len(heads) == 1, heads
        assert not [folder for folder in _with_files(kept) if "/exchange/" in folder]
        service.drop("spent")
        service.await_so(lambda: not _with_files(kept), 60)


def _with_files(folder: Path) -> list[str]:
    """The folders that have files but the storage's mark, also while others are removed."""
    return [path for path, _, files in os.walk(folder) if set(files) - {NAME}]


def _one_of_many(shop: Database, draw: random.Random) -> None:
    """A transaction that can be repeated for minutes."""
    time.sleep(0.02)
    first = draw.randrange(1, 4000)
    shop.execute(
        draw.choice(
            (
                f"INSERT INTO orders SELECT {first} + n, 1 + n % 70, n FROM generate_series(1, 9) n"
                " ON CONFLICT (id) DO UPDATE SET customer = 1 + orders.customer % 70",
                f"UPDATE orders SET amount = amount + 1 WHERE id % 50 = {first % 50}",
                f"DELETE FROM orders WHERE id BETWEEN {first} AND {first + 5}",
                f"UPDATE customers SET name = 'n{first % 9}' WHERE id = {1 + first % 60}",
            )
        )
    )


@pytest.mark.whole
def test_buckets_are_split_as_the_state_grows(shop: Database, tmp_path: Path) -> None:
    """By the settings of a restart, and by the rows that come."""
    draw = random.Random(12)

    def buckets(service: RunningService) -> set[str]:
        nodes = service.call("GET", "/views/spent/dataflow").json()["nodes"]
        details = [n["detail"].rpartition(" in ")[2] for n in nodes if n["what"] == "table"]
        return set(details)

    def splits(service: RunningService) -> list[tuple[int, int]]:
        events = [e for e in service.events() if e["event"] == "buckets.split"]
        return [(e["before"], e["buckets"]) for e in events]

    settings = {"spark": "local[2]", "spark_buckets": 1, "spark_bucket_mb": 1}
    with RunningService(shop.dsn, tmp_path, **settings) as service:
        service.create("spent", SPENT, wait_s=180, runtime="spark", backfill="local")
        change(shop, draw)
        require_equal(service, shop, "spent", SPENT)
        assert buckets(service) == {"one bucket"}
        service.stop()
        service.set_variable("TIDEMARK_SPARK_BUCKETS", "2")
        service.start()
        change(shop, draw)
        require_equal(service, shop, "spent", SPENT, within_s=240)
        service.await_so(lambda: buckets(service) == {"2 buckets"})
        shop.execute(
            "INSERT INTO orders SELECT n, 1 + n % 70, hashtext(n::text) % 1000000"
            " FROM generate_series(10000, 500000) n"
        )
        require_equal(service, shop, "spent", SPENT, within_s=240)
        for victim in list(pipelines(service)):
            victim.kill()
        for _ in range(4):
            change(shop, draw)
        require_equal(service, shop, "spent", SPENT, within_s=240)
        found = splits(service)
        assert found[0] == (1, 2) and found[-1][1] >= 4, found
        assert buckets(service) == {f"{found[-1][1]} buckets"}


@pytest.mark.whole
def test_the_first_rows_are_found_in_two_phases(shop: Database, tmp_path: Path) -> None:
    """Also after a move into one process, which keeps the plan, and back."""
    query = "SELECT id, customer, amount FROM orders ORDER BY amount DESC, id LIMIT 20 OFFSET 3"
    draw = random.Random(13)

    def move(service: RunningService, runtime: str) -> None:
        body = {"runtime": runtime}
        answer = service.call("POST", "/views/first/runtime?wait_s=120", body)
        assert answer.status_code == 200 and answer.json()["replacing"] is None, answer.text

    with RunningService(shop.dsn, tmp_path, **SETTINGS) as service:
        made = service.create("first", query, wait_s=180, runtime="spark", backfill="local")
        assert not any("in one bucket" in warning for warning in made["warnings"])
        plan = service.call("GET", "/views/first/plan").json()["text"]
        assert "top 23 by (shard)" in plan and "number of 64 shards" in plan
        nodes = service.call("GET", "/views/first/dataflow").json()["nodes"]
        places = [(node["what"], node["detail"].rpartition(" in ")[2]) for node in nodes]
        # A stage has the name of its last node.
        assert places[1:] == [("project", "4 buckets"), ("top_k", "one bucket")], nodes
        for runtime in ("", "local", "spark"):
            if runtime:
                move(service, runtime)
            for _ in range(4):
                change(shop, draw)
            shop.execute("DELETE FROM orders WHERE id IN (SELECT id FROM first LIMIT 15)")
            require_equal(service, shop, "first", f"({query})")
            if runtime != "local":
                for victim in list(pipelines(service)):
                    victim.kill()
            shop.execute("UPDATE orders SET amount = amount + 200 WHERE id % 500 = 7")
            require_equal(service, shop, "first", f"({query})", within_s=240)


@pytest.mark.whole
def test_kills_of_the_driver(shop: Database, tmp_path: Path) -> None:
    """Whatever of it is killed, nothing is missing and nothing is counted twice."""
    draw = random.Random(9)
    with RunningService(shop.dsn, tmp_path, **SETTINGS) as service:
        service.create("spent", SPENT, wait_s=180, runtime="spark", backfill="local")
        for round_ in range(3):
            for _ in range(4):
                change(shop, draw)
                time.sleep(draw.random() / 2)
            victims = list(pipelines(service))
            assert victims, service.log_tail()
            os.kill(victims[0].pid, signal.SIGKILL)
            change(shop, draw)
            service.await_so(lambda v=victims: list(pipelines(service)) not in ([], v), 120)
            require_equal(service, shop, "spent", SPENT)
            assert not any(e["event"] == "view.failed" for e in service.events()), round_
        service.kill()
        change(shop, draw)
        service.start()
        require_equal(service, shop, "spent", SPENT)
        # A state that someone has deleted is built again.
        group = service.call("GET", "/views/spent").json()["group"]
        service.stop()
        for folder in (service.state / "groups" / group / "buckets").glob("v*/*/base"):
            shutil.rmtree(folder)
        shutil.rmtree(service.state / "groups" / group / "bucket-caches", ignore_errors=True)
        for manifest in (service.state / "groups" / group / "buckets").glob("v*/*/manifest/*"):
            manifest.unlink()
        service.start()
        service.await_status("spent", timeout_s=180)
        change(shop, draw)
        require_equal(service, shop, "spent", SPENT)


@pytest.mark.whole
def test_a_topic_and_a_moving_clock(shop: Database, broker: EmbeddedKafka, tmp_path: Path) -> None:
    """Records of a topic joined with a table, and rows that expire, over kills of the driver."""
    topic = new_topic(broker, partitions=2)
    columns = {"customer": "int4", "amount": "int4", "_partition": "int4", "_offset": "int8"}
    options = {
        "bootstrap_servers": broker.bootstrap,
        "check_ms": 100,
        "topics": {"clicks": {"topic": topic, "format": "json", "columns": columns}},
    }
    shop.execute("CREATE TABLE seen (id integer PRIMARY KEY, at timestamptz NOT NULL)")
    clicks = (
        "SELECT c.name, count(*) AS n, sum(k.amount) AS total FROM shop.clicks k"
        " JOIN customers c ON c.id = k.customer GROUP BY c.name"
    )
    recent = "SELECT id FROM seen WHERE at > now() - interval '1 minute'"
    sent: list[tuple[int, int]] = []

    def produce(count: int) -> None:
        made = [(1 + len(sent) + n, 3 * n) for n in range(count)]
        records = [json.dumps({"customer": 1 + c % 60, "amount": a}).encode() for c, a in made]
        send(broker, topic, [(n % 2, None, r) for n, r in enumerate(records)])
        sent.extend(made)

    def answer() -> list[tuple[str, int, int]]:
        names = dict(shop.rows("SELECT id, name FROM customers"))
        found: dict[str, list[int]] = {}
        for customer, amount in sent:
            found.setdefault(names[1 + customer % 60], []).append(amount)
        return sorted((name, len(amounts), sum(amounts)) for name, amounts in found.items())

    with RunningService(shop.dsn, tmp_path, **SETTINGS) as service:
        declared = service.call(
            "POST", "/sources", {"name": "shop", "type": "kafka", "options": options}
        )
        assert declared.status_code == 201, declared.text
        produce(100)
        service.create("clicked", clicks, wait_s=180, runtime="spark", backfill="local")
        service.create("recent", recent, wait_s=180, runtime="spark", backfill="local")
        nodes = service.call("GET", "/views/clicked/dataflow").json()["nodes"]
        assert sorted(n["detail"] for n in nodes if n["what"] == "table") == [
            "rows of public.customers in 4 buckets",
            "rows of shop.clicks in 4 buckets, read by executors",
        ]
        shown = "SELECT name, n, total FROM clicked ORDER BY name"
        for round_ in range(2):
            # Few records are read by the driver, as tasks would.
            produce((70, 3000)[round_])
            shop.execute("UPDATE customers SET name = name || 'x' WHERE id % 7 = 3")
            shop.execute(f"INSERT INTO seen VALUES ({2 * round_}, now() - interval '1 minute')")
            shop.execute(f"INSERT INTO seen VALUES ({2 * round_ + 1}, now())")
            victims = list(pipelines(service))
            is_seen = lambda r=round_: (2 * r + 1,) in shop.rows("SELECT id FROM recent")  # noqa: E731
            service.await_so(is_seen, within_s=240)
            for victim in victims:
                victim.kill()
            service.await_so(lambda: shop.rows(shown) == answer(), within_s=120)
        # They leave because time passes, though nothing else happens.
        service.await_so(lambda: shop.rows("SELECT id FROM recent") == [], within_s=120)


@pytest.mark.whole
def test_a_cluster_maintains_it(shop: Database, tmp_path: Path) -> None:
    """A standalone master with two workers, of which an executor is killed."""
    conf = {
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        "spark.executor.memory": "512m",
    }
    with standalone(tmp_path) as url:
        settings = {
            **SETTINGS,
            "spark": url,
            "spark_storage": tmp_path / "shared",
            "spark_conf": " ".join(f"{name}={value}" for name, value in conf.items()),
        }
        draw = random.Random(3)
        with RunningService(shop.dsn, tmp_path, **settings) as service:
            service.create("spent", SPENT, wait_s=240, runtime="spark", backfill="spark")
            for _ in range(5):
                change(shop, draw)
            require_equal(service, shop, "spent", SPENT)
            victims = [p for p in descendants("--executor-id") if p.name() == "java"]
            assert len(victims) == 2
            os.kill(victims[0].pid, signal.SIGKILL)
            for _ in range(5):
                change(shop, draw)
            require_equal(service, shop, "spent", SPENT)
            assert list((tmp_path / "shared").glob("tidemark/spark*/v*/*/manifest/*"))
            service.drop("spent")
            assert not _with_files(tmp_path / "shared")


@pytest.mark.whole
def test_a_connect_server_that_ends(shop: Database, tmp_path: Path) -> None:
    """Its driver is not ours; the service has no JVM, and the next server goes on."""
    port, shared = free_port(), tmp_path / "shared"
    settings = {**SETTINGS, "spark": f"sc://{HOST}:{port}", "spark_storage": shared}
    draw = random.Random(5)
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(contextlib.ExitStack())
        first.enter_context(connect_server(tmp_path, port))
        service = stack.enter_context(RunningService(shop.dsn, tmp_path, **settings))
        service.create("spent", SPENT, wait_s=240, runtime="spark", backfill="spark")
        for _ in range(4):
            change(shop, draw)
        require_equal(service, shop, "spent", SPENT)
        assert not any(p.name() == "java" for p in _below(service))
        first.close()
        for _ in range(4):
            change(shop, draw)
        stack.enter_context(connect_server(tmp_path, port))
        # Its processes compile what they run.
        require_equal(service, shop, "spent", SPENT, within_s=300)
        assert not any(e["event"] == "view.failed" for e in service.events())
        service.drop("spent")
        assert not _with_files(shared)


def _below(service: RunningService) -> list[psutil.Process]:
    assert service.pid is not None
    return psutil.Process(service.pid).children(recursive=True)


@pytest.mark.whole
@pytest.mark.parametrize("store", ["bucket", "server"])
def test_an_object_storage_that_is_slow_and_fails(
    shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    """Faults of the way to it while epochs are written; then all local states are lost."""
    draw = random.Random(11)
    with contextlib.ExitStack() as stack:
        if store == "bucket":
            url = stack.enter_context(object_store(monkeypatch))
        else:
            url = stack.enter_context(object_server(tmp_path / "objects", monkeypatch))
        target = int(url.rpartition(":")[2])
        way = stack.enter_context(Proxy(target))
        at = url.replace(f":{target}", f":{way.port}")
        service = stack.enter_context(
            RunningService(shop.dsn, tmp_path, **SETTINGS, spark_storage=at)
        )
        # Once its tasks write the first state too, by way of the same storage.
        backfill = "spark" if store == "bucket" else "local"
        service.create("spent", SPENT, wait_s=240, runtime="spark", backfill=backfill)
        for _ in range(count("TIDEMARK_TEST_FAULTS", 3, 20)):
            way.begin(Fault.draw(draw))
            for _ in range(3):
                change(shop, draw)
                time.sleep(draw.random())
            way.heal()
            way.terminate_orphan()
        require_equal(service, shop, "spent", SPENT)
        assert way.faults_met > 0
        assert not any(e["event"] == "view.failed" for e in service.events())
        group = service.call("GET", "/views/spent").json()["group"]
        service.kill()
        shutil.rmtree(service.state / "groups" / group / "bucket-caches")
        change(shop, draw)
        service.start()
        require_equal(service, shop, "spent", SPENT)


@pytest.mark.whole
def test_auto_chooses_by_the_size_of_the_state(shop: Database, tmp_path: Path) -> None:
    shop.execute("ANALYZE")
    with RunningService(shop.dsn, tmp_path, **SETTINGS, spark_state_mb=0, spark_rows=0) as service:
        made = service.create("base", LARGE.format(""), wait_s=180, runtime="auto")
        assert made["options"]["runtime"] == "spark" and made["group"].startswith("spark")
        other = service.create("mine", SPENT, runtime="auto", group="mine")
        assert (other["options"]["runtime"], other["group"]) == ("local", "mine")
        parent = service.create("parent", LARGE.format(""), runtime="local")
        child = service.create("child", "SELECT name FROM parent", runtime="auto")
        assert child["options"]["runtime"] == "local" and parent["group"] == child["group"]
        assert any("reads other views" in warning for warning in child["warnings"])
        same = {"query": LARGE.format("WHERE o.id > 9"), "options": {"runtime": "auto"}}
        assert service.call("POST", "/views/base/replace", same).status_code == 202
        service.await_so(
            lambda: service.call("GET", "/views/base").json()["query"] == same["query"], 120
        )
        require_equal(service, shop, "base", same["query"])


def test_what_spark_refuses(shop: Database, tmp_path: Path) -> None:
    with RunningService(shop.dsn, tmp_path, **SETTINGS) as service:
        service.create("base", LARGE.format(""), backfill="local")
        for query, options, code in (
            (SPENT, {"group": "mine"}, "request.invalid"),
            (SPENT, {"group": "spark0123456789abcdef", "runtime": "local"}, "request.invalid"),
        ):
            body = {"name": "x", "query": query, "options": {"runtime": "spark", **options}}
            answer = service.call("POST", "/views", body)
            assert answer.json()["code"] == code, answer.text
        median = "percentile_disc(0.5) WITHIN GROUP (ORDER BY amount)"
        for call, is_listed in (("sum(amount)", False), ("max(amount)", False), (median, True)):
            query = f"SELECT {call} AS s FROM orders"
            body = {"query": query, "options": {"runtime": "spark"}}
            answer = service.call("POST", "/views/validate", body)
            warnings = answer.json()["warnings"]
            assert any("in one bucket" in w for w in warnings) == is_listed, answer.text
        assert answer.json()["runtime"] == "spark"
        # To look at a query begins nothing: neither a group nor its process.
        assert not (service.state / "groups").exists()
        # What is too small stays here, and so does what Spark cannot maintain, whatever its size.
        made = service.create("small", LARGE.format(""), runtime="auto")
        assert (made["options"]["runtime"], made["group"]) == ("local", "default")
        answer = service.call(
            "POST", "/views/base/replace", {"query": SPENT, "options": {"runtime": "spark"}}
        )
        assert answer.json()["code"] == "view.other_runtime", answer.text
