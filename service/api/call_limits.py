"""Concurrency limits for expensive calls (`is_dear` in service/access/operations.py).

Those are queries, and all calls for which PostgreSQL analyzes or runs a user's SQL or the service
connects to other hosts. Each of these two kinds has a thread pool of its own, so other calls never
wait for them, and queries do not wait for servers of others.
Each token may use only a part of that pool.
Others wait in the order in which they came, and hold no thread meanwhile. Invariant: a call gets
status 429 at once where its token has `query_queue` calls waiting, and after `query_wait_s`.
Runs in the event loop of the API process.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from dataflow.errors import TemporaryError
from service.access.operations import OPERATIONS, route_operation
from service.access.tokens import Caller
from service.api.connector_calls import client_is_gone
from service.api.problems import Refused
from service.runtime.settings import Settings

RETRY_S = 5

P = ParamSpec("P")
T = TypeVar("T")


class QueryLimits:
    """The limits of one kind of calls in one API process; used in its event loop only."""

    def __init__(self, settings: Settings, kind: str = "query") -> None:
        self._per_token = settings.query_workers_per_token
        self._queue = settings.query_queue
        self._wait_s = settings.query_wait_s
        self._pool = ThreadPoolExecutor(settings.query_workers, kind)
        self._free = asyncio.Semaphore(settings.query_workers)
        self._verifying = asyncio.Semaphore(1)
        # By token: the free workers of its quota, and its number of calls in progress.
        self._quotas: dict[str, tuple[asyncio.Semaphore, int]] = {}

    @asynccontextmanager
    async def worker(self, caller: Caller) -> AsyncIterator[None]:
        """Reserve a worker for the caller while the block runs. Refused request.too_many."""
        quota = self._join(caller.id)
        try:
            # A token waits for its own quota first, so that its calls block no other token.
            deadline = asyncio.get_running_loop().time() + self._wait_s
            async with self._in_time(quota, deadline), self._in_time(self._free, deadline):
                yield
        finally:
            self._leave(caller.id)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run in a worker thread; call it inside `worker`."""
        call = functools.partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    @asynccontextmanager
    async def verification(self, caller: Caller, timeout_s: float) -> AsyncIterator[None]:
        """Reserve a worker for a verification; one runs at a time. TemporaryError verify.busy."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._verifying.acquire()
        except TimeoutError:
            raise TemporaryError(
                "verify.busy", "another view is being verified", hint="try again later"
            ) from None
        try:
            async with self.worker(caller):
                yield
        finally:
            self._verifying.release()

    @asynccontextmanager
    async def _in_time(self, semaphore: asyncio.Semaphore, deadline: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout_at(deadline):
                await semaphore.acquire()
        except TimeoutError:
            raise _too_many(f"no worker became free within {self._wait_s:g} s") from None
        try:
            yield
        finally:
            semaphore.release()

    def _join(self, token: str) -> asyncio.Semaphore:
        quota, calls = self._quotas.get(token) or (asyncio.Semaphore(self._per_token), 0)
        if calls >= self._per_token + self._queue:
            raise _too_many(f"{self._queue} calls of this token are waiting for a worker")
        self._quotas[token] = quota, calls + 1
        return quota

    def _leave(self, token: str) -> None:
        quota, calls = self._quotas.pop(token)
        if calls > 1:
            self._quotas[token] = quota, calls - 1


async def run_limited(
    request: Request, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Run a blocking function for a route: in a worker if the operation is expensive, else in the
    shared thread pool."""
    name = route_operation(request.method, request.scope["route"].path)
    if not OPERATIONS[name].is_dear:
        return await run_in_threadpool(function, *args, **kwargs)
    if not OPERATIONS[name].reaches_others:
        limits: QueryLimits = request.app.state.limits
        async with limits.worker(request.state.caller):
            return await limits.run(function, *args, **kwargs)
    limits = request.app.state.connector_limits
    async with _watched(request) as gone, limits.worker(request.state.caller):
        if gone.is_set():
            raise _too_many("the client did not wait for a worker")
        context = contextvars.copy_context()
        return await limits.run(context.run, functools.partial(function, *args, **kwargs))


@asynccontextmanager
async def _watched(request: Request) -> AsyncIterator[threading.Event]:
    """Let calls of connectors in the block end once the request's client has gone, which sets the
    event."""
    gone = threading.Event()

    async def watch() -> None:
        # Its body has been read: what comes next is the end.
        while (await request.receive())["type"] != "http.disconnect":
            pass
        gone.set()

    token = client_is_gone.set(gone.is_set)
    watching = asyncio.create_task(watch())
    try:
        yield gone
    finally:
        watching.cancel()
        client_is_gone.reset(token)


def _too_many(detail: str) -> Refused:
    return Refused(
        "request.too_many",
        429,
        "too many queries are running",
        detail=detail,
        hint="try again later with fewer concurrent calls; the operator can raise"
        " TIDEMARK_QUERY_WORKERS, TIDEMARK_QUERY_WORKERS_PER_TOKEN and TIDEMARK_QUERY_QUEUE",
        headers={"Retry-After": str(RETRY_S)},
    )
