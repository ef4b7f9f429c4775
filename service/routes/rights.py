"""What all routes that show rows of a view ask first: whether the caller may read it.

A token may have a database role; then PostgreSQL's rights on the view's table count for it, as they
would if that role read the table itself. Tokens without one may read every view.
"""

from __future__ import annotations

from fastapi import Depends, Request, WebSocket
from starlette.concurrency import run_in_threadpool


async def require_right(connection: Request | WebSocket, name: str) -> None:
    """TidemarkError view.not_found, auth.rights."""
    role = connection.state.caller.db_role
    if role:
        await run_in_threadpool(connection.app.state.reading.require_right, name, role)


async def _may_read(request: Request, name: str) -> None:
    await require_right(request, name)


NeedsRight = Depends(_may_read)
