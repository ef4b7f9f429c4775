"""Oracle: docs/ERRORS.md: the meaning of each code, brought about at a real service, gives it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness import http
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, a int, at timestamptz);
INSERT INTO t VALUES (1, 2, now());
CREATE TABLE keyless (n int, at timestamptz);
ALTER TABLE keyless REPLICA IDENTITY FULL;
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child () INHERITS (parent)
"""
COUNT = "SELECT count(*) AS n FROM"
LATE = {"lateness": {"keyless.at": "1 minute"}}
LATE_T = {"lateness": {"t.at": "1 minute"}}
LOOP = """WITH RECURSIVE r(id) AS (SELECT id FROM t UNION SELECT r.id + 1 FROM r JOIN t ON r.id < 9)
SELECT id FROM r"""


@pytest.fixture(scope="module")
def service(place: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """Source and sink are two databases; one reader of changes may be connected."""
    folder = tmp_path_factory.mktemp("inbox")
    (folder / "a.csv").write_text("id\n1\n")
    relation = {"path": f"{folder}/*.csv", "columns": [{"name": "id", "type": "int"}]}
    body = {"name": "feed", "type": "files", "options": {"relations": {"rows": relation}}}
    settings: dict[str, Any] = {"allow_folders": folder, "changes_readers": 1}
    with (
        new_database(place.server) as sink,
        RunningService(
            place.dsn, tmp_path_factory.mktemp("codes"), sink=sink.dsn, **settings
        ) as running,
    ):
        assert running.call("POST", "/sources", body).status_code == 201
        running.create("v", "SELECT id, a FROM t", backfill="local")
        running.create("f", f"{COUNT} feed.rows", backfill="local")
        yield running


def _code(service: RunningService, method: str, path: str, **more: Any) -> str:
    answer = http.request(method, service.url + path, timeout=60, **more)
    return answer.json().get("code", f"HTTP {answer.status_code}: {answer.text}")


def _validated(service: RunningService, query: str, **options: Any) -> str:
    body = {"query": query, "options": options}
    return _code(service, "POST", "/views/validate", json=body)


def test_requests(service: RunningService) -> None:
    new = {"name": "w", "query": "SELECT 1 AS x"}
    assert _code(service, "GET", "/views", headers={"Host": "evil.example"}) == "request.host"
    origin = {"Origin": "http://evil.example"}
    assert _code(service, "POST", "/views", json=new, headers=origin) == "request.origin"
    assert _code(service, "DELETE", "/tokens/nobody") == "token.not_found"
    assert _code(service, "GET", "/assets/gone.js") == "console.not_found"


def test_queries(service: RunningService) -> None:
    asked = {"query": "SELECT * FROM feed.rows"}
    assert _code(service, "POST", "/query", json=asked) == "query.feed_not_kept"
    both = {"query": "SELECT * FROM v JOIN t USING (id)"}
    assert _code(service, "POST", "/query", json=both) == "query.two_databases"
    assert _code(service, "POST", "/views/f/verify") == "verify.not_in_database"
    with service.client.stream("GET", "/views/v/changes") as first:
        assert first.status_code == 200
        assert _code(service, "GET", "/views/v/changes") == "changes.too_many"


def test_views(service: RunningService, place: Database) -> None:
    assert _validated(service, f"{COUNT} parent") == "source.inheritance"
    assert _validated(service, f"{COUNT} keyless", **LATE) == "lateness.needs_key"
    assert _validated(service, LOOP, **LATE_T) == "lateness.recursive"
    place.execute("CREATE ROLE ordinary")
    try:
        place.execute("CREATE TYPE pair AS (x int, y int); ALTER TYPE pair OWNER TO ordinary")
        assert _validated(service, "SELECT id, (id, a)::pair AS p FROM t") == "sql.untrusted_type"
    finally:
        place.execute("DROP TYPE pair; DROP ROLE ordinary")
    available = "SELECT FROM pg_available_extensions WHERE name = 'tablefunc'"
    if place.rows(available):
        place.execute("CREATE EXTENSION tablefunc")
        crosstab = "SELECT * FROM crosstab('SELECT 1, 1, 1') AS c (id int, x int)"
        assert _validated(service, crosstab) in ("sql.extension_function", "sql.volatile_function")
        place.execute("DROP EXTENSION tablefunc")
