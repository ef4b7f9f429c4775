"""Oracle: what docs/OPERATING.md says of pauses: they grow for who gets nothing done, alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from service.runtime.readiness_pipe import ReadinessPipe
from service.runtime.restart_policy import Restarts


def test_who_gets_nothing_done_waits_longer_each_time() -> None:
    restarts = Restarts()
    pauses = [_pause(restarts, 1.0) for _ in range(9)]
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15.0, 15.0]
    assert _pause(restarts, 1.0, has_progressed=True) == 0.2
    assert _pause(restarts, 1.0) == 0.4
    assert _pause(restarts, 6.0) == 0.2


def _pause(restarts: Restarts, lived_s: float, *, has_progressed: bool = False) -> float:
    restarts.started(100.0)
    assert restarts.ended(-9, 100.0 + lived_s, has_progressed=has_progressed) == "again"
    return round(restarts.start_at - 100.0 - lived_s, 3)


@pytest.mark.parametrize(("calls", "wanted"), [("report(); report()", True), ("", False)])
def test_progress_is_read_after_a_kill(calls: str, wanted: bool) -> None:
    readiness = ReadinessPipe()
    program = (
        "import os; from service.runtime.readiness_pipe import report; "
        f"{calls}; os.kill(os.getpid(), 9)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        env=readiness.child_environment(os.environ),
        pass_fds=(readiness.descriptor,),
    )
    readiness.started()
    child.wait()
    assert readiness.ended() is wanted


def test_what_dies_again_and_again_is_known_until_it_stays_up() -> None:
    restarts, now = Restarts(), 0.0
    for turn in range(4):
        restarts.started(now)
        restarts.ended(1, now + 1)
        assert (restarts.in_a_row, restarts.is_crash_looping) == (turn + 1, turn >= 2)
        now += 20
    restarts.started(now)
    restarts.ended(1, now + 6)
    assert not restarts.is_crash_looping
