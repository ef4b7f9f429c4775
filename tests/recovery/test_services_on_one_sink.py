"""Oracle: PostgreSQL's answer to each view's query in the service's own source database, whatever
the other services on the same sink do; and their logs, which have no error.

A service is its prefix: it sees, changes and drops its own views, tokens and sources only.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService
from tests.harness.tiers import count

pytestmark = pytest.mark.timeout(1800)
SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "7"))
ROUNDS = count("TIDEMARK_TEST_ROUNDS", 3, 6)
TABLES = """
CREATE TABLE orders (id integer PRIMARY KEY, customer integer NOT NULL, amount integer NOT NULL);
INSERT INTO orders SELECT n, n % 20, n % 7 FROM generate_series(1, 400) n;
"""
KEY_FILE = "checkpoint.key"
QUERIES = (
    "SELECT customer, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer",
    "SELECT id, amount FROM orders WHERE amount > 3",
    "SELECT o.id, p.amount FROM orders o JOIN orders p ON p.id = o.id + 1",
    "SELECT max(amount) AS most, count(*) AS n FROM orders",
)


class Tenant:
    """A service with its source database; its writer may run in a thread beside it."""

    def __init__(
        self, prefix: str, source: Database, sink: Database, folder: Path, **more: object
    ) -> None:
        self.prefix, self.source, self.sink = prefix, source, sink
        self.folder = folder / prefix
        self.views: dict[str, str] = {}
        self.service = RunningService(
            source.dsn, self.folder, "" if source is sink else sink.dsn, prefix=prefix, **more
        )

    def create(self, name: str, query: str, wait_s: float = 180, **options: str) -> None:
        self.service.create(name, query, wait_s=wait_s, **{"backfill": "local", **options})
        self.views[name] = query

    def listed(self) -> set[str]:
        return {v["name"] for v in self.service.call("GET", "/views").json()["views"]}

    def require_equal(self, within_s: float = 180) -> None:
        """Every view is PostgreSQL's answer, and there is no other one."""
        assert self.listed() == set(self.views)
        position = self.source.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
        for name, query in self.views.items():
            self.service.wait(name, position, timeout_s=within_s)
            expected = sorted(self.source.rows(query))
            fields = self.service.call("GET", f"/views/{name}").json()["fields"]
            columns = ", ".join(f["name"] for f in fields)
            assert sorted(self.sink.rows(f"SELECT {columns} FROM {name}")) == expected, name
            found = self.service.call("POST", f"/views/{name}/verify").json()
            assert found.get("result") == "equal", (self.prefix, name, found)

    def require_no_error(self) -> None:
        found = [e for e in self.service.events() if e.get("level") == "error"]
        assert not found, found

    def write(self, draw: random.Random) -> None:
        key = draw.randrange(1, 500)
        self.source.execute(
            draw.choice(
                (
                    f"INSERT INTO orders VALUES ({key}, {key % 20}, {key % 9})"
                    " ON CONFLICT (id) DO UPDATE SET amount = orders.amount + 1",
                    f"UPDATE orders SET customer = (customer + 1) % 20 WHERE id % 40 = {key % 40}",
                    f"DELETE FROM orders WHERE id BETWEEN {key} AND {key + 3}",
                )
            )
        )

    def restore(self) -> None:
        """The machine is lost, but for the key: the state comes from a checkpoint."""
        self.service.kill()
        key = self.folder / "copied.key"
        shutil.copy(self.service.state / KEY_FILE, key)
        shutil.rmtree(self.service.state)
        command = [sys.executable, "-m", "service.cli.main", "restore", str(self.folder / "copies")]
        command += ["--state", str(self.service.state), "--prefix", self.prefix, "--key", str(key)]
        # What the source has not any more is built again.
        command += ["--rebuild"]
        done = subprocess.run(
            command,
            env={**os.environ, "TIDEMARK_SOURCE": self.source.dsn, "TIDEMARK_PREFIX": self.prefix},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        if not (self.service.state / KEY_FILE).exists():
            shutil.copy(key, self.service.state / KEY_FILE)
        self.service.start()


@contextlib.contextmanager
def writing(tenants: list[Tenant], seed: int) -> Iterator[None]:
    """A transaction of each source now and then, from a thread of its own."""
    stopping = threading.Event()

    def run(tenant: Tenant, number: int) -> None:
        draw = random.Random(seed + number)
        while not stopping.wait(0.05):
            tenant.write(draw)

    threads = [threading.Thread(target=run, args=(t, n)) for n, t in enumerate(tenants)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def shops(postgres: EmbeddedPostgres, count: int) -> Iterator[list[Database]]:
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(new_database(postgres)) for _ in range(count)]
        for database in made:
            database.execute(TABLES)
        yield made


def refused(act: Callable[[], Any]) -> str:
    """The message and detail of a refused call in psql."""
    with pytest.raises(psycopg2.Error) as caught:
        act()
    return f"{caught.value.diag.message_primary} {caught.value.diag.message_detail}"


def call(database: Database, text: str) -> None:
    connection = database.connect()
    try:
        connection.cursor().execute(text)
    finally:
        connection.close()


def test_each_service_has_its_own(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """Two sources, one sink; then what users ask of each, by REST and in psql."""
    with shops(postgres, 2) as (one, other):
        first, second = Tenant("one", one, one, tmp_path), Tenant("two", other, one, tmp_path)
        with first.service, second.service:
            first.create("sales", QUERIES[0])
            second.create("large", QUERIES[1])
            second.create("soon", "SELECT id FROM orders WHERE now() > '2001-01-01'::timestamptz")
            first.create("late", "SELECT id FROM orders WHERE now() > '2001-01-01'::timestamptz")
            assert (first.listed(), second.listed()) == ({"sales", "late"}, {"large", "soon"})
            _require_apart(second)
            # Each has the sources that it reads.
            for tenant in (first, second):
                sources = tenant.service.call("GET", "/sources").json()["sources"]
                assert "clock" in {s["name"] for s in sources}
            _require_routed(one, first, second)
            shown = dict(one.rows("SELECT name, service FROM tidemark.status"))
            assert shown == {v: t.prefix for t in (first, second) for v in t.views}
            healths = one.rows("SELECT service, status FROM tidemark.health ORDER BY 1")
            assert healths == [("one", "ok"), ("two", "ok")]
            # A token of one is none of the other.
            token = first.service.call("POST", "/tokens", {"name": "admin", "role": "admin"}).json()
            assert second.service.call("GET", "/views").status_code == 200
            assert first.service.call("GET", "/views").status_code == 401
            headers = {"Authorization": f"Bearer {token['token']}"}
            assert first.service.client.get("/views", headers=headers).status_code == 200
            first.service.client.headers.update(headers)
            # What is written to one source is waited for there; the other's views are not meant.
            one.execute("INSERT INTO orders VALUES (9001, 1, 1)")
            one.rows("SELECT tidemark.wait('60 s')")
            assert one.rows("SELECT count(*) FROM late")[0][0] == 401
            for tenant in (first, second):
                tenant.service.kill()
                other.execute("UPDATE orders SET amount = amount + 1 WHERE id < 50")
                one.execute("UPDATE orders SET amount = amount + 1 WHERE id < 50")
                tenant.service.start()
                first.require_equal()
                second.require_equal()
            second.service.drop("large")
            del second.views["large"]
            second.require_equal()
            first.require_equal()
            first.require_no_error()
            second.require_no_error()


def _require_apart(second: Tenant) -> None:
    """A name is one view's, whoever has it; and the other service's view is no view here."""
    asked = {"name": "sales", "query": QUERIES[3]}
    answer = second.service.call("POST", "/views", asked)
    assert answer.status_code == 409, answer.text
    assert answer.json()["code"] == "view.name_taken"
    assert '"one"' in answer.json()["detail"]
    answer = second.service.call("POST", "/views/large/rename", {"name": "sales"})
    assert answer.json()["code"] == "view.name_taken"
    assert '"one"' in answer.json()["detail"]
    for method, path in (
        ("GET", "/views/sales"),
        ("DELETE", "/views/sales"),
        ("POST", "/views/sales/pause"),
        ("POST", "/views/sales/rebuild"),
        ("POST", "/views/sales/verify"),
    ):
        answer = second.service.call(method, path)
        assert answer.json()["code"] == "view.not_found", answer.text


def _require_routed(sink: Database, first: Tenant, second: Tenant) -> None:
    """Calls reach the service that they name, or that has the view."""
    why = refused(lambda: call(sink, f"CALL tidemark.create_view('v', $${QUERIES[3]}$$)"))
    assert "one, two" in why and "service.ambiguous" in why
    named = '{"service": "two"}'
    call(sink, f"CALL tidemark.create_view('by_call', $${QUERIES[3]}$$, '{named}')")
    second.views["by_call"] = QUERIES[3]
    call(sink, "CALL tidemark.rebuild_view('by_call')")
    call(sink, "CALL tidemark.pause_view('sales')")
    first.service.await_status("sales", "paused")
    call(sink, "CALL tidemark.resume_view('sales')")
    first.service.await_status("sales")
    assert second.listed() == set(second.views)
    connection = sink.connect()
    try:
        connection.cursor().execute("SET tidemark.service = 'one'")
        connection.cursor().execute(f"CALL tidemark.create_view('chosen', $${QUERIES[2]}$$)")
    finally:
        connection.close()
    first.views["chosen"] = QUERIES[2]
    why = refused(
        lambda: call(sink, "CALL tidemark.drop_view('by_call', '{\"service\": \"three\"}')")
    )
    assert "service.unknown" in why
    call(sink, "CALL tidemark.drop_view('by_call')")
    del second.views["by_call"]
    assert second.listed() == set(second.views) and first.listed() == set(first.views)


@pytest.mark.whole
def test_three_that_create_drop_crash_and_restore(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    """Two of them read one database. All at once, in an order from a seed."""
    print(f"repeat: TIDEMARK_TEST_SEED={SEED} pytest {__file__}")
    draw = random.Random(SEED)
    with shops(postgres, 2) as (one, other):
        tenants = [
            Tenant(
                prefix,
                source,
                one,
                tmp_path,
                checkpoint_to=tmp_path / prefix / "copies",
                checkpoint_every_s=1,
            )
            for prefix, source in (("red", one), ("green", one), ("blue", other))
        ]
        with contextlib.ExitStack() as stack:
            for tenant in tenants:
                stack.enter_context(tenant.service)
                tenant.create(f"{tenant.prefix}_first", QUERIES[0])
            with writing(tenants, SEED):
                for round_ in range(ROUNDS):
                    _together(tenants, random.Random(draw.random()), round_)
            for tenant in tenants:
                tenant.require_equal()
                tenant.require_no_error()


def _together(tenants: list[Tenant], draw: random.Random, round_: int) -> None:
    """One thing of each service, at the same time."""
    failures: list[BaseException] = []

    def run(tenant: Tenant, kind: str, query: str) -> None:
        try:
            if kind == "create":
                tenant.create(f"{tenant.prefix}_{round_}", query)
            elif kind == "drop" and len(tenant.views) > 1:
                tenant.service.drop(last := list(tenant.views)[-1])
                del tenant.views[last]
            elif kind == "crash":
                tenant.service.kill()
                tenant.service.start()
            elif kind == "restore":
                _await_copy(tenant)
                tenant.restore()
        except BaseException as error:
            failures.append(error)
            raise

    kinds = ("create", "create", "drop", "crash", "restore")
    threads = [
        threading.Thread(target=run, args=(t, draw.choice(kinds), draw.choice(QUERIES)))
        for t in tenants
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def _await_copy(tenant: Tenant) -> None:
    copies = tenant.folder / "copies"
    deadline = time.monotonic() + 120
    while not list(copies.rglob("checkpoints/*.json")):
        assert time.monotonic() < deadline, tenant.service.log_tail()
        time.sleep(0.1)


@pytest.mark.whole
@pytest.mark.skipif(shutil.which("java") is None, reason="no Java here, Spark needs it")
def test_a_view_on_spark_beside_another_service(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    draw = random.Random(SEED)
    spark = {"spark": "local[2]", "spark_buckets": 2}
    with shops(postgres, 2) as (one, other):
        first = Tenant("one", one, one, tmp_path, **spark)
        second = Tenant("two", other, one, tmp_path)
        with first.service, second.service:
            first.create("spent", QUERIES[0], wait_s=300, runtime="spark")
            second.create("large", QUERIES[1])
            for tenant in (second, first):
                for _ in range(20):
                    first.write(draw)
                    second.write(draw)
                tenant.service.kill()
                tenant.service.start()
                first.require_equal(within_s=300)
                second.require_equal()
            second.service.drop("large")
            second.views.clear()
            first.write(draw)
            first.require_equal(within_s=300)
            first.require_no_error()
            second.require_no_error()
