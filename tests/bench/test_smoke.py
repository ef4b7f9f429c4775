"""Oracle: the view by hand in dictionaries, and the view's query in PostgreSQL.

The benchmark at its smallest: every part runs, and what it measures is right.
"""

from __future__ import annotations

from pathlib import Path

from bench import dictionaries, engine
from bench.__main__ import QUICK, main
from bench.orders import TABLES, generate
from tests.harness.postgres import Database


def test_the_workload_is_the_same_each_time() -> None:
    assert generate(QUICK) == generate(QUICK)
    assert generate(QUICK, seed=1) != generate(QUICK, seed=2)


def test_engine_and_dictionaries_agree(database: Database) -> None:
    database.execute(TABLES)
    result = engine.measure(QUICK, engine.plan_query(database.dsn))
    assert result.rows == dictionaries.run(QUICK).rows


def test_quick_run_writes_the_table(tmp_path: Path) -> None:
    out = tmp_path / "results.md"
    assert main(["--quick", "--no-spark", "--out", str(out)]) == 0
    text = out.read_text()
    for group in (
        "engine, epochs of 10,000",
        "snapshot",
        "path",
        "commit to visible, 100",
        "memory",
    ):
        assert f"| {group}" in text
