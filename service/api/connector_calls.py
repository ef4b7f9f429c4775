"""Calls of connectors by requests: each ends in time, whatever a server of others does.

A call runs on a thread of its own. After TIMEOUT_S, or once its client has gone, the request ends
without it: nothing is done with what it may still return. Invariants: a request waits for a
connector only here; threads whose request has ended are limited, for all and for each caller.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Literal, TypeVar

from dataflow.errors import TemporaryError
from service.runtime.log import log

TIMEOUT_S = 60.0
# Calls that run at once, also those that no request waits for any more; and of one caller.
MOST, MOST_OF_CALLER = 32, 8
_CHECK_S = 0.1
_CODES = {"source": "source.stuck", "sink": "sink.stuck"}
_EVENTS = {"source": "source.abandoned", "sink": "sink.abandoned"}
_T = TypeVar("_T")

# Set where the client of the present request may go away: returns whether it has.
client_is_gone: contextvars.ContextVar[Callable[[], bool]] = contextvars.ContextVar(
    "client_is_gone", default=lambda: False
)


class ConnectorCalls:
    """The calls of one API process; thread-safe."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._running = Counter[str]()

    @property
    def running(self) -> int:
        """Return how many calls have not returned."""
        return self._running.total()

    def result(
        self, side: Literal["source", "sink"], name: str, caller: str, work: Callable[[], _T]
    ) -> _T:
        """Return what `work` returns, raise what it raises.

        TemporaryError source.stuck, sink.stuck: it has not ended in time, or too many others have
        not.
        """
        self._enter(side, name, caller)
        found: list[_T] = []
        failures: list[BaseException] = []
        is_done = threading.Event()

        def run() -> None:
            try:
                found.append(work())
            except BaseException as error:
                failures.append(error)
            finally:
                self._leave(caller)
                is_done.set()

        # The secrets that a request resolves are masked by its context.
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(run,), name=f"call {side}", daemon=True).start()
        self._await(is_done, side, name)
        if failures:
            raise failures[0]
        return found[0]

    def _await(self, is_done: threading.Event, side: str, name: str) -> None:
        deadline, is_gone = time.monotonic() + self._timeout_s, client_is_gone.get()
        while not is_done.wait(_CHECK_S) and not is_gone() and time.monotonic() < deadline:
            pass
        # A client that has gone is answered nothing: so nothing is done, even if it is there now.
        if is_done.is_set() and not is_gone():
            return
        took = f"it has taken longer than {self._timeout_s:g} s"
        why = "the client did not wait for it" if is_gone() else took
        log.warning(_EVENTS[side], **{side: name, "code": _CODES[side], "why": why})
        raise TemporaryError(
            _CODES[side],
            f'{side} "{name}" does not answer',
            detail=why,
            hint="check the server that its options name, and try again",
        )

    def _enter(self, side: str, name: str, caller: str) -> None:
        with self._lock:
            if self._running.total() >= MOST or self._running[caller] >= MOST_OF_CALLER:
                raise TemporaryError(
                    _CODES[side],
                    f'{side} "{name}" cannot be reached now',
                    detail="too many earlier calls of sources and sinks have not been answered",
                    hint="check the servers that they name, and try again later",
                )
            self._running[caller] += 1

    def _leave(self, caller: str) -> None:
        with self._lock:
            self._running[caller] -= 1
            self._running += Counter()
