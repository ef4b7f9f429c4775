"""Oracle: PostgreSQL's own answer to the query, after every transaction of the source.

Views are maintained in process from the real snapshot and the real replication stream; there is
one writer, so commits become visible in the order of the WAL. Column types and numeric scale
count. TIDEMARK_TEST_SEED and TIDEMARK_TEST_QUERIES repeat a failure, TIDEMARK_TEST_SOAK_S goes
on with new seeds for that long.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.equality.history import History, opened_store, run_history
from tests.harness.postgres import new_database, versions_to_test
from tests.harness.schemas import SCHEMAS, TestSchema
from tests.harness.tiers import is_fast

SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "1"))
SOAK_S = float(os.environ.get("TIDEMARK_TEST_SOAK_S", "0"))
# Each store on a server of its own version, with a seed of its own: more is seen in one run.
VERSIONS = {"rocks": versions_to_test()[0], "memory": versions_to_test()[-1]}
# Transactions that are each compared. Of TPC-H (its refresh functions and updates) as many as its
# promise says; on the store of dictionaries, which is not the product's, enough to see it work.
SINGLES = {"rocks": 30, "memory": 10} if is_fast() else {"rocks": 60, "memory": 20}
BATCHES = 2 if is_fast() else 4
PROMISED = {("tpch", "rocks"): 200}
CASES = [(schema, store) for store in VERSIONS for schema in SCHEMAS.values()]


@pytest.mark.parametrize(
    ("schema", "store"), CASES, ids=[f"{schema.name}-{store}" for schema, store in CASES]
)
def test_every_view_equals_its_query(
    servers: Callable[[int], EmbeddedPostgres], schema: TestSchema, store: str, tmp_path: Path
) -> None:
    deadline = time.monotonic() + SOAK_S / len(CASES)
    seed = SEED + (store == "memory")
    while True:
        singles = PROMISED.get((schema.name, store), SINGLES[store])
        history = History(schema, seed, singles=singles, batches=BATCHES, batch=15)
        _play(servers(VERSIONS[store]), history, store, tmp_path / str(seed))
        seed += 2
        if time.monotonic() >= deadline:
            return


def _play(server: EmbeddedPostgres, history: History, store: str, folder: Path) -> None:
    folder.mkdir()
    with new_database(server) as database, opened_store(store, folder) as opened:
        outcome = run_history(database, opened, history)
    schema = history.schema
    assert not outcome.refused, f"refused: {outcome.refused}"
    command = (
        f"TIDEMARK_TEST_SEED={history.seed - (store == 'memory')} "
        f"pytest tests/equality/test_queries.py -k {schema.name}-{store}"
    )
    assert not outcome.faults, outcome.text(schema.queries(), command)
    if "TIDEMARK_TEST_QUERIES" not in os.environ:
        assert outcome.comparisons >= len(schema.queries()) * (1 + history.singles)
