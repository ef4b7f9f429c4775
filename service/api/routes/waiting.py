"""Responses that wait for the pipeline by polling the catalog.

All API processes share the catalog. It is polled in the thread pool, never in the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from fastapi import Response
from starlette.concurrency import run_in_threadpool

from dataflow.errors import TidemarkError
from service.api.catalog import Catalog
from service.views.lifecycle import RESOLVED

# Of `until_gone`, for the description.
GOING: dict[str, Any] = {"description": "still in progress after wait_s; there is no body"}

_POSITION = re.compile(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}")
_POLL_S = 0.05
_WAIT_POLL_S = 0.003


class HasStatus(Protocol):
    """A view or a sink."""

    @property
    def status(self) -> str:
        """Its current status."""
        ...


Found = TypeVar("Found", bound=HasStatus)


async def until_resolved(show: Callable[[], Found], wait_s: float) -> Found:
    """Return the object once it is live or failed, or wait_s has passed."""
    deadline = time.monotonic() + wait_s
    found = await run_in_threadpool(show)
    while found.status not in RESOLVED and time.monotonic() < deadline:
        await asyncio.sleep(_POLL_S)
        found = await run_in_threadpool(show)
    return found


async def until_gone(exists: Callable[[], bool], wait_s: float) -> Response:
    """Return 204 once the object no longer exists, 202 after wait_s."""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        if not await run_in_threadpool(exists):
            return Response(status_code=204)
        await asyncio.sleep(_POLL_S)
    return Response(status_code=202)


async def until_shown(catalog: Catalog, name: str, point: str, wait_s: float) -> None:
    """Wait for a point that is a position which the source has reached and the view not yet.

    Only commits move a view, so a position from between two of them is reached a moment later.
    """
    if not _POSITION.fullmatch(point):
        return
    target = await run_in_threadpool(catalog.check_wait, name, point)
    # Whatever prevents it, the reading itself says whether the point is reached.
    with contextlib.suppress(TidemarkError):
        reached = await run_in_threadpool(catalog.visible_position, name)
        is_reached = reached is None or reached >= target
        if not is_reached and target <= await run_in_threadpool(catalog.current_position):
            await until_visible(catalog, name, point, wait_s)


async def until_visible(catalog: Catalog, name: str, position: str, wait_s: float) -> int:
    """Return the view's position once it has reached the requested one.

    TidemarkError view.wait_timeout after wait_s.
    """
    target = await run_in_threadpool(catalog.check_wait, name, position)
    started = time.monotonic()
    is_nudged = False
    while True:
        reached = await run_in_threadpool(catalog.visible_position, name)
        waited_s = time.monotonic() - started
        if reached is not None and reached >= target:
            return reached
        if waited_s >= wait_s:
            raise catalog.wait_timeout(name, position, reached)
        if not is_nudged and waited_s > 0.01:
            is_nudged = True
            await run_in_threadpool(catalog.nudge_source)
        await asyncio.sleep(_WAIT_POLL_S)
