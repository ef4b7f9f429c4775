"""Figures of the last minutes for the console: the pipelines' reports, sampled every second.

It reads files only, never a database. A thread of its own samples; readers are thread-safe.
Invariant: the memory is bounded. After a restart of the API process the history starts empty.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from service.api.overview_models import FigureSeries
from service.runtime.log import log

POLL_S = 1.0
LEAST_S = 1.9
POINTS = 90

_TOTALS = {"epochs": "epochs_written_total", "rows": "source_rows_total"}
# The first name that is present counts.
_GAUGES = {
    "memory": ("rss_bytes", "rss_peak_bytes"),
    "wal": ("wal_retained_bytes",),
    "late": ("lag_seconds",),
}
Figures = dict[str, dict[str, Any] | None]


class History:
    """One per API process; thread-safe. read: returns each group's newest figures."""

    def __init__(self, read: Callable[[], Figures]) -> None:
        self._read = read
        self._points: dict[str, deque[tuple[float, dict[str, float], dict[str, float]]]] = {}
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Start sampling, until the process ends."""
        threading.Thread(target=self._run, name="overview history", daemon=True).start()

    def take(self, figures: Figures) -> None:
        """Store a point of each group that has a new report.

        >>> history = History(dict)
        >>> for at in (10.0, 11.0, 12.0):
        ...     history.take({"default": {"updated_at": at, "views": {"s.v": {"changes": at}}}})
        >>> [course] = history.series()
        >>> course.at, course.totals["view s.v"]
        ([10.0, 12.0], [10.0, 12.0])
        """
        with self._lock:
            self._points = {g: p for g, p in self._points.items() if figures.get(g)}
            for group, facts in figures.items():
                if not facts:
                    continue
                points = self._points.setdefault(group, deque(maxlen=POINTS))
                at = facts["updated_at"]
                if not points or at - points[-1][0] >= LEAST_S:
                    points.append((at, _totals(group, facts), _gauges(group, facts)))

    def series(self) -> list[FigureSeries]:
        """Return the stored points by group; a figure missing at a point is None."""
        with self._lock:
            stored = {group: list(points) for group, points in self._points.items()}
        return [
            FigureSeries(
                group=group,
                at=[at for at, _, _ in points],
                totals=_columns([totals for _, totals, _ in points]),
                gauges=_columns([gauges for _, _, gauges in points]),
            )
            for group, points in stored.items()
        ]

    def _run(self) -> None:
        while True:
            try:
                self.take(self._read())
            except (OSError, ValueError, KeyError) as error:
                log.debug("overview.history", why=str(error))
            time.sleep(POLL_S)


def _totals(group: str, facts: dict[str, Any]) -> dict[str, float]:
    found = {
        f"{word} {group}": facts[figure] for word, figure in _TOTALS.items() if figure in facts
    }
    found |= {f"view {name}": v["changes"] for name, v in facts.get("views", {}).items()}
    found |= {f"source {name}": s["rows_total"] for name, s in facts.get("sources", {}).items()}
    return found | {f"sink {name}": s["rows_total"] for name, s in facts.get("sinks", {}).items()}


def _gauges(group: str, facts: dict[str, Any]) -> dict[str, float]:
    found = {f"{q} {group}": value for q, value in facts.get("freshness_ms", {}).items()}
    for word, names in _GAUGES.items():
        values = [facts[name] for name in names if facts.get(name) is not None]
        found |= {f"{word} {group}": value for value in values[:1]}
    return found


def _columns(points: list[dict[str, float]]) -> dict[str, list[float | None]]:
    names = dict.fromkeys(name for point in points for name in point)
    return {name: [point.get(name) for point in points] for name in names}
