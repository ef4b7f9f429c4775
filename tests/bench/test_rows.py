"""Oracle: the rows applied one by one to dictionaries, as a table would take them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.generate import prepare
from bench.peers.inputs import facts, flink_inputs
from bench.rows import DELETE, INSERT, NEW, OLD, Generated
from bench.workloads import WORKLOADS, Sizes, Table, Workload, difference, fold

SMALL = Sizes(customers=50, orders=300, changes=2_000, bids=3_000, people=1_000)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows")


def whole(rows: Generated, table: Table, part: str, *names: str) -> list[tuple[int, ...]]:
    names = names or tuple(table.names)
    read = rows.read(table, part, list(names), 0, rows.count(table, part))
    return list(zip(*(read[n].tolist() for n in names), strict=True))


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_each_change_fits_the_rows_before_it(workload: Workload, home: Path) -> None:
    rows = prepare(workload.rows, SMALL, home)
    for table in workload.stream:
        there = {}
        if rows.count(table, "load"):
            there = {row[0]: row for row in whole(rows, table, "load")}
        seen, before = set(), (-1, 0)
        for seq, kind, *values in whole(rows, table, "changes", "seq", "kind", *table.names):
            row = tuple(values)
            seen.add(kind)
            # An update is one change: its two sides stand together.
            assert seq >= before[0]
            assert (kind == NEW) == (before == (seq, OLD))
            if kind in (OLD, DELETE):
                assert there.pop(row[0]) == row
            else:
                assert row[0] not in there
                there[row[0]] = row
            before = (seq, kind)
        if workload.has_old_rows and table is workload.stream[-1]:
            assert DELETE in seen
        else:
            assert seen == {INSERT}


@pytest.mark.parametrize("name", ["orders", "bids", "retracted", "people"])
def test_a_seed_gives_the_same_rows_again(name: str, home: Path, tmp_path: Path) -> None:
    one, other = prepare(name, SMALL, home), prepare(name, SMALL, tmp_path)
    paths = sorted(p.relative_to(one.folder) for p in one.folder.rglob("*.npy"))
    assert paths
    for path in paths:
        assert np.array_equal(np.load(one.folder / path), np.load(other.folder / path))


def test_flink_reads_each_change_once(home: Path) -> None:
    workload = WORKLOADS["w1"]
    rows = prepare(workload.rows, SMALL, home)
    paths = flink_inputs(workload, rows)
    lines = Path(paths["orders"]).read_text().splitlines()
    assert len(lines) == SMALL.orders + SMALL.changes
    assert [line for line in lines if '"op":"u"' in line and '"before":{' in line]
    assert len(Path(paths["customers"]).read_text().splitlines()) == SMALL.customers
    counted = facts(workload, rows)
    assert (counted.loaded, counted.changes) == (SMALL.orders + SMALL.customers, SMALL.changes)
    assert 0 < counted.passing < SMALL.orders


def test_a_wrong_answer_is_reported() -> None:
    w1 = WORKLOADS["w1"]
    right = {("north", "smb"): (2, 30), ("south", "smb"): (1, 5)}
    rows = [(("north", "smb", 2, 30), 1), (("south", "smb", 1, 5), 1)]
    assert difference(right, fold(w1, rows)) is None
    assert difference(right, fold(w1, rows[:1])) == "(south, smb) is missing"
    assert "should not be there" in str(difference(right, fold(w1, [*rows, (("x", "y", 1, 1), 1)])))
    assert "is (1, 6), not (1, 5)" in str(
        difference(right, fold(w1, [rows[0], (("south", "smb", 1, 6), 1)]))
    )
    # A row that was not retracted, or came twice, is wrong whatever its value.
    assert difference(right, fold(w1, [*rows, (("north", "smb", 1, 9), 1)])) is not None
    assert difference(right, fold(w1, [*rows, rows[0]])) is not None


def test_floats_may_differ_by_the_order_of_their_sum() -> None:
    q1 = WORKLOADS["q1"]
    found = fold(q1, [((1, 2, 0.1, 3), 1), ((1, 2, 0.2, 3), 1), ((1, 2, 9.0, 3), 1)])
    assert difference({(): (3, 3, 6, 9.3, 9)}, found) is None
    assert difference({(): (3, 3, 6, 9.31, 9)}, found) is not None
