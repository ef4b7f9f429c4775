"""Oracle: the same query in PostgreSQL over the rows that the files hold, typed in by the test."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.postgres import Database, one_session
from tests.harness.service import RunningService

TABLES = """
CREATE TABLE customers (id int PRIMARY KEY, region text NOT NULL);
INSERT INTO customers SELECT i, 'r' || i % 3 FROM generate_series(1, 30) i;
"""
QUERY = """
SELECT c.region, count(*) AS n, sum(p.price) AS spent
FROM shop.purchases p JOIN customers c ON c.id = p.customer GROUP BY c.region
"""
COLUMNS = [{"name": "customer", "type": "int8"}, {"name": "price", "type": "numeric(9,2)"}]


def write(path: Path, rows: list[tuple[int, int]]) -> None:
    """Rename into place."""
    lines = [json.dumps({"customer": customer, "price": price}) for customer, price in rows]
    path.with_suffix(".tmp").write_text("\n".join(lines))
    path.with_suffix(".tmp").rename(path)


def answer(files: dict[str, list[tuple[int, int]]]) -> dict[str, tuple[int, int]]:
    """What the view has to hold."""
    found: dict[str, tuple[int, int]] = {}
    for rows in files.values():
        for customer, price in rows:
            n, spent = found.get(f"r{customer % 3}", (0, 0))
            found[f"r{customer % 3}"] = (n + 1, spent + price)
    return found


def reach(look: Callable[[], Any], wanted: Any) -> None:
    end = time.monotonic() + 60
    with one_session():
        while (found := look()) != wanted:
            assert time.monotonic() < end, (found, wanted)
            time.sleep(0.05)


@pytest.mark.whole
def test_a_view_over_a_watched_folder_and_a_table(database: Database, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    files = {"a": [(i % 30 + 1, i) for i in range(500)]}
    write(folder / "a.jsonl", files["a"])
    database.execute(TABLES)

    def shown() -> dict[str, tuple[int, int]]:
        rows = database.rows("SELECT region, n, spent FROM spent")
        return {region: (n, int(spent)) for region, n, spent in rows}

    def put(name: str, rows: list[tuple[int, int]] | None) -> None:
        if rows is None:
            del files[name]
            (folder / f"{name}.jsonl").unlink()
        else:
            files[name] = rows
            write(folder / f"{name}.jsonl", rows)
        reach(shown, answer(files))

    relation = {"path": f"{folder}/*.jsonl", "columns": COLUMNS}
    options = {"settle_ms": 50, "poll_interval_ms": 20, "relations": {"purchases": relation}}
    with RunningService(database.dsn, tmp_path / "state", allow_folders=folder) as service:
        body = {"name": "shop", "type": "files", "options": options}
        made = service.call("POST", "/sources", body)
        assert made.status_code == 201, made.text
        service.create("spent", QUERY)
        reach(shown, answer(files))
        put("b", [(1, 7), (2, 8)])
        put("a", [(3, 1), (3, 2), (4, 4)])
        put("b", None)
        put("c", [(30, 5)])
        # Changed while nobody looks.
        service.kill()
        files["a"] = [(9, 9)]
        write(folder / "a.jsonl", files["a"])
        service.start()
        reach(shown, answer(files))
