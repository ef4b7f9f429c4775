"""The thread of an engine that refreshes functions on their intervals.

It also listens to the catalog: if a view created elsewhere (psql, REST) needs more of a narrow
function than its table contains, the function is called again.
Invariant: a failure is reported (the function's `error`, the log "tidemark") and retried at the
next interval; it never ends the thread.
"""

from __future__ import annotations

import logging
import threading
import time

from connectors.postgres.catalog.listener import Listener
from dataflow.errors import TidemarkError
from service.embedded.functions import Functions

_POLL_S = 0.2
_JOIN_S = 10.0
_log = logging.getLogger("tidemark")


class Ticker:
    """Runs from the first `start` until `close`."""

    def __init__(self, functions: Functions, dsn: str) -> None:
        self._functions = functions
        self._listener = Listener(dsn)
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the thread at the first call."""
        with self._lock:
            if self._thread is None and not self._is_over.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="tidemark-refresh", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """Stop the thread; wait up to _JOIN_S for a refresh in progress."""
        self._is_over.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while not self._is_over.is_set():
            due = self._due()
            for name in due:
                self._refresh(name)
            if self._has_changed():
                for name in self._grown():
                    self._refresh(name)
        self._listener.close()

    def _due(self) -> list[str]:
        now = time.monotonic()
        found = []
        for one in self._functions.all():
            if one.refresh_every_s is not None and one.due_at <= now:
                one.due_at = now + one.refresh_every_s
                found.append(one.function.name)
        return found

    def _has_changed(self) -> bool:
        try:
            return self._listener.wait(_POLL_S)
        except TidemarkError as error:
            self._report("the catalog cannot be listened to", error)
            self._is_over.wait(_POLL_S)
            return False

    def _grown(self) -> list[str]:
        try:
            return self._functions.grown()
        except TidemarkError as error:
            self._report("the catalog cannot be read", error)
            return []

    def _refresh(self, name: str) -> None:
        if self._is_over.is_set():
            return
        try:
            self._functions.refresh([name])
        except TidemarkError as error:
            self._report(f'function "{name}" cannot be refreshed', error)

    def _report(self, what: str, error: TidemarkError) -> None:
        if not self._is_over.is_set():
            _log.warning("%s: %s: %s", what, error, error.detail)
