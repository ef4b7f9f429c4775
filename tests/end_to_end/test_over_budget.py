"""Oracle: PostgreSQL's own answer to each query, and the order in which views show what came.

What one view does for one change may take minutes; the other views of its group show what came
after that change long before.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.end_to_end.test_views import assert_equal, flush_position
from tests.harness.postgres import Database
from tests.harness.service import RunningService

TABLES = """
CREATE TABLE calm (id int PRIMARY KEY, v int);
CREATE TABLE steps (id int PRIMARY KEY, a int, b int);
INSERT INTO steps VALUES (1, 1, 2), (2, 2, 3);
CREATE TABLE hot (id int PRIMARY KEY, k int);
CREATE TABLE many (id int PRIMARY KEY, k int);
INSERT INTO many SELECT i, 1 FROM generate_series(1, 1200) i;
CREATE TABLE words (id int PRIMARY KEY, s int);
CREATE FUNCTION slowly(s int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_sleep(s); RETURN s; END $$;
"""
OVER = "view.over_budget"
# Rebuilds of a long view, on a busy machine.
WITHIN_S = 300.0
CALM = "SELECT count(*) AS n FROM calm"


@dataclass(frozen=True)
class Long:
    """A view, and a change for which it does much. undo: after it, it does little again."""

    query: str
    change: str
    undo: str


LONG = {
    "walks": Long(
        "WITH RECURSIVE r(n, d) AS (SELECT 1, 0 UNION ALL SELECT e.b, r.d + 1 FROM r JOIN steps e"
        " ON e.a = r.n) SELECT n, count(*) AS c, max(d) AS d FROM r GROUP BY n",
        "INSERT INTO steps VALUES (3, 3, 1)",
        "DELETE FROM steps WHERE id = 3",
    ),
    "pairs": Long(
        "SELECT count(DISTINCT a.id * 5000 + b.id) AS n"
        " FROM hot JOIN many a USING (k) JOIN many b USING (k)",
        "INSERT INTO hot VALUES (1, 1)",
        "DELETE FROM hot",
    ),
    "waits": Long(
        "SELECT id, slowly(s) AS s FROM words",
        "INSERT INTO words VALUES (1, 20)",
        "DELETE FROM words",
    ),
}


@pytest.mark.whole
def test_a_long_step_holds_up_no_other_view(database: Database, tmp_path: Path) -> None:
    database.execute(TABLES)
    with RunningService(database.dsn, tmp_path) as service:
        service.create("calm_view", CALM)
        for name, long in LONG.items():
            service.create(name, long.query)
        before = {name: database.rows(f"SELECT * FROM {name}") for name in LONG}

        def status(name: str) -> tuple[str, str | None]:
            view = service.call("GET", f"/views/{name}").json()
            return view["status"], (view["error"] or {}).get("code")

        for number, (name, long) in enumerate(LONG.items()):
            # The rebuild of the one before takes this machine's time, and nobody's turn.
            database.execute(f"{long.change}; INSERT INTO calm VALUES ({number}, 1)")
            service.wait("calm_view", flush_position(database))
            assert_equal(database, "calm_view", CALM)
            assert status(name) in [(s, OVER) for s in ("degraded", "backfilling", "catching up")]
            assert database.rows(f"SELECT * FROM {name}") == before[name]
        for name, long in LONG.items():
            service.await_status(name, timeout_s=WITHIN_S)
            database.execute(long.undo)
            service.wait(name, flush_position(database), timeout_s=WITHIN_S)
            assert_equal(database, name, long.query)
        found = [e["view"] for e in service.events() if e["event"] == "view.degraded"]
        assert {f"public.{name}" for name in LONG} <= set(found)
        assert "public.calm_view" not in found


@pytest.mark.whole
def test_alone_in_its_group_a_view_may_take_any_time(database: Database, tmp_path: Path) -> None:
    database.execute(TABLES)
    with RunningService(database.dsn, tmp_path) as service:
        service.create("calm_view", CALM)
        service.create("walks", LONG["walks"].query, group="long")
        database.execute(LONG["walks"].change)
        service.wait("walks", flush_position(database), timeout_s=WITHIN_S)
        assert database.rows("SELECT sum(c) FROM walks") == [(10_001,)]
        database.execute(LONG["walks"].undo)
        service.wait("walks", flush_position(database), timeout_s=WITHIN_S)
        assert_equal(database, "walks", LONG["walks"].query)
        assert "view.degraded" not in [e["event"] for e in service.events()]
