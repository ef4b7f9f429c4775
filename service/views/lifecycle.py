"""The life of a view: its states, and the one way in which the service changes a status.

The table of transitions is a contract (connectors/view_states.py), since the sink writes statuses
with its epochs; the service asks here. Invariant: the catalog takes a status only with the event
that leads to it from the status that it has; the sink's own writes follow the same table
(connectors/postgres/schema/view_status.py).
"""

from __future__ import annotations

from collections.abc import Sequence
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

# Nothing moves on by itself from these, as far as the user sees.
RESOLVED = (ViewState.LIVE, ViewState.DEGRADED, ViewState.FAILED, ViewState.PAUSED)
# A change of the view, or of one that it reads, may begin.
CHANGEABLE = (ViewState.LIVE, ViewState.PAUSED, ViewState.FAILED)
# The rows are known to be the view's as of one position.
READABLE = (ViewState.LIVE, ViewState.PAUSED)


class Catalog(Protocol):
    """What keeps the statuses."""

    def change_view(
        self, identity: str, events: Sequence[ViewEvent], reason: str, **columns: Any
    ) -> bool:
        """Write the status that the events lead to, with other columns of the row."""
        ...


def change(
    catalog: Catalog,
    view: str,
    event: ViewEvent | Sequence[ViewEvent],
    reason: str,
    **columns: Any,
) -> bool:
    """Tell the catalog what happened to a view, by its identity; False when the view is gone.

    Several events are those that could not be written before, oldest first. columns: others of the
    row, written with the status. InvariantError view.illegal_transition.
    """
    events = [event] if isinstance(event, ViewEvent) else event
    return catalog.change_view(view, events, reason, **columns)


def joined_path(path: Sequence[ViewEvent], event: ViewEvent) -> tuple[ViewEvent, ...]:
    """Return events with one more. What lies between two of a kind decides nothing any more: the
    second one leads to where the first one did."""
    before = tuple(path)
    return (*before[: before.index(event)], event) if event in before else (*before, event)
