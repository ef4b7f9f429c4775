"""Oracle: PostgreSQL itself; every query of the harness runs there, and its answer moves.

A query whose answer never changes under the generated history tests nothing, so those few that
must not change are named here.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import psycopg2
import pytest

from tests.harness.changes import create, run_transaction, transactions
from tests.harness.compare import columns_of_query, pin_session, rows_of_query
from tests.harness.postgres import Database
from tests.harness.schemas import SCHEMAS, TestSchema

TRANSACTIONS = 150
CONSTANT = {
    "shop/constant_rows",
    "shop/global_aggregates_over_nothing",
    "shop/where_false",
    "bank/total",
    "bank/wrong_accounts",
    "shop/gs_empty_without_calls",
    "shop/gs_of_nothing",
    "shop/gs_distinct_select",
    "shop/gs_empty_group_by",
    "shop/set_constants",
    "shop/set_mixed_text",
    "figures/over_nothing",
    "lists/series",
    "lists/series_empty",
    "lists/unnest_constant",
    "lists/select_constant",
    "ranked/no_rows",
    "ranked/numbered_none",
    "ranked/offset_beyond_the_end",
    "ranked/aggregate_in_order_only",
    "ranked/ties_after_offset",
    "ranked/ties_of_no_rows",
}


def test_there_are_enough_queries() -> None:
    assert sum(len(schema.queries()) for schema in SCHEMAS.values()) >= 200


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=lambda s: s.name)
def test_every_query_runs_and_moves(every_database: Database, schema: TestSchema) -> None:
    connection = every_database.connect()
    pin_session(connection)
    create(connection, schema, 1)
    queries = schema.queries()
    for query in queries.values():
        columns_of_query(connection, query)
    last, moves = {}, Counter()
    for number, transaction in enumerate(islice(transactions(schema, 1), TRANSACTIONS)):
        run_transaction(connection, transaction)
        if number % 3:
            continue
        for name, query in queries.items():
            rows = answer(connection, query)
            moves[name] += last.get(name, rows) != rows
            last[name] = rows
    still = {f"{schema.name}/{name}" for name in queries if not moves[name]}
    assert still <= CONSTANT


def answer(connection: Any, query: str) -> Counter | str:
    """The rows, or why there are none: some queries fail for some rows."""
    try:
        return rows_of_query(connection, query)
    except psycopg2.DataError as error:
        return str(error)


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=lambda s: s.name)
def test_a_seed_names_a_history(database: Database, schema: TestSchema) -> None:
    answers = []
    for _ in range(2):
        database.execute(f"DROP SCHEMA IF EXISTS hr CASCADE; {_EMPTY}")
        connection = database.connect()
        pin_session(connection)
        create(connection, schema, 7)
        for transaction in islice(transactions(schema, 7), 25):
            run_transaction(connection, transaction)
        tables = [t.name for t in schema.tables]
        answers.append([rows_of_query(connection, f"SELECT * FROM {t}") for t in tables])
        connection.close()
    assert answers[0] == answers[1]


_EMPTY = "DROP SCHEMA public CASCADE; CREATE SCHEMA public"
