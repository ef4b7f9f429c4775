"""Oracle: docs/REST.md's conventions, call by call; and schemathesis, which makes requests of the
OpenAPI description and holds every answer against it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness import figures, http
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.harness.tiers import count, is_fast
from tests.harness.waiting import wait_until

TABLES = "CREATE TABLE t (id int PRIMARY KEY, a int); INSERT INTO t VALUES (1, 2)"
PROBLEM = "application/problem+json"
# A few seconds an operation; the whole takes less than a minute.
EXAMPLES = count("TIDEMARK_TEST_EXAMPLES", 2, 6)
PHASES = "examples,fuzzing" if is_fast() else "examples,coverage,fuzzing"
FUZZING = (
    *(
        f"--max-examples={EXAMPLES}",
        f"--phases={PHASES}",
        "--seed=11",
        "--no-color",
    ),
    # A text that is no query, or a view that is not there, is refused whatever its form.
    *("--exclude-checks=positive_data_acceptance", "--request-timeout=20"),
    # A stream of changes has no end (tests/api/test_changes.py reads them).
    "--exclude-path-regex=/(changes|stream)$",
)
# Which of two faults of a request is told first is nobody's business: a tag that is old may be.
# A sink or a source that is asked for may be away, which is told as 503, and no fault of ours.
CONFIG = """[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 406, 409, 412, 415, 422, 428, 429, "5xx"]
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 503, 504]
"""


@pytest.fixture(scope="module")
def service(place: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with RunningService(place.dsn, tmp_path_factory.mktemp("rest")) as running:
        for name in ("a", "b", "c"):
            running.create(name, "SELECT id, a FROM t", backfill="local")
        yield running


def ask(service: RunningService, method: str, path: str, **options: Any) -> httpx.Response:
    return http.request(method, service.url + path, timeout=60, **options)


def code_of(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == PROBLEM, answer.text
    assert answer.json()["status"] == answer.status_code
    return answer.status_code, answer.json()["code"]


def test_methods_and_unknown_parameters(service: RunningService) -> None:
    answer = ask(service, "PATCH", "/views/a")
    assert code_of(answer) == (405, "request.invalid")
    assert answer.headers["allow"] == "DELETE, GET, HEAD"
    assert "HEAD" not in ask(service, "HEAD", "/views/a/changes").headers["allow"]
    assert code_of(ask(service, "GET", "/nowhere")) == (404, "request.invalid")
    answer = ask(service, "GET", "/views?wiat_s=1")
    assert code_of(answer) == (422, "request.invalid") and "wiat_s" in answer.json()["detail"]
    answer = ask(service, "GET", "/views?limit=2&limit=3")
    assert code_of(answer) == (422, "request.invalid") and "more than once" in answer.text
    whole, head = ask(service, "GET", "/sources"), ask(service, "HEAD", "/sources")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(whole.content))
    assert code_of(ask(service, "GET", "/views/nosuch")) == (404, "view.not_found")
    assert ask(service, "HEAD", "/views/nosuch").status_code == 404


def test_what_takes_longer_than_one_waits(service: RunningService) -> None:
    """The view is still being dropped; there is no body, as described."""
    service.create("dropped", "SELECT id FROM t", backfill="local")
    answer = ask(service, "DELETE", "/views/dropped?wait_s=0")
    assert (answer.status_code, answer.content) == (202, b"")
    for path in ("/views/{name}", "/views/{view}/sinks/{sink}"):
        described = ask(service, "GET", "/openapi.json").json()["paths"][path]["delete"]
        assert "content" not in described["responses"]["202"]
    wait_until(lambda: ask(service, "GET", "/views/dropped").status_code == 404)


def test_lists_in_pages(service: RunningService) -> None:
    assert ask(service, "GET", "/views").json()["next"] is None
    found, after = [], ""
    for _ in range(3):
        page = ask(service, "GET", "/views", params={"limit": 2, "after": after}).json()
        found += [view["name"] for view in page["views"]]
        after = page["next"]
        if after is None:
            break
    assert found == ["a", "b", "c"]
    assert ask(service, "GET", "/sources?limit=1").json() == {"sources": [], "next": None}
    for limit in ("0", "2.0", "+2.0", "x", ""):
        answer = ask(service, "GET", "/views", params={"limit": limit})
        assert code_of(answer) == (422, "request.invalid"), limit
    assert code_of(ask(service, "POST", "/views/a/verify?limit=0.0")) == (422, "request.invalid")
    assert code_of(ask(service, "GET", "/views?after=a..b")) == (400, "view.bad_name")


def test_tags(service: RunningService, place: Database) -> None:
    first = ask(service, "GET", "/views/a")
    tag = first.headers["etag"]
    known = {"If-None-Match": f'"other", {tag}'}
    deadline = 20
    while ask(service, "GET", "/views/a").headers["etag"] != tag and deadline:
        tag = ask(service, "GET", "/views/a").headers["etag"]
        known, deadline = {"If-None-Match": tag}, deadline - 1
    answer = ask(service, "GET", "/sources", headers={"If-None-Match": "*"})
    assert (answer.status_code, answer.content) == (304, b"")
    place.execute("INSERT INTO t VALUES (5, 6)")
    position = place.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
    service.wait("a", position)
    assert ask(service, "GET", "/views/a", headers=known).status_code == 200

    service.create("tagged", "SELECT id FROM t", backfill="local")
    old = {"If-Match": ask(service, "GET", "/views/tagged").headers["etag"]}
    service.drop("tagged")
    service.create("tagged", "SELECT a, id FROM t", backfill="local")
    changed = ask(service, "DELETE", "/views/tagged", headers=old)
    assert code_of(changed) == (412, "request.changed")
    new = {"If-Match": ask(service, "GET", "/views/tagged").headers["etag"]}
    # More rows are not another view.
    place.execute("INSERT INTO t VALUES (7, 8)")
    assert ask(service, "DELETE", "/views/tagged", headers=new).status_code == 204


def test_keys_of_repetition(service: RunningService) -> None:
    body = {"name": "once", "query": "SELECT id FROM t", "options": {"backfill": "local"}}
    key = {"Idempotency-Key": "k-1"}
    with ThreadPoolExecutor(4) as threads:
        jobs = [
            threads.submit(ask, service, "POST", "/views?wait_s=60", json=body, headers=key)
            for _ in range(4)
        ]
        answers = [job.result() for job in jobs]
    done = [a for a in answers if a.status_code == 201]
    assert done and all(
        code_of(a) == (409, "request.in_progress") for a in answers if a not in done
    )
    again = ask(service, "POST", "/views?wait_s=60", json=body, headers=key)
    assert again.status_code == 201 and again.content == done[0].content
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["location"] == done[0].headers["location"]
    other = ask(service, "POST", "/views?wait_s=60", json={**body, "name": "x"}, headers=key)
    assert code_of(other) == (422, "request.key_reused")
    bad = ask(service, "POST", "/views", json=body, headers={"Idempotency-Key": "a b"})
    assert code_of(bad) == (400, "request.invalid")
    plain = ask(service, "POST", "/views", json=body)
    assert code_of(plain) == (409, "view.name_taken")
    service.drop("once")


def test_a_key_of_a_process_that_died_is_free_at_once(
    service: RunningService, place: Database
) -> None:
    """The first request is stopped by a lock when its process is killed; that of another server,
    which nobody here can know to be dead, is waited for."""
    body = {"name": "late", "query": "SELECT id FROM t", "options": {"backfill": "local"}}
    path, key = "/views?wait_s=600", {"Idempotency-Key": "k-2"}
    lock = place.connect(autocommit=False)
    with ThreadPoolExecutor(1) as threads:
        lock.cursor().execute("LOCK TABLE t")
        first = threads.submit(ask, service, "POST", path, json=body, headers=key)
        wanted = "SELECT FROM tidemark.idempotency_keys WHERE status IS NULL AND key = 'k-2'"
        wait_until(lambda: bool(place.rows(wanted)))
        again = ask(service, "POST", path, json=body, headers=key)
        assert code_of(again) == (409, "request.in_progress")
        service.kill_child("api")
        assert isinstance(first.exception(), httpx.TransportError)
    lock.close()
    place.execute(
        "INSERT INTO tidemark.idempotency_keys (service, caller, path, key, fingerprint, server,"
        " process, good_until) SELECT service, caller, path, 'k-3', fingerprint, 'elsewhere',"
        " process, good_until FROM tidemark.idempotency_keys WHERE key = 'k-2'"
    )
    service.call("GET", "/health")
    again = ask(service, "POST", path, json=body, headers=key)
    assert again.status_code == 201 and "idempotency-replayed" not in again.headers
    other = ask(service, "POST", path, json=body, headers={"Idempotency-Key": "k-3"})
    assert code_of(other) == (409, "request.in_progress")
    service.drop("late")


def test_the_description_is_whole(service: RunningService) -> None:
    described = ask(service, "GET", "/openapi.json").json()
    for path, calls in described["paths"].items():
        for method, call in calls.items():
            problems = {s: r for s, r in call["responses"].items() if s[0] in "45d"}
            assert {"401", "404", "422", "500", "default"} <= problems.keys(), (method, path)
            for problem in problems.values():
                assert problem["content"][PROBLEM]["example"]["code"]
    assert "HTTPValidationError" not in json.dumps(described)


FILES = {"type": "files", "options": {"relations": {"r": {"path": "/a\0b"}}}}
WITH_NUL: list[tuple[str, str, Any]] = [
    *(("GET", path, None) for path in ("/sources/a%00", "/views/a%00", "/views/a%00/sinks")),
    *(("GET", f"/{path}?after=a%00", None) for path in ("sources", "views", "dead-letters")),
    *(("GET", f"/dead-letters?{name}=a%00", None) for name in ("source", "relation")),
    ("GET", "/views/a/rows?id=eq.1%00", None),
    ("GET", "/views/a/wait?position=0%00", None),
    ("DELETE", "/tokens/a%00", None),
    ("DELETE", "/views/a/sinks/a%00", None),
    ("POST", "/dead-letters/drop", {"source": "a\0"}),
    ("POST", "/dead-letters/retry", {"source": "a", "relation": "\0"}),
    ("POST", "/dead-letters/retry", {"source": "a", "relation": "b", "positions": ["0:\0"]}),
    ("POST", "/tokens", {"name": "a", "role": "reader", "db_role": "a\0"}),
    ("POST", "/sources", {"name": "nul", **FILES}),
    ("POST", "/sources/discover", FILES),
    ("PUT", "/sources/nul", {"options": {"relations": {"a\0": {}}}}),
    ("POST", "/views", {"name": "nul", "query": "SELECT id FROM t WHERE 'a\0' = 'b'"}),
    ("POST", "/views", {"name": "n\0l", "query": "SELECT id FROM t"}),
    ("POST", "/views/a/rename", {"name": "n\0l"}),
    ("POST", "/views/a/move", {"schema": "n\0l"}),
    ("POST", "/views/a/sinks", {"name": "s", "options": {"bootstrap": "a:1", "topic": "t\0"}}),
    ("POST", "/query", {"query": "SELECT 'a\0'"}),
]


@pytest.mark.parametrize(("method", "path", "body"), WITH_NUL)
def test_a_nul_is_refused_wherever_it_stands(
    service: RunningService, method: str, path: str, body: Any
) -> None:
    """PostgreSQL has no text with one."""
    options = {} if body is None else {"json": body}
    status, code = code_of(ask(service, method, path, **options))
    assert status in (400, 404, 422), code


@pytest.mark.parametrize("number", [True, "3"])
def test_a_number_is_a_number(service: RunningService, number: Any) -> None:
    query = {"query": "SELECT id FROM t"}
    for path, body in (
        ("/tokens", {"name": "numbers", "role": "reader", "expires_days": number}),
        *(("/query", {**query, name: number}) for name in ("limit", "timeout_s", "wait_s")),
        ("/views", {**query, "name": "numbers", "options": {"changes_retention_s": number}}),
    ):
        assert code_of(ask(service, "POST", path, json=body)) == (422, "request.invalid")


@pytest.mark.timeout(300 + 10 * EXAMPLES)
def test_requests_made_of_the_description(service: RunningService, tmp_path: Path) -> None:
    """With a token, since it makes tokens, after which everything needs one."""
    made = ask(service, "POST", "/tokens", json={"name": "fuzzing", "role": "admin"}).json()
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config)]
    command += ["run", f"{service.url}/openapi.json"]
    repeat = f"TIDEMARK_TEST_EXAMPLES={EXAMPLES} pytest tests/api/test_rest.py -k description"
    with figures.counted("requests", repeat) as run:
        done = subprocess.run(
            [*command, *FUZZING, "-H", f"Authorization: Bearer {made['token']}"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=250 + 10 * EXAMPLES,
            check=False,
        )
        run.count = EXAMPLES
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:] + service.log_tail()
