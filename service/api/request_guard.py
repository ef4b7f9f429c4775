"""What every request passes before a route sees it: origin, size, token, role; and what every
answer carries.

A plain ASGI layer, since it must hold for event streams, WebSockets and static files alike and
read no body. Invariant: a token never gets past it, neither into a log nor to a route: what a
route is told is who calls (`request.state.caller`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dataflow.errors import TidemarkError
from service.access.authorization import Authorization, require_role
from service.access.operations import operation_at, role_for
from service.access.tokens import ANYBODY, OPEN, Caller, Role, Tokens
from service.api.problems import Refused, answer
from service.runtime.addresses import Guesses, is_loopback
from service.runtime.log import log
from service.runtime.settings import Settings

MOST_BODY_BYTES = 4 << 20
# How often it is looked whether the reader of a stream still may.
RECHECK_S = 5.0
_SAFE = ("GET", "HEAD", "OPTIONS")
_JSON = re.compile(r"application/(?:[\w.+-]+\+)?json\Z")
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
        "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}


class Guard:
    """Wraps an application."""

    def __init__(
        self, app: ASGIApp, settings: Settings, tokens: Tokens, authorization: Authorization
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._authorization = authorization
        self._guesses = Guesses()
        self._is_local = is_loopback(settings.host)
        self._is_tls = bool(settings.tls_cert)
        self._names = settings.names.split()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = headers_of(scope)
        respond = self._with_headers(scope, send)
        try:
            self._check_origin(scope, headers)
            caller = await self._caller(scope, headers)
            _check_body(scope, headers)
        except Refused as refused:
            await _refuse(refused, scope, receive, respond)
            return
        except TidemarkError as error:
            await _refuse(_refused(error, 503), scope, receive, respond)
            return
        scope.setdefault("state", {})["caller"] = caller
        if not _is_stream(scope):
            await self._app(scope, _limited(receive), respond)
            return
        watched = _Watched(receive, scope["type"], lambda: self._may_continue(caller, scope))
        try:
            await self._app(scope, watched, respond)
        finally:
            watched.close()

    # --- where from ----------------------------------------------------------------------------

    def _check_origin(self, scope: Scope, headers: dict[str, str]) -> None:
        """Against pages of others in the browser of somebody who may reach this service."""
        host = headers.get("host", "")
        if (self._is_local or self._names) and not self._is_our_name(host):
            raise Refused(
                "request.host",
                421,
                f'this service is not called "{host}"',
                hint="TIDEMARK_NAMES lists the names beside localhost",
            )
        is_changing = scope["type"] == "websocket" or scope["method"] not in _SAFE
        if not is_changing:
            return
        origin = headers.get("origin", "")
        is_foreign = headers.get("sec-fetch-site", "") in ("cross-site", "same-site")
        if origin:
            is_foreign = urlsplit(origin).netloc.lower() != host.lower()
        if is_foreign:
            raise Refused(
                "request.origin",
                403,
                "a page of another origin may not change anything here",
                detail=origin,
                hint="call the service by the name that its own pages were loaded from",
            )

    def _is_our_name(self, host: str) -> bool:
        name = re.sub(r":\d+\Z", "", host.lower())
        listed = any(fnmatchcase(name, glob.lower()) for glob in self._names)
        return listed or (self._is_local and is_loopback(name))

    # --- who -----------------------------------------------------------------------------------

    async def _caller(self, scope: Scope, headers: dict[str, str]) -> Caller:
        method = scope.get("method", "GET")
        wanted = role_for(method, scope["path"])
        token = _take_token(scope, headers)
        found = operation_at(method, scope["path"])
        if found is not None and found[0].name == "health.live":
            # Whoever asks: nothing is looked up, so that nothing is waited for.
            return ANYBODY
        if wanted is Role.PUBLIC and not token:
            return OPEN if self._is_local and not await self._is_any() else ANYBODY
        if not token and self._is_local and not await self._is_any():
            return OPEN
        if not token:
            raise Refused(
                "auth.missing",
                401,
                "this needs a token",
                hint="send Authorization: Bearer TOKEN, which an admin makes; without any, with "
                "the service's settings, run: tidemark token create NAME --role admin --direct",
                headers=_challenge(),
            )
        fresh = self._tokens.is_fresh(token)
        find = self._tokens.find
        caller = find(token) if fresh else await run_in_threadpool(find, token)
        if caller is None:
            self._refuse_unknown(scope)
        assert caller is not None
        try:
            require_role(caller, wanted)
        except TidemarkError as error:
            challenge = _challenge(', error="insufficient_scope"')
            raise _refused(error, 403, challenge) from None
        return caller

    async def _may_continue(self, caller: Caller, scope: Scope) -> bool:
        """Whether who began a stream may go on with it: by the token, and by PostgreSQL's rights
        on the view. What else has become of the view the stream tells by itself."""
        if caller is OPEN:
            return not await self._is_any()
        names = await run_in_threadpool(self._tokens.live_names)
        found = operation_at("GET", scope["path"])
        if caller.name not in names or found is None or not caller.db_role:
            return caller.name in names
        require = self._authorization.require_named
        try:
            await run_in_threadpool(require, caller, found[0].name, found[1].get("name", ""))
        except TidemarkError as error:
            return error.code not in ("auth.rights", "auth.db_role")
        return True

    async def _is_any(self) -> bool:
        is_any = self._tokens.is_any
        return is_any() if self._tokens.is_fresh("") else await run_in_threadpool(is_any)

    def _refuse_unknown(self, scope: Scope) -> None:
        wait_s = self._guesses.wait_s((scope.get("client") or ("", 0))[0])
        if wait_s:
            raise Refused(
                "auth.slow_down",
                429,
                "too many tokens that are none came from this address",
                hint="wait a little; a good token is let in all the same",
                headers={"retry-after": str(round(wait_s))},
            )
        raise Refused(
            "auth.invalid",
            401,
            "the token is not known, or not any more",
            hint="it may have expired or been revoked; an admin sees it under GET /tokens",
            headers=_challenge(', error="invalid_token"'),
        )

    # --- answers -------------------------------------------------------------------------------

    def _with_headers(self, scope: Scope, send: Send) -> Send:
        wanted = dict(_HEADERS)
        if self._is_tls:
            wanted["strict-transport-security"] = "max-age=31536000"
        added = [(name.encode(), value.encode()) for name, value in wanted.items()]

        async def send_with_headers(message: Message) -> None:
            if message["type"].endswith("http.response.start"):
                have = {name.lower() for name, _ in message.get("headers", ())}
                rest = [(n, v) for n, v in added if n not in have]
                message = {**message, "headers": [*message.get("headers", ()), *rest]}
            await send(message)

        return send_with_headers


async def _refuse(refused: Refused, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with a refusal; a WebSocket is refused before it is one."""
    response = answer(refused.problem, refused.headers)
    if scope["type"] == "http" or "websocket.http.response" in scope.get("extensions", {}):
        await response(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1008, "reason": refused.problem.code})


def _refused(error: TidemarkError, status: int, headers: dict[str, str] | None = None) -> Refused:
    """An error as the refusal of a request."""
    return Refused(
        error.code, status, error.what, detail=error.detail, hint=error.hint, headers=headers
    )


def _challenge(more: str = "") -> dict[str, str]:
    return {"www-authenticate": f'Bearer realm="tidemark"{more}'}


def headers_of(scope: Scope) -> dict[str, str]:
    """The request's headers; the last of equal names."""
    pairs: Iterable[tuple[bytes, bytes]] = scope["headers"]
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in pairs}


def _take_token(scope: Scope, headers: dict[str, str]) -> str:
    """The token of a request, which is taken out of its query and headers."""
    scope["headers"] = [(n, v) for n, v in scope["headers"] if n.lower() != b"authorization"]
    scheme, _, token = headers.get("authorization", "").partition(" ")
    found = token.strip() if scheme.lower() == "bearer" else ""
    query = scope.get("query_string", b"")
    if b"access_token" not in query and b"%" not in query:
        return found
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    query_tokens = [value for name, value in pairs if name == "access_token"]
    if query_tokens:
        scope["query_string"] = urlencode([p for p in pairs if p[0] != "access_token"]).encode()
    return found or (query_tokens[0] if query_tokens and _takes_query_token(scope, headers) else "")


def _takes_query_token(scope: Scope, headers: dict[str, str]) -> bool:
    """Whether it is a stream as a browser asks for it, which can set no header for that: changes
    of a view, by WebSocket or as server-sent events. Nothing else needs it, whatever it accepts."""
    asked = operation_at(scope.get("method", "GET"), scope["path"])
    if asked is None or asked[0].name != "view.changes":
        return False
    is_events = "text/event-stream" in headers.get("accept", "")
    return scope["type"] == "websocket" or (scope["method"] == "GET" and is_events)


def _check_body(scope: Scope, headers: dict[str, str]) -> None:
    if scope["type"] != "http":
        return
    length = headers.get("content-length", "0")
    if length.isdigit() and int(length) > MOST_BODY_BYTES:
        raise Refused(
            "request.too_large", 413, f"a request has at most {MOST_BODY_BYTES >> 20} MiB"
        )
    has_body = (length.isdigit() and int(length) > 0) or "transfer-encoding" in headers
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if has_body and scope["method"] not in _SAFE and not _JSON.match(kind):
        # A form of another page could send what counts as text without asking first.
        raise Refused(
            "request.not_json", 415, f'a request is JSON, not "{kind}"', hint="application/json"
        )


def _is_stream(scope: Scope) -> bool:
    """Whether an answer may have no end."""
    return scope["type"] == "websocket" or scope["path"].endswith("/changes")


class _Watched:
    """What a stream receives: also that its reader may not go on, since its token has ended."""

    def __init__(self, receive: Receive, kind: str, is_good: Callable[[], Awaitable[bool]]) -> None:
        self._receive = receive
        self._end: Message = {"type": f"{kind}.disconnect", "code": 1008}
        self._is_good = is_good
        self._next: asyncio.Future[Message] | None = None

    async def __call__(self) -> Message:
        """The next message, or an end."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._receive())
        while True:
            await asyncio.wait({self._next}, timeout=RECHECK_S)
            if self._next.done():
                message, self._next = self._next.result(), None
                return message
            try:
                if not await self._is_good():
                    return self._end
            except TidemarkError as error:
                log.warning("tokens.stale", code=error.code)

    def close(self) -> None:
        """Wait for nothing any more."""
        if self._next is not None:
            self._next.cancel()


def _limited(receive: Receive) -> Receive:
    """Reads no more than a request may have, whatever its header says."""
    size = 0

    async def read() -> Message:
        nonlocal size
        message: Any = await receive()
        size += len(message.get("body", b""))
        if size > MOST_BODY_BYTES:
            # What reads a body takes this for a client that has gone, and stops.
            return {"type": "http.disconnect"}
        return message

    return read
