"""Oracle: the bench's own, that DuckDB and PostgreSQL give the same answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import ordered_joins


@pytest.mark.whole
def test_three_answers_are_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_joins, "EPOCHS", {1: 2, 1_000: 1})
    out = tmp_path / "ordered_joins.json"
    assert ordered_joins.main(["--rows", "2000", "--out", str(out)]) == 0
    figures = json.loads(out.read_text())["joins"]
    assert set(figures) == set(ordered_joins.QUERIES)
    assert "| ours: initial load, s |" in "\n".join(ordered_joins.section(out))
