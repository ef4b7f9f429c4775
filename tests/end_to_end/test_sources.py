"""Oracle: PostgreSQL's answer over a table that is filled from the same files by Python."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService

SPENT = (
    "SELECT c.region, count(*) AS n, sum(p.price) AS spent "
    "FROM shop.purchases p JOIN customers c ON c.id = p.customer GROUP BY c.region"
)


def _options(folder: Path, **more: Any) -> dict[str, Any]:
    relation = {
        "path": f"{folder}/*.csv",
        "columns": [
            {"name": "id", "type": "bigint"},
            {"name": "customer", "type": "integer"},
            {"name": "price", "type": "numeric(10,2)"},
        ],
        "settle_ms": 50,
        "poll_interval_ms": 50,
        **more,
    }
    return {"relations": {"purchases": relation}}


def _write(path: Path, rows: list[tuple[Any, ...]]) -> None:
    part = path.with_suffix(".part")
    with part.open("w", newline="") as file:
        csv.writer(file).writerows([("id", "customer", "price"), *rows])
    part.rename(path)


@pytest.fixture(scope="module")
def place(postgres: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(postgres) as made:
        yield made


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the folders of the tests are."""
    return tmp_path_factory.mktemp("shops")


@pytest.fixture(scope="module")
def running(
    place: Database, folders: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("service")
    with RunningService(place.dsn, folder, allow_folders=folders) as started:
        yield started


@pytest.fixture
def database(place: Database) -> Database:
    """The module's, with the table of before."""
    place.execute("DROP TABLE IF EXISTS customers")
    place.execute("CREATE TABLE customers (id integer PRIMARY KEY, region text NOT NULL)")
    place.execute("INSERT INTO customers SELECT n, 'r' || n % 3 FROM generate_series(1, 9) n")
    return place


@pytest.fixture
def folder(folders: Path, request: pytest.FixtureRequest) -> Path:
    """Of this test's records."""
    made = folders / request.node.name
    made.mkdir()
    return made


@pytest.fixture
def service(database: Database, running: RunningService) -> Iterator[RunningService]:
    """The module's, with no view and no source."""
    yield running
    running.clear()


def _declare(service: RunningService, options: dict[str, Any]) -> None:
    answer = service.call("POST", "/sources", {"name": "shop", "type": "files", "options": options})
    assert answer.status_code == 201, answer.text


def _await(database: Database, expected: list[tuple[Any, ...]], service: RunningService) -> None:
    deadline = time.monotonic() + 60
    while True:
        found = database.rows("SELECT region, n, spent::text FROM spent ORDER BY 1")
        if found == expected:
            return
        assert time.monotonic() < deadline, f"{found}\n{service.log_tail()}"
        time.sleep(0.02)


def _read_folder(database: Database, folder: Path) -> list[tuple[Any, ...]]:
    """The query's answer over the folder as it is now."""
    rows = []
    for path in folder.glob("*.csv"):
        with path.open() as file:
            rows += list(csv.reader(file))[1:]
    database.execute("DROP TABLE IF EXISTS read_purchases")
    database.execute(
        "CREATE TABLE read_purchases (id bigint, customer integer, price numeric(10,2))"
    )
    for row in rows:
        database.execute("INSERT INTO read_purchases VALUES (%s, %s, %s)", row)
    query = SPENT.replace("shop.purchases", "read_purchases")
    return database.rows(f"SELECT region, n, spent::text FROM ({query}) q ORDER BY 1")


@pytest.mark.whole
def test_sources_are_declared_changed_and_dropped(
    service: RunningService, database: Database, folder: Path
) -> None:
    _write(folder / "a.csv", [(1, 1, "2.50"), (2, 2, "1.25"), (3, 4, "10")])
    _declare(service, _options(folder))
    service.create("spent", SPENT, backfill="local")
    _await(database, _read_folder(database, folder), service)
    _write(folder / "b.csv", [(4, 3, "0.01"), (5, 3, "0.02")])
    _await(database, _read_folder(database, folder), service)
    _write(folder / "a.csv", [(1, 1, "2.75")])
    _await(database, _read_folder(database, folder), service)
    database.execute("UPDATE customers SET region = 'moved' WHERE id = 3")
    _await(database, _read_folder(database, folder), service)
    (folder / "b.csv").unlink()
    _await(database, _read_folder(database, folder), service)
    service.kill_child("pipeline")
    _write(folder / "c.csv", [(6, 9, "7")])
    _await(database, _read_folder(database, folder), service)
    service.create("prices", "SELECT id, price FROM shop.purchases", backfill="local")
    assert database.rows("SELECT count(*) FROM prices") == [(2,)]
    shown = service.call("GET", "/sources/shop").json()
    assert shown["relations"][0]["views"] == ["public.spent", "public.prices"]
    refusal = service.call("DELETE", "/sources/shop")
    assert refusal.status_code == 409 and refusal.json()["code"] == "source.in_use"
    for name in ("spent", "prices"):
        service.drop(name)
    assert service.call("DELETE", "/sources/shop").status_code == 204


def test_records_that_are_not_rows_wait_for_their_repair(
    service: RunningService, database: Database, folder: Path
) -> None:
    _write(folder / "a.csv", [(1, 1, "2.50"), (2, 2, "much")])
    _declare(service, _options(folder, on_error="dead_letter"))
    service.create("spent", SPENT, backfill="local")
    _write(folder / "b.csv", [(3, 3, "much too much"), (4, 3, "1")])
    _await(database, [("r0", 1, "1.00"), ("r1", 1, "2.50")], service)
    letters = service.call("GET", "/dead-letters?source=shop").json()["dead_letters"]
    assert [letter["position"] for letter in letters] == ["a.csv:3", "b.csv:2"]
    assert service.call("GET", "/sources/shop").json()["relations"][0]["dead_letters"] == 2
    chosen = {"source": "shop", "relation": "purchases"}
    retried = service.call("POST", "/dead-letters/retry", {**chosen, "positions": ["a.csv:3"]})
    assert retried.json() == {"count": 1}
    dropped = service.call("POST", "/dead-letters/drop", {**chosen, "places": ["b.csv:2"]})
    assert dropped.json() == {"count": 1}
    deadline = time.monotonic() + 60
    while True:
        letters = service.call("GET", "/dead-letters?source=shop").json()["dead_letters"]
        if [(x["position"], x["desired"]) for x in letters] == [("a.csv:3", None)]:
            break
        assert time.monotonic() < deadline, f"{letters}\n{service.log_tail()}"
        time.sleep(0.05)
