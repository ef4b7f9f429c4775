"""Verify a view: compare it with what PostgreSQL answers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from service.routes.paging import Whole
from service.verify import MOST_EXAMPLES
from service.verify_models import VerificationModel

router = APIRouter(prefix="/views", tags=["views"])


@router.post("/{name}/verify")
def verify_view(
    request: Request,
    name: str,
    limit: Annotated[
        Whole, Query(ge=0, le=MOST_EXAMPLES, description="rows that differ, shown")
    ] = 20,
) -> VerificationModel:
    """Run the view's query in PostgreSQL at exactly the position that the view shows, and compare
    all rows. Neither the source nor the pipeline waits for it."""
    return request.app.state.verify.verify(name, limit)
