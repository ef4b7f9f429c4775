"""The life of a view: its states, and the only way for the service to change a status.

The transition table is a contract (connectors/view_states.py), because the sink writes statuses
with its epochs; the service uses it through this module. Invariant: the catalog accepts a status
only with an event that leads to it from the current one. The sink's own writes follow the same
table (connectors/postgres/schema/view_status.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from connectors.view_states import (
    BUILDING,
    INITIAL,
    STAYING,
    DesiredState,
    ViewEvent,
    ViewState,
    follow,
)

__all__ = [
    "BUILDING",
    "CHANGEABLE",
    "INITIAL",
    "READABLE",
    "RESOLVED",
    "STAYING",
    "DesiredState",
    "ViewEvent",
    "ViewState",
    "change",
    "follow",
    "joined_path",
]

# From these, nothing changes by itself that a user could see.
RESOLVED = (ViewState.LIVE, ViewState.DEGRADED, ViewState.FAILED, ViewState.PAUSED)
# A change of the view, or of a view that it reads, may start.
CHANGEABLE = (ViewState.LIVE, ViewState.PAUSED, ViewState.FAILED)
# The rows are the view's answer at one position.
READABLE = (ViewState.LIVE, ViewState.PAUSED)


class Catalog(Protocol):
    """Stores the statuses."""

    def change_view(
        self,
        identity: str,
        events: Sequence[ViewEvent],
        reason: str,
        unanswered: Collection[ViewEvent] = (),
        **columns: Any,
    ) -> bool:
        """Write the status that the events lead to, with other columns of the row."""
        ...


def change(
    catalog: Catalog,
    view: str,
    event: ViewEvent | Sequence[ViewEvent],
    reason: str,
    unanswered: Collection[ViewEvent] = (),
    **columns: Any,
) -> bool:
    """Record in the catalog what happened to a view; return False if the view is gone.

    view: its identity. Several events are those that could not be written before, oldest first.
    unanswered: the last events of earlier writes that may or may not have reached the catalog.
    columns: other columns of the row, written with the status. InvariantError
    view.illegal_transition.
    """
    events = [event] if isinstance(event, ViewEvent) else event
    return catalog.change_view(view, events, reason, unanswered, **columns)


def joined_path(path: Sequence[ViewEvent], event: ViewEvent) -> tuple[ViewEvent, ...]:
    """Return the events plus one more, without a loop between two events of the same kind.

    The second event leads to the same status as the first, so what lies between them is obsolete.
    """
    before = tuple(path)
    return (*before[: before.index(event)], event) if event in before else (*before, event)
