"""Oracle: PostgreSQL's own answer to the query, after every transaction of the source.

A sample of the queries of each schema, maintained in buckets without Spark. Now and then the driver
and all local states are lost. TIDEMARK_TEST_SEED and TIDEMARK_TEST_QUERIES repeat a failure.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from storage.memory import MemoryStore
from tests.equality.history import History, run_history
from tests.harness.bucketed import Bucketed
from tests.harness.postgres import new_database, versions_to_test
from tests.harness.schemas import SCHEMAS
from tests.harness.tiers import count

SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "1"))
QUERIES = count("TIDEMARK_TEST_BUCKET_QUERIES", 4, 40)
SINGLES = 6


@pytest.mark.parametrize("name", SCHEMAS)
def test_views_in_buckets_equal_their_queries(
    servers: Callable[[int], EmbeddedPostgres], name: str
) -> None:
    schema = SCHEMAS[name]
    queries = schema.queries()
    if "TIDEMARK_TEST_QUERIES" not in os.environ:
        chosen = Random(SEED).sample(sorted(queries), min(QUERIES, len(queries)))
        queries = {query: queries[query] for query in chosen}
    history = History(schema, SEED, singles=SINGLES, batches=2, batch=10, restarts=True)
    with new_database(servers(versions_to_test()[0])) as database:
        outcome = run_history(database, MemoryStore(), history, queries, Bucketed)
    assert not outcome.refused, outcome.refused
    command = f"TIDEMARK_TEST_SEED={SEED} pytest tests/equality/test_buckets.py -k {name}"
    assert not outcome.faults, outcome.text(schema.queries(), command)
    assert outcome.comparisons >= len(queries)
