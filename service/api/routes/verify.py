"""Verify a view: compare it with what PostgreSQL answers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from service.api.call_limits import QueryLimits
from service.api.routes.paging import Whole
from service.verify.comparison import MAX_EXAMPLES, Verify
from service.verify.verify_models import VerificationModel

router = APIRouter(prefix="/views", tags=["views"])


@router.post("/{name}/verify")
async def verify_view(
    request: Request,
    name: str,
    limit: Annotated[
        Whole,
        Query(
            ge=0, le=MAX_EXAMPLES, description="maximum number of differing rows in the response"
        ),
    ] = 20,
) -> VerificationModel:
    """Run the view's query in PostgreSQL at the view's exact position, and compare all rows.

    Neither the source nor the pipeline waits for it.
    """
    limits: QueryLimits = request.app.state.limits
    verify: Verify = request.app.state.verify
    async with limits.verification(request.state.caller, verify.timeout_s):
        return await limits.run(verify.verify, name, limit)
