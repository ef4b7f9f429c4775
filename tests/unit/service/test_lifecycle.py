"""Oracle: docs/VIEWS.md: the picture of a view's life, and its statuses, are the table's."""

from __future__ import annotations

import re

import pytest

from connectors.view_states import (
    ANY,
    INITIAL,
    RULES,
    TRANSITIONS,
    ViewEvent,
    ViewState,
    follow,
    is_legal,
)
from tests.harness import state_diagram


def test_the_page_shows_the_table() -> None:
    page = state_diagram.PAGE.read_text()
    shown = page.partition(state_diagram.BEGIN)[2].partition(state_diagram.END)[0]
    assert shown == state_diagram.drawn(), "run python -m tests.harness.state_diagram"


def test_the_page_explains_every_state() -> None:
    page = state_diagram.PAGE.read_text().partition("## Statuses")[2].partition("\n## ")[0]
    explained = re.findall(r"^\| `([a-z ]+)` \| (?!from)", page, re.MULTILINE)
    assert set(explained) == set(ViewState)


def test_every_event_has_one_rule_and_every_state_is_reached() -> None:
    assert sorted(rule.event for rule in RULES) == sorted(ViewEvent)
    assert {rule.target for rule in RULES} | {INITIAL} == set(ViewState)
    assert all(rule.reason and rule.sources for rule in RULES)


def test_nothing_goes_back_to_the_beginning() -> None:
    assert not any(t.target == INITIAL for t in TRANSITIONS.values())


@pytest.mark.parametrize("event", list(ViewEvent))
def test_only_the_sink_speaks_of_a_view_that_is_dropped(event: ViewEvent) -> None:
    after = follow(ViewState.DROPPING, [event])
    spoken = {ViewEvent.REFUSE: ViewState.FAILED, ViewEvent.UNSTAGE: ViewState.DEGRADED}
    assert after == spoken.get(event, ViewState.DROPPING)


@pytest.mark.parametrize("state", ["live", "paused", "failed"])
def test_a_view_that_stands_is_not_being_built(state: str) -> None:
    """A report of a build that is late would call a view unbuilt whose rows are shown."""
    assert follow(state, [ViewEvent.READ]) is None
    assert follow(state, [ViewEvent.CATCH_UP]) is None


def test_events_follow_one_another() -> None:
    """As reports that the catalog could not be given are put together."""
    assert follow("live", [ViewEvent.DEGRADE, ViewEvent.READ]) == ViewState.BACKFILLING
    assert follow("live", [ViewEvent.READ, ViewEvent.DEGRADE]) is None
    assert follow("live", []) == ViewState.LIVE
    assert is_legal("failed", "live") and not is_legal("live", "catching up")
    assert all(is_legal(state, "dropping") for state in ANY)
