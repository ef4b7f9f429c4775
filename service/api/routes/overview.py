"""What the console looks at every second, and the rows that are left out of a view."""

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
    history: Annotated[bool, Query(description="with the figures of the last minutes")] = False,
) -> Overview:
    """Views, sources, sinks and pipelines at a glance; made to be asked for every second."""
    return _glances(request).overview(request.state.caller, has_history=history)


@router.get("/tables", tags=["system"])
def list_tables(request: Request) -> TableList:
    """Tables, views and relations of sources that the caller's queries can read, with columns."""
    return request.app.state.completion.tables(request.state.caller)


@router.get("/views/{name}/errors", tags=["views"])
def list_errors(
    request: Request,
    name: str,
    limit: Annotated[Whole, Query(ge=1, le=1000)] = 100,
    after: Annotated[str, Query(description="`next` of the page before")] = "",
) -> LeftOutList:
    """Source rows left out of a view because an expression fails for them, the newest first."""
    return _glances(request).left_out(name, limit, after)
