"""Sources and dead letters: declare, discover, change, drop, list; try again or drop records.

All of them answer at once: what the pipeline does with it is seen in the source's status.
"""

from __future__ import annotations

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
    SourceList,
    SourceModel,
)

router = APIRouter(tags=["sources"])


def _catalog(request: Request) -> SourceCatalog:
    return request.app.state.sources


@router.post("/sources", status_code=201)
async def create_source(request: Request, body: CreateSource, response: Response) -> SourceModel:
    """Declare a source. It is reached and compared with what is declared first."""
    response.headers["Location"] = f"/sources/{body.name}"
    return await run_limited(request, _catalog(request).create, body, request.state.caller)


@router.post("/sources/discover")
async def discover_source(request: Request, body: DiscoverSource) -> Discovered:
    """Propose columns from samples. Nothing is created."""
    discover = _catalog(request).discover
    return Discovered(options=await run_limited(request, discover, body, request.state.caller))


@router.get("/sources")
def list_sources(request: Request, limit: Limit = None, after: After = "") -> SourceList:
    """All sources beside the database, or a page of them."""
    found = _catalog(request).list(request.state.caller, one_more(limit), after)
    sources, next_name = paged(found, limit, lambda source: source.name)
    return SourceList(sources=sources, next=next_name)


@router.get("/sources/{name}")
def show_source(request: Request, name: str) -> SourceModel:
    """One source as it stands."""
    return _catalog(request).show(name, request.state.caller)


@router.put("/sources/{name}")
async def change_source(request: Request, name: str, body: ChangeSource) -> SourceModel:
    """Give a source other options; relations that views read must stay what they are."""
    change = _catalog(request).change
    return await run_limited(request, change, name, body.options, request.state.caller)


@router.delete("/sources/{name}", status_code=204)
def drop_source(request: Request, name: str) -> Response:
    """Forget a source that no view reads."""
    _catalog(request).drop(name, request.state.caller)
    return Response(status_code=204)


@router.post("/sources/{name}/retry", status_code=202)
def retry_source(request: Request, name: str) -> SourceModel:
    """Try a source now that is away or stopped; its status says what became of it."""
    return _catalog(request).retry(name, request.state.caller)


@router.get("/dead-letters")
def list_dead_letters(
    request: Request,
    source: str = "",
    relation: str = "",
    limit: Annotated[Whole, Query(ge=1, le=1000)] = 100,
    after: Annotated[str, Query(description="the last place of the page before")] = "",
) -> DeadLetterList:
    """Records that are not rows of their relation, by place."""
    letters = _catalog(request).dead_letters(request.state.caller, source, relation, limit, after)
    return DeadLetterList(dead_letters=letters)


@router.post("/dead-letters/retry", status_code=202)
def retry_dead_letters(request: Request, body: ChooseDeadLetters) -> Chosen:
    """Decode records again; those that are rows now are taken in, the others stay."""
    return Chosen(count=_catalog(request).choose_dead_letters(request.state.caller, "retry", body))


@router.post("/dead-letters/drop", status_code=202)
def drop_dead_letters(request: Request, body: ChooseDeadLetters) -> Chosen:
    """Give records up for good."""
    return Chosen(count=_catalog(request).choose_dead_letters(request.state.caller, "drop", body))
