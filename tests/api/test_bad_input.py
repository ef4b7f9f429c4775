"""Oracle: docs/ERRORS.md and docs/SQL.md: every refusal has its status, code, position and hint,
and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.postgres import Database
from tests.harness.service import RunningService

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, a int, b text);
CREATE TABLE keyless (a int);
CREATE TABLE taken (a int);
"""


@pytest.fixture(scope="module")
def service(place: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with RunningService(place.dsn, tmp_path_factory.mktemp("service")) as running:
        yield running


REFUSALS = [
    ("bad..name", "SELECT id FROM t", 400, "view.bad_name", None),
    ("pg_catalog.x", "SELECT id FROM t", 400, "view.bad_name", None),
    ("taken", "SELECT id FROM t", 409, "sink.name_taken", None),
    ("nowhere.x", "SELECT id FROM t", 422, "sink.schema_missing", None),
    ("v", "SELEC id FROM t", 400, "sql.not_a_select", (1, 1)),
    ("v", "SELECT id FRM t x", 400, "sql.syntax_error", (1, 15)),
    ("v", "SELECT id,\n  nosuch FROM t", 400, "sql.undefined_column", (2, 3)),
    ("v", "SELECT * FROM nosuch", 400, "sql.undefined_table", (1, 15)),
    ("v", "DELETE FROM t", 400, "sql.not_a_select", None),
    ("v", "SELECT 1; DROP TABLE t", 400, "sql.many_statements", (1, 9)),
    ("v", "SELECT id, random() AS r FROM t", 400, "sql.volatile_function", None),
    ("v", "SELECT a FROM keyless", 422, "source.no_identity", None),
    (
        "v",
        "SELECT id, count(*) OVER (ORDER BY id ROWS -1 PRECEDING) AS n FROM t",
        400,
        "sql.not_maintained",
        None,
    ),
]


@pytest.mark.parametrize(("name", "query", "status", "code", "position"), REFUSALS)
def test_refused(
    service: RunningService,
    place: Database,
    name: str,
    query: str,
    status: int,
    code: str,
    position: tuple[int, int] | None,
) -> None:
    answer = service.call("POST", "/views", {"name": name, "query": query})
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code), problem
    assert answer.headers["content-type"] == "application/problem+json"
    if position is not None:
        assert (problem["position"]["line"], problem["position"]["column"]) == position
    if code in ("sql.not_maintained", "source.no_identity", "sql.volatile_function"):
        assert problem["hint"], problem
    assert place.rows("SELECT count(*) FROM tidemark.views") == [(0,)]
    assert place.rows("SELECT count(*) FROM pg_publication") == [(0,)]


def test_second_view_of_a_name(service: RunningService) -> None:
    service.create("twice", "SELECT id FROM t", backfill="local")
    answer = service.call("POST", "/views", {"name": "TWICE", "query": "SELECT a FROM t"})
    assert (answer.status_code, answer.json()["code"]) == (409, "view.name_taken")
    service.drop("twice")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "x"},
        {"name": "x", "query": ""},
        {"name": "x", "query": "SELECT 1", "options": {"backfill": "maybe"}},
        {"name": "x", "query": "SELECT 1", "options": {"nosuch": 1}},
        {"name": "x", "query": 5},
        [],
    ],
)
def test_malformed_request(service: RunningService, body: object) -> None:
    answer = service.call("POST", "/views", body)
    assert (answer.status_code, answer.json()["code"]) == (422, "request.invalid")


def test_unknown_view(service: RunningService) -> None:
    for method, path in [
        ("GET", "/views/nosuch"),
        ("DELETE", "/views/nosuch"),
        ("GET", "/views/nosuch/plan"),
        ("GET", "/views/nosuch/wait?position=0/1"),
    ]:
        answer = service.call(method, path)
        assert (answer.status_code, answer.json()["code"]) == (404, "view.not_found"), path


def test_validate_creates_nothing(service: RunningService, place: Database) -> None:
    query = "SELECT b, count(*) AS n, max(to_tsvector('simple', b)::text) AS v FROM t GROUP BY b"
    answer = service.call("POST", "/views/validate", {"query": query})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert [f["name"] for f in found["fields"]] == ["b", "n", "v"]
    assert found["kind"] == "multiset"
    assert any("to_tsvector" in sql for sql in found["in_postgres"])
    assert place.rows("SELECT count(*) FROM tidemark.views") == [(0,)]


def test_plan_health_metrics(service: RunningService) -> None:
    service.create("planned", "SELECT a, count(*) AS n FROM t GROUP BY a", backfill="local")
    plan = service.call("GET", "/views/planned/plan").json()
    assert "aggregate" in plan["text"].lower()
    assert service.call("GET", "/health").json()["status"] == "ok"
    text = service.call("GET", "/metrics").text
    assert 'tidemark_view_live{view="public.planned"} 1.0' in text
    assert 'tidemark_pipeline_up{group="default"} 1.0' in text
    service.drop("planned")


def _serve(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "service.cli.main", "serve", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_unreachable_source(tmp_path: Path) -> None:
    dsn = "host=127.0.0.1 port=1 user=nobody password=sesame dbname=x"
    ended = _serve("--source", dsn, "--state", str(tmp_path))
    assert ended.returncode == 1
    assert "source.unreachable" in ended.stderr
    assert "sesame" not in ended.stderr
