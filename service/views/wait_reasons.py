"""Why views that are not live yet wait, reported once it takes longer than a moment.

A new view may wait for its turn, for the views that it reads, for a database that is down, or for
open transactions. Invariant: every wait is reported, and its report is withdrawn once it is over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dataflow.errors import TemporaryError, TidemarkError
from service.runtime.runtime import RUNTIME, Runtime

WAITS_S = 5.0


@dataclass
class _Wait:
    since: float
    noted_at: float
    why: TidemarkError
    reported: str = ""


class Waiting:
    """Used by the pipeline's thread only. report: gets a view's reason; None when its wait ends."""

    def __init__(
        self, report: Callable[[str, TidemarkError | None], None], runtime: Runtime = RUNTIME
    ) -> None:
        self._report = report
        self._runtime = runtime
        self._waits: dict[str, _Wait] = {}

    def note(self, identity: str, why: TidemarkError) -> None:
        """Record that a view waits, still or from now on."""
        now = self._runtime.monotonic()
        wait = self._waits.setdefault(identity, _Wait(now, now, why))
        wait.noted_at, wait.why = now, why

    def seconds(self, identity: str) -> float:
        """Return how long it has waited."""
        wait = self._waits.get(identity)
        return 0.0 if wait is None else self._runtime.monotonic() - wait.since

    def over(self, identity: str) -> None:
        """Record that it continues."""
        wait = self._waits.pop(identity, None)
        if wait is not None and wait.reported:
            self._report(identity, None)

    def forget(self, identity: str) -> None:
        """Drop a view that is gone or has another report."""
        self._waits.pop(identity, None)

    def report(self) -> None:
        """Report all that have waited for longer than a moment, each reason once."""
        now = self._runtime.monotonic()
        for identity, wait in list(self._waits.items()):
            if now - wait.noted_at > WAITS_S:
                # Nothing is requested any more, or there is another report on it.
                del self._waits[identity]
                continue
            if now - wait.since < WAITS_S:
                continue
            text = f"{wait.why.code}{wait.why.described}"
            if text != wait.reported:
                wait.reported = text
                self._report(identity, wait.why)


def waits_for(what: str, detail: str = "", hint: str = "") -> TemporaryError:
    """Return the reason of a view that waits for its turn."""
    hint = hint or "nothing to do: it continues by itself"
    return TemporaryError("view.waiting", what, detail=detail, hint=hint)
