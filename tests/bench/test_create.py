"""Oracle: the bench's own, each view's query in PostgreSQL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import create
from bench.create import measure, queries, section


@pytest.mark.whole
def test_long_queries_are_measured_and_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = measure(3, 5)
    assert list(found) == list(queries(3, 5))
    assert all(v["wrong"] == 0 and v["service_s"] > 0 for v in found.values())
    monkeypatch.setattr(create, "FIGURES", tmp_path / "create.json")
    assert section() == []
    stamp = {"date": "2026-01-01", "revision": "abc", "load": 0.1, "size": 3, "aggregates": 5}
    create.FIGURES.write_text(json.dumps({**stamp, "views": found}))
    assert section()[0] == "## Long queries"
