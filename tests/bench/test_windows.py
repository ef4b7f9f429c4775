"""Oracle: the bench's own, PostgreSQL's answer over the same rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.windows import main, section


@pytest.mark.whole
def test_windows_are_measured_and_right(tmp_path: Path) -> None:
    out = tmp_path / "windows.json"
    titles = ["hopping, 5 of 1 minute", "sessions, gap of 30 minutes", "Nexmark q8"]
    assert main(["--rows", "2000", "--only", ";".join(titles), "--out", str(out)]) == 0
    found = json.loads(out.read_text())["queries"]
    assert list(found) == titles
    assert all(not f["fault"] and f["rows"] > 0 for f in found.values())
    page = section(out)
    assert sum(line.endswith("| right |") for line in page) == len(titles)
    assert section(tmp_path / "none.json") == []
