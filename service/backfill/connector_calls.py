"""Calls of connectors on behalf of a build, of which a cancelled build does not wait for the end.

Each runs on a thread of its own. Invariant: such a thread has nothing of the build but the
connector's own objects, so one that never returns keeps nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dataflow.errors import described
from service.backfill.initial_load import dropped
from service.runtime.log import log
from service.runtime.runtime import Condition, Runtime

CLOSE_S = 10.0
_T = TypeVar("_T")


class ConnectorCalls:
    """Used by a build's thread. moved: notified when the build is cancelled."""

    def __init__(
        self, moved: Condition, is_cancelled: Callable[[], bool], runtime: Runtime
    ) -> None:
        self._moved = moved
        self._is_cancelled = is_cancelled
        self._runtime = runtime

    def result(
        self, work: Callable[[], _T], release: Callable[[_T], object] = lambda _: None
    ) -> _T:
        """Return what `work` returns, raise what it raises; view.dropped if the build is cancelled.

        release: gets what is returned after that.
        """
        found: list[_T] = []
        failures: list[Exception] = []

        def run() -> None:
            try:
                made = work()
            except Exception as error:
                with self._moved:
                    failures.append(error)
                    self._moved.notify_all()
                return
            with self._moved:
                is_late = self._is_cancelled()
                found.append(made)
                self._moved.notify_all()
            if is_late:
                _closed(lambda: release(made))

        self._runtime.begin(run, "build call")
        with self._moved:
            self._moved.wait_for(lambda: found or failures or self._is_cancelled())
            if self._is_cancelled():
                raise dropped()
        if failures:
            raise failures[0]
        return found[0]

    def close(self, close: Callable[[], object]) -> None:
        """Release something at a source; wait at most CLOSE_S, and not for a cancelled build."""
        thread = self._runtime.thread(lambda: _closed(close), "build close")
        thread.start()
        deadline = self._runtime.monotonic() + CLOSE_S
        while thread.is_alive() and not self._is_cancelled():
            left_s = deadline - self._runtime.monotonic()
            if left_s <= 0:
                break
            thread.join(min(left_s, 0.2))


def _closed(close: Callable[[], object]) -> None:
    try:
        close()
    except Exception as error:
        log.warning("build.unclosed", why=described(error))
