"""When a process that has ended is started again: the decisions of the supervisor, without clock.

A process comes back after a pause. One that ends again before it has got anything done (`headway`)
waits twice as long each time, up to a limit; one that has, or that stayed up for a while, starts
over with the shortest pause. A group's process that ends with 0 has nothing left to do, and one
that ends with FINAL needs someone: it stays away. Only this module decides what dies again and
again: the log names what gets nothing done (`dies_again`), health what ends often
(`repeated_ends`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dataflow.errors import TidemarkError
from service.runtime import signals
from service.runtime.log import log
from storage.backoff import Backoff
from storage.errors import StorageError

PAUSE_S = (0.2, 15.0)
HEALTHY_S = 5.0
AGAIN_AND_AGAIN, AGAIN_S = 3, 60.0
_KEPT_ENDS = 10


@dataclass
class Restarts:
    """Of one process, by a clock in seconds. is_group: of views beside the default ones; is_over:
    it is not to be started again; count: how often it has come back; code: of its newest end;
    ends: when it ended unasked, without those ends that its refusal explains; in_a_row: how often
    it has ended since it last got anything done."""

    is_group: bool = False
    started_at: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(*PAUSE_S))
    start_at: float = 0.0
    is_over: bool = False
    count: int = 0
    code: int | None = None
    ends: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_ENDS))
    in_a_row: int = 0

    @property
    def dies_again(self) -> bool:
        """Whether it dies again and again: starting it once more will hardly help."""
        return self.in_a_row >= AGAIN_AND_AGAIN

    def facts(self) -> dict[str, Any]:
        """Return what others decide by. ends: by the clock that all processes share."""
        return {"is_over": self.is_over, "code": self.code, "ends": list(self.ends)}

    def is_due(self, now: float) -> bool:
        """Whether it is to be started."""
        return now >= self.start_at and not self.is_over

    def started(self, now: float) -> None:
        """It runs."""
        self.started_at = now

    def ended(
        self, code: int, now: float, *, has_got_on: bool = False
    ) -> Literal["done", "given up", "again"]:
        """It ended with this code; whether it comes back."""
        self.code = code
        if self.is_group and code == 0:
            self.is_over = True
            return "done"
        if code == signals.FINAL:
            self.is_over = True
            return "given up"
        if has_got_on or now - self.started_at > HEALTHY_S:
            self.backoff.reset()
            self.in_a_row = 0
        self.in_a_row += 1
        self.start_at = now + self.backoff.next_s()
        self.count += 1
        if code != signals.REFUSED:
            self.ends.append(now)
        return "again"


def repeated_ends(ends: Sequence[float], now: float) -> int:
    """Return how many of these ends lie within the last minute; 0 where those are too few to
    matter.

    >>> repeated_ends([10.0, 30.0, 75.0], 80.0), repeated_ends([20.0, 30.0, 75.0], 80.0)
    (0, 3)
    """
    often = sum(now - end <= AGAIN_S for end in ends)
    return often if often >= AGAIN_AND_AGAIN else 0


DISK_CODES = frozenset({"state.disk_full", "state.io"})


def exit_code(error: TidemarkError | StorageError) -> int:
    """How a pipeline's process ends that an error has stopped, told in its log."""
    if error.code in DISK_CODES:
        # Temporary, but for people to see: only they can make room.
        log.error("pipeline.disk", code=error.code, why=error.detail, hint=error.hint)
        return signals.REFUSED
    if getattr(error, "is_temporary", False):
        log.warning("pipeline.interrupted", code=error.code, why=str(error))
        return 1
    log.error("pipeline.refused", code=error.code, why=str(error), hint=error.hint)
    return signals.FINAL if error.code in signals.FINAL_CODES else signals.REFUSED
