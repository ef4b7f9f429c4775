"""Oracle: the counts themselves, as `make queries` writes them, on the page of results."""

from __future__ import annotations

import json
from pathlib import Path

from bench.generated import section


def test_a_run_is_reported_with_its_refusals(tmp_path: Path) -> None:
    counts = {"queries": 200, "comparisons": 1800, "moved": 90, "wrong": 0, "refused": {"a|b": 3}}
    run = {"seed": 7, "date": "2024-01-01", "histories": 5, "elapsed_s": 61.2, "found": ["x.sql"]}
    path = tmp_path / "counted.json"
    path.write_text(json.dumps({**run, "counts": counts}))
    text = "\n".join(section({path: "make queries"}))
    assert "seed 7: 200 queries over 5 random schemas in 61 s" in text
    assert "**Wrong: 0.** Refused: 3 (1.50 %)." in text
    assert "by `make queries`" in text
    assert "| 3 | a\\|b |" in text
    assert "`x.sql`" in text


def test_without_a_run_there_is_nothing(tmp_path: Path) -> None:
    assert section({tmp_path / "none.json": "make queries"}) == []


def test_every_run_has_its_command_and_its_clocks(tmp_path: Path) -> None:
    counts = {"queries": 9, "temporal": 7, "comparisons": 1, "moved": 1, "wrong": 0, "refused": {}}
    run = {"seed": 7, "date": "2024-01-01", "histories": 5, "elapsed_s": 1, "found": []}
    paths = {tmp_path / name: name for name in ("first", "second")}
    for path in paths:
        path.write_text(json.dumps({**run, "counts": counts}))
    text = "\n".join(section(paths))
    assert text.count("9 queries, 7 of which read the clock, over 5 random schemas") == 2
    assert "by `first`" in text and "by `second`" in text
