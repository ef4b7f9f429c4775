"""Rows of a view in pages, and one-shot queries.

Blocking calls run in the thread pool, never in the event loop.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from service.access.tokens import Caller, Role
from service.api.call_limits import QueryLimits
from service.api.catalog import Catalog
from service.api.models import Query as QueryBody
from service.api.models import QueryAnswer, RowPage
from service.api.reading import Reading
from service.api.routes.paging import Whole
from service.api.routes.waiting import until_shown, until_visible
from service.api.row_pages import WORDS, DifferenceOptions, RowOptions
from service.api.subscription_models import DifferencePage

router = APIRouter(tags=["rows"])

# Its other parameters are columns.
OPEN_PATH = "/views/{name}/rows"


def _row_options(
    request: Request,
    columns: Annotated[str, Query(description="columns to return, separated by commas")] = "",
    order: Annotated[
        str, Query(description="for example amount.desc,id or name.asc.nullsfirst")
    ] = "",
    limit: Annotated[Whole, Query(ge=1, le=10_000)] = 100,
    after: Annotated[str, Query(description="`next` of the previous page")] = "",
    *,
    as_of: Annotated[
        str, Query(max_length=100, description="a time, a position or an epoch of its history")
    ] = "",
) -> RowOptions:
    others = [(k, v) for k, v in request.query_params.multi_items() if k not in WORDS]
    return RowOptions(columns, order, limit, after, tuple(others), as_of)


@router.get(OPEN_PATH, response_model=RowPage)
async def read_rows(
    request: Request,
    name: str,
    options: Annotated[RowOptions, Depends(_row_options)],
    min_position: Annotated[str, Query(description="wait until this position is visible")] = "",
    wait_s: Annotated[
        float, Query(ge=0, le=3600, description="seconds to wait for a position")
    ] = 30,
) -> Response:
    """Return rows of a view. Any other parameter is a condition: amount=gte.10, region=in.(a,b)."""
    if min_position:
        await until_visible(request.app.state.catalog, name, min_position, wait_s)
    if options.as_of:
        await until_shown(request.app.state.catalog, name, options.as_of, wait_s)
    reading: Reading = request.app.state.reading
    role = request.state.caller.db_role or ""
    body, tag = await run_in_threadpool(reading.page, name, options, role)
    return unchanged_or(request.headers.get("if-none-match", ""), tag, body)


def _difference_options(
    begin: Annotated[
        str,
        Query(alias="from", min_length=1, max_length=100, description="a time, position or epoch"),
    ],
    end: Annotated[
        str, Query(alias="to", max_length=100, description="likewise; by default the newest epoch")
    ] = "",
    limit: Annotated[Whole, Query(ge=1, le=10_000)] = 1_000,
    after: Annotated[str, Query(description="`next` of the previous page")] = "",
) -> DifferenceOptions:
    return DifferenceOptions(begin, end, limit, after)


@router.get("/views/{name}/diff", response_model=DifferencePage)
def read_difference(
    request: Request, name: str, options: Annotated[DifferenceOptions, Depends(_difference_options)]
) -> Response:
    """Return what changed in a view between two points of its history: rows with weights."""
    reading: Reading = request.app.state.reading
    body = reading.difference(name, options, request.state.caller.db_role or "")
    return Response(body, media_type="application/json")


@router.post("/query", response_model=QueryAnswer)
async def run_query(request: Request, body: QueryBody) -> Response:
    """Answer one SELECT over tables and views once; nothing is stored."""
    reading: Reading = request.app.state.reading
    catalog: Catalog = request.app.state.catalog
    caller: Caller = request.state.caller
    # A caller that may create a view of a table may read the table.
    prepare = partial(reading.prepare, reads_tables=caller.role >= Role.OPERATOR)
    limits: QueryLimits = request.app.state.limits
    async with limits.worker(caller):
        dsn, query, views = await limits.run(prepare, body, caller.db_role or "")
    if views and body.wait_s:
        position = catalog.format_position(await run_in_threadpool(catalog.current_position))
        for view in views:
            await until_visible(catalog, view, position, body.wait_s)
    async with limits.worker(request.state.caller):
        answer = await limits.run(reading.run, dsn, query, body)
    return Response(answer, media_type="application/json")


def unchanged_or(if_none_match: str, tag: str, body: bytes) -> Response:
    """Return 304 if the client has this ETag, else the body with the ETag."""
    shown = f'W/"{tag}"'
    if if_none_match.strip() == "*" or shown in [part.strip() for part in if_none_match.split(",")]:
        return Response(status_code=304, headers={"ETag": shown})
    return Response(body, headers={"ETag": shown}, media_type="application/json")
