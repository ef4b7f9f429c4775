"""Oracle: PostgreSQL's own answer to the query, against the tables that the real service keeps.

Views are created while the source is being written to, so that snapshot, catch-up and stream
all have a share in them; every awkward type goes through the sink, as key and in bags. Names
and types of the columns are compared too. TIDEMARK_TEST_SEED repeats a failure.
"""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.harness.changes import create, run_transaction, transactions
from tests.harness.compare import (
    Answer,
    columns_of_query,
    difference,
    pin_session,
    rows_of_query,
)
from tests.harness.postgres import Database
from tests.harness.schemas import SCHEMAS
from tests.harness.service import RunningService
from tests.harness.tiers import some

CHOSEN = {
    "shop": (
        "carry_all_types",
        "carry_orders_with_notes",
        "carry_arrays",
        "inner_join_group",
        "full_join_using",
        "duplicate_columns_bag",
        "in_postgres_plpgsql",
        "global_aggregates",
        "union_mixed_numeric",
    ),
    "events": ("carry", "carry_devices", "json_group", "group_by_enum", "arrays", "intervals"),
    "odd": ("carry", "free_sums_nan", "padded", "collated_extremes", "reals", "free_join_scales"),
    "logs": ("carry", "bag_join_bag", "counts", "partitions", "notes", "distinct"),
}
SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "5"))
DURING_BUILD = 10
AFTERWARDS = 25


@pytest.mark.parametrize("name", CHOSEN)
def test_stored_tables_equal_their_queries(database: Database, name: str, tmp_path: Path) -> None:
    schema = SCHEMAS[name]
    connection = database.connect()
    pin_session(connection)
    create(connection, schema, SEED)
    queries = some({query: schema.queries()[query] for query in CHOSEN[name]}, 5)
    following = transactions(schema, SEED)
    with RunningService(database.dsn, tmp_path / "service") as service:
        for query, sql in queries.items():
            service.create(f"kept_{query}", sql, wait_s=0, backfill="local")
            for transaction in islice(following, DURING_BUILD):
                run_transaction(connection, transaction)
        for query in queries:
            service.await_status(f"kept_{query}")
        for transaction in islice(following, AFTERWARDS):
            run_transaction(connection, transaction)
            service.wait(f"kept_{next(iter(queries))}", _position(connection))
            _compare(connection, queries)


def _position(connection: Any) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_wal_flush_lsn()::text")
        return cursor.fetchone()[0]


def _compare(connection: Any, queries: dict[str, str]) -> None:
    for query, sql in queries.items():
        kept = f"SELECT * FROM public.kept_{query}"
        expected = Answer(
            columns_of_query(connection, sql, is_kept=True), rows_of_query(connection, sql)
        )
        got = Answer(columns_of_query(connection, kept), rows_of_query(connection, kept))
        what = difference(expected, got)
        assert not what, f"seed {SEED}, {query}: {sql}\n{what}"
