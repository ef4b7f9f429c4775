"""Sources and dead letters: declare, discover, change, drop, list; retry or drop records.

All calls return at once; the source's status shows what the pipeline makes of them.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from service.api.call_limits import run_limited
from service.api.routes.paging import After, Limit, Whole, one_more, paged
from service.api.source_catalog import SourceCatalog
from service.api.source_models import (
    ChangeSource,
    ChooseDeadLetters,
    Chosen,
    CreateSource,
    DeadLetterList,
    Discovered,
    DiscoverSource,
    GrantSource,
    ResetSource,
    ResetState,
    SourceList,
    SourceModel,
)
from service.api.start_reset import ResetProgress

router = APIRouter(tags=["sources"])
POLL_S = 0.1


def _catalog(request: Request) -> SourceCatalog:
    return request.app.state.sources


@router.post("/sources", status_code=201)
async def create_source(request: Request, body: CreateSource, response: Response) -> SourceModel:
    """Declare a source. The service first connects to it and checks the declaration."""
    response.headers["Location"] = f"/sources/{body.name}"
    return await run_limited(request, _catalog(request).create, body, request.state.caller)


@router.post("/sources/discover")
async def discover_source(request: Request, body: DiscoverSource) -> Discovered:
    """Propose columns from samples; nothing is created."""
    discover = _catalog(request).discover
    return Discovered(options=await run_limited(request, discover, body, request.state.caller))


@router.get("/sources")
def list_sources(request: Request, limit: Limit = None, after: After = "") -> SourceList:
    """List the external sources, or a page of them."""
    found = _catalog(request).list(request.state.caller, one_more(limit), after)
    sources, next_name = paged(found, limit, lambda source: source.name)
    return SourceList(sources=sources, next=next_name)


@router.get("/sources/{name}")
def show_source(request: Request, name: str) -> SourceModel:
    """Return one source with its status."""
    return _catalog(request).show(name, request.state.caller)


@router.put("/sources/{name}")
async def change_source(request: Request, name: str, body: ChangeSource) -> SourceModel:
    """Change a source's options; relations that views read must not change."""
    change = _catalog(request).change
    return await run_limited(request, change, name, body.options, request.state.caller)


@router.delete("/sources/{name}", status_code=204)
async def drop_source(request: Request, name: str) -> Response:
    """Drop a source that no view reads."""
    await run_limited(request, _catalog(request).drop, name, request.state.caller)
    return Response(status_code=204)


@router.post("/sources/{name}/retry", status_code=202)
def retry_source(request: Request, name: str) -> SourceModel:
    """Retry an unreachable or stopped source now; its status shows the result."""
    return _catalog(request).retry(name, request.state.caller)


@router.post("/sources/{name}/reset", responses={202: {"model": ResetState}})
async def reset_source(
    request: Request,
    name: str,
    body: ResetSource,
    response: Response,
    wait_s: Annotated[float, Query(ge=0, le=3600, description="wait until it is done")] = 60,
) -> ResetState:
    """Read a relation from another start: its views are paused, then built again.

    Responds with 202 if views are not paused after wait_s; the same call then continues.
    """
    step, deadline = request.app.state.reset.step, time.monotonic() + wait_s
    while True:
        found: ResetProgress = await run_limited(
            request, step, name, body.relation, body.start, request.state.caller
        )
        if not found.waits_for or time.monotonic() >= deadline:
            break
        await asyncio.sleep(POLL_S)
    response.status_code = 202 if found.waits_for else 200
    return ResetState(views=list(found.views), waits_for=list(found.waits_for))


@router.post("/sources/{name}/grants")
def grant_source(request: Request, name: str, body: GrantSource) -> SourceModel:
    """Let a role read a source, or one relation of it."""
    return _catalog(request).grant(name, body.relation, body.role, request.state.caller)


@router.delete("/sources/{name}/grants")
def revoke_source(
    request: Request,
    name: str,
    role: Annotated[str, Query(min_length=1, description='as granted; "public": every role')],
    relation: Annotated[str, Query(description="as granted; by default all relations")] = "",
) -> SourceModel:
    """Take one grant back. Views whose creator needs it stop (`view.rights_revoked`)."""
    return _catalog(request).revoke(name, relation, role, request.state.caller)


@router.get("/dead-letters")
def list_dead_letters(
    request: Request,
    source: str = "",
    relation: str = "",
    limit: Annotated[Whole, Query(ge=1, le=1000)] = 100,
    after: Annotated[str, Query(description="the last `position` of the previous page")] = "",
) -> DeadLetterList:
    """List dead letters: malformed records, ordered by position."""
    letters = _catalog(request).dead_letters(request.state.caller, source, relation, limit, after)
    return DeadLetterList(dead_letters=letters)


@router.post("/dead-letters/retry", status_code=202)
def retry_dead_letters(request: Request, body: ChooseDeadLetters) -> Chosen:
    """Decode records again; valid ones enter the views, the others stay."""
    return Chosen(count=_catalog(request).choose_dead_letters(request.state.caller, "retry", body))


@router.post("/dead-letters/drop", status_code=202)
def drop_dead_letters(request: Request, body: ChooseDeadLetters) -> Chosen:
    """Delete records."""
    return Chosen(count=_catalog(request).choose_dead_letters(request.state.caller, "drop", body))
