"""Additional sinks of a view: add, list, show, drop.

Blocking calls run in the thread pool, never in the event loop.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from service.api.call_limits import run_limited
from service.api.models import CreateSink, SinkList, SinkModel
from service.api.routes.paging import After, Limit, paged
from service.api.routes.waiting import GOING, until_gone, until_resolved
from service.api.sink_catalog import SinkCatalog

router = APIRouter(prefix="/views/{view}/sinks", tags=["sinks"])


def _sinks(request: Request) -> SinkCatalog:
    return request.app.state.sinks


@router.post("", status_code=201)
async def add_sink(
    request: Request,
    view: str,
    body: CreateSink,
    wait_s: Annotated[float, Query(ge=0, le=3600, description="wait until live or failed")] = 0,
) -> SinkModel:
    """Add a sink to a live view. With wait_s, wait until the sink is live or failed."""
    sinks = _sinks(request)
    await run_limited(request, sinks.add, view, body, request.state.caller)
    return await until_resolved(lambda: sinks.show(view, body.name), wait_s)


@router.get("")
def list_sinks(request: Request, view: str, limit: Limit = None, after: After = "") -> SinkList:
    """List the additional sinks of a view, or a page of them."""
    found = _sinks(request).list(view)
    if after:
        names = [sink.name for sink in found]
        first = _sinks(request).show(view, after).name
        found = found[names.index(first) + 1 :] if first in names else []
    sinks, next_name = paged(found, limit, lambda sink: sink.name)
    return SinkList(sinks=sinks, next=next_name)


@router.get("/{sink}")
def show_sink(request: Request, view: str, sink: str) -> SinkModel:
    """Return one sink with its status."""
    return _sinks(request).show(view, sink)


@router.delete("/{sink}", status_code=204, responses={202: GOING})
async def drop_sink(
    request: Request,
    view: str,
    sink: str,
    *,
    wait_s: Annotated[float, Query(ge=0, le=3600)] = 60,
    drop_data: Annotated[bool, Query(description="also delete what it has written")] = False,
    drop_topic: Annotated[bool, Query(description="earlier name", deprecated=True)] = False,
) -> Response:
    """Drop a sink; respond when it is done, or with 202 after wait_s."""
    sinks = _sinks(request)
    caller = request.state.caller
    is_erased = drop_data or drop_topic
    identity = await run_in_threadpool(sinks.drop, view, sink, caller, is_erased=is_erased)
    return await until_gone(lambda: sinks.exists(identity), wait_s)
