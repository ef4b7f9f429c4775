"""Checks of every request before its route: origin, size, token, role; and security headers.

An ASGI layer, because it also guards event streams, WebSockets and static files, and must not read
a body.
Invariant: a token never passes this layer, neither into a log nor to a route. Routes get the caller
only (`request.state.caller`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from fnmatch import fnmatchcase
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dataflow.errors import TidemarkError
from service.access.authorization import Authorization, require_role
from service.access.operations import STREAMS, operation_at, role_for
from service.access.tokens import ANYBODY, OPEN, Caller, Role, Tokens
from service.api.problems import Refused, answer
from service.api.revocations import Revocations
from service.runtime.addresses import Guesses, is_loopback
from service.runtime.log import log
from service.runtime.settings import Settings

MAX_BODY_BYTES = 4 << 20
# How often the rights of a stream's reader are checked again.
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
    """ASGI middleware."""

    def __init__(
        self, app: ASGIApp, settings: Settings, tokens: Tokens, authorization: Authorization
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._authorization = authorization
        self._revocations = Revocations(tokens)
        self._guesses = Guesses()
        self._is_local = is_loopback(settings.host)
        self._is_tls = bool(settings.tls_cert)
        self._names = settings.names.split()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = headers_of(scope)
        respond = self._with_headers(scope, send)
        required = role_for(scope.get("method", "GET"), scope["path"])
        try:
            self._check_origin(scope, headers)
            caller = await self._caller(scope, headers, required)
            _check_body(scope, headers)
        except Refused as refused:
            await _refuse(refused, scope, receive, respond)
            return
        except TidemarkError as error:
            await _refuse(_refused(error, 503), scope, receive, respond)
            return
        scope.setdefault("state", {})["caller"] = caller
        with self._revocations.watched(caller) as ended:
            if not _is_stream(scope):
                reads = required <= Role.READER or scope["method"] in _SAFE
                sending = _Sending(scope, receive, respond, ended) if reads else respond
                await self._app(scope, _limited(receive), sending)
                return
            watched = _Watched(
                receive, scope["type"], ended, partial(self._may_continue, caller, scope)
            )
            try:
                await self._app(scope, watched, respond)
            finally:
                watched.close()

    # --- origin --------------------------------------------------------------------------------

    def _check_origin(self, scope: Scope, headers: dict[str, str]) -> None:
        """Refuse requests that a foreign web page makes in a user's browser."""
        host = headers.get("host", "")
        if (self._is_local or self._names) and not self._is_our_name(host):
            raise Refused(
                "request.host",
                421,
                f'host name "{host}" is not a name of this service',
                hint="add it to TIDEMARK_NAMES",
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
                "a page of another origin must not change anything here",
                detail=origin,
                hint="use the host name from which the page was loaded",
            )

    def _is_our_name(self, host: str) -> bool:
        name = re.sub(r":\d+\Z", "", host.lower())
        listed = any(fnmatchcase(name, glob.lower()) for glob in self._names)
        return listed or (self._is_local and is_loopback(name))

    # --- caller --------------------------------------------------------------------------------

    async def _caller(self, scope: Scope, headers: dict[str, str], required: Role) -> Caller:
        method = scope.get("method", "GET")
        token = _take_token(scope, headers)
        found = operation_at(method, scope["path"])
        if found is not None and found[0].name == "health.live":
            # For any caller: look nothing up, so that the check never waits.
            return ANYBODY
        if required is Role.PUBLIC and not token:
            return OPEN if self._is_local and not await self._is_any() else ANYBODY
        if not token and self._is_local and not await self._is_any():
            return OPEN
        if not token:
            raise Refused(
                "auth.missing",
                401,
                "this operation requires a token",
                hint="send Authorization: Bearer TOKEN; an admin can create one. For the first "
                "token, run on the server: tidemark token create NAME --role admin --direct",
                headers=_challenge(),
            )
        fresh = self._tokens.is_fresh(token)
        find = self._tokens.find
        caller = find(token) if fresh else await run_in_threadpool(find, token)
        if caller is None:
            self._refuse_unknown(scope)
        assert caller is not None
        try:
            require_role(caller, required)
        except TidemarkError as error:
            challenge = _challenge(', error="insufficient_scope"')
            raise _refused(error, 403, challenge) from None
        return caller

    async def _may_continue(self, caller: Caller, scope: Scope) -> bool:
        """Return True while a stream's reader has rights on the view.

        The stream itself reports all other changes of the view.
        """
        found = operation_at("GET", scope["path"])
        if found is None or not caller.db_role:
            return True
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
                "too many invalid tokens from this address",
                hint="wait before you try another token; a valid token is accepted at once",
                headers={"retry-after": str(round(wait_s))},
            )
        raise _invalid()

    # --- responses -----------------------------------------------------------------------------

    def _with_headers(self, scope: Scope, send: Send) -> Send:
        headers = dict(_HEADERS)
        if self._is_tls:
            headers["strict-transport-security"] = "max-age=31536000"
        added = [(name.encode(), value.encode()) for name, value in headers.items()]

        async def send_with_headers(message: Message) -> None:
            if message["type"].endswith("http.response.start"):
                have = {name.lower() for name, _ in message.get("headers", ())}
                rest = [(n, v) for n, v in added if n not in have]
                message = {**message, "headers": [*message.get("headers", ()), *rest]}
            await send(message)

        return send_with_headers


async def _refuse(refused: Refused, scope: Scope, receive: Receive, send: Send) -> None:
    """Send a refusal; a WebSocket is refused before its handshake completes."""
    response = answer(refused.problem, refused.headers)
    if scope["type"] == "http" or "websocket.http.response" in scope.get("extensions", {}):
        await response(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1008, "reason": refused.problem.code})


def _refused(error: TidemarkError, status: int, headers: dict[str, str] | None = None) -> Refused:
    """Return the refusal for an error."""
    return Refused(
        error.code, status, error.what, detail=error.detail, hint=error.hint, headers=headers
    )


def _invalid() -> Refused:
    return Refused(
        "auth.invalid",
        401,
        "the token is not known, or no longer valid",
        hint="it may have expired or been revoked; an admin can see it in GET /tokens",
        headers=_challenge(', error="invalid_token"'),
    )


def _challenge(more: str = "") -> dict[str, str]:
    return {"www-authenticate": f'Bearer realm="tidemark"{more}'}


def headers_of(scope: Scope) -> dict[str, str]:
    """Return the request's headers; of equal names the last."""
    pairs: Iterable[tuple[bytes, bytes]] = scope["headers"]
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in pairs}


def _take_token(scope: Scope, headers: dict[str, str]) -> str:
    """Remove the token from the request's query and headers, and return it."""
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
    """Return True for a stream of changes that a browser opens (WebSocket, server-sent events).

    Browsers cannot set headers for those. No other request may carry a token in its query.
    """
    operation = operation_at(scope.get("method", "GET"), scope["path"])
    if operation is None or operation[0].name != "view.changes":
        return False
    is_events = "text/event-stream" in headers.get("accept", "")
    return scope["type"] == "websocket" or (scope["method"] == "GET" and is_events)


def _check_body(scope: Scope, headers: dict[str, str]) -> None:
    if scope["type"] != "http":
        return
    length = headers.get("content-length", "0")
    if length.isdigit() and int(length) > MAX_BODY_BYTES:
        raise Refused(
            "request.too_large", 413, f"the request is larger than {MAX_BODY_BYTES >> 20} MiB"
        )
    has_body = (length.isdigit() and int(length) > 0) or "transfer-encoding" in headers
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if has_body and scope["method"] not in _SAFE and not _JSON.match(kind):
        # A form on a foreign page could send text without a CORS preflight.
        raise Refused(
            "request.not_json",
            415,
            f'the request is not JSON but "{kind}"',
            hint="send Content-Type: application/json",
        )


def _is_stream(scope: Scope) -> bool:
    """Return True if the response may be endless."""
    return scope["type"] == "websocket" or scope["path"].endswith(STREAMS)


class _Watched:
    """The receive function of a stream; it disconnects a reader that loses its token or rights."""

    def __init__(
        self,
        receive: Receive,
        kind: str,
        ended: asyncio.Future[None],
        is_good: Callable[[], Awaitable[bool]],
    ) -> None:
        self._receive = receive
        self._ended = ended
        self._end: Message = {"type": f"{kind}.disconnect", "code": 1008}
        self._is_good = is_good
        self._next: asyncio.Future[Message] | None = None

    async def __call__(self) -> Message:
        """Return the next message, or a disconnect."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._receive())
        while True:
            await asyncio.wait(
                {self._next, self._ended}, timeout=RECHECK_S, return_when=asyncio.FIRST_COMPLETED
            )
            if self._ended.done():
                return self._end
            if self._next.done():
                message, self._next = self._next.result(), None
                return message
            try:
                if not await self._is_good():
                    return self._end
            except TidemarkError as error:
                log.warning("tokens.stale", code=error.code)

    def close(self) -> None:
        """Cancel the pending receive."""
        if self._next is not None:
            self._next.cancel()


class _Sending:
    """The send function of a call that reads: a refusal instead of an answer once its token is not
    valid, at once if the call waits."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, ended: asyncio.Future[None]
    ) -> None:
        self._parts = scope, receive, send
        self._has_begun = False
        self._refusal: asyncio.Task[None] | None = None
        ended.add_done_callback(lambda _: self._refuse())

    async def __call__(self, message: Message) -> None:
        """Send a message, or nothing after a refusal."""
        if self._refusal is None:
            self._has_begun = True
            await self._parts[2](message)

    def _refuse(self) -> None:
        if not self._has_begun:
            self._refusal = asyncio.ensure_future(_refuse(_invalid(), *self._parts))


def _limited(receive: Receive) -> Receive:
    """Return a receive function that limits the body's size, whatever its header says."""
    size = 0

    async def read() -> Message:
        nonlocal size
        message: Any = await receive()
        size += len(message.get("body", b""))
        if size > MAX_BODY_BYTES:
            # The reader of the body stops, as for a client that disconnects.
            return {"type": "http.disconnect"}
        return message

    return read
