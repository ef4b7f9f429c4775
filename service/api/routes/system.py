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
    """Return 200 if views are up to date, 503 if not; with a token, also the reasons and figures.

    Error texts may quote rows of any view, so callers with a database role get the status only.
    """
    found = request.app.state.catalog.health()
    response.status_code = 503 if found.status == "degraded" else 200
    caller = request.state.caller
    if caller.role < Role.READER or caller.db_role:
        return Health(status=found.status, versions={}, pipeline=None, reasons=[])
    return found


@router.get("/health/live")
async def health_live() -> Live:
    """Return 200 while the API process responds, whatever the views' status: a liveness probe.

    It uses no thread and no database, here and in service/api/request_guard.py.
    """
    return Live()


@router.get("/metrics")
def metrics(request: Request) -> Response:
    """Return the metrics as Prometheus text."""
    facts = request.app.state.scrape.read()
    return Response(render(facts), media_type=CONTENT_TYPE_LATEST)
