"""Oracle: what the docstring of BuildStatus says of the time that is left."""

from __future__ import annotations

import time

import pytest

from connectors.kept_parts import Progress
from service.build_status import BuildStatus


def test_the_time_left_is_the_estimate_until_a_part_was_read() -> None:
    status = BuildStatus(started_at=time.time() - 10)
    assert status.facts()["remaining_s"] is None
    status.expected_s = 40.0
    assert status.facts()["remaining_s"] == pytest.approx(30, abs=2)
    status.progress, status.read_since = Progress(1, 5), time.time() - 3
    assert status.facts()["remaining_s"] == pytest.approx(12, abs=2)
    status.expected_s, status.progress = 5.0, Progress(0, 5)
    assert status.facts()["remaining_s"] == 0
