"""What views wait for that are not live yet: said once that takes longer than a moment.

A view that is asked for waits for many things: its turn, those that it reads, a database that is
away, transactions that somebody has left open. Invariant: none of them waits without a word; what
was said is taken back when it is so no more.
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
    seen: float
    why: TidemarkError
    told: str = ""


class Waiting:
    """Used by the pipeline's thread. tell: what a view waits for, None for nothing any more."""

    def __init__(
        self, tell: Callable[[str, TidemarkError | None], None], host: Runtime = RUNTIME
    ) -> None:
        self._report = tell
        self._host = host
        self._waits: dict[str, _Wait] = {}

    def note(self, identity: str, why: TidemarkError) -> None:
        """It waits, still or from now on."""
        now = self._host.monotonic()
        wait = self._waits.setdefault(identity, _Wait(now, now, why))
        wait.seen, wait.why = now, why

    def seconds(self, identity: str) -> float:
        """For how long it has waited."""
        wait = self._waits.get(identity)
        return 0.0 if wait is None else self._host.monotonic() - wait.since

    def over(self, identity: str) -> None:
        """It goes on."""
        wait = self._waits.pop(identity, None)
        if wait is not None and wait.told:
            self._report(identity, None)

    def forget(self, identity: str) -> None:
        """Something else is told of it, or it is gone."""
        self._waits.pop(identity, None)

    def report(self) -> None:
        """Tell of all that have waited for longer than a moment, each reason once."""
        now = self._host.monotonic()
        for identity, wait in list(self._waits.items()):
            if now - wait.seen > WAITS_S:
                # Nothing is asked for any more, or something else was told of it.
                del self._waits[identity]
                continue
            if now - wait.since < WAITS_S:
                continue
            text = f"{wait.why.code}{wait.why.described}"
            if text != wait.told:
                wait.told = text
                self._report(identity, wait.why)


def waits_for(what: str, detail: str = "", hint: str = "") -> TemporaryError:
    """The reason of a view that waits in turn."""
    hint = hint or "nothing is to be done: it goes on by itself"
    return TemporaryError("view.waiting", what, detail=detail, hint=hint)
