"""Oracle: PostgreSQL's own answer to the view's query; each target, read independently, has the
same rows at the epoch that the service reports, also after its pipeline was killed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from psycopg2.extensions import parse_dsn
from typer.testing import CliRunner

from service.cli.main import app
from service.metrics.metrics import read_metrics
from tests.harness.mariadb import MariaDb
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.harness.sinks import add_sink, await_sink, drop_sink, sink_of
from tests.harness.verdicts import WrongStateError, judged
from tests.harness.waiting import wait_until
from tests.harness.webhook_receiver import Receiver

ORDERS = """
CREATE TABLE orders (id int PRIMARY KEY, region text NOT NULL, amount numeric(12,2), note text);
INSERT INTO orders SELECT i, 'r' || i % 7, i / 4.0, CASE WHEN i % 3 = 0 THEN 'x' END
FROM generate_series(1, 500) i;
"""
KEYED = "SELECT region, count(*) AS n, sum(amount) AS total FROM orders GROUP BY region"
MULTISET = "SELECT region, note FROM orders WHERE id % 2 = 0"

pytestmark = pytest.mark.timeout(600)

Rows = Counter[tuple[Any, ...]]


def change(database: Database, step: int) -> None:
    database.execute("UPDATE orders SET amount = amount + 1 WHERE id %% 10 = %s", (step % 10,))
    database.execute("DELETE FROM orders WHERE id = %s", (step * 7,))
    database.execute("UPDATE orders SET region = 'new' WHERE id = %s", (step * 11,))


def settled(service: RunningService, database: Database, view: str) -> int:
    """The epoch of the view's table once it shows all that was committed."""
    position = database.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
    service.wait(view, position)
    return database.rows("SELECT epoch FROM tidemark.progress")[0][0]


def caught_up(service: RunningService, view: str, name: str, epoch: int) -> None:
    wait_until(lambda: (sink_of(service, view, name)["epoch"] or 0) >= epoch)


def skipped(service: RunningService, title: str) -> int:
    """How many messages a sink has left out."""
    return (read_metrics(service.state) or {})["sinks"][title]["skipped_total"]


@pytest.fixture
def shop(database: Database) -> Database:
    database.execute(ORDERS)
    return database


def postgres_options(other: Database) -> dict[str, Any]:
    keywords = parse_dsn(other.dsn)
    login = {"host": "127.0.0.1", "port": int(keywords["port"]), "user": keywords["user"]}
    return {**login, "database": keywords["dbname"]}


def compared(read: Callable[[str], list[tuple[Any, ...]]], database: Database) -> None:
    for view, query, columns in (
        ("totals", KEYED, "region, n, total"),
        ("notes", MULTISET, "region, note"),
    ):
        expected: Rows = Counter(database.rows(query))
        found: Rows = Counter(read(f"SELECT {columns} FROM {view}"))
        with judged(WrongStateError):
            assert found == expected, (view, found - expected, expected - found)


@pytest.mark.whole
def test_the_same_rows_in_another_postgres(shop: Database, other: Database, tmp_path: Path) -> None:
    with RunningService(shop.dsn, tmp_path, allow_own_database=True) as service:
        for view, query in (("totals", KEYED), ("notes", MULTISET)):
            service.create(view, query, backfill="local")
            add_sink(service, view, "copy", type_name="postgres", **postgres_options(other))
        for step in range(1, 15):
            change(shop, step)
            if step == 7:
                service.kill_child("pipeline")
        epoch = settled(service, shop, "totals")
        for view in ("totals", "notes"):
            caught_up(service, view, "copy", epoch)
        compared(other.rows, shop)
        again = {"name": "b", "type": "postgres", "options": postgres_options(other)}
        refused = service.call("POST", "/views/totals/sinks", again).json()
        assert refused["code"] == "sink.table_unfit"
        drop_sink(service, "totals", "copy", "?drop_data=true")
        assert other.rows("SELECT to_regclass('totals')::text") == [(None,)]
        other.execute("DROP VIEW notes; DROP TABLE _notes")
        change(shop, 15)
        failed = await_sink(service, "notes", "copy", status="failed")
        assert failed["error"]["code"] == "sink.lost"
        service.drop("totals")


@pytest.mark.whole
def test_the_same_rows_in_mariadb(shop: Database, mariadb: MariaDb, tmp_path: Path) -> None:
    options = {
        "host": "127.0.0.1",
        "port": mariadb.server.port,
        "user": "root",
        "database": mariadb.name,
    }

    def read(sql: str) -> list[tuple[Any, ...]]:
        if "notes" not in sql:
            return mariadb.rows(sql)
        rows = mariadb.rows(sql.replace(" FROM", ", tidemark_count FROM"))
        return [tuple(row) for *row, times in rows for _ in range(times)]

    with RunningService(shop.dsn, tmp_path) as service:
        for view, query in (("totals", KEYED), ("notes", MULTISET)):
            service.create(view, query, backfill="local")
            add_sink(service, view, "copy", type_name="mysql", **options)
        for step in range(1, 15):
            change(shop, step)
            if step == 7:
                service.kill_child("pipeline")
        epoch = settled(service, shop, "totals")
        for view in ("totals", "notes"):
            caught_up(service, view, "copy", epoch)
        compared(read, shop)
        drop_sink(service, "totals", "copy", "?drop_data=true")
        drop_sink(service, "notes", "copy", "?drop_data=true")
        assert mariadb.rows("SHOW TABLES") == []


@pytest.mark.whole
def test_the_same_rows_as_webhooks(shop: Database, receiver: Receiver, tmp_path: Path) -> None:
    """Added on the command line; what the receiver refuses is counted."""
    options = {
        "url": f"http://127.0.0.1:{receiver.port}/hooks",
        "secret": "${env:SECRET_WEBHOOK}",
        "on_refused": "skip",
        "part_rows": 3,
    }
    file = tmp_path / "options.json"
    file.write_text(json.dumps(options))
    with RunningService(shop.dsn, tmp_path / "service") as service:
        service.create("totals", KEYED, backfill="local")
        command = ["sinks", "create", "totals", "hook", str(file), "--type", "webhook"]
        done = CliRunner().invoke(app, [*command, "--url", service.url])
        assert done.exit_code == 0, done.output
        for step in range(1, 15):
            change(shop, step)
            if step == 7:
                service.kill_child("pipeline")
        epoch = settled(service, shop, "totals")
        caught_up(service, "totals", "hook", epoch)
        shown = Counter(tuple(json.loads(text).values()) for text in receiver.rows.elements())
        expected = Counter((n, region, str(total)) for region, n, total in shop.rows(KEYED))
        assert shown == expected
        receiver.before = lambda _: (422, {})
        change(shop, 15)
        caught_up(service, "totals", "hook", settled(service, shop, "totals"))
        wait_until(lambda: skipped(service, "public.totals/hook") > 0)
        receiver.before = lambda _: (410, {})
        change(shop, 16)
        failed = await_sink(service, "totals", "hook", status="failed")
        assert failed["error"]["code"] == "webhook.gone"
