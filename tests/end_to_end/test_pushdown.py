"""Oracle: what Python answers over the rows that a function returns, whatever is asked of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.postgres import Database
from tests.harness.service import RunningService

MODULE = "tests.connectors.python_functions"
COLUMNS = [
    {"name": "id", "type": "bigint"},
    {"name": "region", "type": "text"},
    {"name": "price", "type": "integer"},
    {"name": "note", "type": "text"},
]
NORTH = "SELECT id, price FROM feed.items WHERE region = 'r1' AND price > 5 AND price % 2 = 1"
NOTES = "SELECT region, count(*) AS n, max(note) AS note FROM feed.items GROUP BY region"
SOUTH = "SELECT id FROM feed.items WHERE region = 'r2'"
WAIT_S = 240


class Items:
    """The rows of the function, and what it was asked for."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "items.json"
        self.rows = {n: ["r" + str(n % 3), n, f"note {n}"] for n in range(60)}
        self.write()

    def write(self) -> None:
        names = [column["name"] for column in COLUMNS]
        rows = [dict(zip(names, [n, *row], strict=True)) for n, row in self.rows.items()]
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(rows))
        new.rename(self.file)

    def last_call(self) -> tuple[set[str], dict[str, list[Any]]]:
        """Return the columns and the conditions, by column, of the newest call."""
        [*_, line] = Path(f"{self.file}.calls").read_text().splitlines()
        columns, where = json.loads(line)
        return set(columns), {column: [operator, value] for column, operator, value in where}

    def options(self) -> dict[str, Any]:
        relation = {
            "function": f"{MODULE}:selected",
            "arguments": {"path": str(self.file)},
            "key": ["id"],
            "columns": COLUMNS,
        }
        return {"poll_interval_ms": 200, "relations": {"items": relation}}

    def north(self) -> list[tuple[Any, ...]]:
        rows = sorted(self.rows.items())
        return [(n, p) for n, (r, p, _) in rows if r == "r1" and p > 5 and p % 2 == 1]

    def notes(self) -> list[tuple[Any, ...]]:
        found: dict[str, list[str]] = {}
        for region, _, note in self.rows.values():
            found.setdefault(region, []).append(note)
        return [(region, len(notes), max(notes)) for region, notes in sorted(found.items())]

    def south(self) -> list[tuple[Any, ...]]:
        return [(n,) for n, (region, *_) in sorted(self.rows.items()) if region == "r2"]


@pytest.mark.whole
def test_a_function_returns_what_its_views_need(database: Database, tmp_path: Path) -> None:
    items = Items(tmp_path)

    def shows(view: str, answer: Callable[[], list[tuple[Any, ...]]]) -> None:
        """Wait until a view has the answer over all rows of the function."""
        rows = lambda: database.rows(f"SELECT * FROM {view} ORDER BY 1")  # noqa: E731
        service.await_so(lambda: rows() == answer(), WAIT_S)

    def is_called_for(columns: set[str], **where: list[Any]) -> None:
        service.await_so(lambda: items.last_call() == (columns, where), WAIT_S)

    with RunningService(database.dsn, tmp_path / "service", allow_modules=MODULE) as service:
        source = {"name": "feed", "type": "python", "options": items.options()}
        answer = service.call("POST", "/sources", source)
        assert answer.status_code == 201, answer.text
        require_validation(service.call("POST", "/views/validate", {"query": NORTH}).json())

        service.create("north", NORTH, WAIT_S)
        shows("north", items.north)
        narrow = {"id", "region", "price"}
        is_called_for(narrow, region=["=", "r1"], price=[">", 5])

        # A view with a wider need sees all rows and columns from its first rows on.
        service.create("notes", NOTES, WAIT_S)
        assert database.rows("SELECT * FROM notes ORDER BY 1") == items.notes()
        is_called_for({*narrow, "note"})
        [read] = service.call("GET", "/views/north").json()["reads"]
        reasons = {found["sql"]: found["reason"] for found in read["filters"]}
        assert "other views" in reasons["(region = 'r1')"]
        items.rows[7][:2] = ["r1", 11]
        items.rows[1][0] = "r2"
        del items.rows[13]
        items.write()
        shows("notes", items.notes)
        shows("north", items.north)

        # Without it, less is read again; rows that come into what is needed are seen.
        service.drop("notes")
        is_called_for(narrow, region=["=", "r1"], price=[">", 5])
        items.rows[2][0] = "r1"
        items.rows[5][:2] = ["r1", 55]
        items.write()
        shows("north", items.north)

        service.kill()
        service.start()
        service.create("south", SOUTH, WAIT_S)
        assert database.rows("SELECT * FROM south ORDER BY 1") == items.south()
        is_called_for(narrow, region=["in", ["r1", "r2"]])
        [read] = service.call("GET", "/views/south").json()["reads"]
        assert not read["filters"][0]["at_source"]
        items.rows[1][0] = "r1"
        items.rows[1][1] = 1001
        items.write()
        shows("south", items.south)
        shows("north", items.north)


def require_validation(found: dict[str, Any]) -> None:
    """What would be passed to the function, and why the rest would not."""
    [read] = found["reads"]
    assert read["unread_columns"] == ["note"]
    assert read["columns_at_source"] and not read["columns_reason"]
    by_sql = {one["sql"]: one for one in read["filters"]}
    assert sorted(by_sql) == ["((price % '2') = '1')", "(price > '5')", "(region = 'r1')"]
    assert by_sql["(price > '5')"] == {"sql": "(price > '5')", "at_source": True, "reason": ""}
    assert by_sql["(region = 'r1')"]["at_source"]
    rest = by_sql["((price % '2') = '1')"]
    assert not rest["at_source"] and "no comparison of one column" in rest["reason"]
    assert "at the source (price > '5')" in found["plan"]
    assert "here ((price % '2') = '1'): it is no comparison" in found["plan"]


def test_a_table_of_the_database_is_read_by_columns(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, amount numeric, note text)")
    with RunningService(database.dsn, tmp_path) as service:
        view = service.create("large", "SELECT id FROM orders WHERE amount > 5")
        [read] = view["reads"]
        assert (read["columns"], read["unread_columns"]) == (["id", "amount"], ["note"])
        assert read["columns_at_source"]
        [found] = read["filters"]
        assert not found["at_source"] and "stored whole" in found["reason"]
        plan = service.call("GET", "/views/large/plan").json()["text"]
        assert "reads orders: id, amount; not read: note" in plan
