"""Oracle: DuckDB's answers over the rows that are left, and rows applied one by one to a dict."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pytest

from bench import beside_flink
from bench.beside_flink import main, section
from bench.peers import environment
from bench.record import read_all
from bench.timed import CHANGED, INPUTS, LATE, TABLES, TIMED, in_duckdb, streams_of

ROWS = ["--rows", "3000", "--checked", "2000", "--users", "50"]


@pytest.mark.whole
def test_ours_gives_the_answers_of_duckdb(tmp_path: Path) -> None:
    assert main([*ROWS, "--runners", "ours,duckdb", "--records", str(tmp_path)]) == 0
    duckdb_record, ours = read_all(tmp_path)
    assert set(ours.figures["queries"]) == set(duckdb_record.figures["queries"]) == set(TIMED)
    for found in ours.figures["queries"].values():
        assert found["wrong"] == dict.fromkeys([*INPUTS, "all"], 0)
        assert all(found["results"].values()) and found["state_bytes"] > 0
    page = "\n".join(section([duckdb_record, ours], ours.revision))
    assert page.count("| **ours** |") == page.count("| DuckDB, once |") == len(TIMED)


@pytest.mark.whole
def test_flink_is_right_in_order_and_by_groups_alone(tmp_path: Path) -> None:
    if not (environment.HOME / environment.FLINK.name / "installed").exists():
        pytest.skip("Flink is not installed")
    given = [*ROWS, "--runners", "flink", "--only", "Nexmark q12", "--records", str(tmp_path)]
    assert main(given) == 0
    (record,) = read_all(tmp_path)
    found = record.figures["queries"]["Nexmark q12"]
    assert found["wrong"]["updating"] == dict.fromkeys(INPUTS, 0)
    assert found["wrong"]["windows"]["in order"] == 0
    assert found["wrong"]["windows"]["late"] > 0
    assert "| Flink, updating |" in "\n".join(section([record], record.revision))


@pytest.mark.parametrize("kind", INPUTS)
def test_streams_are_changes_of_rows_that_are_there(kind: str) -> None:
    streams = streams_of(kind, 2_000, 50)
    with duckdb.connect() as connection:
        in_duckdb(connection, streams)
        for name, stream in streams.items():
            there: dict[int, tuple[int, ...]] = {}
            rows = np.stack([stream.columns[c] for c in TABLES[name]], 1).tolist()
            for row, weight in zip(map(tuple, rows), stream.weights.tolist(), strict=True):
                if weight < 0:
                    assert there.pop(row[0]) == row
                else:
                    assert row[0] not in there
                    there[row[0]] = row
            assert (len(there) < stream.seq[-1]) == (kind == CHANGED)
            left = connection.execute(f"SELECT id FROM {name}").fetchall()
            assert sorted(there) == sorted(i for (i,) in left)


def test_late_rows_are_late_and_wrong_rows_are_counted() -> None:
    in_order, late = (streams_of(k, 2_000, 50)["bid"].columns["ts"] for k in ("in order", LATE))
    behind = [np.maximum.accumulate(ts) - ts for ts in (in_order, late)]
    assert behind[0].max() < 1_000_000
    assert 0 < (behind[1] > 1_000_000).mean() < 0.03
    query, streams = TIMED["Nexmark q12"], streams_of(LATE, 2_000, 50)
    with duckdb.connect() as connection:
        in_duckdb(connection, streams)
        rows = connection.execute(
            f"SELECT bidder, n, epoch_ms(start) FROM ({query.text}) q"
        ).fetchall()
    answer = np.array(rows)
    assert beside_flink.differing(query, streams, answer) == 0
    answer[0, 1] += 1
    assert beside_flink.differing(query, streams, answer) == 2
    assert beside_flink.differing(query, streams, answer[1:]) == 1
