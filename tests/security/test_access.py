"""Oracle: docs/SECURITY.md, its table of roles. Every route of the application, whichever there
will be, is asked for as each kind of caller, in the real application over a real sink."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.testclient import WebSocketDenialResponse

from connectors.postgres.embedded.server import EmbeddedPostgres
from service.access import operations
from service.access.tokens import Tokens
from service.api import request_guard
from service.api.app import create_app
from service.runtime.settings import Settings
from tests.harness.postgres import Database, new_database

NOBODY, READER, OPERATOR, ADMIN = "", "reader", "operator", "admin"
CALLERS = (NOBODY, READER, OPERATOR, ADMIN)
# What is not by the rule: reading is a reader's, all else an operator's.
EXCEPTIONS = {
    ("GET", "/health"): NOBODY,
    ("GET", "/health/live"): NOBODY,
    ("GET", "/"): NOBODY,
    ("GET", "/docs"): NOBODY,
    ("GET", "/assets/{name}"): NOBODY,
    ("POST", "/views/validate"): READER,
    # A named reader is its token's own, beside those of others.
    ("POST", "/views/{view}/subscriptions"): READER,
    ("POST", "/views/{view}/subscriptions/{subscription}/acknowledge"): READER,
    ("DELETE", "/views/{view}/subscriptions/{subscription}"): READER,
    ("POST", "/views/{name}/verify"): READER,
    ("POST", "/query"): READER,
    ("GET", "/tokens"): ADMIN,
    ("POST", "/tokens"): ADMIN,
    ("DELETE", "/tokens/{name}"): ADMIN,
}


@pytest.fixture(scope="module")
def place(postgres: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(postgres) as made:
        made.execute("CREATE TABLE t (id integer PRIMARY KEY)")
        yield made


def _settings(place: Database, folder: Path, **more: Any) -> Settings:
    facts = {"source": place.dsn, "sink": place.dsn, "state": folder, **more}
    return Settings.model_validate(facts)


@pytest.fixture(scope="module")
def app(place: Database, tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    return create_app(_settings(place, tmp_path_factory.mktemp("state")))


@pytest.fixture(scope="module")
def tokens(app: FastAPI) -> dict[str, str]:
    # An admin's first, as it must be.
    roles = sorted(filter(None, CALLERS))
    made = {role: app.state.tokens.create(role, role)[0] for role in roles}
    return {NOBODY: "", **made}


@pytest.fixture(scope="module")
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as made:
        yield made


def _headers(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def _routes(app: Any) -> list[tuple[str, str]]:
    """(method, path as written) of every route; a WebSocket's is GET, a folder's is any below."""
    found = []
    for route in app.routes:
        path = re.sub(r":\w+}", "}", getattr(route, "path", ""))
        if isinstance(route, WebSocketRoute):
            found.append(("WS", path))
        elif isinstance(route, Mount):
            found.append(("GET", f"{path}/{{path}}"))
        elif isinstance(route, Route):
            found += [(method, path) for method in sorted(route.methods or ())]
        else:
            # Routers that are kept whole have theirs inside.
            found += _routes(getattr(route, "original_router", route))
    return found


def _least(method: str, path: str) -> str:
    asked = "GET" if method in ("HEAD", "WS") else method
    rule = READER if method in ("GET", "HEAD", "WS") else OPERATOR
    return EXCEPTIONS.get((asked, path), rule)


def test_every_route_as_every_caller(
    app: FastAPI, client: TestClient, tokens: dict[str, str]
) -> None:
    routes = _routes(app)
    assert ("POST", "/views") in routes and ("GET", "/openapi.json") in routes
    faults = []
    for method, path in routes:
        least = _least(method, path)
        filled = re.sub(r"{\w+}", "nosuch", path)
        for caller in CALLERS:
            may = CALLERS.index(caller) >= CALLERS.index(least)
            if method == "WS" or (may and filled.endswith(operations.STREAMS)):
                continue
            answer = client.request(method, filled, headers=_headers(tokens[caller]))
            wanted = 401 if not caller else 403
            is_let_in = answer.status_code not in (401, 403)
            if is_let_in != may or (not may and answer.status_code != wanted):
                faults.append(f"{method} {path} as {caller or 'nobody'}: {answer.status_code}")
    assert not faults, "\n".join(faults)


def test_exceptions_are_the_documented_ones() -> None:
    """What is open to more, or to fewer, than the rule says is said in the test too."""
    for method, path in operations.ROUTES:
        least = _least(method, path)
        assert operations.role_for(method, path).word == (least or "public"), path
    # Spellings of a path do not lead around the rule.
    for path in ("/tokens/", "//tokens", "/tokens/%61", "/TOKENS", "/views/validate/x"):
        assert operations.role_for("POST", path) >= operations.Role.OPERATOR
    assert operations.role_for("PATCH", "/health") is operations.Role.OPERATOR


def test_answers_to_strangers(client: TestClient, tokens: dict[str, str]) -> None:
    answer = client.get("/views")
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "auth.missing"
    assert client.get("/views", headers=_headers(tokens[ADMIN] + "x")).json()["code"] == (
        "auth.invalid"
    )
    answer = client.request("DELETE", "/views/x", headers=_headers(tokens[READER]))
    assert (answer.status_code, answer.json()["code"]) == (403, "auth.role")
    assert client.get("/nosuch").status_code == 401
    assert client.get("/nosuch", headers=_headers(tokens[READER])).status_code == 404
    told = client.get("/health").json()
    assert told["reasons"] == [] and told["pipeline"] is None and told["status"]
    for name in ("x-content-type-options", "content-security-policy", "x-frame-options"):
        assert answer.headers[name], name


def test_a_token_in_the_query_is_for_streams_alone(
    app: FastAPI, client: TestClient, tokens: dict[str, str]
) -> None:
    """No Accept header and no spelling makes another route take it."""
    let_in = set()
    for method, path in _routes(app):
        least = _least(method, path)
        if method == "WS" or not least:
            continue
        filled = re.sub(r"{\w+}", "nosuch", path)
        for spelt in ("access_token", "access%5Ftoken", "x=1&%61ccess_token"):
            for accept in ("*/*", "text/event-stream", "application/json, text/event-stream"):
                asked = f"{filled}?{spelt}={tokens[ADMIN]}"
                answer = client.request(method, asked, headers={"Accept": accept})
                if answer.status_code != 401:
                    let_in.add((method, path, "event-stream" in accept))
                assert tokens[ADMIN] not in answer.text
    streams = {f"/views/{{name}}{end}" for end in operations.STREAMS}
    assert let_in == {("GET", path, True) for path in streams}
    # A parameter that is called alike is another one.
    asked = "/views?my_access_token=x"
    answer = client.get(asked, headers=_headers(tokens[READER]))
    assert (answer.status_code, answer.json()["code"]) == (422, "request.invalid")


def test_a_socket_elsewhere_takes_no_token_in_the_query(
    client: TestClient, tokens: dict[str, str]
) -> None:
    for path in ("/views", "/views/nosuch/rows", "/query", "/tokens", "/views/nosuch/changes/x"):
        with (
            pytest.raises(WebSocketDenialResponse) as refused,
            client.websocket_connect(f"ws://localhost{path}?access_token={tokens[ADMIN]}"),
        ):
            raise AssertionError("let in")
        assert refused.value.status_code == 401, path


def test_forged_requests_of_other_pages(client: TestClient, tokens: dict[str, str]) -> None:
    allowed = {**_headers(tokens[ADMIN])}
    body = {"query": "SELECT id FROM t"}
    cases: list[tuple[dict[str, str], int]] = [
        ({}, 200),
        ({"Origin": "http://localhost"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1:8000"}, 200),
        ({"Host": "[::1]:8000"}, 200),
        ({"Host": "localhost.evil.example"}, 421),
    ]
    for headers, status in cases:
        answer = client.post("/views/validate", json=body, headers={**allowed, **headers})
        assert answer.status_code == status, (headers, answer.text)
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        headers = {**allowed, "Content-Type": kind}
        answer = client.post("/views/validate", content=b'{"query": "SELECT 1"}', headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (415, "request.not_json"), kind
    answer = client.post("/views", content=b" " * (5 << 20), headers=allowed)
    assert (answer.status_code, answer.json()["code"]) == (413, "request.too_large")


def test_life_of_a_token(app: FastAPI, client: TestClient, tokens: dict[str, str]) -> None:
    admin = _headers(tokens[ADMIN])
    body = {"name": "short", "role": "operator", "expires_days": 1e-9}
    made = client.post("/tokens", json=body, headers=admin)
    assert made.status_code == 201 and made.headers["cache-control"] == "no-store"
    token = made.json()["token"]
    again = client.post("/tokens", json=body, headers=admin)
    assert (again.status_code, again.json()["code"]) == (409, "token.name_taken")
    body = {"name": "gone", "role": "reader"}
    gone = client.post("/tokens", json=body, headers=admin).json()["token"]
    assert client.get("/views", headers=_headers(gone)).status_code == 200
    assert client.delete("/tokens/gone", headers=admin).status_code == 204
    assert client.get("/views", headers=_headers(gone)).status_code == 401
    assert client.delete("/tokens/gone", headers=admin).status_code == 404
    assert client.get("/views", headers=_headers(token)).status_code == 401  # has expired
    listed = client.get("/tokens", headers=admin)
    assert token not in listed.text and "hash" not in listed.text
    assert {t["name"] for t in listed.json()["tokens"]} >= {"short", "gone", "reader"}
    for wrong in ({"role": "root"}, {"name": "a b"}, {"db_role": "nosuch"}, {"more": 1}):
        fresh = {"name": "wrong", "role": "reader", **wrong}
        assert client.post("/tokens", json=fresh, headers=admin).status_code == 422, wrong
    assert app.state.tokens.has_live()


def test_revoked_by_another_process(app: FastAPI, place: Database) -> None:
    tokens: Tokens = app.state.tokens
    token, _ = tokens.create("elsewhere", "reader")
    assert tokens.find(token) is not None
    place.execute("UPDATE tidemark.tokens SET revoked_at = now() WHERE name = 'elsewhere'")
    assert tokens.is_fresh(token)  # answered from memory, within CACHE_S
    tokens.forget()
    assert tokens.find(token) is None


def test_while_the_sink_is_away_nobody_new_is_let_in(place: Database, tmp_path: Path) -> None:
    lost = _settings(place, tmp_path, sink="host=127.0.0.1 port=1 dbname=x user=x")
    with TestClient(create_app(lost), base_url="http://localhost") as away:
        answer = away.get("/views")
    assert (answer.status_code, answer.json()["code"]) == (503, "auth.unavailable")


def test_open_on_loopback_until_there_is_a_token(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    with new_database(postgres) as fresh:
        app = create_app(_settings(fresh, tmp_path))
        with TestClient(app, base_url="http://localhost") as local:
            assert local.get("/views").status_code == 200
            assert local.get("/health").json()["pipeline"] is None
            made = local.post("/tokens", json={"name": "first", "role": "admin"})
            assert made.status_code == 201
            assert local.get("/views").status_code == 401
            headers = _headers(made.json()["token"])
            assert local.delete("/tokens/first", headers=headers).status_code == 204
            assert local.get("/views").status_code == 401
        elsewhere = create_app(_settings(fresh, tmp_path, host="192.0.2.1"))
        fresh.execute("DELETE FROM tidemark.tokens")
        with TestClient(elsewhere, base_url="http://service.example") as remote:
            assert remote.get("/views").status_code == 401


def test_a_stream_ends_with_its_token(
    app: FastAPI, place: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(request_guard, "RECHECK_S", 0.05)
    tokens: Tokens = app.state.tokens
    token, _ = tokens.create("streamer", "reader")
    heard: list[str] = []

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        heard.append((await receive())["type"])

    async def nothing() -> Any:
        await asyncio.Event().wait()

    async def ignored(_: Any) -> None:
        """Answers go nowhere."""

    headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {token}".encode())]
    wrapped = request_guard.Guard(
        endless, _settings(place, tmp_path), tokens, app.state.authorization
    )

    async def run() -> None:
        for scope in (
            {"type": "http", "method": "GET", "path": "/views/v/changes", "headers": headers},
            {"type": "websocket", "path": "/views/v/changes/ws", "headers": headers},
        ):
            stream = asyncio.ensure_future(wrapped(scope, nothing, ignored))
            await asyncio.sleep(0.3)
            assert not stream.done()
            if scope["type"] == "websocket":
                tokens.revoke("streamer")
                await asyncio.wait_for(stream, 10)
            else:
                stream.cancel()

    asyncio.run(run())
    assert heard == ["websocket.disconnect"]


def test_websockets_are_refused_without_a_token(client: TestClient, tokens: dict[str, str]) -> None:
    path = "ws://localhost/views/nosuch/changes/ws"
    for suffix, headers, status in [
        ("", {}, 401),
        ("?access_token=tdm_000000000000_x", {}, 401),
        (f"?access_token={tokens[READER]}", {"Origin": "https://evil.example"}, 403),
    ]:
        with (
            pytest.raises(WebSocketDenialResponse) as refused,
            client.websocket_connect(path + suffix, headers=headers),
        ):
            raise AssertionError("let in")
        assert refused.value.status_code == status, suffix
    with client.websocket_connect(f"{path}?access_token={tokens[READER]}") as socket:
        assert socket.receive()["type"] in ("websocket.send", "websocket.close")


def test_guessing_is_slowed_down_and_owners_are_let_in(
    client: TestClient, tokens: dict[str, str]
) -> None:
    answers = [client.get("/views", headers=_headers(f"tdm_{n:012x}_guess")) for n in range(20)]
    codes = [answer.json()["code"] for answer in answers]
    assert codes[-1] == "auth.slow_down" and answers[-1].headers["retry-after"]
    assert client.get("/views", headers=_headers(tokens[READER])).status_code == 200
