"""Oracle: docs/SECURITY.md: a database role that cannot be acted for may do nothing, and nothing
runs with the service's rights in its place."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import psycopg2
import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from service.access.operations import STREAMS
from tests.harness import http
from tests.harness.postgres import Database, new_database
from tests.harness.psql import as_role, give_query_role, roles
from tests.harness.service import RunningService

TRACE = "SELECT count(*) FROM secret"
CALLS: list[tuple[str, str, Any]] = [
    ("GET", "/views", None),
    ("GET", "/overview", None),
    ("GET", "/views/mine", None),
    ("GET", "/views/mine/plan", None),
    ("GET", "/views/mine/rows", None),
    ("GET", "/views/mine/changes", None),
    ("GET", "/views/mine/stream", None),
    ("GET", "/views/mine/errors", None),
    ("GET", "/dead-letters", None),
    ("POST", "/views/mine/verify", None),
    ("POST", "/query", {"query": TRACE}),
    ("POST", "/query", {"query": "SELECT id FROM mine"}),
    ("POST", "/views/validate", {"query": TRACE}),
    ("POST", "/views", {"name": "leak", "query": "SELECT id FROM secret"}),
    ("POST", "/views/mine/replace", {"query": "SELECT id FROM secret"}),
    ("POST", "/views/mine/rename", {"name": "other"}),
    ("POST", "/views/mine/rebuild", None),
    ("DELETE", "/views/mine", None),
    ("POST", "/views/mine/sinks", {"name": "s", "type": "kafka", "options": {}}),
]


@dataclass
class Place:
    """A service that is no superuser, and an operator's token of a role that owns view mine."""

    database: Database
    service: RunningService
    own: str
    clerk: str
    headers: dict[str, str]

    def refusals(self) -> set[tuple[int, str]]:
        """(status, code) of what is asked in every way."""
        found = set()
        for method, path, body in CALLS:
            client, headers = self.service.client, self.headers
            with client.stream(method, path, json=body, headers=headers, timeout=60) as answer:
                is_stream = answer.status_code == 200 and path.endswith(STREAMS)
                told = "" if is_stream else answer.read() and answer.text
                code = answer.json().get("code", "") if told else ""
                found.add((answer.status_code, code))
        return found


@pytest.fixture
def place(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with new_database(postgres) as database:
        own, clerk = f"svc_{database.name}", f"clerk_{database.name}"
        with roles(database, own, clerk):
            database.execute(
                f"ALTER ROLE {own} REPLICATION; GRANT {clerk} TO {own};"
                f"GRANT CREATE, TEMPORARY ON DATABASE {database.name} TO {own};"
                f"GRANT CREATE ON SCHEMA public TO {own}, {clerk};"
                "CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (1);"
                "CREATE TABLE secret (id int PRIMARY KEY); INSERT INTO secret VALUES (42);"
                f"ALTER TABLE orders OWNER TO {own}; ALTER TABLE secret OWNER TO {own};"
                f"GRANT SELECT ON orders TO {clerk}"
            )
            give_query_role(database, own)
            dsn = f"{database.dsn} user={own}"
            with RunningService(dsn, tmp_path_factory.mktemp("lost")) as service:
                tokens = {}
                for name, level, role in (("admin", "admin", None), ("clerk", "operator", clerk)):
                    body = {"name": name, "role": level, "db_role": role}
                    made = http.post(
                        f"{service.url}/tokens", json=body, headers=tokens.get("admin"), timeout=60
                    )
                    assert made.status_code == 201, made.text
                    tokens[name] = {"Authorization": f"Bearer {made.json()['token']}"}
                body = {"name": "mine", "query": "SELECT id FROM orders"}
                url = f"{service.url}/views?wait_s=60"
                made = http.post(url, json=body, headers=tokens["clerk"], timeout=90)
                assert made.json()["status"] == "live", made.text
                yield Place(database, service, own, clerk, tokens["clerk"])


def _is_untouched(place: Place) -> bool:
    found = place.database.rows(
        "SELECT name, query, desired, change FROM tidemark.views ORDER BY name"
    )
    return found == [("mine", "SELECT id FROM orders", "live", None)]


@pytest.mark.whole
def test_a_role_that_the_service_is_no_member_of_any_more(place: Place) -> None:
    stream_url = f"{place.service.url}/views/mine/changes"
    ended = threading.Event()

    def follow() -> None:
        with (
            contextlib.suppress(httpx.RemoteProtocolError),
            http.stream("GET", stream_url, headers=place.headers, timeout=60) as answer,
        ):
            for _ in answer.iter_raw():
                continue
        ended.set()

    threading.Thread(target=follow, daemon=True).start()
    time.sleep(1)
    assert not ended.is_set()
    place.database.execute(f"REVOKE {place.clerk} FROM {place.own}")
    assert place.refusals() == {(403, "auth.db_role")}
    # What has begun before ends by itself.
    assert ended.wait(15)
    assert _is_untouched(place)
    place.database.execute(f"GRANT {place.clerk} TO {place.own}")
    url = f"{place.service.url}/views/mine/rows"
    assert http.get(url, headers=place.headers, timeout=60).json()["rows"] == [{"id": 1}]


@pytest.mark.whole
def test_a_role_that_became_a_superuser(place: Place) -> None:
    place.database.execute(f"ALTER ROLE {place.clerk} SUPERUSER")
    try:
        assert place.refusals() == {(403, "auth.db_role")}
    finally:
        place.database.execute(f"ALTER ROLE {place.clerk} NOSUPERUSER")
    assert _is_untouched(place)


def test_a_role_that_was_dropped(place: Place) -> None:
    """Also once another role has its name; tests/security/test_identities.py has what follows."""
    place.database.execute(
        f"REASSIGN OWNED BY {place.clerk} TO {place.own}; DROP OWNED BY {place.clerk};"
        f"DROP ROLE {place.clerk}"
    )
    try:
        assert place.refusals() == {(403, "auth.db_role")}
    finally:
        place.database.execute(
            f"CREATE ROLE {place.clerk} LOGIN; GRANT {place.clerk} TO {place.own};"
            f"GRANT SELECT ON orders TO {place.clerk}"
        )
    assert place.refusals() == {(403, "auth.db_role")}
    assert _is_untouched(place)


@pytest.mark.whole
def test_a_request_in_psql_whose_role_is_gone(place: Place) -> None:
    """It was written while the role was there, and is taken up when it is not."""
    passing = f"passing_{place.database.name}"
    place.database.execute(
        f"CREATE ROLE {passing} LOGIN; GRANT USAGE ON SCHEMA tidemark TO {passing};"
        f"GRANT EXECUTE ON PROCEDURE tidemark.drop_view, tidemark.create_view TO {passing}"
    )
    place.service.stop()
    asked = (
        """CALL tidemark.drop_view('mine', '{"wait": false}')""",
        """CALL tidemark.create_view('leak', 'SELECT id FROM secret', '{"wait": false}')""",
    )
    try:
        for statement in asked:
            as_role(place.database, passing, statement)
    finally:
        place.database.execute(f"DROP OWNED BY {passing}; DROP ROLE {passing}")
    place.service.start()
    until = time.monotonic() + 60
    states: list[Any] = []
    while not states or any(status != "failed" for status, _ in states):
        assert time.monotonic() < until, states
        time.sleep(0.1)
        states = place.database.rows("SELECT status, code FROM tidemark.requests ORDER BY id")
    assert states == [("failed", "auth.db_role")] * 2
    assert _is_untouched(place)
    with pytest.raises(psycopg2.Error):
        place.database.rows("SELECT * FROM leak")
