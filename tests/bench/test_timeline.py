"""Oracle: moments that were noted in a known order, and the real service's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import timeline
from bench.generate import prepare
from bench.timeline import STAGES, measure, medians, section
from bench.workloads import QUICK, WORKLOADS

INSIDE = [stage for stage in STAGES if stage != "seen"]
MS = 1_000_000


def test_stages_are_measured_from_the_one_before() -> None:
    commits = [(10 * MS, 21 * MS), (50 * MS, 61 * MS)]
    # An epoch without rows in between; the second commit's WAL was here before the client knew.
    noted = [(10 * MS + n * MS, stage) for n, stage in enumerate(INSIDE, 1)]
    noted += [(30 * MS, "stepped"), (31 * MS, "committed")]
    noted += [(int(49.5 * MS) + n * MS, stage) for n, stage in enumerate(INSIDE)]
    found = medians(commits, sorted(noted))
    assert found["epochs"] == 2 and found["whole"] == 11
    assert found["received"] == 1 and found["polled"] == found["written"] == 1
    assert found["seen"] == 3.5


def test_commits_that_share_an_epoch_do_not_count() -> None:
    noted = [(10 * MS + n * MS, stage) for n, stage in enumerate(INSIDE, 1)]
    found = medians([(10 * MS, 21 * MS)], noted)
    assert found["epochs"] == 1
    with pytest.raises(RuntimeError, match="epoch of its own"):
        medians([(10 * MS, 21 * MS), (14 * MS, 21 * MS)], noted)


@pytest.mark.whole
def test_the_service_notes_all_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = prepare(WORKLOADS["w1"].rows, QUICK)
    found = measure(rows, QUICK.customers, (20,), 2.0)["20"]
    assert found["epochs"] > 10 and min(found[stage] for stage in INSIDE[1:]) > 0
    assert found["whole"] / 2 < sum(found[stage] for stage in STAGES) < found["whole"] * 2
    monkeypatch.setattr(timeline, "FIGURES", tmp_path / "timeline.json")
    assert section() == []
    stamp = {"date": "2026-01-01", "revision": "abc", "load": 0.1}
    timeline.FIGURES.write_text(json.dumps({**stamp, "rates": {"20": found}}))
    assert "## From commit to visible, by stage" in section()
