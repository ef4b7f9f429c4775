"""Subscriptions to a view's changes: as server-sent events, or the same through a WebSocket.

Invariant: a slow reader delays no other one. Its events stay in the log only, and a reader that
does not read for too long is disconnected. Runs in the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from dataclasses import replace
from typing import Annotated

from fastapi import (
    APIRouter,
    Depends,
    Header,
    Query,
    Request,
    Response,
    WebSocket,
    WebSocketDisconnect,
)
from starlette.types import Receive, Scope, Send

from dataflow.errors import TidemarkError
from service.access.authorization import authorize_view
from service.api.problems import problem_json, problem_of
from service.runtime.log import log
from service.subscriptions.change_feed import Framing, MarkerName, framed
from service.subscriptions.subscriptions import StreamOptions, Subscription, Subscriptions, too_slow
from service.subscriptions.view_stream import StreamRange, ViewStream

router = APIRouter(prefix="/views", tags=["changes"])

# A WebSocket is closed with 4000 plus the HTTP status of the error, or a code of RFC 6455.
_CLOSE = 4000
_GOING_AWAY = 1001

HasRows = Annotated[bool, Query(description="begin with the view's rows")]
Resume = Annotated[str, Query(max_length=100, description="resume after this token's marker")]
Named = Annotated[
    str,
    Query(max_length=63, description="read after what this subscription acknowledged"),
]
Heartbeat = Annotated[float, Query(ge=0.1, le=300, description="seconds between heartbeats")]
Marker = Annotated[
    MarkerName,
    Query(description="event name of progress markers; `mark` is the earlier one, for one release"),
]

_EXAMPLE = """id: 5b1c9e0f7a3d2c41.42
event: progress
data: {"epoch":42,"positions":{"source":"0/1A2B3C"},"resume":"5b1c9e0f7a3d2c41.42"}

event: changes
data: {"epoch":43,"rows":[{"region":"north","revenue":"12.50"}],"weights":[1]}

"""

_STREAM_EXAMPLE = """event: changes
data: {"epoch":43,"committed_at":"2026-01-31T18:00:00.000000Z","positions":{"source":"0/1A2C00"},"rows":[{"region":"north","revenue":"12.50"},{"region":"north","revenue":"20"}],"undo":[true,false]}

id: 43
event: progress
data: {"epoch":43,"committed_at":"2026-01-31T18:00:00.000000Z","positions":{"source":"0/1A2C00"},"resume":"43"}

"""  # noqa: E501


class EventStream(Response):
    """A subscription, or a stream of a view's history, as an endless response."""

    media_type = "text/event-stream"

    def __init__(self, subscription: Subscription | ViewStream) -> None:
        super().__init__(
            headers={
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",
                "Tidemark-Retention": f"{subscription.retention_s:g}",
            }
        )
        del self.headers["content-length"]
        self._subscription = subscription

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the reader or the subscription ends."""
        await _until_either(self._pump(send), _until_disconnect(receive), self._subscription)

    async def _pump(self, send: Send) -> None:
        headers = self.raw_headers
        await send({"type": "http.response.start", "status": 200, "headers": headers})

        async def put(body: bytes, *, is_more: bool = True) -> None:
            await send({"type": "http.response.body", "body": body, "more_body": is_more})

        async with contextlib.aclosing(self._subscription.frames("sse", problem_json)) as frames:
            async for pieces in frames:
                if not await _is_taken(put(b"".join(pieces)), self._subscription):
                    last = _error_frame("sse", too_slow("the reader read nothing for too long"))
                    await _deliver(put(last), self._subscription)
                    return
        await _deliver(put(b"", is_more=False), self._subscription)


def _stream_options(
    *,
    snapshot: HasRows = True,
    resume: Resume = "",
    heartbeat_s: Heartbeat = 15,
    subscription: Named = "",
    marker: Marker = "progress",
    last_event_id: Annotated[str, Header(max_length=100)] = "",
) -> StreamOptions:
    token = last_event_id or resume
    return StreamOptions(snapshot, token, heartbeat_s, subscription, marker=marker)


GivenOptions = Annotated[StreamOptions, Depends(_stream_options)]


def _stream_range(
    *,
    since: Annotated[
        str, Query(max_length=100, description="only after this time, position or epoch")
    ] = "",
    until: Annotated[
        str, Query(max_length=100, description="end after this time, position or epoch")
    ] = "",
    retractions: Annotated[bool, Query(description="with the rows that changes undo")] = True,
    heartbeat_s: Heartbeat = 15,
    last_event_id: Annotated[str, Header(max_length=100)] = "",
) -> StreamRange:
    return StreamRange(last_event_id or since, until, retractions, heartbeat_s)


@router.get(
    "/{name}/changes",
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {"example": _EXAMPLE}}}},
)
async def follow_changes(request: Request, name: str, options: GivenOptions) -> Response:
    """Send the view's rows, then each epoch as it happens, as server-sent events.

    A browser's EventSource resumes by itself: Last-Event-ID takes precedence over `resume`.
    """
    return EventStream(await _subscriptions(request).open(name, _for_caller(request, options)))


@router.get(
    "/{name}/stream",
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {"example": _STREAM_EXAMPLE}}}},
)
async def follow_stream(
    request: Request,
    name: str,
    range: Annotated[StreamRange, Depends(_stream_range)],
) -> Response:
    """Send every change of the view's table in order, from its history and then as it happens.

    Last-Event-ID takes precedence over `since`. With `until`, the stream ends there.
    """
    role = request.state.caller.db_role or ""
    return EventStream(await request.app.state.streams.open(name, replace(range, role=role)))


@router.websocket("/{name}/changes/ws")
async def follow_changes_by_socket(socket: WebSocket, name: str, options: GivenOptions) -> None:
    """Send the same events as texts `{"event": ..., "data": ...}`."""
    await socket.accept()
    try:
        await authorize_view(socket, "view.changes")
        subscription = await _subscriptions(socket).open(name, _for_caller(socket, options))
    except TidemarkError as error:
        await socket.send_text(_error_frame("socket", error).decode())
        await socket.close(_CLOSE + problem_of(error).status, error.code)
        return
    await _until_either(_pump_socket(socket, subscription), _until_closed(socket), subscription)


async def _pump_socket(socket: WebSocket, subscription: Subscription) -> None:
    code, reason = _GOING_AWAY, "the service is stopping"
    async with contextlib.aclosing(subscription.frames("socket", problem_json)) as frames:
        async for pieces in frames:
            for piece in pieces:
                if not await _is_taken(socket.send_text(piece.decode()), subscription):
                    error = too_slow("the reader read nothing for too long")
                    await _deliver(
                        socket.send_text(_error_frame("socket", error).decode()), subscription
                    )
                    code = _CLOSE + problem_of(error).status
                    await _deliver(socket.close(code, error.code), subscription)
                    return
    if subscription.error is not None:
        code, reason = _CLOSE + problem_of(subscription.error).status, subscription.error.code
    await _deliver(socket.close(code, reason), subscription)


def _error_frame(framing: Framing, error: TidemarkError) -> bytes:
    return framed(framing, b"error", problem_json(error))


async def _until_either(
    pump: Awaitable[None], gone: Awaitable[None], subscription: Subscription | ViewStream
) -> None:
    """Run until all is sent or the reader disconnects, then end the subscription."""
    tasks = [asyncio.ensure_future(pump), asyncio.ensure_future(gone)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        subscription.close()
    if isinstance(ends[0], Exception) and not isinstance(ends[0], OSError | WebSocketDisconnect):
        raise ends[0]


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


async def _until_closed(socket: WebSocket) -> None:
    while (await socket.receive())["type"] != "websocket.disconnect":
        continue


async def _is_taken(sending: Awaitable[None], subscription: Subscription | ViewStream) -> bool:
    """Send a piece; return False if the reader does not read it within the timeout."""
    try:
        async with asyncio.timeout(subscription.timeout_s):
            await sending
        return True
    except TimeoutError:
        log.warning("changes.too_slow", view=subscription.title)
        return False


async def _deliver(sending: Awaitable[None], subscription: Subscription | ViewStream) -> None:
    """Send a last message; ignore a timeout."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(subscription.timeout_s):
            await sending


def _for_caller(connection: Request | WebSocket, options: StreamOptions) -> StreamOptions:
    """Return the request with the database role of its caller."""
    return replace(options, role=connection.state.caller.db_role or "")


def _subscriptions(connection: Request | WebSocket) -> Subscriptions:
    return connection.app.state.subscriptions
