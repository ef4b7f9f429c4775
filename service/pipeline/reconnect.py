"""The way back to a database that is away: looked for by a thread, so that nothing waits for it.

While it is away the pipeline goes on with all that does not need it: other sources, drops, status.
Invariant: only the pipeline's thread opens the stream; here it is only found out whether that is
worth a try.
"""

from __future__ import annotations

from collections.abc import Callable

from dataflow.errors import TemporaryError, TidemarkError
from service.runtime.runtime import RUNTIME, Runtime
from storage.backoff import Backoff

RETRY_S, JITTER = (0.1, 5.0), (0.75, 1.25)


class Reconnect:
    """Used by the pipeline's thread. ask: raises TemporaryError while the database is away;
    on_found: called from any thread when it is back."""

    def __init__(
        self, ask: Callable[[], object], on_found: Callable[[], None], *, runtime: Runtime = RUNTIME
    ) -> None:
        self._ask = ask
        self._on_found = on_found
        self._error: TidemarkError | None = None
        self._is_found = False
        self._search = 0
        self._runtime = runtime
        self._stopping = runtime.event()
        self._backoff = Backoff(*RETRY_S)

    @property
    def error(self) -> TidemarkError | None:
        """Why the database is away, as of the newest try; None while it is not."""
        return self._error

    @property
    def is_open(self) -> bool:
        """Whether it is worth a try: it is not away, or has answered since."""
        return self._error is None or self._is_found

    def lost(self, error: TidemarkError) -> float:
        """It cannot be read just now: look for it; after how many seconds first."""
        pause_s = self._backoff.next_s()
        self._error, self._is_found = error, False
        self._search += 1
        search = self._search
        self._runtime.begin(lambda: self._run(search, pause_s), "way-back")
        return pause_s

    def regained(self) -> None:
        """It is read again, or nothing depends on it any more."""
        self._search += 1
        self._error = None
        self._backoff.reset()

    def close(self) -> None:
        """Look no longer; a try that does not end ends with the process."""
        self._search += 1
        self._stopping.set()

    def _run(self, search: int, pause_s: float) -> None:
        backoff = Backoff(pause_s, RETRY_S[1], jitter=JITTER, draw=self._runtime.draw)
        while not self._stopping.wait(backoff.next_s()):
            error = self._try()
            if self._search != search:
                return
            if error is None:
                break
            self._error = error
        self._is_found = True
        self._on_found()

    def _try(self) -> TidemarkError | None:
        try:
            self._ask()
        except TemporaryError as error:
            return error
        except TidemarkError:
            # A refusal: the pipeline is to meet it itself.
            return None
        return None
