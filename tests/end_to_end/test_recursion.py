"""Oracle: PostgreSQL's own answer to each query that has one; what never ends there ends here.

A recursion without an end has error rows until it ends again, or fails its own view; the other
views continue.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.end_to_end.test_views import assert_equal, flush_position
from tests.harness.postgres import Database
from tests.harness.service import RunningService

ROADS = """
CREATE TABLE roads (id int PRIMARY KEY, a int NOT NULL, b int NOT NULL);
INSERT INTO roads VALUES (1, 1, 2), (2, 2, 3), (3, 5, 6), (4, 6, 5);
"""
REACH = """
WITH RECURSIVE reach(place) AS (SELECT 1 UNION SELECT r.b FROM reach JOIN roads r ON r.a = place)
SELECT place FROM reach
"""
WALKS = """
WITH RECURSIVE walk(place) AS (SELECT 1 UNION ALL SELECT r.b FROM walk JOIN roads r ON r.a = place)
SELECT place, count(*) AS n FROM walk GROUP BY place
"""
ABOVE = "SELECT max(place) AS last FROM walks"
ERRORS = "SELECT sqlstate, message, count FROM tidemark.errors WHERE view = 'public.walks'"


@pytest.mark.whole
@pytest.mark.parametrize("road", ["live", "backfill"])
def test_what_does_not_end_stops_no_one(database: Database, road: str, tmp_path: Path) -> None:
    database.execute(ROADS)
    with RunningService(database.dsn, tmp_path) as service:
        service.create("reach", REACH, backfill="local")
        if road == "live":
            service.create("walks", WALKS, backfill="local")
            database.execute("INSERT INTO roads VALUES (7, 3, 1)")
        else:
            database.execute("INSERT INTO roads VALUES (7, 3, 1)")
            service.create("walks", WALKS, backfill="local")
        service.wait("walks", flush_position(database), timeout_s=300)
        text = "the recursion walk does not end within 10000 rounds"
        assert database.rows(ERRORS) == [("54000", text, 1)]
        assert database.rows("SELECT sum(n) FROM walks") == [(10001,)]
        assert_equal(database, "reach", REACH)

        database.execute("DELETE FROM roads WHERE id = 7")
        service.wait("walks", flush_position(database), timeout_s=300)
        assert database.rows(ERRORS) == []
        assert_equal(database, "walks", WALKS)
        assert_equal(database, "reach", REACH)


@pytest.mark.whole
def test_a_recursion_that_explodes_fails_alone(database: Database, tmp_path: Path) -> None:
    database.execute(ROADS)
    with RunningService(database.dsn, tmp_path) as service:
        service.create("reach", REACH, backfill="local")
        service.create("walks", WALKS, backfill="local")
        service.create("above", ABOVE, backfill="local")
        database.execute("INSERT INTO roads VALUES (8, 2, 2), (9, 2, 2)")
        # It leaves the epoch for its budget, and its rebuild ends at the limit of a recursion.
        codes = {"walks": "view.recursion_too_large", "above": "view.parent_failed"}
        for name, code in codes.items():
            error = service.await_status(name, "failed", timeout_s=300)["error"]
            assert error["code"] == code
        database.execute("INSERT INTO roads VALUES (10, 3, 9)")
        service.wait("reach", flush_position(database))
        assert_equal(database, "reach", REACH)
        # Nor does a backfill hang.
        service.create("again", WALKS, wait_s=0, backfill="local")
        error = service.await_status("again", "failed")["error"]
        assert error["code"] == "view.recursion_too_large"
        for name in ("above", "walks"):
            service.drop(name)
        database.execute("DELETE FROM roads WHERE id IN (8, 9)")
        service.create("walks", WALKS, backfill="local")
        assert_equal(database, "walks", WALKS)
        service.wait("reach", flush_position(database))
        assert_equal(database, "reach", REACH)


@pytest.mark.whole
@pytest.mark.skipif(shutil.which("java") is None, reason="no Java here, Spark needs it")
@pytest.mark.timeout(600)
def test_a_recursion_on_spark(database: Database, tmp_path: Path) -> None:
    """It is validated, created and maintained there, in one bucket, which the view says."""
    database.execute(ROADS)
    with RunningService(database.dsn, tmp_path, spark="local[2]", spark_buckets=2) as service:
        asked = {"query": REACH, "options": {"runtime": "spark"}}
        answer = service.call("POST", "/views/validate", asked)
        assert answer.status_code == 200, answer.text
        assert any("recursive reach" in text for text in answer.json()["warnings"])
        service.create("reach", REACH, wait_s=180, runtime="spark", backfill="local")
        nodes = service.call("GET", "/views/reach/dataflow").json()["nodes"]
        assert any("recursive reach in one bucket" in n["detail"] for n in nodes)
        for change in (
            "INSERT INTO roads VALUES (7, 3, 5)",
            "UPDATE roads SET b = 4 WHERE id = 1",
            "DELETE FROM roads WHERE id = 3",
            "INSERT INTO roads VALUES (8, 4, 1), (9, 4, 2)",
        ):
            database.execute(change)
            service.wait("reach", flush_position(database), timeout_s=120)
            assert_equal(database, "reach", REACH)
        assert service.call("POST", "/views/reach/verify").json()["result"] == "equal"
