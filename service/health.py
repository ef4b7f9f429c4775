"""Whether a group's views are kept up to date, by what its pipeline has last told of itself.

Invariant: a pipeline that has not reported lately is never taken for a healthy one.
"""

from __future__ import annotations

from typing import Any

from service.metrics import is_fresh
from service.signals import FINAL_CODES

STALE_S = 10.0


def is_stale(figures: dict[str, Any] | None) -> bool:
    """Whether these figures are too old to tell anything, or there are none."""
    return figures is None or not is_fresh(figures, STALE_S)


def reasons_of(figures: dict[str, Any] | None) -> list[str]:
    """What keeps a group's views from being up to date."""
    if figures is None:
        return ["the pipeline has not reported lately"]
    words = ("wal_alarm", "source_error", "sink_error")
    found = [str(figures[k]) for k in words if figures.get(k)]
    if figures.get("checkpoint_error"):
        found.append(f"the state is not copied: {figures['checkpoint_error']}")
    refusal = figures.get("refused")
    if refusal:
        hint = f": {refusal['hint']}" if refusal["code"] in FINAL_CODES else ""
        return [*found, f"{refusal['title']} [{refusal['code']}]{hint}"]
    return ["the pipeline has not reported lately", *found] if is_stale(figures) else found
