"""The reconnection to a database that is away: a thread probes it, so nothing waits.

Meanwhile the pipeline continues with everything that does not need it: other sources, drops,
status. Invariant: only the pipeline's thread opens the stream; the thread here only finds out
whether an attempt makes sense.
"""

from __future__ import annotations

from collections.abc import Callable

from connectors.source import MAIN_SOURCE
from dataflow.errors import TemporaryError, TidemarkError
from service.runtime.outage import Outage
from service.runtime.runtime import RUNTIME, Runtime
from storage.backoff import Backoff

RETRY_S, JITTER = (0.1, 5.0), (0.75, 1.25)


class Reconnect:
    """The reconnection, used by the pipeline's thread.

    probe: raises TemporaryError while the database is away. on_found: called from any thread when
    it is reachable again.
    """

    def __init__(
        self,
        probe: Callable[[], object],
        on_found: Callable[[], None],
        *,
        runtime: Runtime = RUNTIME,
    ) -> None:
        self._probe = probe
        self._on_found = on_found
        self._outage = Outage("source", MAIN_SOURCE, Backoff(*RETRY_S))
        self._is_found = False
        self._search = 0
        self._runtime = runtime
        self._stopping = runtime.event()

    @property
    def error(self) -> TidemarkError | None:
        """Return why the database is away, as of the newest probe; None if it is not."""
        return self._outage.error

    @property
    def is_open(self) -> bool:
        """Return True if an attempt makes sense: it is not away, or has answered since."""
        return self._outage.error is None or self._is_found

    def lost(self, error: TidemarkError) -> float:
        """Start probing an unreachable database, after this many seconds."""
        pause_s = self._outage.failed(error)
        self._is_found = False
        self._search += 1
        search = self._search
        self._runtime.begin(lambda: self._run(search, pause_s), "way-back")
        return pause_s

    def regained(self) -> None:
        """Stop probing: it is read again, or nothing depends on it any more."""
        self._search += 1
        self._outage.over()

    def close(self) -> None:
        """Stop probing; a probe that hangs ends with the process."""
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
            self._outage.error = error
        self._is_found = True
        self._on_found()

    def _try(self) -> TidemarkError | None:
        try:
            self._probe()
        except TemporaryError as error:
            return error
        except TidemarkError:
            # A refusal: the pipeline is to meet it itself.
            return None
        return None
