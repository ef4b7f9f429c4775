"""Oracle: docs/SECURITY.md: a token is its id and a role its OID. A name that is given again names
somebody else, and a renamed role keeps what it has."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from connectors.postgres.catalog.catalog import Control
from connectors.postgres.embedded.server import EmbeddedPostgres
from service.access.tokens import Tokens
from service.api import request_guard
from service.api.app import create_app
from service.runtime.settings import Settings
from tests.harness import http
from tests.harness.postgres import Database, new_database
from tests.harness.psql import as_role, roles
from tests.harness.service import RunningService

HISTORY = {"backfill": "local", "history": "1 hour"}


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# --- tokens ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(postgres) as made:
        yield made


@pytest.fixture(scope="module")
def app(database: Database, tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    made = create_app(_settings(database, tmp_path_factory.mktemp("state")))
    made.state.tokens.create("admin", "admin")
    return made


def _settings(database: Database, folder: Path) -> Settings:
    return Settings.model_validate({"source": database.dsn, "sink": database.dsn, "state": folder})


def _scope(kind: str, path: str, token: str) -> dict[str, Any]:
    headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {token}".encode())]
    facts = {"type": kind, "path": path, "headers": headers, "query_string": b""}
    return facts if kind == "websocket" else {**facts, "method": "GET"}


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("http", "/views/v/changes"),
        ("http", "/views/v/stream"),
        ("websocket", "/views/v/changes/ws"),
        ("http", "/views/v/wait"),
        ("http", "/views/v/rows"),
    ],
)
def test_a_call_ends_with_its_token_though_another_gets_its_name(
    app: FastAPI, database: Database, tmp_path: Path, kind: str, path: str
) -> None:
    """Revoked by another process, which makes a token of the same name at once."""
    tokens: Tokens = app.state.tokens
    elsewhere = Tokens(Control(database.dsn))
    name = f"{kind}{path.replace('/', '-')}"
    token, staying = tokens.create(name, "reader")[0], tokens.create(f"{name}2", "reader")[0]
    release = asyncio.Event()

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        """A stream until it is disconnected, or a call that waits."""
        if path.endswith(("/wait", "/rows")):
            await release.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"rows"})
            return
        assert (await receive())["type"] == f"{kind}.disconnect"

    guard = request_guard.Guard(
        waits, _settings(database, tmp_path), tokens, app.state.authorization
    )

    async def run() -> None:
        sent: dict[str, list[Any]] = {token: [], staying: []}

        async def nothing() -> Any:
            await asyncio.Event().wait()

        def call(with_token: str) -> asyncio.Task[None]:
            async def put(message: Any) -> None:
                sent[with_token].append(message.get("status") or message.get("body"))

            scope = _scope(kind, path, with_token)
            return asyncio.create_task(guard(scope, nothing, put))

        calls = {with_token: call(with_token) for with_token in sent}
        await asyncio.sleep(0.5)
        assert not any(c.done() for c in calls.values())
        await asyncio.to_thread(elsewhere.revoke, name)
        await asyncio.to_thread(elsewhere.create, name, "reader")
        if path.endswith(("/wait", "/rows")):
            async with asyncio.timeout(60):
                while not sent[token]:
                    await asyncio.sleep(0.05)
            release.set()
            await asyncio.wait_for(asyncio.gather(*calls.values()), 60)
            assert sent[token][0] == 401 and b"rows" not in sent[token]
            assert sent[staying] == [200, b"rows"]
            return
        await asyncio.wait_for(calls[token], 60)
        await asyncio.sleep(1)
        assert not calls[staying].done()
        calls[staying].cancel()

    asyncio.run(run())


def test_an_idempotency_key_is_of_one_token(app: FastAPI, database: Database) -> None:
    tokens: Tokens = app.state.tokens
    database.execute("CREATE TABLE t (id integer PRIMARY KEY)")
    client = TestClient(app, base_url="http://localhost")
    body = {"name": "made", "query": "SELECT id FROM t"}

    def ask(token: str) -> Any:
        headers = {**_bearer(token), "Idempotency-Key": "k1"}
        return client.post("/views", json=body, headers=headers)

    first, _ = tokens.create("boss", "operator")
    made, again = ask(first), ask(first)
    assert made.status_code == again.status_code == 201
    assert again.headers["idempotency-replayed"] == "true"
    tokens.revoke("boss")
    second, _ = tokens.create("boss", "operator")
    other = ask(second)
    assert (other.status_code, other.json()["code"]) == (409, "view.name_taken")
    assert "idempotency-replayed" not in other.headers


# --- roles ----------------------------------------------------------------------------------------


@dataclass
class Place:
    """A service, and a role with a view that has a history; its calls by token and psql."""

    database: Database
    service: RunningService
    role: str
    admin: str = ""

    def ask(self, token: str, method: str, path: str, body: Any = None) -> tuple[int, str]:
        answer = http.request(
            method, f"{self.service.url}{path}", json=body, headers=_bearer(token), timeout=90
        )
        is_problem = "problem" in answer.headers.get("content-type", "")
        return answer.status_code, answer.json()["code"] if is_problem else ""

    def token(self, name: str, level: str = "operator", role: str | None = None) -> str:
        body = {"name": name, "role": level, "db_role": role}
        headers = _bearer(self.admin) if self.admin else {}
        made = http.post(f"{self.service.url}/tokens", json=body, headers=headers, timeout=60)
        assert made.status_code == 201, made.text
        return made.json()["token"]

    def create(self, token: str, name: str) -> None:
        body = {"name": name, "query": "SELECT id FROM orders", "options": HISTORY}
        url = f"{self.service.url}/views?wait_s=60"
        made = http.post(url, json=body, headers=_bearer(token), timeout=90)
        assert made.json()["status"] == "live", made.text

    def permit(self, role: str) -> None:
        """Give a role what a creator of views needs."""
        self.database.execute(
            f"GRANT SELECT ON orders TO {role}; GRANT CREATE ON SCHEMA public TO {role};"
            f"GRANT USAGE ON SCHEMA tidemark TO {role};"
            f"GRANT EXECUTE ON ALL PROCEDURES IN SCHEMA tidemark TO {role}"
        )

    def seen(self, role: str) -> dict[str, Any]:
        """What psql shows to a role of what was made under its name."""
        views = as_role(self.database, role, "SELECT name, owner FROM tidemark.status ORDER BY 1")
        requests = as_role(self.database, role, "SELECT name FROM tidemark.my_requests")
        return {"views": views, "requests": requests}

    def follow(self, token: str) -> threading.Event:
        """Follow the view mine; return an event that is set when the stream has ended."""
        begun, ended = threading.Event(), threading.Event()

        def read() -> None:
            url = f"{self.service.url}/views/mine/changes"
            with (
                contextlib.suppress(httpx.HTTPError),
                http.stream("GET", url, headers=_bearer(token), timeout=60) as answer,
            ):
                for _ in answer.iter_raw():
                    begun.set()
            ended.set()

        threading.Thread(target=read, daemon=True).start()
        assert begun.wait(60)
        return ended


@pytest.fixture(scope="module")
def place(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with new_database(postgres) as database:
        role = f"ann_{database.name}"
        folder = tmp_path_factory.mktemp("identities")
        with roles(database, role), RunningService(database.dsn, folder) as service:
            database.execute(
                "CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (1)"
            )
            made = Place(database, service, role)
            made.admin = made.token("admin", "admin")
            yield made


def test_a_named_reader_is_of_one_token(place: Place) -> None:
    place.create(place.admin, "read")
    path = "/views/read/subscriptions"
    first, other = place.token("lector", "reader"), place.token("other", "reader")
    assert place.ask(first, "POST", path, {"name": "r"}) == (201, "")
    move = f"{path}/r/acknowledge"
    assert place.ask(first, "POST", move, {"epoch": 0}) == (200, "")
    assert place.ask(other, "POST", move, {"epoch": 0}) == (403, "auth.rights")
    assert place.ask(place.admin, "DELETE", "/tokens/lector")[0] == 204
    again = place.token("lector", "reader")
    assert place.ask(again, "POST", move, {"epoch": 0}) == (403, "auth.rights")
    assert place.ask(again, "DELETE", f"{path}/r") == (403, "auth.rights")
    assert place.ask(place.admin, "DELETE", f"{path}/r")[0] == 204


def test_a_role_that_is_created_again_is_another(place: Place) -> None:
    database, role = place.database, place.role
    place.permit(role)
    token = place.token("ann", role=role)
    place.create(token, "mine")
    as_role(database, role, "CALL tidemark.pause_view('mine')")
    as_role(database, role, "CALL tidemark.resume_view('mine')")
    mine: dict[str, Any] = {"views": [("mine", role)], "requests": [("mine",), ("mine",)]}
    assert place.seen(role) == mine
    ended = place.follow(token)

    # A renamed role is the same.
    renamed = f"{role}_married"
    database.execute(f"ALTER ROLE {role} RENAME TO {renamed}")
    _until(lambda: place.ask(token, "GET", "/views/mine/rows") == (200, ""))
    assert place.ask(token, "POST", "/views/mine/rebuild?wait_s=60")[0] in (200, 202)
    assert place.seen(renamed) == {**mine, "views": [("mine", renamed)]}
    listed = http.get(f"{place.service.url}/tokens", headers=_bearer(place.admin), timeout=60)
    assert renamed in {t["db_role"] for t in listed.json()["tokens"]}
    database.execute(f"ALTER ROLE {renamed} RENAME TO {role}")
    _until(lambda: place.ask(token, "GET", "/views/mine/rows") == (200, ""))
    assert not ended.is_set()

    # A dropped one is nobody, and its name another's.
    database.execute(
        f"REASSIGN OWNED BY {role} TO CURRENT_USER; DROP OWNED BY {role}; DROP ROLE {role};"
        f"CREATE ROLE {role} LOGIN"
    )
    place.permit(role)
    assert ended.wait(60)
    for method, path in (("GET", "/views/mine"), ("GET", "/views"), ("POST", "/views/mine/pause")):
        assert place.ask(token, method, path) == (403, "auth.db_role"), path
    assert place.seen(role) == {"views": [], "requests": []}
    new = place.token("ann2", role=role)
    assert place.ask(new, "GET", "/views/mine") == (403, "auth.rights")
    assert place.ask(new, "POST", "/views/mine/pause") == (403, "view.not_owner")
    with pytest.raises(Exception, match="does not own"):
        as_role(database, role, "CALL tidemark.drop_view('mine')")
    place.create(new, "hers")
    assert [view for view, _ in place.seen(role)["views"]] == ["hers"]
    # Nobody has the rights any more by which it was computed.
    stopped = (409, "view.rights_revoked")
    _until(lambda: place.ask(place.admin, "GET", "/views/mine/rows") == stopped)
    assert place.ask(new, "GET", "/views/hers/rows") == (200, "")

    # On another server the OIDs are others': nobody's, until an administrator says so.
    database.execute("UPDATE tidemark.server_of_roles SET system_identifier = '1'")
    database.execute(
        "UPDATE tidemark.views SET created_oid = created_oid::bigint + 10000 WHERE name = 'hers';"
        "UPDATE tidemark.tokens SET db_role_oid = db_role_oid::bigint + 10000 WHERE name = 'ann2'"
    )
    _until(lambda: place.ask(new, "GET", "/views/hers/rows") == (403, "auth.db_role"))
    assert "hers" not in {v for v, owner in place.seen(role)["views"] if owner == role}
    with pytest.raises(Exception, match="permission denied"):
        as_role(database, role, "SELECT tidemark.bind_roles()")
    database.execute(f"SELECT tidemark.bind_roles('{role}')")
    _until(lambda: place.ask(new, "POST", "/views/hers/pause") == (200, ""))
    database.execute("SELECT tidemark.bind_roles()")
