"""Figures of the API process: calls by route and status, and the time to the first byte.

Invariant: a route is counted under its declared path (`/views/{name}`), never under the requested
one, so that the number of figures is bounded. A stream is counted when it begins.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.metrics.histogram import Histogram

OTHER = "other"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class ApiFigures:
    """Counts since the API process started; safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answered: dict[tuple[str, str, str], int] = {}
        self._seconds: dict[str, Histogram] = {}

    def count(self, call: tuple[str, str, str], seconds: float) -> None:
        """Count one response. call: method, route, status."""
        with self._lock:
            self._answered[call] = self._answered.get(call, 0) + 1
            self._seconds.setdefault(call[1], Histogram()).observe(seconds)

    def facts(self) -> dict[str, Any]:
        """Return `answered` by (method, route, status), and `seconds` by route as histograms."""
        with self._lock:
            seconds = {route: one.facts() for route, one in self._seconds.items()}
            return {"answered": dict(self._answered), "seconds": seconds}


class CountCalls:
    """ASGI middleware that counts every HTTP request."""

    def __init__(self, app: ASGIApp, figures: ApiFigures) -> None:
        self._app = app
        self._figures = figures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request and count the status of its response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()

        async def count_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                method = scope["method"] if scope["method"] in METHODS else OTHER
                route = getattr(scope.get("route"), "path", OTHER)
                call = (method, route, str(message["status"]))
                self._figures.count(call, time.perf_counter() - started)
            await send(message)

        await self._app(scope, receive, count_and_send)
