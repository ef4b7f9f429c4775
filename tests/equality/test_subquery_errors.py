"""Oracle: the same query in PostgreSQL without the rows whose subquery gives two rows.

Such a row is left out, with one error row of SQLSTATE 21000, exactly as long as PostgreSQL fails.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.equality.history import History, opened_store, run_history
from tests.harness.postgres import Database
from tests.harness.schemas import SCHEMAS

_FEW = "(SELECT count(*) FROM b WHERE b.x = a.x) < 2"
# name -> (query, the same without the rows that fail)
FAILING = {
    "select_list": (
        "SELECT a.id, (SELECT b.y FROM b WHERE b.x = a.x) AS y FROM a",
        f"SELECT a.id, (SELECT min(b.y) FROM b WHERE b.x = a.x) AS y FROM a WHERE {_FEW}",
    ),
    "in_postgres": (
        "SELECT a.id, reverse((SELECT b.y FROM b WHERE b.x = a.x)) || a.tags[1] AS y FROM a",
        "SELECT a.id, reverse((SELECT min(b.y) FROM b WHERE b.x = a.x)) || a.tags[1] AS y "
        f"FROM a WHERE {_FEW}",
    ),
    "only_where_it_is_asked": (
        "SELECT a.id, CASE WHEN a.k > 2 THEN (SELECT b.y FROM b WHERE b.x = a.x) END AS y FROM a",
        "SELECT a.id, CASE WHEN a.k > 2 THEN (SELECT min(b.y) FROM b WHERE b.x = a.x) END AS y "
        f"FROM a WHERE a.k <= 2 OR {_FEW}",
    ),
    "where": (
        "SELECT a.id FROM a WHERE (SELECT b.id FROM b WHERE b.x = a.x AND b.y <> '') > a.k",
        "SELECT a.id FROM a WHERE (SELECT min(b.id) FROM b WHERE b.x = a.x AND b.y <> '') > a.k "
        "AND (SELECT count(*) FROM b WHERE b.x = a.x AND b.y <> '') < 2",
    ),
    "unequal": (
        "SELECT a.id, (SELECT b.n FROM b WHERE b.x > a.x AND b.id > 8) AS n FROM a",
        "SELECT a.id, (SELECT min(b.n) FROM b WHERE b.x > a.x AND b.id > 8) AS n FROM a "
        "WHERE (SELECT count(*) FROM b WHERE b.x > a.x AND b.id > 8) < 2",
    ),
    "uncorrelated": (
        "SELECT a.id FROM a WHERE a.k >= (SELECT b.x FROM b WHERE b.id < 4)",
        "SELECT a.id FROM a WHERE a.k >= (SELECT min(b.x) FROM b WHERE b.id < 4) "
        "AND (SELECT count(*) FROM b WHERE b.id < 4) < 2",
    ),
    "rows": (
        "SELECT a.id, (a.x, a.y) = (SELECT b.x, b.y FROM b WHERE b.a_id = a.k) AS same FROM a",
        "SELECT a.id, (a.x, a.y) = (SELECT min(b.x), min(b.y) FROM b WHERE b.a_id = a.k) AS same "
        "FROM a WHERE (SELECT count(*) FROM b WHERE b.a_id = a.k) < 2",
    ),
    "nested": (
        "SELECT a.id, (SELECT max((SELECT c.x FROM c WHERE c.b_id = b.id)) FROM b "
        "WHERE b.a_id = a.id) AS x FROM a",
        "SELECT a.id, (SELECT max((SELECT min(c.x) FROM c WHERE c.b_id = b.id)) FROM b "
        "WHERE b.a_id = a.id AND (SELECT count(*) FROM c WHERE c.b_id = b.id) < 2) AS x FROM a",
    ),
}


@pytest.mark.parametrize("store", ["memory", "rocks"])
def test_rows_whose_subquery_gives_two_rows_are_left_out(
    database: Database, store: str, tmp_path: Path
) -> None:
    queries = {name: query for name, (query, _) in FAILING.items()}
    without = {name: rest for name, (_, rest) in FAILING.items()}
    history = History(SCHEMAS["nested"], 7, singles=60, batches=3, guarded=without)
    with opened_store(store, tmp_path) as opened:
        outcome = run_history(database, opened, history, queries)
    assert not outcome.refused
    assert not outcome.faults, outcome.text(queries, f"pytest {__file__}")
    assert outcome.refusals > history.singles
