"""Oracle: DuckDB's answers over the same rows, and the view's query in PostgreSQL.

The benchmark at its smallest: every part runs, and what it measures is right.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import dictionaries, engine
from bench.__main__ import check, main
from bench.engine import Job, Stage
from bench.generate import HOME, prepare
from bench.peers.environment import FLINK, PATHWAY, Peer, PeerMissing, install
from bench.plans import plan
from bench.record import read_all
from bench.streams import chosen
from bench.workloads import QUICK, WORKLOADS, Workload
from tests.harness.postgres import Database

CASES = [(w, full) for w in WORKLOADS.values() for full in (False, True) if w.has_old_rows >= full]


@pytest.mark.parametrize(
    ("workload", "is_full"), CASES, ids=[f"{w.name} {'full' if f else 'default'}" for w, f in CASES]
)
def test_the_engine_is_right(workload: Workload, is_full: bool, database: Database) -> None:
    rows = prepare(workload.rows, QUICK)
    planned = plan(database.dsn, workload, full=is_full)
    # Epochs of every size, the rest in one.
    stages = (Stage(1, 30), Stage(100, 20), Stage(7_000), Stage(10))
    result = engine.run(Job(workload, planned, rows, rows, stages, is_full=is_full))
    assert result.fault is None
    singles, hundreds, rest, none = result.stages
    assert hundreds.changes > 0 and rest.changes > 0 and none.changes == 0
    # The bids of q1 and q2 are numbered among auctions that they do not read.
    assert singles.changes == 30 or len(workload.tables) == 1
    assert result.load_rows == (QUICK.customers + QUICK.orders if workload.name == "w1" else 0)


def test_dictionaries_are_right() -> None:
    result = dictionaries.run(prepare("orders", QUICK))
    assert result.fault is None
    assert result.changes == QUICK.changes


def test_words_choose_workloads_and_runners() -> None:
    assert chosen(["w2r", "flink"]) == [("w2r", "flink-hashmap"), ("w2r", "flink-rocksdb")]
    assert chosen(["ours", "q1"]) == [("q1", "ours")]
    assert {w for w, _ in chosen(["ours"])} == set(WORKLOADS)
    assert ("w1", "dictionaries") in chosen(["w1"])
    assert check(["w1", "flink", "growth", "path"]) == []
    assert check(["w9"]) == ["w9"]


@pytest.mark.whole
def test_quick_run_writes_records_and_the_page(tmp_path: Path) -> None:
    words = "w1,ours,dictionaries,growth,memory,cap,path,subscribe,kafka"
    arguments = ["--quick", "--no-spark", "--records", str(tmp_path), "--only", words]
    assert main(arguments) == 0
    text = (tmp_path / "RESULTS.md").read_text()
    titles = ("W1", "A single change", "Growth", "Memory of the engine", "Memory of the service")
    titles = (*titles, "Source to sink", "Subscriptions", "Clients of Kafka")
    for title in (*titles, "From a topic through a view"):
        assert f"\n## {title}\n" in text
    assert "**wrong**" not in text
    assert "| commit to visible, 100 changes/s | p50 |" in text
    found = {record.name for record in read_all(tmp_path)}
    assert {"w1-ours", "w1-dictionaries", "memory-10000", "path-service", "kafka-ours"} <= found
    assert {"kafka-path-service", "subscribe-service"} <= found


@pytest.mark.parametrize("peer", [PATHWAY, FLINK], ids=lambda peer: peer.name)
def test_a_peer_runs_and_is_right(peer: Peer, tmp_path: Path) -> None:
    if not (HOME / peer.name / "installed").exists():
        pytest.skip(f"{peer.name} is installed by `make bench`")
    arguments = ["--quick", "--records", str(tmp_path), "--only", f"w1,w2r,{peer.name}"]
    assert main(arguments) == 0
    records = read_all(tmp_path)
    assert len(records) >= 2
    for record in records:
        assert record.missing is None
        assert record.figures["fault"] is None
        assert record.figures["changes"] > 0


@pytest.mark.whole
def test_a_peer_that_cannot_be_installed_says_why(tmp_path: Path) -> None:
    nowhere = Peer("nowhere", "nowhere", str(tmp_path / "no-such-package"))
    with pytest.raises(PeerMissing, match="nowhere: not installed: "):
        install(nowhere, tmp_path)


def test_flink_without_java_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PeerMissing, match="flink: Java 17 or newer is not there"):
        install(FLINK, tmp_path)
