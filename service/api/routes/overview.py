"""The console's overview, names for completion, and the error rows of a view."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from service.api.completion import TableList
from service.api.overview import Glances
from service.api.overview_models import LeftOutList, Overview
from service.api.routes.paging import Whole

router = APIRouter()


def _glances(request: Request) -> Glances:
    return request.app.state.glances


@router.get("/overview", tags=["system"])
def show_overview(
    request: Request,
    history: Annotated[bool, Query(description="include figures of the last minutes")] = False,
) -> Overview:
    """Return views, sources, sinks and pipelines; cheap enough to request every second."""
    return _glances(request).overview(request.state.caller, has_history=history)


@router.get("/tables", tags=["system"])
def list_tables(request: Request) -> TableList:
    """List the tables, views and relations of sources that the caller can query, with columns."""
    return request.app.state.completion.tables(request.state.caller)


@router.get("/views/{name}/errors", tags=["views"])
def list_errors(
    request: Request,
    name: str,
    limit: Annotated[Whole, Query(ge=1, le=1000)] = 100,
    after: Annotated[str, Query(description="`next` of the previous page")] = "",
) -> LeftOutList:
    """List error rows: source rows left out because an expression fails for them, newest first."""
    return _glances(request).left_out(name, limit, after)
