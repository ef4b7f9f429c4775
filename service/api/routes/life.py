"""The life of a view: replace, rebuild, pause, resume, rename, move, and giving up what goes on.

Each answers with the view: 200 once it is done, 202 when it is still under way after wait_s. What
was refused, or has failed, is a problem with its code; the view is then what it was.
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
from service.api.lifecycle_requests import Asked, Life
from service.api.models import MoveView, RenameView, ReplaceView, ViewModel

LATER = {"model": ViewModel, "description": "still under way after wait_s"}

router = APIRouter(prefix="/views/{name}", tags=["life of a view"], responses={202: LATER})

_POLL_S = 0.05
WaitS = Annotated[float, Query(ge=0, le=3600, description="wait until it is done")]
Cascade = Annotated[bool, Query(description="also the views that read it")]


@router.post("/replace")
async def replace_view(
    request: Request, response: Response, name: str, body: ReplaceView, wait_s: WaitS = 0
) -> ViewModel:
    """Give a view another query; its rows stay readable and up to date until the new ones are
    there."""
    return await _done(
        request,
        response,
        lambda life, by: [life.replace(name, body.query, body.options, by=by)],
        wait_s,
    )


@router.delete("/replace")
async def cancel_change(request: Request, response: Response, name: str) -> ViewModel:
    """Give up what is under way for a view, which stays what it is."""
    return await _done(request, response, lambda life, by: [life.cancel(name, by=by)], 0)


@router.post("/rebuild")
async def rebuild_view(
    request: Request, response: Response, name: str, wait_s: WaitS = 0
) -> ViewModel:
    """Compute a view anew from a new snapshot and show the difference; the way out of failed."""
    return await _done(request, response, lambda life, by: life.rebuild(name, by=by), wait_s)


@router.post("/pause")
async def pause_view(
    request: Request, response: Response, name: str, wait_s: WaitS = 0, cascade: Cascade = False
) -> ViewModel:
    """Leave a view's rows as they are, and compute it no longer."""
    return await _done(
        request, response, lambda life, by: life.pause(name, by=by, cascade=cascade), wait_s
    )


@router.post("/resume")
async def resume_view(
    request: Request, response: Response, name: str, wait_s: WaitS = 0, cascade: Cascade = False
) -> ViewModel:
    """Compute a paused view anew, show the difference, and keep it up to date again."""
    return await _done(
        request, response, lambda life, by: life.resume(name, by=by, cascade=cascade), wait_s
    )


@router.post("/rename")
async def rename_view(
    request: Request, response: Response, name: str, body: RenameView, wait_s: WaitS = 10
) -> ViewModel:
    """Give a view another name; views that read it follow."""
    return await _done(
        request, response, lambda life, by: [life.rename(name, body.name, by=by)], wait_s
    )


@router.post("/move")
async def move_view(
    request: Request, response: Response, name: str, body: MoveView, wait_s: WaitS = 10
) -> ViewModel:
    """Move a view to another schema; views that read it follow."""
    return await _done(
        request, response, lambda life, by: [life.move(name, body.schema_name, by=by)], wait_s
    )


async def _done(
    request: Request,
    response: Response,
    ask: Callable[[Life, Caller], Sequence[Asked]],
    wait_s: float,
) -> ViewModel:
    """Ask, wait, and show the view that was asked for first."""
    life: Life = request.app.state.life
    catalog: Catalog = request.app.state.catalog
    asked = await run_limited(request, ask, life, request.state.caller)
    deadline = time.monotonic() + wait_s
    waiting = list(asked)
    while True:
        waiting = [one for one in waiting if not await run_in_threadpool(life.is_done, one)]
        if not waiting or time.monotonic() >= deadline:
            break
        await asyncio.sleep(_POLL_S)
    if waiting:
        response.status_code = 202
    return await run_in_threadpool(lambda: catalog.view(life.name_now(asked[0])))
