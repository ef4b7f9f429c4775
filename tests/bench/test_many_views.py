"""Oracle: the bench's own, each view's query in PostgreSQL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import many_views
from bench.many_views import KINDS, measure, section, views


def test_no_view_is_computed_for_two() -> None:
    queries = views(200, 20)
    assert len(set(queries.values())) == len(queries) == 200
    assert {query.split("FROM ")[1].split()[0] for query in queries.values()} >= {
        f"many{table}" for table in range(20)
    }


@pytest.mark.whole
def test_many_views_are_measured_and_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measure(2 * len(KINDS), 2, 100, 2.0, rows=500)
    assert found["wrong"] == [] and found["changes"] == 200
    assert 0 < found["p50_ms"] <= found["p99_ms"]
    monkeypatch.setattr(many_views, "FIGURES", tmp_path / "many_views.json")
    assert section() == []
    stamp = {"date": "2026-01-01", "revision": "abc", "load": 0.1}
    many_views.FIGURES.write_text(json.dumps({**stamp, **found}))
    assert section()[0] == "## Many views"
