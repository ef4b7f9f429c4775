"""Oracle: records written by hand, and what a reader must be able to see of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import report
from bench.aims import BY_CPU, MET, NOT_MET, at_least, at_most
from bench.record import Record, measuring, read_all
from bench.workloads import FULL

SIZES = vars(FULL)


def run(changes_s: float, cpu_s: float = 1.0) -> dict[str, Any]:
    timed = {"changes": 1_000_000, "wall_s": 1_000_000 / changes_s, "cpu_s": cpu_s}
    return {
        **timed,
        "load_rows": 1_200_000,
        "load_s": 2.0,
        "load_cpu_s": 1.5,
        "peak_rss_mb": 300.0,
        "p50_ms": 0.4,
        "p99_ms": 1.5,
        "fault": None,
    }


def ours(changes_s: float, cpu_s: float = 1.0) -> Record:
    figures = run(changes_s, cpu_s)
    stages = {size: run(changes_s, cpu_s) for size in ("10000", "100", "1")}
    whole = {**figures, "stages": stages}
    return record("ours", {"full": whole, "default": whole})


def record(runner: str, figures: dict[str, Any], **more: Any) -> Record:
    given = {"date": "2024-01-02 10:00", "revision": "abc1234", **more}
    return Record("w1", runner, SIZES, figures, **given)


def row_of(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line[:1] == "|" and start in line)


def test_a_peer_stands_beside_ours_with_its_ratio_and_the_aim() -> None:
    text = report.compose([ours(800_000), record("flink-hashmap", run(100_000, 8.0))])
    assert "| 700,000 | met |" in row_of(text, "**ours, old rows sent whole**")
    assert "| 8.00 | 8.00 | 5x | met |" in row_of(text, "Flink")
    text = report.compose([ours(400_000), record("flink-hashmap", run(100_000, 8.0))])
    assert "| 4.00 | 8.00 | 5x | by CPU time only |" in row_of(text, "Flink")
    assert "| 700,000 | by CPU time only |" in row_of(text, "**ours, old rows sent whole**")


def test_dictionaries_are_compared_with_ours_that_finds_old_rows() -> None:
    fast, slow = ours(900_000), ours(300_000)
    mixed = replace(fast, figures={**fast.figures, "default": slow.figures["default"]})
    text = report.compose([mixed, record("dictionaries", run(300_000))])
    assert "| 1.00 |" in row_of(text, "dictionaries")


def test_an_old_record_cannot_pass_for_a_new_one() -> None:
    old = record("pathway", run(70_000), date="2024-01-01 10:00", revision="0ld", other_cores=1.3)
    text = report.compose([ours(800_000), old])
    assert "2024-01-01 10:00, 0ld **older**, others 1.3" in row_of(text, "| Pathway ")
    assert "older" not in row_of(text, "**ours, old rows sent whole**")


def test_a_peer_that_is_missing_or_wrong_is_reported() -> None:
    missing = record("pathway", {}, missing="pathway: not installed: no network")
    wrong = record("flink-hashmap", {**run(100_000), "fault": "(north, smb) is missing"})
    text = report.compose([ours(800_000), missing, wrong])
    assert "not measured: pathway: not installed: no network" in row_of(text, "| pathway |")
    assert "**wrong**: (north, smb) is missing" in row_of(text, "Flink")


def test_aims_are_judged_by_wall_then_by_cpu_time() -> None:
    assert at_least(100, 100).verdict == MET
    assert at_least(100, 99).verdict == NOT_MET
    assert at_least(100, 99, cpu=150).verdict == BY_CPU
    assert at_most(2, 2.0).verdict == MET
    assert at_most(2, 2.1).verdict == NOT_MET
    assert at_least(None, 5).verdict == ""


def test_growth_is_the_last_over_the_first() -> None:
    def grown(orders: int, changes_s: float) -> Record:
        stages = [run(changes_s, 1_000_000 / changes_s)] * 4
        figures = {**run(1.0), "stages": stages, "memory_mb": 512}
        return Record("growth", str(orders), {}, figures, "2024-01-02 10:00", "abc1234")

    text = report.compose([grown(1_000_000, 200_000), grown(100_000, 500_000)])
    assert "From 100000 to 1000000 orders a change costs 2.50 times" in text
    assert "aim at most 1.6: **not met**" in text
    assert "aim at most 1.6: met" in report.compose([grown(10, 300_000), grown(100, 200_000)])


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    with measuring("w1", "ours", {"orders": 5}, tmp_path) as written:
        written.figures = {"full": {"changes": 3}}
    [found] = read_all(tmp_path)
    assert found == written
    assert found.date and found.revision and found.machine


def test_the_page_says_what_the_records_say() -> None:
    """Else: `python -m bench --write`."""
    assert report.PAGE.read_text() == report.compose(read_all())
