"""The calls in progress, ended when their token stops being valid.

A token is revoked, expires, or (for a service without tokens) the first one is created: a stream
is disconnected and a call that waits is refused, within CACHE_S + PAUSE_S in every process.
Invariant: tokens are compared by their ids: one that gets the name of a revoked one continues
nothing. Runs in the event loop; one task asks for all calls of a process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.concurrency import run_in_threadpool

from dataflow.errors import TidemarkError
from service.access.tokens import OPEN, Caller, Tokens
from service.runtime.log import log

PAUSE_S = 0.25


class Revocations:
    """One per API process."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._calls: dict[str, set[asyncio.Future[None]]] = {}
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def watched(self, caller: Caller) -> Iterator[asyncio.Future[None]]:
        """Yield a future that is done once the caller's token is no longer valid."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not caller.id:
            yield ended
            return
        calls = self._calls.setdefault(caller.id, set())
        calls.add(ended)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())
        try:
            yield ended
        finally:
            calls.discard(ended)
            if not calls and self._calls.get(caller.id) is calls:
                del self._calls[caller.id]

    async def _watch(self) -> None:
        while self._calls:
            await asyncio.sleep(PAUSE_S)
            present = set(self._calls)
            try:
                valid = await run_in_threadpool(self._valid) if present else set()
            except TidemarkError as error:
                log.warning("tokens.stale", code=error.code)
                continue
            for caller in present - valid:
                for ended in self._calls.get(caller, ()):
                    if not ended.done():
                        ended.set_result(None)

    def _valid(self) -> set[str]:
        return self._tokens.live_ids() | (set() if self._tokens.is_any() else {OPEN.id})
