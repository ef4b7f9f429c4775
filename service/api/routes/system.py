"""Health and metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from service.access.tokens import Role
from service.api.models import Health, Live
from service.api.prometheus import render

router = APIRouter(tags=["system"])


@router.get("/health")
def health(request: Request, response: Response) -> Health:
    """200 when views are kept up to date, 503 when not; with a token also why, and figures. The
    words of errors may quote rows of any view: a database role is not told them."""
    found = request.app.state.catalog.health()
    response.status_code = 503 if found.status == "degraded" else 200
    caller = request.state.caller
    if caller.role < Role.READER or caller.db_role:
        return Health(status=found.status, versions={}, pipeline=None, reasons=[])
    return found


@router.get("/health/live")
async def health_live() -> Live:
    """200 as long as the API answers, however the views are: for whoever restarts what hangs.

    It needs no thread and no database: neither here nor on its way here
    (service/api/request_guard.py)."""
    return Live()


@router.get("/metrics")
def metrics(request: Request) -> Response:
    """Prometheus text."""
    told = request.app.state.scrape.read()
    return Response(render(told), media_type=CONTENT_TYPE_LATEST)
