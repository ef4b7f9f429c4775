"""Oracle: PostgreSQL's answer over copies of the tables of all databases."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from service.runtime.service_key import FILE as KEY_FILE
from storage.failpoints import REACHED
from tests.connectors.postgres_source.reading import options_of
from tests.harness.failpoints import arm
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService

SPENT = (
    "SELECT c.region, count(*) AS n, sum(o.amount) AS spent, max(t.rate) AS rate "
    "FROM erp.orders o JOIN customers c ON c.id = o.customer "
    "JOIN tax.rates t ON t.region = c.region GROUP BY c.region"
)
ORDERS = "SELECT count(*), sum(amount) FROM orders"
TABLES = {"erp.orders": "customer int, amount numeric(8,2)", "tax.rates": "region text, rate int"}


@pytest.fixture
def service(database: Database, tmp_path: Path) -> Iterator[RunningService]:
    with RunningService(database.dsn, tmp_path / "service", allow_own_database=True) as running:
        yield running


@pytest.fixture
def erp(postgres: EmbeddedPostgres, database: Database) -> Iterator[Database]:
    """A second database on the same server."""
    database.execute("CREATE TABLE customers (id int PRIMARY KEY, region text NOT NULL)")
    database.execute("INSERT INTO customers SELECT n, 'r' || n % 3 FROM generate_series(1, 9) n")
    with new_database(postgres) as made:
        made.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, customer int, amount numeric(8,2), note text)"
        )
        made.execute(
            "INSERT INTO orders SELECT n, n % 11, n / 4.0, repeat('x', 3000) "
            "FROM generate_series(1, 200) n"
        )
        yield made


@pytest.fixture
def tax(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """A third database."""
    with new_database(postgres) as made:
        made.execute("CREATE TABLE rates (region text, rate int)")
        made.execute("ALTER TABLE rates REPLICA IDENTITY FULL")
        made.execute("INSERT INTO rates SELECT 'r' || n, n FROM generate_series(0, 2) n")
        yield made


def declare(service: RunningService, name: str, database: Database, *tables: str) -> dict[str, Any]:
    """Discover the tables as users do, and declare the source; the options."""
    body = {"type": "postgres", "options": options_of(database, *tables)}
    found = service.call("POST", "/sources/discover", body)
    assert found.status_code == 200, found.text
    options = found.json()["options"]
    answer = service.call(
        "POST", "/sources", {"name": name, "type": "postgres", "options": options}
    )
    assert answer.status_code == 201, answer.text
    return options


def expected(database: Database, others: dict[str, Database]) -> list[tuple[Any, ...]]:
    """The view's rows, over copies of the tables."""
    query = SPENT
    for title, columns in TABLES.items():
        source, _, table = title.partition(".")
        copy = f"copied_{table}"
        database.execute(f"DROP TABLE IF EXISTS {copy}; CREATE TABLE {copy} ({columns})")
        names = ", ".join(one.split()[0] for one in columns.split(", "))
        for row in others[source].rows(f"SELECT {names} FROM {table}"):
            database.execute(f"INSERT INTO {copy} VALUES (%s, %s)", row)
        query = query.replace(title, copy)
    return database.rows(f"SELECT * FROM ({query}) q ORDER BY 1")


def await_equal(service: RunningService, database: Database, others: dict[str, Database]) -> None:
    """Wait until the view is its query."""
    desired = expected(database, others)
    deadline = time.monotonic() + 120
    while (spent := _spent(database)) != desired:
        assert time.monotonic() < deadline, f"{spent}\n{desired}\n{service.log_tail()}"
        time.sleep(0.05)


def _spent(database: Database) -> list[tuple[Any, ...]]:
    return database.rows("SELECT region, n, spent, rate FROM spent ORDER BY 1")


def _slots(database: Database) -> list[str]:
    found = database.rows(
        "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    )
    return [name for (name,) in found]


def test_a_join_of_three_databases_over_a_kill(
    service: RunningService, database: Database, erp: Database, tax: Database
) -> None:
    others = {"erp": erp, "tax": tax}
    options = declare(service, "erp", erp, "public.orders")
    declare(service, "tax", tax, "public.rates")
    service.create("spent", SPENT, wait_s=200)
    await_equal(service, database, others)
    pick = random.Random(3)
    for number in range(30):
        id = pick.randint(1, 220)
        erp.execute(
            f"INSERT INTO orders VALUES ({id}, {id % 9 + 1}, {number}.25, 'n') "
            "ON CONFLICT (id) DO UPDATE SET amount = excluded.amount; "
            f"DELETE FROM orders WHERE id = {pick.randint(1, 220)}; "
            f"UPDATE orders SET id = id + 1000 WHERE id = {pick.randint(1, 220)}"
        )
        tax.execute(f"UPDATE rates SET rate = rate + 1 WHERE region = 'r{number % 3}'")
        if number % 10 == 0:
            erp.execute(f"ALTER TABLE orders ADD COLUMN more{number} int DEFAULT 7")
            database.execute(f"UPDATE customers SET region = 'r{number % 4}' WHERE id = 3")
        if number == 15:
            service.kill()
            service.start()
    await_equal(service, database, others)
    # A second view reads one of the tables that is read already, and one that is not.
    service.create("rates", "SELECT r.rate, o.amount FROM tax.rates r JOIN erp.orders o ON true")
    n = len(erp.rows("SELECT FROM orders")) * 3
    service.await_so(lambda: database.rows("SELECT count(*) FROM rates") == [(n,)])
    source = service.call("GET", "/sources/erp").json()
    assert source["status"] == "running" and source["rows_read"] > 0
    assert set(source["positions"]["orders"]) == {"lsn", "system", "timeline", "database"}
    # What nothing reads any more retains nothing.
    assert _slots(tax) == ["tidemark_default_from_tax"]
    service.drop("rates")
    assert _slots(tax) == ["tidemark_default_from_tax"]
    # A declared column is gone: the view fails by name.
    erp.execute("ALTER TABLE orders RENAME COLUMN amount TO price")
    failed = service.await_status("spent", "failed")
    assert failed["error"]["code"] == "source.column_dropped"
    service.drop("spent")
    service.await_so(lambda: not _slots(tax) and not _slots(erp))
    changed = service.call("PUT", "/sources/erp", {"options": {**options, "user": "nobody"}})
    assert changed.status_code >= 400 and changed.json()["code"] == "source.login"
    for name in ("erp", "tax"):
        assert service.call("DELETE", f"/sources/{name}").status_code == 204
    assert not erp.rows("SELECT FROM pg_publication")


@pytest.mark.parametrize("action", ["sleep:4", "kill"])
def test_another_table_begins_while_the_source_moves(
    database: Database, erp: Database, tmp_path: Path, action: str
) -> None:
    """What the first view has passed is discarded after the second one's position was found."""
    erp.execute("CREATE TABLE notes (id int PRIMARY KEY, text text)")
    erp.execute("INSERT INTO notes VALUES (1, 'before')")
    points = tmp_path / "points"
    points.mkdir()
    folder = tmp_path / "service"
    settings = {"failpoints_folder": points, "sync_interval_s": 0.2, "allow_own_database": True}
    with RunningService(database.dsn, folder, **settings) as service:
        declare(service, "erp", erp, "public.orders", "public.notes")
        service.create("orders", "SELECT count(*) AS n, sum(amount) AS amount FROM erp.orders")
        arm(points, "source.start.found", action)
        service.create("notes", "SELECT id, text FROM erp.notes", wait_s=0)
        number = 1000
        while service.call("GET", "/views/notes").json()["status"] != "live":
            number += 1
            erp.execute(f"INSERT INTO orders VALUES ({number}, 1, 0.25, '')")
            if number % 50 == 0:
                erp.execute(f"INSERT INTO notes VALUES ({number}, 'meanwhile')")
            assert service.call("GET", "/views/orders").json()["status"] != "failed"
            time.sleep(0.02)
        assert (points / f"source.start.found{REACHED}").exists()
        for view, query in (
            ("orders", ORDERS),
            ("notes", "SELECT id, text FROM notes ORDER BY 1"),
        ):
            shown = f"SELECT * FROM {view} ORDER BY 1"
            service.await_so(lambda q=query, s=shown: database.rows(s) == erp.rows(q))


def test_a_slot_is_lost_while_a_view_is_built(
    database: Database, erp: Database, tmp_path: Path
) -> None:
    """The live view and the one being built fail by name, and the others go on."""
    points = tmp_path / "points"
    points.mkdir()
    folder = tmp_path / "service"
    settings = {"failpoints_folder": points, "allow_own_database": True}
    with RunningService(database.dsn, folder, **settings) as service:
        declare(service, "erp", erp, "public.orders")
        service.create("orders", "SELECT count(*) AS n FROM erp.orders")
        service.create("here", "SELECT count(*) AS n FROM customers")
        arm(points, "build.stage.before", "sleep:3")
        service.create("amounts", "SELECT id, amount FROM erp.orders", wait_s=0)
        service.await_so(lambda: (points / f"build.stage.before{REACHED}").exists())
        slot = _slots(erp)[0]
        service.await_so(lambda: _is_dropped(erp, slot))
        for view in ("orders", "amounts"):
            assert service.await_status(view, "failed")["error"]["code"] == "source.slot_missing"
        database.execute("DELETE FROM customers WHERE id = 1")
        service.await_so(lambda: database.rows("SELECT n FROM here") == [(8,)])
        assert '"process.ended"' not in service.log_tail()
        # They are made again, with a new slot.
        for view in ("orders", "amounts"):
            service.call("POST", f"/views/{view}/rebuild")
            service.await_status(view, "live")
        erp.execute("DELETE FROM orders WHERE id = 1")
        service.await_so(lambda: database.rows("SELECT n FROM orders") == [(199,)])
        service.await_so(lambda: len(database.rows("SELECT FROM amounts")) == 199)


def _is_dropped(database: Database, slot: str) -> bool:
    """End the slot's reader and drop it; whether that was in time."""
    database.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
        f"WHERE slot_name = '{slot}' AND active"
    )
    try:
        database.execute(f"SELECT pg_drop_replication_slot('{slot}')")
    except psycopg2.errors.ObjectInUse:
        return False
    return True


def test_a_restored_state_reads_on_from_the_checkpoint(
    database: Database, erp: Database, tmp_path: Path
) -> None:
    """The slot still has what came after the copy; nothing is built again."""
    elsewhere, key = str(tmp_path / "elsewhere"), tmp_path / "copied.key"
    folder, often = tmp_path / "service", {"checkpoint_every_s": 0.5, "checkpoint_keep": 2}
    settings = {"checkpoint_to": elsewhere, "sync_interval_s": 0.2, **often}
    settings["allow_own_database"] = True
    with RunningService(database.dsn, folder, **settings) as service:
        declare(service, "erp", erp, "public.orders")
        service.create("orders", "SELECT count(*) AS n, sum(amount) AS amount FROM erp.orders")
        shown = "SELECT n, amount FROM orders"
        is_equal = lambda: database.rows(shown) == erp.rows(ORDERS)  # noqa: E731
        for number in range(1000, 1100):
            erp.execute(f"INSERT INTO orders VALUES ({number}, 1, 0.25, '')")
            time.sleep(0.03)
        service.await_so(is_equal)
        # From here on no copy is made, and the slot keeps what follows the newest ones.
        service.stop()
        service.set_variable("TIDEMARK_CHECKPOINT_EVERY_S", "3600")
        service.start()
        for number in range(1100, 1200):
            erp.execute(f"INSERT INTO orders VALUES ({number}, 1, 0.5, '')")
            time.sleep(0.02)
        service.await_so(is_equal)
        service.kill()
        shutil.copy(service.state / KEY_FILE, key)
        shutil.rmtree(service.state)
        erp.execute("DELETE FROM orders WHERE id < 50")
        command = [sys.executable, "-m", "service.cli.main", "restore", elsewhere]
        command += ["--state", str(service.state), "--key", str(key)]
        subprocess.run(command, check=True, timeout=120)
        service.start()
        service.await_so(is_equal)
        assert [one["event"] for one in service.events()].count("build.started") == 1
