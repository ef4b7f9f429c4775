"""Oracle: the lines that the test itself has added, as a reader of the page must find them."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from bench import fire_record
from tests.harness import figures
from tests.harness.verdicts import WrongStateError


def test_runs_are_stored_once_and_summed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, kept = tmp_path / "figures", tmp_path / "kept"
    monkeypatch.setenv(figures.FILE, str(file))
    figures.add("kills", count=20, epochs=1234, command="make torture KILLS=20")
    figures.add("kills", count=1000, epochs=50_000, command="make torture KILLS=1000")
    figures.add("bounded", count=1, command="pytest x", case="wide rows", peak_mb=812.4)
    assert '"count": 20, "epochs": 1234, "wrong": 0' in capsys.readouterr().out
    assert fire_record.take([file], kept) == 3
    assert fire_record.take([file, file], kept) == 0
    text = "\n".join(fire_record.section(kept))
    assert "| 1,020 | 2 | 0 | 1,000 | 1,000 | met | 51,234 | 0 |" in text
    assert "`make torture KILLS=1000`" in text
    assert "| bounded | wide rows | peak mb 812 |" in text
    assert "**Wrong: 0.**" in text


def test_what_was_wrong_stays_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(figures.FILE, str(tmp_path / "figures"))
    figures.add("seeds", count=500, epochs=9, wrong=2, command="pytest")
    text = "\n".join(fire_record.section(tmp_path / "figures"))
    assert "**Wrong: 2.**" in text and "| **not met** | 9 | **2** |" in text


def test_what_went_well_since_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "figures"
    monkeypatch.setenv(figures.FILE, str(file))
    for epochs, wrong in ((5, 0), (70, 1), (300, 0), (4000, 0)):
        figures.add("seeds", count=500, epochs=epochs, wrong=wrong, command="pytest")
    days = ("2026-01-01 10:00", "2026-01-02 10:00", "2026-01-03 10:00", "2026-01-04 10:00")
    dated = [{**run, "date": day} for run, day in zip(fire_record.read(file), days, strict=True)]
    file.write_text("".join(json.dumps(run) + "\n" for run in reversed(dated)))
    assert (
        "on 2026-01-02 10:00; since then 2 runs compared 4,300 states"
        in fire_record.section(file)[3]
    )


def test_a_run_that_fails_has_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(figures.FILE, str(tmp_path / "figures"))
    for error, wrong in ((WrongStateError("x\ny"), 1), (TimeoutError(), 0), (None, 0)):
        with (
            pytest.raises(type(error)) if error else nullcontext(),
            figures.counted("kills", "make torture", case="any") as run,
        ):
            run.count, run.epochs, run.told["more"] = 1000, 7, 5
            if error is not None:
                run.count = 2000
                raise error
        told = fire_record.read(tmp_path / "figures")[-1]
        assert (told["epochs"], told["wrong"], told["more"]) == (7, wrong, 5)
        assert ("failed" in told) == (error is not None)
    assert fire_record.read(tmp_path / "figures")[0]["failed"] == "WrongStateError: x"
    text = "\n".join(fire_record.section(tmp_path / "figures"))
    assert "| 5,000 | 3 | 2 | 1,000 | 1,000 | met | 21 | **1** |" in text


def test_a_kind_that_the_page_does_not_know_is_none() -> None:
    with pytest.raises(AssertionError, match="kilz is none of"):
        figures.add("kilz", count=1, command="pytest")
