"""When a view is built again that did more work in an epoch than one view may.

The first time it is built at once. Each further time within an hour of the last one, it waits twice
as long: a view that is over its budget again and again takes ever less of the others' time. Kept in
memory, so a restart begins with no wait.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from dataflow.errors import TemporaryError, TidemarkError

FIRST_S, MAX_S = 10.0, 640.0
FORGET_S = 3600.0


@dataclass
class _Postponed:
    """times: how often it was over its budget. until: when its next build may begin."""

    times: int
    until: float
    why: TidemarkError


class PostponedBuilds:
    """Used by the pipeline's thread. now: seconds of a clock that never goes back."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._views: dict[str, _Postponed] = {}

    def note(self, identity: str, why: TidemarkError) -> None:
        """Postpone the next build of a view that is over its budget now."""
        found, now = self._views.get(identity), self._now()
        times = 0 if found is None or now > found.until + FORGET_S else found.times
        pause_s = min(FIRST_S * 2 ** (times - 1), MAX_S) if times else 0.0
        self._views[identity] = _Postponed(times + 1, now + pause_s, why)

    def why_not(self, identity: str) -> TidemarkError | None:
        """Return what a view waits for; None if it may be built."""
        found = self._views.get(identity)
        if found is None or self._now() >= found.until:
            return None
        why = found.why
        what = f"over its budget {found.times} times within an hour, and built again after a pause"
        return TemporaryError(why.code, what, detail=why.described, hint=why.hint)

    def retain(self, identities: Collection[str]) -> None:
        """Forget the views that are gone."""
        self._views = {i: found for i, found in self._views.items() if i in identities}
