"""When an ended process starts again: the supervisor's decisions, without a clock.

A process restarts after a pause. If it ends again before it made progress (`readiness_pipe`), the
pause doubles, up to a limit. After progress, or some time of running, the pause starts over. A
group's process that exits with 0 has nothing left to do; one that exits with FINAL waits for an
operator and stays down. Only this module decides what counts as dying repeatedly: the log names
processes without progress (`is_crash_looping`), health those that end often (`repeated_ends`).
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
CRASH_LOOP_ENDS, CRASH_LOOP_S = 3, 60.0
_STORED_ENDS = 10


@dataclass
class Restarts:
    """The restarts of one process, by a clock in seconds.

    - is_group: runs a group of views besides the default one
    - is_over: must not start again
    - count: how often it restarted
    - code: exit code of its newest end
    - ends: times of unrequested ends, except those explained by a refusal
    - in_a_row: ends since it last made progress
    """

    is_group: bool = False
    started_at: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(*PAUSE_S))
    start_at: float = 0.0
    is_over: bool = False
    count: int = 0
    code: int | None = None
    ends: deque[float] = field(default_factory=lambda: deque(maxlen=_STORED_ENDS))
    in_a_row: int = 0

    @property
    def is_crash_looping(self) -> bool:
        """Return True if it dies repeatedly: another restart will hardly help."""
        return self.in_a_row >= CRASH_LOOP_ENDS

    def facts(self) -> dict[str, Any]:
        """Return what other processes need. ends, started_at: by the clock that all share."""
        facts = {"is_over": self.is_over, "code": self.code, "ends": list(self.ends)}
        return facts if not self.started_at else {**facts, "started_at": self.started_at}

    def is_due(self, now: float) -> bool:
        """Return True if it must be started now."""
        return now >= self.start_at and not self.is_over

    def started(self, now: float) -> None:
        """Record its start."""
        self.started_at = now

    def ended(
        self, code: int, now: float, *, has_progressed: bool = False
    ) -> Literal["done", "not restarted", "again"]:
        """Record its end with this exit code; return whether it restarts."""
        self.code = code
        if self.is_group and code == 0:
            self.is_over = True
            return "done"
        if code == signals.FINAL:
            self.is_over = True
            return "not restarted"
        if has_progressed or now - self.started_at > HEALTHY_S:
            self.backoff.reset()
            self.in_a_row = 0
        self.in_a_row += 1
        self.start_at = now + self.backoff.next_s()
        self.count += 1
        if code != signals.REFUSED:
            self.ends.append(now)
        return "again"


def repeated_ends(ends: Sequence[float], now: float) -> int:
    """Return how many ends lie within the last minute; 0 if there are too few to matter.

    >>> repeated_ends([10.0, 30.0, 75.0], 80.0), repeated_ends([20.0, 30.0, 75.0], 80.0)
    (0, 3)
    """
    often = sum(now - end <= CRASH_LOOP_S for end in ends)
    return often if often >= CRASH_LOOP_ENDS else 0


# A storage that is away: the views wait for it.
AWAY_CODES = frozenset({"spark.storage", "spark.storage_absent", "spark.storage_other"})
DISK_CODES = frozenset({"state.disk_full", "state.io"})


def exit_code(error: TidemarkError | StorageError) -> int:
    """Return the exit code of a pipeline that an error has stopped; log the error."""
    if error.code in DISK_CODES:
        # Temporary, but an operator must see it: only they can free space.
        log.error("pipeline.disk", code=error.code, why=error.detail, hint=error.hint)
        return signals.REFUSED
    if error.code in AWAY_CODES:
        # Views show why they wait, and health does.
        what = str(error) if isinstance(error, StorageError) else error.described
        log.error("pipeline.storage", code=error.code, why=what, hint=error.hint)
        return signals.REFUSED
    if getattr(error, "is_temporary", False):
        log.warning("pipeline.interrupted", code=error.code, why=str(error))
        return 1
    log.error("pipeline.refused", code=error.code, why=str(error), hint=error.hint)
    return signals.FINAL if error.code in signals.FINAL_CODES else signals.REFUSED
