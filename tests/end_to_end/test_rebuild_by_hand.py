"""Oracle: PostgreSQL's own answer once a view whose table was dropped by hand is rebuilt, for the
view and for every view that reads it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.end_to_end.test_views import assert_equal, flush_position
from tests.harness.postgres import Database, new_database
from tests.harness.psql import psql
from tests.harness.service import RunningService

TABLE = """
CREATE TABLE items (id int PRIMARY KEY, kind text NOT NULL, amount int);
INSERT INTO items SELECT i, 'k' || i % 5, i FROM generate_series(1, 200) i;
"""
VIEWS = {
    "base": "SELECT id, kind, amount FROM items WHERE amount > 3",
    "reader": "SELECT kind, sum(amount) AS total FROM base GROUP BY kind",
    "second": "SELECT count(*) AS kinds FROM reader",
    "bag": "SELECT kind FROM items",
    "over_bag": "SELECT kind, count(*) AS n FROM bag GROUP BY kind",
    "apart": "SELECT count(*) AS n FROM items",
}


@pytest.fixture(scope="module")
def place(postgres: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(postgres) as made:
        made.execute(TABLE)
        yield made


@pytest.fixture(scope="module")
def service(place: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with RunningService(place.dsn, tmp_path_factory.mktemp("service")) as running:
        for name, query in VIEWS.items():
            running.create(name, query, backfill="local")
        yield running


DROPS = {
    "noticed by a change": ("DROP TABLE base CASCADE", "base", True),
    "not noticed yet": ("DROP TABLE base CASCADE", "base", False),
    "a multiset": ("DROP VIEW bag CASCADE; DROP TABLE _bag CASCADE", "bag", True),
    "a reader too": ("DROP TABLE base, reader", "base", True),
}


@pytest.mark.whole
@pytest.mark.parametrize("name", list(DROPS))
def test_a_view_whose_table_was_dropped_comes_back(
    service: RunningService, place: Database, name: str
) -> None:
    drop, view, is_noticed = DROPS[name]
    place.execute(drop)
    if is_noticed:
        place.execute("UPDATE items SET amount = amount + 1, kind = kind || 'x' WHERE id < 150")
        service.await_status(view, "failed", 10)
    ended = psql(place, f"CALL tidemark.rebuild_view('{view}');")
    assert ended.returncode == 0, ended.stderr
    place.execute("INSERT INTO items SELECT max(id) + 1, 'new', 9 FROM items")
    for one, query in VIEWS.items():
        service.await_status(one, "live", 10)
        service.wait(one, flush_position(place), timeout_s=30)
        assert_equal(place, one, query)
