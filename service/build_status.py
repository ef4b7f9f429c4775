"""How far a build is, for the catalog, REST and people.

Counts are what is done, never a promise; the time that is left is an estimate by the steps made so
far.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from connectors.kept_parts import Progress
from storage import clock


@dataclass
class BuildStatus:
    """Where a build stands, for the catalog. read_since: when its parts began to be read; notes:
    why what an earlier run had read is read again. expected_s: what the whole was thought to take
    before it began, None when nobody knows."""

    phase: str = "snapshot"
    road: str = ""
    progress: Progress = field(default_factory=lambda: Progress(0, 0))
    started_at: float = field(default_factory=clock.wall)
    read_since: float = 0.0
    notes: list[str] = field(default_factory=list)
    expected_s: float | None = None

    def facts(self) -> dict[str, object]:
        """As the catalog and REST show it, with an estimate of the seconds left."""
        found, now = self.progress, clock.wall()
        facts: dict[str, object] = {
            "phase": self.phase,
            "road": self.road,
            "parts_done": found.parts_done,
            "parts_total": found.parts_total,
            "parts_kept": found.parts_kept,
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
        """By the steps that were made in this run; what an earlier one had read costs nothing.

        By the estimate until the first of them is made.
        """
        found = self.progress
        done = max(found.parts_done - found.parts_kept, 0) + found.tasks_done
        total = found.parts_total - found.parts_kept + found.tasks_total
        if not done or not self.read_since:
            expected_s = self.expected_s
            return (
                None if expected_s is None else round(max(0, expected_s + self.started_at - now), 1)
            )
        return round((now - self.read_since) * (total - done) / done, 1)
