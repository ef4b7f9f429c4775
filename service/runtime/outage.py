"""Why a source or sink cannot be used at the moment: where such a reason begins and ends.

A temporary error is retried after growing pauses, a refusal rarely, in case someone has repaired
its cause. Invariant: the reason is shown from the first failure to the first success after it,
whether or not anything has changed at the other end meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from dataflow.errors import TidemarkError
from service.runtime.log import log
from storage.backoff import Backoff

RUNNING, RETRYING, STOPPED = "running", "retrying", "stopped"


class Outage:
    """Of one source or sink. Used by one thread; `error` may be read by any.

    error: why it cannot be used, None while it can; a newer one of the same outage may replace it.

    name: in the log, "" for the only one of its side. refused_s: returns the pause after a refusal;
    None if refusals are not retried, or as temporary errors are.
    """

    def __init__(
        self,
        side: Literal["source", "sink"],
        name: str,
        backoff: Backoff,
        refused_s: Callable[[], float] | None = None,
    ) -> None:
        self.error: TidemarkError | None = None
        self._side = side
        self._names = {side: name} if name else {}
        self._backoff = backoff
        self._refused_s = refused_s

    @property
    def status(self) -> str:
        """Return RUNNING, RETRYING or STOPPED: the last one if someone must act first."""
        if self.error is None:
            return RUNNING
        return RETRYING if self.error.is_temporary else STOPPED

    def failed(self, error: TidemarkError, **fields: object) -> float:
        """Note a failure; return the seconds to wait before the next attempt.

        fields: of the log line, which is written when the reason is another one than before.
        """
        if error.is_temporary or self._refused_s is None:
            pause_s = self._backoff.next_s()
        else:
            # What fails in another way after a repair fails for the first time.
            self._backoff.reset()
            pause_s = self._refused_s()
        before, self.error = self.error, error
        if str(before) != str(error):
            facts = {**self._names, "code": error.code, "why": error.described, **fields}
            facts["pause_s"] = round(pause_s, 2)
            if self._side == "source":
                log.warning("source.retry", **facts)
            else:
                log.warning("sink.retry", **facts)
        return pause_s

    def held_back(self, error: TidemarkError) -> None:
        """Note that a source is read on, but what it sends waits for too long for the rest of it.

        Someone must act, as after a refusal.
        """
        if str(self.error) != str(error):
            log.warning("source.held_back", **self._names, code=error.code)
        self.error = error

    def begin_again(self) -> None:
        """Wait as briefly as at first before the next retry: there is a new reason to try."""
        self._backoff.reset()

    def over(self) -> None:
        """Note a success: whatever the reason was, it is gone."""
        self._backoff.reset()
        if self.error is None:
            return
        self.error = None
        if self._side == "source":
            log.info("source.running", **self._names)
        else:
            log.info("sink.running", **self._names)
