"""What holds for all of REST alike: methods, unknown parameters, HEAD, tags, keys of repetition.

A plain ASGI layer behind the guard; streams pass it untouched. Invariant: a request that a route
would take differently from how it was meant is refused before the route sees it: a misspelt
parameter, a resource that is another one by now (If-Match), a key used for something else.
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
# What a resource is, whatever it does just now: the first half of its tag.
_LASTING = ("name", "schema", "view", "type", "query", "options", "fields", "created_at")
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_KEPT_HEADERS = ("content-type", "location")
_TAG = re.compile(r'(?:W/)?"([^"]*)"')


class Conventions:
    """Wraps an application."""

    def __init__(self, app: ASGIApp, table: RouteTable, control: Control, server: str) -> None:
        self._app = app
        self._table = table
        self._control = control
        # `server` is what no two processes have at a time: the address that this one listens at.
        self._worker = Worker(server, secrets.token_hex(8))
        self._has_freed = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on as it is meant, or refuse it."""
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
                f"{method} is not for this path",
                detail=f"it takes {', '.join(routes.told_methods)}",
                headers={"Allow": ", ".join(routes.told_methods)},
            )
        asked = "GET" if method == "HEAD" else method
        given = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        names = [name for name, _ in given]
        if unknown := routes.unknown(asked, names):
            raise _invalid(f'query: "{unknown[0][:80]}" is not a parameter of this call')
        if repeated := routes.repeated(asked, names):
            raise _invalid(f'query: "{repeated[0][:80]}" is given more than once')
        self._refuse_nul([("path", scope["path"]), *given])
        headers = headers_of(scope)
        if asked == "GET" and not routes.is_stream:
            await self._answer_get(scope, receive, send, headers.get("if-none-match", ""))
            return
        if "if-match" in headers and method != "GET":
            await self._require_match(scope, receive, headers["if-match"])
        if method == "POST" and routes.path in CREATING and "idempotency-key" in headers:
            waits = [v for k, v in given if k == "wait_s"]
            await self._answer_once(scope, receive, send, headers["idempotency-key"], waits)
            return
        await self._app(scope, receive, send)

    @staticmethod
    def _refuse_nul(given: Iterable[tuple[str, str]]) -> None:
        """PostgreSQL has no text with a NUL, so nothing is called so and nothing is found by it."""
        for name, value in given:
            if "\0" in value:
                why = "a text holds a NUL, which PostgreSQL has no place for"
                raise _invalid(f"{name[:80]}: {why}")

    # --- tags ----------------------------------------------------------------------------------

    async def _answer_get(self, scope: Scope, receive: Receive, send: Send, known: str) -> None:
        """With a tag; without a body where it is known already, or was not asked for."""
        asked = {**scope, "method": "GET"}
        found = await self._asked(asked, receive)
        # What is counted outside is told by what the routing has found.
        scope.update({k: v for k, v in asked.items() if k not in scope})
        headers = list(found.start["headers"])
        status, body = found.start["status"], found.body
        if status == 200:
            tag = found.header("etag") or f'"{tag_of(found)}"'
            if not found.header("etag"):
                headers.append((b"etag", tag.encode()))
            if known.strip() == "*" or set(_TAG.findall(known)) & set(_TAG.findall(tag)):
                status, body = 304, b""
                headers = [(k, v) for k, v in headers if not k.lower().startswith(b"content-")]
        if scope["method"] == "HEAD":
            body = b""
        await send({**found.start, "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _require_match(self, scope: Scope, receive: Receive, wanted: str) -> None:
        """Whether the resource is still what the caller takes it for."""
        path = scope["path"]
        routes = self._table.find(path)
        if routes is None or "GET" not in routes.parameters:
            path = path.rpartition("/")[0]
        raw = path.encode()
        asked = {**scope, "method": "GET", "path": path, "raw_path": raw, "query_string": b""}
        found = await self._asked(asked, _nothing)
        if found.start["status"] != 200 or wanted.strip() == "*":
            return
        lasting = tag_of(found).partition("-")[0]
        if lasting not in {tag.partition("-")[0] for tag in _TAG.findall(wanted)}:
            raise Refused(
                "request.changed",
                412,
                "it is not what it was",
                detail=f'its tag is "{tag_of(found)}" now',
                hint="look at it again, and ask again if you still want that",
            )

    async def _asked(self, scope: Scope, receive: Receive) -> _Answer:
        """What the application answers, whole."""
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
                detail="Idempotency-Key: 1 to 255 printable characters of ASCII without blanks",
            )
        body = await _body_of(receive)
        caller = getattr(scope.get("state", {}).get("caller"), "name", "")
        claim = RequestKey(caller, scope["path"], key)
        shape = hashlib.sha256(scope["query_string"] + b"\n" + body).hexdigest()
        wait_s = float(waits[0]) if waits and re.fullmatch(r"\d{1,4}", waits[0]) else 0.0
        await run_in_threadpool(self._control.ensure)
        kept = await run_in_threadpool(self._claim, claim, shape, wait_s)
        if kept is not None:
            await _replay(kept, shape, send)
            return
        found = _Answer()
        try:
            await self._app(scope, _replaying(body, receive), found.take)
        finally:
            status = found.start.get("status", 500)
            if status >= 500:
                await run_in_threadpool(idempotency.forget, self._control, claim)
            else:
                headers = {name: found.header(name) for name in _KEPT_HEADERS}
                kept = StoredAnswer(
                    shape, status, {k: v for k, v in headers.items() if v}, found.body
                )
                await run_in_threadpool(idempotency.store_answer, self._control, claim, kept)
        await send(found.start)
        await send({"type": "http.response.body", "body": found.body})

    def _claim(self, claim: RequestKey, shape: str, wait_s: float) -> StoredAnswer | None:
        # Not before somebody asks: only then is it certain that the address is ours alone.
        if not self._has_freed:
            idempotency.free(self._control, self._worker)
            self._has_freed = True
        return idempotency.claim(self._control, self._worker, claim, shape, wait_s)


class _Answer:
    """An answer that is gathered."""

    def __init__(self) -> None:
        self.start: dict[str, Any] = {}
        self.body = b""

    async def take(self, part: Message) -> None:
        """What the application sends."""
        if part["type"] == "http.response.start":
            self.start = dict(part)
        else:
            self.body += part.get("body", b"")

    def header(self, name: str) -> str:
        """The value of a header, "" without."""
        wanted = name.encode()
        found = (v for k, v in self.start.get("headers", ()) if k.lower() == wanted)
        return next(found, b"").decode("latin-1")


def tag_of(found: _Answer) -> str:
    """A tag of two halves: what the resource is, and the answer as it stands."""
    whole = hashlib.blake2b(found.body, digest_size=8).hexdigest()
    try:
        facts = json.loads(found.body)
    except ValueError:
        facts = None
    if not isinstance(facts, dict):
        return whole
    lasting = json.dumps([facts.get(name) for name in _LASTING]).encode()
    return f"{hashlib.blake2b(lasting, digest_size=8).hexdigest()}-{whole}"


async def _replay(kept: StoredAnswer, shape: str, send: Send) -> None:
    if kept.fingerprint != shape:
        raise Refused(
            "request.key_reused",
            422,
            "this Idempotency-Key was used for another request",
            hint="take a new key for each thing that you want",
        )
    if kept.status is None:
        raise Refused(
            "request.in_progress",
            409,
            "the first request with this Idempotency-Key is not answered yet",
            hint="ask again in a moment",
            headers={"Retry-After": "1"},
        )
    headers = [(k.encode(), v.encode()) for k, v in kept.headers.items()]
    headers.append((b"idempotency-replayed", b"true"))
    headers.append((b"content-length", str(len(kept.body)).encode()))
    await send({"type": "http.response.start", "status": kept.status, "headers": headers})
    await send({"type": "http.response.body", "body": kept.body})


async def _body_of(receive: Receive) -> bytes:
    body = b""
    while True:
        part = await receive()
        body += part.get("body", b"")
        if not part.get("more_body"):
            return body


def _replaying(body: bytes, receive: Receive) -> Receive:
    """The request's body once more, and then what comes."""
    parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def told() -> Message:
        return parts.pop() if parts else await receive()

    return told


async def _nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


def _invalid(detail: str) -> Refused:
    return Refused(
        "request.invalid",
        422,
        "the request is not valid",
        detail=detail,
        hint="see /docs for what each call takes",
    )
