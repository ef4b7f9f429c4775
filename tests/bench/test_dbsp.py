"""Oracle: DuckDB's answers over the same rows; a record written by hand, and what it must show."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from bench import report
from bench.__main__ import main
from bench.peers import dbsp
from bench.peers.environment import PeerMissing
from bench.record import read_all
from bench.workloads import QUICK
from tests.bench.test_report import ours, record, row_of, run


@pytest.mark.whole
@pytest.mark.timeout(3_000)
def test_it_is_right_in_epochs_of_every_size(tmp_path: Path) -> None:
    try:
        dbsp.build()
    except PeerMissing as missing:
        # The compiler's own errors have a number: those are of our sources.
        assert "error[" not in str(missing)
        pytest.skip(str(missing))
    arguments = ["--quick", "--records", str(tmp_path), "--only", "w1,w2r,dbsp"]
    assert main(arguments) == 0
    records = read_all(tmp_path)
    assert [r.name for r in records] == ["w1-dbsp", "w2r-dbsp"]
    for found in records:
        assert found.missing is None
        assert set(found.figures["runs"]) == {"default", "full"}
        for measured in found.figures["runs"].values():
            assert measured["fault"] is None
            assert [measured["stages"][size]["changes"] for size in ("100", "1")] == [2_000, 100]
    first = records[0].figures["runs"]["full"]
    assert first["stages"]["10000"]["changes"] == QUICK.changes
    assert first["load_rows"] == QUICK.customers + QUICK.orders
    assert "dbsp 0." in (tmp_path / "RESULTS.md").read_text()


def test_without_cargo_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("CARGO", raising=False)
    with pytest.raises(PeerMissing, match="dbsp: cargo is not there"):
        dbsp.build(tmp_path)


def test_a_build_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = tmp_path / "cargo"
    failing.write_text("#!/bin/sh\necho 'error: rustc 1.70.0 is too old' >&2\nexit 101\n")
    failing.chmod(0o755)
    monkeypatch.setenv("CARGO", str(failing))
    with pytest.raises(PeerMissing, match=r"dbsp: not built: error: rustc 1\.70\.0 is too old"):
        dbsp.build(tmp_path)


def test_its_sources_are_formatted() -> None:
    rustfmt = shutil.which("rustfmt")
    if rustfmt is None:
        pytest.skip("rustfmt is not there")
    command = [rustfmt, "--check", "--edition", "2024", "src/main.rs"]
    done = subprocess.run(command, cwd=dbsp.PROGRAM, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_identity_and_epoch_stands_beside_ours_of_the_same() -> None:
    stages = {"10000": run(1_600_000, 0.5), "100": run(400_000, 2.0), "1": run(10_000, 8.0)}
    whole = {**run(1.0), "stages": stages}
    wrong = {**whole, "fault": "(north, smb) is missing"}
    peer = record("dbsp", {"version": "0.1", "runs": {"full": whole, "default": wrong}})
    text = report.compose([ours(800_000), peer])
    row = row_of(text, "| dbsp 0.1, in memory, nothing durable, old rows sent whole |")
    assert "| 1,600,000 | 0.50 | 600,000 | 300 | right | 0.50 | 0.50 |" in row
    row = row_of(text, "old rows sent whole, epochs of 100 | 400,000 |")
    assert "| 400,000 | 2.00 |  |  | right | 2.00 | 2.00 |" in row
    row = row_of(text, "upserts by key |")
    assert "| **wrong**: (north, smb) is missing |  |  |" in row
    assert "| W1 | dbsp, full identity, not durable | p50 | 0.40 ms |" in text
    assert "dbsp, default identity" not in text
    assert "Its state is in memory and it writes nothing" in text
