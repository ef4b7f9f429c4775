"""Oracle: PostgreSQL's own answer to generated queries, after every generated transaction.

Random schemas of hostile values; each feature of SQL alone, all pairs of features, and deep
queries of many. TIDEMARK_TEST_SEED repeats a run, TIDEMARK_TEST_SOAK_S goes on with new seeds
for that long; `make torture` runs thousands (tests/equality/torture.py). A failing case is made
smaller and shown as the file that belongs into tests/regressions/.
"""

from __future__ import annotations

import os
import time
from itertools import combinations, islice
from pathlib import Path
from random import Random

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.equality.fuzz import Played, Tally, accepted, known, play
from tests.equality.history import opened_store
from tests.equality.torture import HistoryPlan, described, feature_lists
from tests.harness.changes import create
from tests.harness.compare import pin_session
from tests.harness.features.registry import FEATURES
from tests.harness.hostile import hostile_schema
from tests.harness.postgres import Database
from tests.harness.query_writer import Writer

SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "1"))
SOAK_S = float(os.environ.get("TIDEMARK_TEST_SOAK_S", "0"))
HISTORIES = 12
A_HISTORY = 40
QUERIES = HISTORIES * A_HISTORY
SHRINK_S = 60.0
SHOWN = 2
MAX_DROPPED = 0.1
MAX_REFUSED = 0.05


def lists_of(seed: int) -> list[tuple[str, ...]]:
    """Features by query, for all histories of a seed."""
    every = feature_lists(tuple(FEATURES), Random(f"{seed}/lists"))
    return list(islice(every, QUERIES))


@pytest.mark.parametrize("number", range(HISTORIES))
def test_generated_queries_equal_postgres(
    postgres: EmbeddedPostgres, number: int, tmp_path: Path
) -> None:
    deadline = time.monotonic() + SOAK_S / HISTORIES
    seed = SEED
    kind = "rocks" if number % 4 == 3 else "memory"
    while True:
        lists = lists_of(seed)[number * A_HISTORY : (number + 1) * A_HISTORY]
        (tmp_path / str(seed)).mkdir()
        with opened_store(kind, tmp_path / str(seed)) as store:
            plan = HistoryPlan(seed, number)
            how = {"restarts": plan.restarts, "together": plan.together}
            played = play(postgres, plan.seed, lists, store, **how)
        _check(postgres, played, plan)
        seed += 1
        if time.monotonic() >= deadline:
            return


def _check(server: EmbeddedPostgres, played: Played, plan: HistoryPlan) -> None:
    tally = played.tally
    assert sum(tally.dropped.values()) <= MAX_DROPPED * tally.drawn, tally.dropped
    assert tally.queries >= A_HISTORY - 1
    assert sum(tally.refused.values()) <= MAX_REFUSED * tally.queries, tally.refused
    faults = played.outcome.faults
    if not faults:
        return
    shown = [described(server, played, f, plan, SHRINK_S / SHOWN)[1] for f in faults[:SHOWN]]
    repeat = f"TIDEMARK_TEST_SEED={plan.run} pytest {__file__} -k 'postgres[{plan.number}]'"
    pytest.fail("\n\n".join([f"{len(faults)} queries are wrong", *shown, f"repeat: {repeat}"]))


def test_every_pair_of_features_occurs(database: Database) -> None:
    """Among the queries that PostgreSQL takes, each feature and each pair of features."""
    lists = lists_of(SEED)
    seen: set[tuple[str, ...]] = set()
    tally = Tally()
    connection = database.connect()
    pin_session(connection)
    for number in range(HISTORIES):
        hostile = hostile_schema(f"{SEED}/{number}")
        database.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        create(connection, hostile.schema, 0)
        writer = Writer(hostile, f"{SEED}/{number}", known(connection))
        for wanted in lists[number * A_HISTORY : (number + 1) * A_HISTORY]:
            query = accepted(connection, writer, wanted, tally)
            if query is not None:
                seen |= {(f,) for f in query.features} | set(combinations(query.features, 2))
    connection.close()
    names = sorted(FEATURES)
    missing = {(n,) for n in names} | set(combinations(names, 2))
    missing -= seen
    assert not missing, f"{len(missing)} never occurred: {sorted(missing)[:20]}, {tally.dropped}"
