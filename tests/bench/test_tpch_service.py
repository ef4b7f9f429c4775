"""Oracle: the bench's own, each view's query in PostgreSQL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import tpch_service
from bench.tpch_service import run, section
from tests.harness.postgres import Database


@pytest.mark.whole
def test_all_views_are_measured_and_right(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run(database, 0.002, 4, 5)
    assert found["wrong"] == {} and found["views"] == 22
    assert all(each["changes"] > 0 and each["visible_s"] > 0 for each in found["refreshes"])
    assert 0 < found["singles"]["p50_ms"] <= found["singles"]["p99_ms"]
    monkeypatch.setattr(tpch_service, "FIGURES", tmp_path / "tpch_service.json")
    assert section() == []
    stamp = {"date": "2026-01-01", "revision": "abc", "load": 0.1}
    tpch_service.FIGURES.write_text(json.dumps({**stamp, **found}))
    lines = section()
    assert lines[1] == "## TPC-H in one service"
    assert [line.split(",")[0] for line in lines[7:]] == [
        "| new orders",
        "| deleted orders",
        "| updates",
        "| one line of an order",
    ]
