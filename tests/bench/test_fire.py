"""Oracle: the lines that the test itself has added, as a reader of the page must find them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import fire
from tests.harness import figures


def test_runs_are_kept_once_and_summed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, kept = tmp_path / "figures", tmp_path / "kept"
    monkeypatch.setenv(figures.FILE, str(file))
    figures.add("kills", count=20, epochs=1234, command="make torture KILLS=20")
    figures.add("kills", count=1000, epochs=50_000, command="make torture KILLS=1000")
    figures.add("bounded", count=1, command="pytest x", case="wide rows", peak_mb=812.4)
    assert '"count": 20, "epochs": 1234, "wrong": 0' in capsys.readouterr().out
    assert fire.take([file], kept) == 3
    assert fire.take([file, file], kept) == 0
    text = "\n".join(fire.section(kept))
    assert "| 1,020 | 2 | 1,000 | 1,000 | met | 51,234 | 0 |" in text
    assert "`make torture KILLS=1000`" in text
    assert "| bounded | wide rows | peak mb 812 |" in text
    assert "**Wrong: 0.**" in text


def test_what_was_wrong_stays_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(figures.FILE, str(tmp_path / "figures"))
    figures.add("seeds", count=500, epochs=9, wrong=2, command="pytest")
    text = "\n".join(fire.section(tmp_path / "figures"))
    assert "**Wrong: 2.**" in text and "| **not met** | 9 | **2** |" in text


def test_a_kind_that_the_page_does_not_know_is_none() -> None:
    with pytest.raises(AssertionError, match="kilz is none of"):
        figures.add("kilz", count=1, command="pytest")
