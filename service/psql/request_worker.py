"""The API process's side of psql: execute the requests of the procedures in schema tidemark.

Threads: one listens, takes requests and polls their outcomes. A pool begins them, because analyzing
a query may take seconds. One more answers the wake-ups of `tidemark.wait`.
Invariant: every request gets an outcome, even after an internal error. With several API processes,
each request is executed once (connectors/postgres/catalog/requests.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from connectors.postgres.catalog.catalog import Control
from connectors.postgres.catalog.requests import Outcome, Request, Requests, WakeUp
from dataflow.errors import TemporaryError, TidemarkError
from service.access.authorization import operation_of
from service.access.operations import OPERATIONS
from service.factory.service_factory import ServiceFactory
from service.psql import psql_verify
from service.psql.psql_errors import failure_of
from service.psql.psql_lifecycle import LifeOperations
from service.psql.psql_operations import Operations, Owned, Poll
from service.runtime.log import log
from service.runtime.settings import Settings

POLL_S = 1.0
BEGINNING_POLL_S = 0.02
RETRY_S = 1.0
RETRY_FOR_S = 30.0
RING_S = 2.0
AT_ONCE = 4


class RequestWorker:
    """Runs from `start` until `close`. nudge: advances the source's position."""

    def __init__(
        self, dsn: str, control: Control, operations: Operations, nudge: Callable[[], object]
    ) -> None:
        self._control = control
        self._operations = operations
        self._nudge = nudge
        self._requests = Requests(dsn, control.service)
        self._wake_up = WakeUp(dsn)
        self._pool = ThreadPoolExecutor(AT_ONCE, "psql")
        # Requests that wait for servers of others delay no other ones.
        self._connector_pool = ThreadPoolExecutor(AT_ONCE, "psql-connector")
        self._beginning: dict[int, tuple[Request, Future[Poll]]] = {}
        self._running: dict[int, tuple[Request, Poll]] = {}
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name="psql-requests", daemon=True),
            threading.Thread(target=self._nudge_when_woken, name="psql-bell", daemon=True),
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop; the next process resumes the requests in progress."""
        self._stopping.set()
        self._requests.wake()
        self._wake_up.ring()
        for thread in self._threads:
            thread.join(RING_S + RETRY_S)
        for pool in (self._pool, self._connector_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    # --- requests ------------------------------------------------------------------------------

    def _run(self) -> None:
        is_ready = False
        while not self._stopping.is_set():
            try:
                if not is_ready:
                    self._control.ensure()
                    is_ready = True
                self._tick()
            except TidemarkError as error:
                log.warning("psql.retry", code=error.code)
                self._requests.drop()
                self._stopping.wait(RETRY_S)
            except Exception as error:
                log.error("psql.failed", exc_info=error)
                self._requests.drop()
                self._stopping.wait(RETRY_S)
        try:
            self._requests.close()
        except TidemarkError as error:
            log.info("psql.unreachable", code=error.code)

    def _tick(self) -> None:
        while (request := self._requests.take()) is not None:
            if request.id not in self._beginning and request.id not in self._running:
                log.info("psql.request", id=request.id, operation=request.operation)
                pool = self._connector_pool if _reaches_others(request) else self._pool
                self._beginning[request.id] = request, pool.submit(self._begin, request)
        self._resolve_beginning()
        self._resolve_running()
        self._requests.wait(BEGINNING_POLL_S if self._beginning else POLL_S)

    def _begin(self, request: Request) -> Poll:
        """Begin a request, in a thread of the pool. Retry temporary errors for RETRY_FOR_S."""
        until = time.monotonic() + RETRY_FOR_S
        while True:
            try:
                return self._operations.begin(request)
            except TemporaryError as error:
                log.info("psql.begin_retry", id=request.id, code=error.code)
                if time.monotonic() > until or self._stopping.wait(RETRY_S):
                    raise

    def _resolve_beginning(self) -> None:
        for number, (request, future) in list(self._beginning.items()):
            if not future.done():
                continue
            del self._beginning[number]
            error = future.exception()
            if error is None:
                self._running[number] = request, future.result()
            elif not self._stopping.is_set():
                self._requests.end(request, _failure(request, error))

    def _resolve_running(self) -> None:
        if not self._running:
            return
        rows = {row.identity: row for row in self._control.list_views()}
        for number, (request, poll) in list(self._running.items()):
            try:
                outcome = poll(rows)
            except TemporaryError:
                raise
            except Exception as error:
                outcome = _failure(request, error)
            if outcome is not None:
                self._requests.end(request, outcome)
                del self._running[number]

    # --- the wake-up ---------------------------------------------------------------------------

    def _nudge_when_woken(self) -> None:
        while not self._stopping.is_set():
            try:
                if self._wake_up.wait(RING_S):
                    self._nudge()
            except TidemarkError as error:
                log.debug("psql.wake_up_retry", code=error.code)
                self._stopping.wait(RETRY_S)
        self._wake_up.close()


def worker_of(settings: Settings, state: Any) -> RequestWorker:
    """Return the request worker of an application. state: app.state, as create_app fills it."""
    control = ServiceFactory(settings).control()
    owned = Owned(control, state.authorization)
    operations = Operations(owned, control, state.catalog, state.sinks, state.sources)
    operations.add(psql_verify.operations(operations.owned, state.verify))
    operations.add(LifeOperations(control, operations.owned, state.life).by_name)
    return RequestWorker(settings.sink, control, operations, state.catalog.nudge_source)


def _reaches_others(request: Request) -> bool:
    """Return whether a request may wait for a server of others."""
    try:
        return OPERATIONS[operation_of(request.operation)].reaches_others
    except TidemarkError:
        # It is refused where it begins.
        return False


def _failure(request: Request, error: BaseException) -> Outcome:
    if not isinstance(error, TidemarkError):
        log.error("psql.request_failed", id=request.id, exc_info=error)
        error = TidemarkError("internal", "internal error of the service", hint="see its log")
    return failure_of(error, str(request.arguments.get("query") or ""))
