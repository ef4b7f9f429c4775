"""Oracle: PostgreSQL's own answer: whatever someone does to the publication by hand, a view that is
called live at a position shows its query's rows at that position."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.end_to_end.test_views import assert_equal, flush_position
from tests.harness.postgres import Database, new_database, versions_to_test
from tests.harness.service import RunningService

OURS = "tidemark_source"
TABLES = """
CREATE TABLE t (id int PRIMARY KEY, v int, g int GENERATED ALWAYS AS (v * 2) STORED, w text);
CREATE TABLE p (id int NOT NULL PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (1000);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (1000) TO (2000);
INSERT INTO t SELECT i, i FROM generate_series(1, 9) i;
INSERT INTO p SELECT i, i FROM generate_series(991, 1009) i;
"""
VIEWS = {
    "sums": "SELECT v % 3 AS k, count(*) AS n, sum(g) AS total FROM t GROUP BY v % 3",
    "parts": "SELECT id, v FROM p WHERE v > 0",
}
CHANGE = """
UPDATE t SET v = v + 1 WHERE id % 2 = 0; DELETE FROM t WHERE id = (SELECT min(id) FROM t);
INSERT INTO t SELECT max(id) + 1, 3 FROM t; UPDATE p SET v = v + 1 WHERE id % 3 = 0;
DELETE FROM p WHERE id = (SELECT min(id) FROM p); INSERT INTO p SELECT max(id) + 1, 5 FROM p;
"""
BACK = (
    f"ALTER PUBLICATION {OURS} SET (publish = 'insert, update, delete, truncate',"
    " publish_via_partition_root = true)"
)
# {} is the publication; what stands behind | comes after changes, as a second thought.
HOSTILE = (
    "ALTER PUBLICATION {} SET (publish = 'insert'); ALTER PUBLICATION {} SET TABLE t (id), p",
    "ALTER PUBLICATION {} SET (publish = 'update, delete') | " + BACK,
    "ALTER PUBLICATION {} SET (publish_via_partition_root = false)",
)
FROM_18 = (
    "ALTER PUBLICATION {} SET (publish_generated_columns = stored) |"
    " ALTER PUBLICATION {} SET TABLE t WHERE (id < 0), p",
)


@pytest.fixture
def place(servers: Callable[[int], EmbeddedPostgres]) -> Iterator[Database]:
    with new_database(servers(max(versions_to_test()))) as found:
        found.execute(TABLES)
        yield found


@pytest.mark.whole
@pytest.mark.timeout(300)
def test_whatever_is_altered_is_put_right(place: Database, tmp_path: Path) -> None:
    with RunningService(place.dsn, tmp_path) as service:
        for name, query in VIEWS.items():
            service.create(name, query, backfill="local")
        for statements in HOSTILE + (FROM_18 if place.server.version >= 18 else ()):
            for statement in statements.replace("{}", OURS).split("|"):
                place.execute(statement)
                place.execute(CHANGE)
            await_right(service, place)
            place.execute(CHANGE)
            await_right(service, place)
    assert place.rows(
        "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate AND pubviaroot"
        " FROM pg_publication"
    ) == [(True,)]
    assert place.rows(
        "SELECT count(*) FROM pg_publication_rel WHERE prqual IS NOT NULL OR prattrs IS NOT NULL"
    ) == [(0,)]


def await_right(service: RunningService, place: Database) -> None:
    """All views come to the position of the last commit, and are then those of their queries."""
    position, deadline = flush_position(place), time.monotonic() + 60
    for name, query in VIEWS.items():
        while True:
            path = f"/views/{name}/wait?position={position}&timeout_s=10"
            answer = service.call("GET", path)
            view = service.call("GET", f"/views/{name}").json()
            if answer.status_code == 200 and view["status"] == "live":
                break
            assert time.monotonic() < deadline, f"{view}\n{service.log_tail()}"
        assert_equal(place, name, query)
