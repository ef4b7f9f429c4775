"""Conventions of all REST calls: methods, unknown parameters, HEAD, ETags, Idempotency-Key.

An ASGI layer inside the guard; streams pass through it unchanged.
Invariant: a request is refused before its route runs if a parameter is unknown, if the resource has
changed (If-Match), or if its Idempotency-Key belongs to another request.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from connectors.postgres.catalog import idempotency
from connectors.postgres.catalog.catalog import Control
from connectors.postgres.catalog.idempotency import RequestKey, StoredAnswer, Worker
from dataflow.errors import TidemarkError
from service.api.problems import Refused, answer, problem_of
from service.api.request_guard import headers_of
from service.api.route_table import PathRoutes, RouteTable

CREATING = ("/views", "/sources", "/views/{view}/sinks")
# The definition of a resource, without its status: the first half of its ETag.
_LASTING = ("name", "schema", "view", "type", "query", "options", "fields", "created_at")
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_STORED_HEADERS = ("content-type", "location")
_TAG = re.compile(r'(?:W/)?"([^"]*)"')


class Conventions:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, table: RouteTable, control: Control, server: str) -> None:
        self._app = app
        self._table = table
        self._control = control
        # `server` is unique among running processes: the listening address of this one.
        self._worker = Worker(server, secrets.token_hex(8))
        self._has_freed = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a valid request, or refuse it."""
        routes = self._table.find(scope["path"]) if scope["type"] == "http" else None
        if routes is None:
            await self._app(scope, receive, send)
            return
        try:
            await self._answer(routes, scope, receive, send)
        except Refused as refused:
            response = answer(refused.problem, refused.headers)
            await response(scope, receive, send)
        except TidemarkError as error:
            await answer(problem_of(error))(scope, receive, send)

    async def _answer(self, routes: PathRoutes, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"]
        if method not in routes.methods:
            raise Refused(
                "request.invalid",
                405,
                f"{method} is not allowed for this path",
                detail=f"allowed: {', '.join(routes.described_methods)}",
                headers={"Allow": ", ".join(routes.described_methods)},
            )
        requested = "GET" if method == "HEAD" else method
        parameters = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        names = [name for name, _ in parameters]
        if unknown := routes.unknown(requested, names):
            raise _invalid(f'query: "{unknown[0][:80]}" is not a parameter of this call')
        if repeated := routes.repeated(requested, names):
            raise _invalid(f'query: "{repeated[0][:80]}" is given more than once')
        self._refuse_nul([("path", scope["path"]), *parameters])
        headers = headers_of(scope)
        if requested == "GET" and not routes.is_stream:
            await self._answer_get(scope, receive, send, headers.get("if-none-match", ""))
            return
        if "if-match" in headers and method != "GET":
            await self._require_match(scope, receive, headers["if-match"])
        if method == "POST" and routes.path in CREATING and "idempotency-key" in headers:
            waits = [v for k, v in parameters if k == "wait_s"]
            await self._answer_once(scope, receive, send, headers["idempotency-key"], waits)
            return
        await self._app(scope, receive, send)

    @staticmethod
    def _refuse_nul(parameters: Iterable[tuple[str, str]]) -> None:
        """Refuse NUL in names and values: PostgreSQL's text cannot contain it."""
        for name, value in parameters:
            if "\0" in value:
                why = "the text contains NUL, which PostgreSQL cannot store"
                raise _invalid(f"{name[:80]}: {why}")

    # --- tags ----------------------------------------------------------------------------------

    async def _answer_get(
        self, scope: Scope, receive: Receive, send: Send, known_tags: str
    ) -> None:
        """Answer with an ETag; without a body for HEAD, or as 304 if the client has it."""
        requested = {**scope, "method": "GET"}
        found = await self._response_of(requested, receive)
        # Routing results, such as the route, are needed by the outer layer that counts calls.
        scope.update({k: v for k, v in requested.items() if k not in scope})
        headers = list(found.start["headers"])
        status, body = found.start["status"], found.body
        if status == 200:
            tag = found.header("etag") or f'"{tag_of(found)}"'
            if not found.header("etag"):
                headers.append((b"etag", tag.encode()))
            if known_tags.strip() == "*" or set(_TAG.findall(known_tags)) & set(_TAG.findall(tag)):
                status, body = 304, b""
                headers = [(k, v) for k, v in headers if not k.lower().startswith(b"content-")]
        if scope["method"] == "HEAD":
            body = b""
        await send({**found.start, "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _require_match(self, scope: Scope, receive: Receive, expected: str) -> None:
        """Refuse with 412 if the resource no longer has the caller's ETag."""
        path = scope["path"]
        routes = self._table.find(path)
        if routes is None or "GET" not in routes.parameters:
            path = path.rpartition("/")[0]
        raw = path.encode()
        requested = {**scope, "method": "GET", "path": path, "raw_path": raw, "query_string": b""}
        found = await self._response_of(requested, _nothing)
        if found.start["status"] != 200 or expected.strip() == "*":
            return
        lasting = tag_of(found).partition("-")[0]
        if lasting not in {tag.partition("-")[0] for tag in _TAG.findall(expected)}:
            raise Refused(
                "request.changed",
                412,
                "the resource has changed",
                detail=f'its ETag is now "{tag_of(found)}"',
                hint="read it again, and repeat the request with the new ETag",
            )

    async def _response_of(self, scope: Scope, receive: Receive) -> _Answer:
        """Return the application's whole response."""
        found = _Answer()
        await self._app(scope, receive, found.take)
        return found

    # --- repetitions ---------------------------------------------------------------------------

    async def _answer_once(
        self, scope: Scope, receive: Receive, send: Send, key: str, waits: list[str]
    ) -> None:
        if not _KEY.fullmatch(key):
            raise Refused(
                "request.invalid",
                400,
                "the request is not valid",
                detail="Idempotency-Key: 1 to 255 printable ASCII characters without spaces",
            )
        body = await _body_of(receive)
        caller = getattr(scope.get("state", {}).get("caller"), "id", "")
        claim = RequestKey(caller, scope["path"], key)
        shape = hashlib.sha256(scope["query_string"] + b"\n" + body).hexdigest()
        wait_s = float(waits[0]) if waits and re.fullmatch(r"\d{1,4}", waits[0]) else 0.0
        await run_in_threadpool(self._control.ensure)
        stored = await run_in_threadpool(self._claim, claim, shape, wait_s)
        if stored is not None:
            await _replay(stored, shape, send)
            return
        found = _Answer()
        try:
            await self._app(scope, _replaying(body, receive), found.take)
        finally:
            status = found.start.get("status", 500)
            if status >= 500:
                await run_in_threadpool(idempotency.forget, self._control, claim)
            else:
                headers = {name: found.header(name) for name in _STORED_HEADERS}
                stored = StoredAnswer(
                    shape, status, {k: v for k, v in headers.items() if v}, found.body
                )
                await run_in_threadpool(idempotency.store_answer, self._control, claim, stored)
        await send(found.start)
        await send({"type": "http.response.body", "body": found.body})

    def _claim(self, claim: RequestKey, shape: str, wait_s: float) -> StoredAnswer | None:
        # At the first request, not earlier: only then this process surely owns the address.
        if not self._has_freed:
            idempotency.free(self._control, self._worker)
            self._has_freed = True
        return idempotency.claim(self._control, self._worker, claim, shape, wait_s)


class _Answer:
    """Collects a response."""

    def __init__(self) -> None:
        self.start: dict[str, Any] = {}
        self.body = b""

    async def take(self, part: Message) -> None:
        """Store a message that the application sends."""
        if part["type"] == "http.response.start":
            self.start = dict(part)
        else:
            self.body += part.get("body", b"")

    def header(self, name: str) -> str:
        """Return the value of a header, "" if absent."""
        expected = name.encode()
        found = (v for k, v in self.start.get("headers", ()) if k.lower() == expected)
        return next(found, b"").decode("latin-1")


def tag_of(found: _Answer) -> str:
    """Return an ETag of two hashes: of the resource's definition, and of the whole response."""
    whole = hashlib.blake2b(found.body, digest_size=8).hexdigest()
    try:
        facts = json.loads(found.body)
    except ValueError:
        facts = None
    if not isinstance(facts, dict):
        return whole
    lasting = json.dumps([facts.get(name) for name in _LASTING]).encode()
    return f"{hashlib.blake2b(lasting, digest_size=8).hexdigest()}-{whole}"


async def _replay(stored: StoredAnswer, shape: str, send: Send) -> None:
    if stored.fingerprint != shape:
        raise Refused(
            "request.key_reused",
            422,
            "this Idempotency-Key was used for another request",
            hint="use a new key for each operation",
        )
    if stored.status is None:
        raise Refused(
            "request.in_progress",
            409,
            "the first request with this Idempotency-Key is still in progress",
            hint="try again in a moment",
            headers={"Retry-After": "1"},
        )
    headers = [(k.encode(), v.encode()) for k, v in stored.headers.items()]
    headers.append((b"idempotency-replayed", b"true"))
    headers.append((b"content-length", str(len(stored.body)).encode()))
    await send({"type": "http.response.start", "status": stored.status, "headers": headers})
    await send({"type": "http.response.body", "body": stored.body})


async def _body_of(receive: Receive) -> bytes:
    body = b""
    while True:
        part = await receive()
        body += part.get("body", b"")
        if not part.get("more_body"):
            return body


def _replaying(body: bytes, receive: Receive) -> Receive:
    """Return a receive function that yields the body again, then the following messages."""
    parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return parts.pop() if parts else await receive()

    return replayed


async def _nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


def _invalid(detail: str) -> Refused:
    return Refused(
        "request.invalid",
        422,
        "the request is not valid",
        detail=detail,
        hint="see /docs for the parameters of each call",
    )
