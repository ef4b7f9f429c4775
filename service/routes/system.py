"""Health and metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from service.models import Health
from service.prometheus import render
from service.tokens import Role

router = APIRouter(tags=["system"])


@router.get("/health")
def health(request: Request, response: Response) -> Health:
    """200 when views are kept up to date, 503 when not; with a token also why, and figures."""
    found = request.app.state.catalog.health()
    response.status_code = 503 if found.status == "degraded" else 200
    if request.state.caller.role < Role.READER:
        return Health(status=found.status, pipeline=None, reasons=[])
    return found


@router.get("/metrics")
def metrics(request: Request) -> Response:
    """Prometheus text."""
    catalog = request.app.state.catalog
    return Response(render(catalog.metrics(), catalog.views()), media_type=CONTENT_TYPE_LATEST)
