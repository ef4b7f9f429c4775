"""Oracle: PostgreSQL's own answer for every view whose table nobody but Tidemark touched.

The others fail alone, in the epoch that meets what was done to them, and say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.test_views import assert_equal, flush_position
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.harness.tiers import is_fast

TABLE = """
CREATE TABLE items (id int PRIMARY KEY, kind text NOT NULL, amount int);
INSERT INTO items SELECT i, 'k' || i % 5, i FROM generate_series(1, 200) i;
CREATE TABLE still (id int PRIMARY KEY, kind text);
INSERT INTO still VALUES (1, 'a');
"""
VIEWS = {
    "dropped": "SELECT id, amount FROM items",
    "emptied": "SELECT id, kind FROM items",
    "narrowed": "SELECT id, amount + 1 AS more FROM items",
    "retyped": "SELECT id, kind || '!' AS said FROM items",
    "guarded": "SELECT kind, sum(amount) AS total FROM items GROUP BY kind",
    "written": "SELECT id, amount * 2 AS twice FROM items",
    "bag": "SELECT kind FROM items",
}
GOOD = {
    "untouched": "SELECT kind, count(*) AS n FROM items GROUP BY kind",
    "indexed": "SELECT id, kind, amount FROM items WHERE amount > 50",
}
BY_HAND = {
    "dropped": ("DROP TABLE dropped", "sink.table_missing"),
    "emptied": ("TRUNCATE emptied", "sink.row_missing"),
    "narrowed": ("ALTER TABLE narrowed DROP COLUMN more", "sink.table_changed"),
    "retyped": (
        "ALTER TABLE retyped ALTER COLUMN said TYPE int USING 1",
        "sink.table_changed",
    ),
    "guarded": ("ALTER TABLE guarded ADD CHECK (total < 0) NOT VALID", "sink.constraint"),
    "written": ("INSERT INTO written VALUES (900, 1)", "sink.key_violation"),
    "bag": ("DROP VIEW bag; DELETE FROM _bag", "sink.row_missing"),
}
# Of those with one code one.
DONE = {n: done for n, done in BY_HAND.items() if not (is_fast() and n in ("retyped", "bag"))}


@pytest.fixture
def service(database: Database, tmp_path: Path) -> Iterator[RunningService]:
    database.execute(TABLE)
    with RunningService(database.dsn, tmp_path) as running:
        yield running


def test_only_views_that_were_touched_fail(service: RunningService, database: Database) -> None:
    for name, query in {**VIEWS, **GOOD}.items():
        if name in DONE or name in GOOD:
            service.create(name, query, backfill="local")
    database.execute("CREATE INDEX ON indexed (kind); COMMENT ON TABLE indexed IS 'mine'")
    database.execute("VACUUM FULL indexed")
    pid = service.pid_of("pipeline")
    database.execute("; ".join(statement for statement, _ in DONE.values()))
    database.execute(
        "UPDATE items SET amount = amount + 1, kind = kind || 'x' WHERE id < 150;"
        " INSERT INTO items VALUES (900, 'k', 1); DELETE FROM items WHERE id BETWEEN 20 AND 30"
    )
    for name, (_, code) in DONE.items():
        error = service.await_status(name, "failed")["error"]
        assert error["code"] == code, (name, error)
        assert error["hint"]
    database.execute("UPDATE items SET amount = 0 WHERE id > 100")
    position = flush_position(database)
    for name, query in GOOD.items():
        service.wait(name, position)
        assert_equal(database, name, query)
    assert service.pid_of("pipeline") == pid
    # A view of the same name can be made where one was failed.
    service.drop("narrowed")
    service.create("narrowed", VIEWS["narrowed"], backfill="local")
    assert_equal(database, "narrowed", VIEWS["narrowed"])


@pytest.mark.whole
def test_a_view_over_one_that_was_touched_fails_with_it(
    service: RunningService, database: Database
) -> None:
    service.create("untouched", GOOD["untouched"], backfill="local")
    service.create("parent", "SELECT id, kind FROM still", backfill="local")
    pid = service.pid_of("pipeline")
    # Nothing comes for it, so nobody has noticed yet.
    database.execute("ALTER TABLE parent DROP COLUMN kind")
    service.create("child", "SELECT id FROM parent", wait_s=0, backfill="local")
    for name in ("child", "parent"):
        error = service.await_status(name, "failed")["error"]
        assert error["code"] == "sink.table_changed", (name, error)
    database.execute("UPDATE items SET amount = 0 WHERE id > 100")
    service.wait("untouched", flush_position(database))
    assert_equal(database, "untouched", GOOD["untouched"])
    assert service.pid_of("pipeline") == pid
