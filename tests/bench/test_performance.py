"""Oracle: the stored records, and records written by hand."""

from __future__ import annotations

import re

import pytest

from bench import performance
from bench.performance import BLOCK, BLOCKS, PAGE, fill
from bench.record import Record, read_all
from tests.bench.test_report import ours, record, run

FIGURE = re.compile(r"\d\s*(?:µs|ms|s|min|minutes|MB|GB|bytes|%|x|times|cores?|(?:\w+/s))(?!\w)")


def block(name: str, *records: Record) -> str:
    text = fill(f"<!-- figures: {name} -->\nearlier\n<!-- end of figures -->\n", records)
    assert "earlier" not in text
    return text


def test_the_page_says_what_the_records_say() -> None:
    """Else: `python -m bench --write`."""
    assert PAGE.read_text() == fill(PAGE.read_text(), read_all())


def test_no_figure_is_typed_by_hand() -> None:
    text = PAGE.read_text()
    assert set(BLOCKS) == {name for _, name, _ in BLOCK.findall(text)}
    assert FIGURE.findall(BLOCK.sub("", text)) == []
    assert len(FIGURE.findall(text)) > 20


def test_every_record_has_its_command() -> None:
    text = block("commands", *read_all())
    for stored in read_all():
        command = performance.COMMANDS.get(stored.part, f"bench --only {stored.part}`")
        assert command in text
    assert "`python -m bench.tpch`" in text and "`make queries`" in text


def test_a_peer_that_needs_less_is_ahead() -> None:
    flink = record("flink-hashmap", run(1_000_000, 0.5))
    text = block("peers", ours(800_000, 1.0), flink)
    assert "hashmap, nothing durable | 0.80 | 0.50 | **behind** |" in text
    text = block("peers", ours(800_000, 1.0), record("flink-hashmap", run(1_000_000, 2.0)))
    assert "| 0.80 | 2.00 | behind by the clock |" in text
    wrong = record("flink-hashmap", {**run(1_000_000, 0.5), "fault": "(north, smb) is missing"})
    assert "hashmap" not in block("peers", ours(800_000), wrong)


def test_each_size_of_epochs_is_compared() -> None:
    stages = {"10000": run(1_600_000, 0.5), "1": run(10_000, 8.0)}
    runs = {"full": {**run(1.0), "stages": stages}}
    text = block("peers", ours(800_000), record("dbsp", {"version": "0.1", "runs": runs}))
    name = "dbsp 0.1, in memory, nothing durable, old rows sent whole, epochs of"
    assert f"| W1 | {name} 10,000 | 0.50 | 0.50 | **behind** |" in text
    assert f"| W1 | {name} 1 | 80.00 | 8.00 |  |" in text


def test_a_block_without_records_says_so_and_an_unknown_one_is_refused() -> None:
    assert "Not measured yet." in block("path")
    assert "Not measured yet." in block("throughput")
    with pytest.raises(ValueError, match="no figures are called 'nothing'"):
        block("nothing")
