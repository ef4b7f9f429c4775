"""Oracle: PostgreSQL's own answer to each view's query, its slots, and the folders on disk."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from storage.process_title import title_of
from tests.end_to_end.test_views import SHOP, assert_equal, flush_position
from tests.harness.postgres import Database
from tests.harness.service import RunningService

REGIONS = "SELECT region, count(*) AS n FROM customers GROUP BY region"
AMOUNTS = "SELECT customer_id, sum(amount) AS total FROM orders GROUP BY customer_id"
NOTES = "SELECT note, count(*) AS n FROM orders GROUP BY note"


def slots(database: Database) -> set[str]:
    found = database.rows(
        "SELECT slot_name FROM pg_replication_slots"
        " WHERE database = current_database() AND NOT temporary"
    )
    return {name for (name,) in found}


def named(database: Database, *names: str) -> set[str]:
    return {f"tidemark_{database.name}_{name}" for name in names}


def publications(database: Database) -> dict[str, set[str]]:
    found = database.rows("SELECT pubname, tablename FROM pg_publication_tables")
    names = {name for name, _ in found}
    return {name: {table for n, table in found if n == name} for name in names}


def pid_of_group(service: RunningService, group: str) -> int | None:
    for child in service._family():
        with contextlib.suppress(psutil.Error):
            if title_of(child.cmdline()) == f"pipeline {group}":
                return child.pid
    return None


def await_true(is_true: Callable[[], bool], service: RunningService, timeout_s: float = 60) -> None:
    service.await_so(is_true, timeout_s)


def check(service: RunningService, database: Database, views: dict[str, str]) -> None:
    position = flush_position(database)
    for name, query in views.items():
        service.wait(name, position, timeout_s=60)
        assert_equal(database, name, query)


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_groups_live_and_end_by_themselves(database: Database, tmp_path: Path) -> None:
    database.execute(SHOP)
    views = {"regions": REGIONS, "amounts": AMOUNTS, "notes": NOTES}
    with RunningService(database.dsn, tmp_path) as service:
        service.create("regions", REGIONS, backfill="local")
        service.create("amounts", AMOUNTS, backfill="local", group="sums")
        made = service.create("notes", NOTES, backfill="local", group="sums")
        assert made["group"] == "sums"
        assert slots(database) == named(database, "source", "source_sums")
        assert publications(database) == {
            "tidemark_source": {"customers"},
            "tidemark_source_sums": {"orders"},
        }
        database.execute("INSERT INTO orders VALUES (9001, 1, 5, 'new')")
        database.execute("INSERT INTO customers VALUES (900, 'x', 'far')")
        check(service, database, views)
        keys = database.rows("SELECT sink_key FROM tidemark.progress ORDER BY 1")
        assert keys == [("tidemark",), ("tidemark/sums",)]
        figures = service.call("GET", "/metrics").text
        assert 'tidemark_pipeline_up{group="default"} 1.0' in figures
        assert 'tidemark_pipeline_up{group="sums"} 1.0' in figures
        health = service.call("GET", "/health").json()
        assert health["status"] == "ok"
        assert list(health["groups"]) == ["sums"]

        service.drop("notes")
        assert slots(database) == named(database, "source", "source_sums")
        database.execute("UPDATE orders SET amount = amount + 1 WHERE id < 50")
        check(service, database, {"regions": REGIONS, "amounts": AMOUNTS})
        service.drop("amounts")
        await_true(lambda: pid_of_group(service, "sums") is None, service)
        assert slots(database) == named(database, "source")
        assert publications(database) == {"tidemark_source": {"customers"}}
        assert database.rows("SELECT sink_key FROM tidemark.progress") == [("tidemark",)]
        assert database.rows("SELECT name FROM tidemark.sources") == [("source",)]
        assert not (service.state / "groups" / "sums").exists()

        # The name can be used again, and outlives a restart of the service.
        service.create("amounts", AMOUNTS, backfill="local", group="sums")
        service.stop()
        database.execute("DELETE FROM orders WHERE id < 100")
        database.execute("UPDATE customers SET region = 'r9' WHERE id < 9")
        service.start()
        check(service, database, {"regions": REGIONS, "amounts": AMOUNTS})


@pytest.mark.timeout(600)
def test_one_group_is_killed_and_the_others_continue(database: Database, tmp_path: Path) -> None:
    database.execute(SHOP)
    with RunningService(database.dsn, tmp_path) as service:
        service.create("regions", REGIONS, backfill="local")
        service.create("amounts", AMOUNTS, backfill="local", group="sums")
        for round_ in range(3):
            before = service.pid_of("pipeline")
            victim = pid_of_group(service, "sums")
            assert victim is not None
            psutil.Process(victim).kill()
            database.execute(f"INSERT INTO customers VALUES ({1000 + round_}, 'k', 'killed')")
            database.execute(f"UPDATE orders SET amount = {round_} WHERE id < 30")
            check(service, database, {"regions": REGIONS})
            assert service.pid_of("pipeline") == before
            check(service, database, {"amounts": AMOUNTS})
            assert pid_of_group(service, "sums") not in (None, victim)


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_a_group_killed_in_its_last_drop_leaves_nothing(database: Database, tmp_path: Path) -> None:
    """State and catalog know nothing of the view any more, the folder and the slot are there."""
    database.execute(SHOP)
    with RunningService(database.dsn, tmp_path) as service:
        service.create("regions", REGIONS, backfill="local")
        service.create("amounts", AMOUNTS, backfill="local", group="sums")
        service.kill()
        database.execute(
            "DELETE FROM tidemark.views WHERE name = 'amounts'; DROP TABLE amounts;"
            "DELETE FROM tidemark.tables WHERE name = 'amounts'"
        )
        folder = service.state / "groups" / "sums"
        shutil.rmtree(folder / "store")
        service.start()
        await_true(lambda: not folder.exists(), service)
        await_true(lambda: slots(database) == named(database, "source"), service)
        check(service, database, {"regions": REGIONS})


@pytest.mark.whole
def test_what_groups_may_not_do(database: Database, tmp_path: Path) -> None:
    database.execute(SHOP)
    with RunningService(database.dsn, tmp_path) as service:
        service.create("regions", REGIONS, backfill="local")
        body = {
            "name": "above",
            "query": "SELECT max(n) AS most FROM regions",
            "options": {"group": "sums"},
        }
        answer = service.call("POST", "/views", body)
        assert (answer.status_code, answer.json()["code"]) == (422, "view.other_group")
        for name in ("source", "Sums", "a_b", "a" * 25, "", "9a"):
            body = {"name": "x", "query": REGIONS, "options": {"group": name}}
            answer = service.call("POST", "/views", body)
            assert (answer.status_code, answer.json()["code"]) == (422, "request.invalid"), name
        # In one group views read one another as ever.
        service.create("above", "SELECT max(n) AS most FROM regions", backfill="local")
        check(service, database, {"above": "SELECT max(n) AS most FROM regions"})
        assert not (service.state / "groups").exists()
