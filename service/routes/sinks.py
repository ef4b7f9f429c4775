"""Further sinks of a view: add, list, show, drop.

As with views, what waits polls the catalog, and what blocks runs in the thread pool.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from service.models import CreateSink, SinkList, SinkModel
from service.sink_catalog import SinkCatalog

router = APIRouter(prefix="/views/{view}/sinks", tags=["sinks"])

_POLL_S = 0.05
_SETTLED = ("live", "failed")


def _sinks(request: Request) -> SinkCatalog:
    return request.app.state.sinks


@router.post("", status_code=201)
async def add_sink(
    request: Request,
    view: str,
    body: CreateSink,
    wait_s: Annotated[float, Query(ge=0, le=3600, description="wait until live or failed")] = 0,
) -> SinkModel:
    """Send a live view to a further place. With wait_s the answer comes once that has begun."""
    sinks = _sinks(request)
    sink = await run_in_threadpool(sinks.add, view, body)
    deadline = time.monotonic() + wait_s
    while sink.status not in _SETTLED and time.monotonic() < deadline:
        await asyncio.sleep(_POLL_S)
        sink = await run_in_threadpool(sinks.show, view, body.name)
    return sink


@router.get("")
def list_sinks(request: Request, view: str) -> SinkList:
    """The sinks of a view beside its table."""
    return SinkList(sinks=_sinks(request).list(view))


@router.get("/{sink}")
def show_sink(request: Request, view: str, sink: str) -> SinkModel:
    """One sink as it stands."""
    return _sinks(request).show(view, sink)


@router.delete("/{sink}", status_code=204)
async def drop_sink(
    request: Request,
    view: str,
    sink: str,
    wait_s: Annotated[float, Query(ge=0, le=3600)] = 60,
    drop_topic: Annotated[bool, Query(description="delete what it has written")] = False,
) -> Response:
    """Stop writing to a sink; answers when that is done (or time is up: 202)."""
    sinks = _sinks(request)
    identity = await run_in_threadpool(sinks.drop, view, sink, is_erased=drop_topic)
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        if not await run_in_threadpool(sinks.exists, identity):
            return Response(status_code=204)
        await asyncio.sleep(_POLL_S)
    return Response(status_code=202)
