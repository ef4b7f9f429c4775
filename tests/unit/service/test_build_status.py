"""Oracle: what the docstring of BuildStatus says of the time that is left."""

from __future__ import annotations

import time

import pytest

from connectors.partition_cache import Progress
from dataflow.errors import InvariantError
from service.backfill.build_status import PHASES, BuildPhase, BuildStatus
from service.backfill.engine_choice import EngineChoice
from service.views.lifecycle import ViewEvent


def test_the_time_left_is_the_estimate_until_a_part_was_read() -> None:
    status = BuildStatus(started_at=time.time() - 10)
    assert status.facts()["remaining_s"] is None
    status.choice = EngineChoice("local", "", {"local": 40.0, "spark": 90.0})
    assert status.facts()["remaining_s"] == pytest.approx(30, abs=2)
    status.progress, status.read_since = Progress(1, 5), time.time() - 6
    assert status.facts()["remaining_s"] == pytest.approx(24, abs=2)
    status.choice = EngineChoice("spark", "", {"local": 40.0, "spark": 20.0})
    status.progress, status.started_at = Progress(0, 5), time.time() - 30
    assert status.facts()["remaining_s"] == 0


def test_a_short_build_names_no_time() -> None:
    """Six rows in eight parts: the first part takes as long as the start of a process does."""
    status = BuildStatus(choice=EngineChoice("local", "", {"local": 7.0, "spark": 90.0}))
    assert status.facts()["remaining_s"] is None
    status.progress, status.read_since = Progress(1, 8), time.time() - 1
    assert status.facts()["remaining_s"] is None


def test_the_choice_of_the_engine_is_shown() -> None:
    choice = EngineChoice("spark", "it is faster", {"local": 40.04, "spark": 5.0})
    facts = BuildStatus(choice=choice).facts()
    assert (facts["engine"], facts["engine_reason"]) == ("spark", "it is faster")
    assert facts["engine_s"] == {"local": 40.0, "spark": 5.0}


@pytest.mark.parametrize("before", list(BuildPhase))
def test_a_phase_follows_by_the_table_alone(before: BuildPhase) -> None:
    for after in BuildPhase:
        status = BuildStatus(before)
        if after in PHASES[before]:
            status.enter(after)
            assert status.phase is after
        else:
            with pytest.raises(InvariantError, match="does not follow"):
                status.enter(after)


def test_every_phase_is_reached_and_the_last_one_alone_ends() -> None:
    reached = {BuildPhase.SNAPSHOT} | {after for found in PHASES.values() for after in found}
    assert reached == set(BuildPhase) == PHASES.keys()
    assert [phase for phase, after in PHASES.items() if not after] == [BuildPhase.CATCHING_UP]


def test_a_view_is_called_catching_up_in_that_phase_alone() -> None:
    events = {phase: BuildStatus(phase).event for phase in BuildPhase}
    assert events.pop(BuildPhase.CATCHING_UP) == ViewEvent.CATCH_UP
    assert set(events.values()) == {ViewEvent.READ}
