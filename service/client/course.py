"""Reconnect logic of a stream of changes: open, read, and reopen after the newest marker.

It is a generator of steps; a synchronous or asynchronous driver executes them.
Invariant: an error is raised if a retry would leave a gap or cannot succeed. Every other error
leads to a new connection from the newest marker, with backoff, for a bounded time.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from dataflow.errors import TemporaryError, TidemarkError
from service.client.calls import Call, Reply
from service.client.epochs import Epoch, Gathering, Marker, StreamEnd

# Time that the service may take to send the first rows of a stream.
FIRST_ROWS_S = 60.0
PAUSES_S = (0.1, 5.0)
DEAD_S = 5.0
BEATS_MISSED = 3
# The rows are available, but the changes since the newest marker are not.
GAPS = ("changes.expired", "changes.interrupted", "changes.view_replaced")
SHORTEST_BEAT_S = 0.1
LONGEST_BEAT_S = 300.0


@dataclass(frozen=True, kw_only=True)
class ChangesOptions:
    """The arguments of `View.changes` and `View.stream`.

    path: URL path of the view's changes. params: those of the first request; token_param: the one
    that a marker's token replaces.
    """

    path: str
    params: Mapping[str, Any]
    token_param: str
    resume: str
    timeout_s: float | None
    heartbeat_s: float
    reconnect_s: float
    has_progress: bool
    begins_again: bool

    @property
    def beat_s(self) -> float:
        """The requested heartbeat interval; a timeout is noticed at a heartbeat."""
        beat_s = self.heartbeat_s
        if self.timeout_s is not None:
            beat_s = min(beat_s, self.timeout_s / 4)
        return min(max(beat_s, SHORTEST_BEAT_S), LONGEST_BEAT_S)

    def read_timeout_s(self, *, has_rows: bool) -> float:
        """Return the silence after which the connection is dead, or (with all rows) timed out."""
        dead_s = max(BEATS_MISSED * self.beat_s, DEAD_S)
        if self.timeout_s is None or not has_rows:
            return dead_s
        return min(dead_s, max(self.timeout_s, 2 * self.beat_s))


@dataclass(frozen=True)
class Open:
    """Open the stream. read_timeout_s: how long a read of it may take."""

    call: Call[Reply]
    read_timeout_s: float


@dataclass(frozen=True)
class Read:
    """Read some bytes; none at the end of the stream."""


@dataclass(frozen=True)
class Shut:
    """Close the stream, even if it is broken."""


@dataclass(frozen=True)
class Pause:
    """Wait."""

    seconds: float


Step = Open | Read | Shut | Pause
Steps = Generator[Step, bytes | None, Epoch | None]


class Course:
    """The logic of one reader. resume: the token after the last returned epoch."""

    def __init__(
        self, options: ChangesOptions, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.resume = options.resume
        self._options = options
        self._clock = clock
        self._gathering = Gathering(options.resume)
        self._params = dict(options.params)
        self._ready: deque[Epoch | Marker] = deque()
        self._is_open = False
        self._is_ended = False
        self._was_open = False
        self._failed_at: float | None = None
        self._failures = 0
        self._error: TidemarkError | None = None
        self._quiet_since = 0.0

    def next_epoch(self) -> Steps:
        """The next epoch; None when nothing has come for the time-out."""
        self._quiet_since = self._clock()
        for step in itertools.count():
            while self._ready:
                found = self._ready.popleft()
                self.resume = found.resume
                if isinstance(found, Epoch):
                    return found
            if self._error is not None:
                raise self._error
            if self._is_ended:
                yield Shut()
                return None
            if step and self._is_late():
                return None
            try:
                if not self._is_open:
                    # Before the first rows, silence means nothing: the table may be large.
                    has_rows = bool(self._gathering.token)
                    yield Open(self._call(), self._options.read_timeout_s(has_rows=has_rows))
                    self._is_open = self._was_open = True
                    self._quiet_since = self._clock() + (0 if has_rows else FIRST_ROWS_S)
                self._take((yield Read()) or b"")
            except TidemarkError as error:
                self._is_open = False
                self._gathering.forget()
                yield Shut()
                self._error = self._why_over(error)
                if self._error is None and not self._is_late():
                    yield Pause(self._pause_s())
        raise AssertionError("unreachable")

    def _call(self) -> Call[Reply]:
        params = {**self._params, "heartbeat_s": self._options.beat_s}
        if self._gathering.token:
            params[self._options.token_param] = self._gathering.token
        return Call(
            method="GET",
            path=self._options.path,
            read=lambda reply: reply,
            params=params,
            headers={"Accept": "text/event-stream", "Accept-Encoding": "identity"},
        )

    def _take(self, chunk: bytes) -> None:
        if not chunk:
            raise TemporaryError("service.unreachable", "the stream of changes has ended")
        for found in self._gathering.take(chunk):
            if found is None:
                continue
            self._failed_at, self._failures = None, 0
            self._quiet_since = min(self._quiet_since, self._clock())
            if isinstance(found, StreamEnd):
                self._is_ended = True
            elif isinstance(found, Marker) and self._options.has_progress:
                self._ready.append(self._gathering.unchanged(found))
            else:
                self._ready.append(found)
        if self._gathering.is_amid:
            self._quiet_since = max(self._quiet_since, self._clock())

    def _is_late(self) -> bool:
        timeout_s = self._options.timeout_s
        return timeout_s is not None and self._clock() - self._quiet_since >= timeout_s

    def _why_over(self, error: TidemarkError) -> TidemarkError | None:
        """Return the error if a retry cannot help, else None."""
        if self._failed_at is None:
            self._failed_at = self._clock()
        if self._options.begins_again and error.code in GAPS:
            self._gathering.token, self._params["snapshot"] = "", True
        elif not (self._was_open and _may_pass(error)):
            return error
        is_over = self._clock() - self._failed_at >= self._options.reconnect_s
        return error if is_over else None

    def _pause_s(self) -> float:
        shortest, longest = PAUSES_S
        pause_s = min(shortest * 2**self._failures, longest)
        self._failures = min(self._failures + 1, 20)
        return pause_s * random.uniform(0.5, 1)


def _may_pass(error: TidemarkError) -> bool:
    """Return True if a retry from the newest marker may succeed."""
    return (error.is_temporary and error.code not in GAPS) or error.code == "changes.too_slow"
