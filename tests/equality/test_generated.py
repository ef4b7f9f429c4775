"""Oracle: PostgreSQL's own answer to generated queries, after every generated transaction.

A failing case is made smaller before it is shown: clauses are dropped from the query, then
transactions from the history. TIDEMARK_TEST_SEED repeats a run, TIDEMARK_TEST_SOAK_S goes on
with new seeds for that long.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

import psycopg2
import pytest

from connectors.postgres.embedded import EmbeddedPostgres
from storage.memory import MemoryStore
from tests.equality.history import History, Outcome, run_history
from tests.equality.shrink import shrink
from tests.harness.changes import create
from tests.harness.compare import columns_of_query
from tests.harness.grammar import Select
from tests.harness.postgres import Database, new_database
from tests.harness.query_writer import QueryWriter, read_columns
from tests.harness.schemas import SCHEMAS, TestSchema

SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "1"))
SOAK_S = float(os.environ.get("TIDEMARK_TEST_SOAK_S", "0"))
NAMES = ("shop", "hr", "events", "wide", "logs", "odd")
QUERIES = 50
SHRINK_S = 40.0
SHOWN = 3
MOST_REFUSED = 0.1


@pytest.mark.parametrize("name", NAMES)
def test_generated_queries_equal_postgres(postgres: EmbeddedPostgres, name: str) -> None:
    deadline = time.monotonic() + SOAK_S / len(NAMES)
    seed = SEED
    while True:
        _play(postgres, SCHEMAS[name], seed)
        seed += 1
        if time.monotonic() >= deadline:
            return


def _play(server: EmbeddedPostgres, schema: TestSchema, seed: int) -> None:
    history = History(schema, seed, singles=12, batches=1)
    with new_database(server) as database:
        queries = _draw(database, schema, seed)
    texts = {query_name: query.text() for query_name, query in queries.items()}
    with new_database(server) as database:
        outcome = run_history(database, MemoryStore(), history, texts)
    assert len(outcome.refused) <= MOST_REFUSED * QUERIES, f"refused: {outcome.refused}"
    assert not outcome.faults, _explain(server, outcome, queries)


def _draw(database: Database, schema: TestSchema, seed: int) -> dict[str, Select]:
    """Queries that PostgreSQL takes, over the schema's first rows."""
    connection = database.connect()
    create(connection, schema, seed)
    tables = [table.name for table in schema.tables]
    writer = QueryWriter(read_columns(connection, tables), f"{schema.name}/{seed}")
    queries: dict[str, Select] = {}
    while len(queries) < QUERIES:
        query = writer.query()
        try:
            columns_of_query(connection, query.text())
        except psycopg2.ProgrammingError:
            continue
        queries[f"g{len(queries)}"] = query
    connection.close()
    return queries


def _explain(server: EmbeddedPostgres, outcome: Outcome, queries: Mapping[str, Select]) -> str:
    history = outcome.history
    lines = [f"{len(outcome.faults)} of {len(queries)} queries are wrong; the first of them:"]
    for fault in outcome.faults[:SHOWN]:
        if fault.query not in queries:
            lines.append(f"{fault.query}: {fault.what}")
            continue
        case = shrink(server, outcome, queries[fault.query], fault, budget_s=SHRINK_S / SHOWN)
        lines += ["", f"--- {fault.query}, smaller:", case.text()]
    lines += [
        "",
        f"repeat: TIDEMARK_TEST_SEED={history.seed} pytest {__file__} -k {history.schema.name}",
    ]
    return "\n".join(lines)
