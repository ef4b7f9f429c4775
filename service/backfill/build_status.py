"""The progress of a build, for the catalog, REST and users.

Counts are completed work, never a promise. The remaining time is an estimate from the steps
completed so far.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from connectors.partition_cache import Progress
from dataflow.errors import InvariantError
from service.backfill.engine_choice import EngineChoice
from service.views.lifecycle import ViewEvent
from storage import clock

# Within so many seconds of reading, steps say more of the start than of the rest.
LEAST_S = 5.0
# An estimate below this is not shown.
SHORT_S = 15.0


class BuildPhase(StrEnum):
    """The phase of a build, as the catalog and REST show it."""

    SNAPSHOT = "snapshot"
    READING_CHANGES = "reading what has changed"
    BACKFILL = "backfill"
    STAGING = "staging"
    COMPARING = "comparing"
    CATCHING_UP = "catching up"


# The allowed next phases; a restarted build has a new status.
PHASES: Mapping[BuildPhase, Mapping[BuildPhase, str]] = {
    BuildPhase.SNAPSHOT: {
        BuildPhase.READING_CHANGES: "parts of an earlier run are reused; later changes are read",
        BuildPhase.BACKFILL: "the snapshot is open, and no part of an earlier run is reused",
    },
    BuildPhase.READING_CHANGES: {BuildPhase.BACKFILL: "the spool has all changes before it"},
    BuildPhase.BACKFILL: {
        BuildPhase.STAGING: "the view has no table of this shape yet",
        BuildPhase.COMPARING: "its table stays: the rows are compared with those in it",
    },
    BuildPhase.STAGING: {
        BuildPhase.COMPARING: "readers get the difference to the rows of the version before",
        BuildPhase.CATCHING_UP: "the first rows are in the sink",
    },
    BuildPhase.COMPARING: {
        BuildPhase.COMPARING: "the new rows are taken in, now the old ones",
        BuildPhase.CATCHING_UP: "the difference is known, except for later changes",
    },
    BuildPhase.CATCHING_UP: {},
}


@dataclass
class BuildStatus:
    """The status of a build, for the catalog.

    choice: of its engine, with the estimated seconds. read_since: when reading its parts began.
    notes: why parts of an earlier run are read again.
    """

    phase: BuildPhase = BuildPhase.SNAPSHOT
    choice: EngineChoice = field(default_factory=lambda: EngineChoice(""))
    progress: Progress = field(default_factory=lambda: Progress(0, 0))
    started_at: float = field(default_factory=clock.wall)
    read_since: float = 0.0
    notes: list[str] = field(default_factory=list)

    def enter(self, phase: BuildPhase) -> None:
        """Enter another phase. InvariantError backfill.phase if it is not an allowed next one."""
        if phase not in PHASES[self.phase]:
            raise InvariantError("backfill.phase", f"{phase} does not follow {self.phase}")
        self.phase = phase

    @property
    def event(self) -> ViewEvent:
        """Return the event to report for a view without rows in this phase."""
        is_read = self.phase is BuildPhase.CATCHING_UP
        return ViewEvent.CATCH_UP if is_read else ViewEvent.READ

    def facts(self) -> dict[str, object]:
        """Return the status as the catalog and REST show it, with the estimated seconds left."""
        found, now = self.progress, clock.wall()
        facts: dict[str, object] = {
            "phase": self.phase.value,
            "engine": self.choice.engine,
            "engine_reason": self.choice.reason,
            "engine_s": {name: round(s, 1) for name, s in self.choice.seconds.items()},
            "parts_done": found.parts_done,
            "parts_total": found.parts_total,
            "parts_reused": found.parts_reused,
            # The earlier names, for one release.
            "road": self.choice.engine,
            "parts_kept": found.parts_reused,
            "rows": found.rows,
            "bytes": found.bytes,
            "elapsed_s": round(now - self.started_at, 1),
            "remaining_s": self._remaining_s(now),
        }
        if found.tasks_total:
            facts |= {"tasks_done": found.tasks_done, "tasks_total": found.tasks_total}
        if self.notes:
            facts["notes"] = list(self.notes)
        return facts

    def _remaining_s(self, now: float) -> float | None:
        """Return the seconds left, estimated from the steps of this run; reused parts cost nothing.

        Before the first step, use the estimate. A build that is short by either has none: most of
        its time is the start of its process, and it ends before anyone has read the figure.
        """
        found = self.progress
        done = max(found.parts_done - found.parts_reused, 0) + found.tasks_done
        total = found.parts_total - found.parts_reused + found.tasks_total
        read_s, expected_s = now - self.read_since, self.choice.expected_s
        if done and self.read_since and read_s >= LEAST_S:
            return round(read_s * (total - done) / done, 1)
        if expected_s is None or expected_s < SHORT_S:
            return None
        return round(max(0, expected_s + self.started_at - now), 1)
