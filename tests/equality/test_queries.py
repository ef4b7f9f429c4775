"""Oracle: PostgreSQL's own answer to the query, after every transaction of the source.

Views are maintained in process from the real snapshot and the real replication stream; there is
one writer, so commits become visible in the order of the WAL. Column types and numeric scale
count. TIDEMARK_TEST_SEED and TIDEMARK_TEST_QUERIES repeat a failure, TIDEMARK_TEST_SOAK_S goes
on with new seeds for that long.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from connectors.postgres.embedded import EmbeddedPostgres
from tests.equality.history import History, opened_store, run_history
from tests.harness.postgres import new_database
from tests.harness.schemas import SCHEMAS, TestSchema

SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "1"))
SOAK_S = float(os.environ.get("TIDEMARK_TEST_SOAK_S", "0"))
CASES = [(schema, store) for schema in SCHEMAS.values() for store in ("memory", "rocks")]


@pytest.mark.parametrize(
    ("schema", "store"), CASES, ids=[f"{schema.name}-{store}" for schema, store in CASES]
)
def test_every_view_equals_its_query(
    postgres: EmbeddedPostgres, schema: TestSchema, store: str, tmp_path: Path
) -> None:
    deadline = time.monotonic() + SOAK_S / len(CASES)
    seed = SEED + (store == "rocks")
    while True:
        _play(postgres, History(schema, seed), store, tmp_path / str(seed))
        seed += 2
        if time.monotonic() >= deadline:
            return


def _play(postgres: EmbeddedPostgres, history: History, store: str, folder: Path) -> None:
    folder.mkdir()
    with new_database(postgres) as database, opened_store(store, folder) as opened:
        outcome = run_history(database, opened, history)
    schema = history.schema
    assert not outcome.refused, f"refused: {outcome.refused}"
    seed = history.seed - (store == "rocks")
    command = (
        f"TIDEMARK_TEST_SEED={seed} pytest {__file__} -k 'view_equals and {schema.name}-{store}'"
    )
    assert not outcome.faults, outcome.text(schema.queries(), command)
    assert outcome.comparisons >= len(schema.queries()) * (1 + history.singles)
