"""Lifecycle operations of a view: replace, rebuild, pause, resume, rename, move, runtime, cancel.

Each returns the view: 200 once the operation is done, 202 if it still runs after wait_s. A refused
or failed operation is a problem with a code; the view is then unchanged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from service.access.tokens import Caller
from service.api.call_limits import run_limited
from service.api.catalog import Catalog
from service.api.lifecycle_requests import AcceptedRequest, Life
from service.api.models import ChangeRuntime, MoveView, RenameView, ReplaceView, ViewModel

LATER = {"model": ViewModel, "description": "still in progress after wait_s"}

router = APIRouter(prefix="/views/{name}", tags=["life of a view"], responses={202: LATER})

_POLL_S = 0.05
WaitS = Annotated[float, Query(ge=0, le=3600, description="wait until it is done")]
Cascade = Annotated[bool, Query(description="also the views that read it")]


@router.post("/replace")
async def replace_view(
    request: Request, response: Response, name: str, body: ReplaceView, wait_s: WaitS = 0
) -> ViewModel:
    """Change the query of a view. The old rows stay readable and up to date until the new ones are
    complete."""
    return await _done(
        request,
        response,
        lambda life, by: [life.replace(name, body.query, body.options, by=by)],
        wait_s,
    )


@router.delete("/replace")
async def cancel_change(request: Request, response: Response, name: str) -> ViewModel:
    """Cancel the change in progress; the view is unchanged."""
    return await _done(request, response, lambda life, by: [life.cancel(name, by=by)], 0)


@router.post("/rebuild")
async def rebuild_view(
    request: Request, response: Response, name: str, wait_s: WaitS = 0
) -> ViewModel:
    """Compute a view again from a new snapshot; this also recovers a failed view."""
    return await _done(request, response, lambda life, by: life.rebuild(name, by=by), wait_s)


@router.post("/pause")
async def pause_view(
    request: Request, response: Response, name: str, wait_s: WaitS = 10, cascade: Cascade = False
) -> ViewModel:
    """Keep a view's rows as they are and stop maintaining it."""
    return await _done(
        request, response, lambda life, by: life.pause(name, by=by, cascade=cascade), wait_s
    )


@router.post("/resume")
async def resume_view(
    request: Request, response: Response, name: str, wait_s: WaitS = 0, cascade: Cascade = False
) -> ViewModel:
    """Rebuild a paused view and maintain it again."""
    return await _done(
        request, response, lambda life, by: life.resume(name, by=by, cascade=cascade), wait_s
    )


@router.post("/rename")
async def rename_view(
    request: Request, response: Response, name: str, body: RenameView, wait_s: WaitS = 10
) -> ViewModel:
    """Rename a view; queries of views that read it are adapted."""
    return await _done(
        request, response, lambda life, by: [life.rename(name, body.name, by=by)], wait_s
    )


@router.post("/move")
async def move_view(
    request: Request, response: Response, name: str, body: MoveView, wait_s: WaitS = 10
) -> ViewModel:
    """Move a view to another schema; queries of views that read it are adapted."""
    return await _done(
        request, response, lambda life, by: [life.move(name, body.schema_name, by=by)], wait_s
    )


@router.post("/runtime")
async def change_runtime(
    request: Request, response: Response, name: str, body: ChangeRuntime, wait_s: WaitS = 0
) -> ViewModel:
    """Maintain a view by Spark, or locally, from now on. Its state goes along: no source is read
    again, and its rows stay readable."""
    return await _done(
        request, response, lambda life, by: [life.change_runtime(name, body.runtime, by=by)], wait_s
    )


async def _done(
    request: Request,
    response: Response,
    begin: Callable[[Life, Caller], Sequence[AcceptedRequest]],
    wait_s: float,
) -> ViewModel:
    """Request the operation, wait, and return the first view that it concerns."""
    life: Life = request.app.state.life
    catalog: Catalog = request.app.state.catalog
    accepted = await run_limited(request, begin, life, request.state.caller)
    deadline = time.monotonic() + wait_s
    waiting = list(accepted)
    while True:
        waiting = [one for one in waiting if not await run_in_threadpool(life.is_done, one)]
        if not waiting or time.monotonic() >= deadline:
            break
        await asyncio.sleep(_POLL_S)
    if waiting:
        response.status_code = 202
    return await run_in_threadpool(lambda: catalog.view(life.name_now(accepted[0])))
