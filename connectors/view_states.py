"""The states of a view, the events that change them, and why each transition is legal.

This is the only module that names them. It is one of the contracts of the connectors: the sink
writes states with its epochs (connectors/sink.py), the catalog stores them (connectors/postgres).
Neither may import the service, which decides what happens (service/views/lifecycle.py). Invariant:
an event leads to one state wherever it is legal, except that a view to be dropped stays "dropping".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dataflow.errors import InvariantError


class ViewState(StrEnum):
    """The state of a view in the catalog, in the order of its life."""

    ANALYZING = "analyzing"
    BACKFILLING = "backfilling"
    CATCHING_UP = "catching up"
    LIVE = "live"
    DEGRADED = "degraded"
    PAUSED = "paused"
    FAILED = "failed"
    DROPPING = "dropping"


class DesiredState(StrEnum):
    """What the user requests for a view."""

    LIVE = "live"
    PAUSED = "paused"
    DROPPED = "dropped"


class ViewEvent(StrEnum):
    """What happens to a view."""

    READ = "read"
    CATCH_UP = "catch up"
    SHOW = "show"
    RECALL = "recall"
    PAUSE = "pause"
    DEGRADE = "degrade"
    FAIL = "fail"
    UNSTAGE = "unstage"
    REFUSE = "refuse"
    DROP = "drop"


@dataclass(frozen=True)
class Rule:
    """Where an event leads from some states, and why."""

    event: ViewEvent
    sources: Sequence[ViewState]
    target: ViewState
    reason: str


@dataclass(frozen=True)
class Transition:
    """Where an event leads from one state, and why."""

    target: ViewState
    reason: str


INITIAL = ViewState.ANALYZING
BUILDING = (ViewState.ANALYZING, ViewState.BACKFILLING, ViewState.CATCHING_UP)
ANY = tuple(ViewState)
STAYING = tuple(state for state in ViewState if state is not ViewState.DROPPING)

RULES = (
    Rule(
        ViewEvent.READ,
        (*BUILDING, ViewState.DEGRADED),
        ViewState.BACKFILLING,
        "A build reads the tables in a snapshot, for the first time or again.",
    ),
    Rule(
        ViewEvent.CATCH_UP,
        (*BUILDING, ViewState.DEGRADED),
        ViewState.CATCHING_UP,
        "The snapshot is read. A fast build reports nothing before that.",
    ),
    Rule(
        ViewEvent.SHOW,
        STAYING,
        ViewState.LIVE,
        "The sink shows the rows of a build: new, rebuilt, resumed or replaced.",
    ),
    Rule(
        ViewEvent.RECALL,
        (ViewState.LIVE, ViewState.DEGRADED, ViewState.PAUSED, ViewState.FAILED),
        ViewState.BACKFILLING,
        "The state is lost or was discarded with its slot, or the pause is no longer requested.",
    ),
    Rule(
        ViewEvent.PAUSE,
        STAYING,
        ViewState.PAUSED,
        "The user asked for it. A live view pauses with an epoch, any other one at once.",
    ),
    Rule(
        ViewEvent.DEGRADE,
        STAYING,
        ViewState.DEGRADED,
        "The view left the dataflow and is to be built again. The catalog may lag behind.",
    ),
    Rule(
        ViewEvent.FAIL,
        STAYING,
        ViewState.FAILED,
        "The view cannot be built or kept up to date.",
    ),
    Rule(
        ViewEvent.UNSTAGE,
        ANY,
        ViewState.DEGRADED,
        "The sink has lost the staged rows. The epoch itself sets it, even during a drop.",
    ),
    Rule(
        ViewEvent.REFUSE,
        ANY,
        ViewState.FAILED,
        "The sink refuses the rows. The epoch itself sets it, even during a drop.",
    ),
    Rule(ViewEvent.DROP, ANY, ViewState.DROPPING, "The user drops the view."),
)
# An epoch stores the statuses that it sets, not the events.
_WITH_EPOCHS = {
    ViewState.LIVE: ViewEvent.SHOW,
    ViewState.PAUSED: ViewEvent.PAUSE,
    ViewState.DEGRADED: ViewEvent.DEGRADE,
}
_ABSORBED = "The view is to be dropped; no other status is reported."


def _table() -> dict[tuple[ViewState, ViewEvent], Transition]:
    absorbed = Transition(ViewState.DROPPING, _ABSORBED)
    table = {(ViewState.DROPPING, event): absorbed for event in ViewEvent}
    for rule in RULES:
        found = Transition(rule.target, rule.reason)
        table |= {(state, rule.event): found for state in rule.sources}
    return table


TRANSITIONS: Mapping[tuple[ViewState, ViewEvent], Transition] = _table()


def target_of(event: ViewEvent) -> ViewState:
    """Return where an event leads, except for a view that is to be dropped."""
    return next(rule.target for rule in RULES if rule.event is event)


def follow(state: str, events: Iterable[ViewEvent]) -> ViewState | None:
    """Return where events lead, one after the other; None if one of them is illegal."""
    found = ViewState(state)
    for event in events:
        transition = TRANSITIONS.get((found, event))
        if transition is None:
            return None
        found = transition.target
    return found


def follow_retried(
    state: str, events: Sequence[ViewEvent], unanswered: Collection[ViewEvent]
) -> ViewState | None:
    """Return where events lead that may have been written before; None if one is illegal.

    unanswered: the last events of earlier writes whose outcome is unknown. The view may be where
    one of these led, and what has happened to it since leads to the same state from there.
    """
    after = follow(state, events)
    if after is None and events and state in [target_of(event) for event in unanswered]:
        return target_of(events[-1])
    return after


def event_of(shown: str) -> ViewEvent:
    """Return the event by which an epoch gives a view a status (ViewChange.status)."""
    return _WITH_EPOCHS[ViewState(shown)]


def is_legal(before: str, after: str) -> bool:
    """Return True if any event leads from one state to the other."""
    return any(follow(before, [event]) == after for event in ViewEvent)


def is_absorbed(event: ViewEvent) -> bool:
    """Return True if the event changes nothing about a view that is to be dropped."""
    return TRANSITIONS[ViewState.DROPPING, event].reason == _ABSORBED


def illegal_transition(
    title: str, state: str, events: Sequence[ViewEvent], reason: str
) -> InvariantError:
    """Return the refusal of events for a view in a state."""
    listed = ", ".join(events)
    return InvariantError(
        "view.illegal_transition",
        f'view "{title}" is {state}, where "{listed}" is illegal',
        detail=reason,
        hint="report it; rebuild the view",
    )
