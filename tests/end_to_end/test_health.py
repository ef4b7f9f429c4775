"""Oracle: docs/OPERATING.md: whoever is asked, REST, psql, the command line or the metrics, says
the same of a source that stops, a pipeline that ends, and a service that is gone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.cli.main import app
from tests.harness.postgres import Database
from tests.harness.service import RunningService

COLUMNS = [{"name": "id", "type": "int4"}, {"name": "price", "type": "int4"}]
VIEWS = {
    "orders_of": "SELECT id FROM orders",
    "prices_of": "SELECT id, price FROM depot.prices",
    "above": "SELECT count(*) AS n FROM prices_of",
}
STATUS = "SELECT name, status, code FROM tidemark.status ORDER BY name"
WELL = [("above", "live", None), ("orders_of", "live", None), ("prices_of", "live", None)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "in"
    found.mkdir()
    (found / "a.csv").write_text("id,price\n1,2\n")
    return found


@pytest.fixture
def service(database: Database, tmp_path: Path, folder: Path) -> Iterator[RunningService]:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (1)")
    relation = {"path": f"{folder}/*.csv", "columns": COLUMNS, "on_error": "fail"}
    options = {"relations": {"prices": relation}, "poll_interval_ms": 50, "settle_ms": 1}
    with RunningService(database.dsn, tmp_path / "service", allow_folders=folder) as running:
        body = {"name": "depot", "type": "files", "options": options}
        assert running.call("POST", "/sources", body).status_code == 201
        for name, query in VIEWS.items():
            view = running.create(name, query, backfill="local")
            assert view["live_at"] and view["backfill"] is None, view
        yield running


def command(service: RunningService, *words: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, [*words, "--url", service.url], env=dict(os.environ))
    return found.exit_code, found.output


def statuses(service: RunningService) -> dict[str, str]:
    return {v["name"]: v["status"] for v in service.call("GET", "/views").json()["views"]}


@pytest.mark.whole
def test_all_faces_say_the_same(service: RunningService, database: Database, folder: Path) -> None:
    service.await_so(lambda: database.rows(STATUS) == WELL)
    assert database.rows("SELECT status, reasons FROM tidemark.health") == [("ok", [])]
    _a_source_stops(service, database, folder)
    _the_pipeline_ends_again_and_again(service, database)
    service.stop()
    gone = [("degraded", "service.absent")] * 3
    shown = "SELECT status, code FROM tidemark.status"
    # What it wrote last was a moment ago, and may be another's.
    database.execute("UPDATE tidemark.progress SET updated_at = now() - interval '1 minute'")
    assert database.rows(shown) == gone
    assert database.rows("SELECT status FROM tidemark.health") == [("degraded",)]


def _a_source_stops(service: RunningService, database: Database, folder: Path) -> None:
    (folder / "b.csv").write_text("id,price\n2,much\n")
    service.await_status("prices_of", "degraded")
    assert statuses(service) == {"orders_of": "live", "prices_of": "degraded", "above": "degraded"}
    error = service.call("GET", "/views/above").json()["error"]
    assert error["code"] == "source.bad_record" and error["hint"], error
    health = service.call("GET", "/health")
    assert (health.status_code, health.json()["status"]) == (503, "degraded")
    assert 'source "depot" is stopped' in health.json()["reasons"][0]
    stopped = "degraded", "source.bad_record"
    service.await_so(
        lambda: database.rows(STATUS) == [("above", *stopped), WELL[1], ("prices_of", *stopped)]
    )
    told = database.rows("SELECT name, status, code FROM tidemark.source_status WHERE type='files'")
    assert told == [("depot", "stopped", "source.bad_record")]
    [(status, reasons)] = database.rows("SELECT status, reasons FROM tidemark.health")
    assert status == "degraded" and "depot" in reasons[0]
    metrics = service.call("GET", "/metrics").text
    assert "tidemark_healthy 0.0" in metrics
    assert 'tidemark_view_degraded{view="public.above"} 1.0' in metrics
    assert 'tidemark_source_stopped{group="default",source="depot"} 1.0' in metrics
    code, said = command(service, "health")
    assert code == 1 and "source.bad_record" in said
    assert "degraded" in command(service, "list")[1]
    overview = service.call("GET", "/overview").json()
    assert overview["status"] == "degraded"
    assert {v["name"]: v["status"] for v in overview["views"]} == statuses(service)
    # By itself it is tried every thirty seconds.
    (folder / "b.csv").write_text("id,price\n2,3\n")
    assert service.call("POST", "/sources/nosuch/retry").status_code == 404
    code, said = command(service, "sources", "retry", "depot")
    assert code == 0 and "depot is being retried" in said
    assert service.await_so(lambda: database.rows("SELECT n FROM above") == [(2,)]) < 15
    service.await_so(lambda: service.call("GET", "/health").json()["reasons"] == [])
    service.await_so(lambda: database.rows(STATUS) == WELL)


def _the_pipeline_ends_again_and_again(service: RunningService, database: Database) -> None:
    service.await_so(lambda: service.kill_child("pipeline"))
    service.await_so(lambda: "pipeline.restarting" in service.call("GET", "/health").text)
    for _ in range(2):
        service.await_so(lambda: service.kill_child("pipeline"))
        service.await_so(lambda: service.pid_of("pipeline") is not None)
    again = [("degraded", "pipeline.restarting")] * 3
    service.await_so(lambda: database.rows("SELECT status, code FROM tidemark.status") == again)
    service.await_so(lambda: "times within a minute" in service.call("GET", "/health").text)
    assert service.call("GET", "/health").status_code == 503
    assert set(statuses(service).values()) == {"degraded"}
