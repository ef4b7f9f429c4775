"""Oracle: PostgreSQL's own answer to each query, after every transaction of the source.

All queries of a schema are views of one engine, which computes once what they have in common;
views are dropped on the way, in the order in which they came, and the engine is opened anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.equality.history import History, opened_store, run_history
from tests.harness.postgres import new_database, versions_to_test
from tests.harness.schemas import SCHEMAS, TestSchema
from tests.harness.together import Together

SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "1"))
# Schemas whose queries have much in common; the others have been seen view by view.
CASES = [("shop", "rocks"), ("shop", "memory"), ("hr", "rocks"), ("odd", "memory")]


@pytest.mark.parametrize(("schema", "store"), CASES)
def test_views_that_share_equal_their_queries(
    servers: Callable[[int], EmbeddedPostgres], schema: str, store: str, tmp_path: Path
) -> None:
    chosen: TestSchema = SCHEMAS[schema]
    history = History(chosen, SEED, singles=24, batches=2, batch=10, restarts=True)
    with (
        new_database(servers(versions_to_test()[0])) as database,
        opened_store(store, tmp_path) as opened,
    ):
        outcome = run_history(database, opened, history, maintained=Together)
    command = (
        f"TIDEMARK_TEST_SEED={SEED} pytest tests/equality/test_shared.py -k '{schema}-{store}'"
    )
    assert not outcome.refused, f"refused: {outcome.refused}"
    assert not outcome.faults, outcome.text(chosen.queries(), command)
    if "TIDEMARK_TEST_QUERIES" not in os.environ:
        assert outcome.comparisons >= len(chosen.queries()) * 20
