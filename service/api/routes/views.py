"""Views: create, list, show, drop, wait, plan, validate.

The routes that wait (create, drop, wait) are asynchronous and poll the catalog, which all API
processes share. Blocking calls run in the thread pool, never in the event loop.
"""

from __future__ import annotations

import functools
import time
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from service.api.call_limits import run_limited
from service.api.catalog import Catalog, path_name
from service.api.models import (
    CreateView,
    DataflowAnswer,
    PlanAnswer,
    ValidateView,
    Validation,
    ViewList,
    ViewModel,
    WaitAnswer,
)
from service.api.routes.paging import After, Limit, one_more, paged
from service.api.routes.waiting import GOING, until_gone, until_resolved, until_visible

router = APIRouter(prefix="/views", tags=["views"])


def _catalog(request: Request) -> Catalog:
    return request.app.state.catalog


@router.post("", status_code=201)
async def create_view(
    request: Request,
    body: CreateView,
    response: Response,
    wait_s: Annotated[float, Query(ge=0, le=3600, description="wait until live or failed")] = 0,
) -> ViewModel:
    """Create a view. With wait_s, wait until it is live or failed."""
    catalog = _catalog(request)
    name = await run_limited(request, catalog.create, body, request.state.caller)
    view = await until_resolved(lambda: catalog.view(name), wait_s)
    response.headers["Location"] = f"/views/{name}"
    return view


@router.get("")
def list_views(request: Request, limit: Limit = None, after: After = "") -> ViewList:
    """List all views by name, or a page of them."""
    found = _catalog(request).views(request.state.caller, one_more(limit), after)
    views, next_name = paged(found, limit, lambda v: path_name(v.schema_name, v.name))
    return ViewList(views=views, next=next_name)


@router.post("/validate")
async def validate_view(request: Request, body: ValidateView) -> Validation:
    """Analyze a query: columns, key, warnings, estimate; nothing is created."""
    validate = _catalog(request).validate
    return await run_limited(request, validate, body.query, request.state.caller, body.options)


@router.get("/{name}")
def show_view(request: Request, name: str) -> ViewModel:
    """Return one view with its status."""
    return _catalog(request).view(name)


@router.delete("/{name}", status_code=204, responses={202: GOING})
async def drop_view(
    request: Request,
    name: str,
    wait_s: Annotated[float, Query(ge=0, le=3600)] = 60,
    drop_data: Annotated[bool, Query(description="also delete its sinks' data")] = False,
    drop_topics: Annotated[bool, Query(description="earlier name", deprecated=True)] = False,
) -> Response:
    """Drop a view with its table and state; respond when it is done, or with 202 after wait_s."""
    catalog = _catalog(request)
    sinks = request.app.state.sinks
    caller = request.state.caller
    erase = functools.partial(sinks.erase_all, name, caller)
    before = erase if drop_data or drop_topics else None
    identity = await run_in_threadpool(catalog.drop, name, caller, before)
    return await until_gone(lambda: catalog.exists(identity), wait_s)


@router.get("/{name}/wait")
async def wait_for_position(
    request: Request,
    name: str,
    position: Annotated[str, Query(description="a WAL position of the source, such as 0/1A2B3C")],
    timeout_s: Annotated[float, Query(ge=0, le=3600)] = 30,
) -> WaitAnswer:
    """Respond when every commit up to the position is visible in the sink; 504 after timeout_s."""
    catalog = _catalog(request)
    started = time.monotonic()
    reached = await until_visible(catalog, name, position, timeout_s)
    waited_ms = round((time.monotonic() - started) * 1000, 3)
    return WaitAnswer(position=catalog.format_position(reached), waited_ms=waited_ms)


@router.get("/{name}/plan")
def show_plan(request: Request, name: str) -> PlanAnswer:
    """Return the view's plan as a tree, and the expressions that PostgreSQL evaluates."""
    return _catalog(request).plan(name)


@router.get("/{name}/dataflow")
def show_dataflow(request: Request, name: str) -> DataflowAnswer:
    """Return the nodes that compute the view, with figures of a second ago.

    A part that views share is one node. While a view is built, its nodes have no figures.
    """
    return _catalog(request).dataflow(name)
