"""Oracle: PostgreSQL's own answer to the query, after every transaction of the source.

A sample of the queries of each schema, maintained in buckets without Spark. Now and then the driver
and all local states are lost. TIDEMARK_TEST_SEED and TIDEMARK_TEST_QUERIES repeat a failure.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from random import Random

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.spark.maintained import skew
from connectors.spark.maintained.driver import Driver
from connectors.spark.maintained.files import EpochInput
from dataflow.operators.aggregates import aggregate
from storage.memory import MemoryStore
from tests.equality.history import History, run_history
from tests.harness.bucketed import Bucketed
from tests.harness.postgres import new_database, versions_to_test
from tests.harness.schemas import SCHEMAS
from tests.harness.tiers import count

SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "1"))
QUERIES = count("TIDEMARK_TEST_BUCKET_QUERIES", 4, 40)
SINGLES = 6
# Of which sums cross the exchange. Sums of floats are exact here, unlike PostgreSQL's.
SUMMED = {
    "all": """SELECT count(*) AS n, count(whole) AS c, sum(small) AS s, sum(whole) AS w,
        sum(big) AS b, avg(big) AS ab, sum(fixed) AS f, avg(fixed) AS af, bool_and(flag) AS a,
        bool_or(flag) AS o, bit_or(whole) AS i, bit_xor(small) AS x FROM facts""",
    "numerics": """SELECT sum(v) AS s, avg(v) AS a, count(v) AS n, var_pop(v) AS p
        FROM (SELECT CASE WHEN whole > 15 THEN 'NaN' ELSE free END AS v FROM facts) AS t""",
    "infinities": """SELECT sum(v) AS s, avg(v) AS a FROM (SELECT CASE WHEN whole > 15
        THEN 'Infinity' WHEN small < -2 THEN '-Infinity' ELSE free END AS v FROM facts) AS t""",
    "filtered": """SELECT count(*) FILTER (WHERE flag) AS n,
        sum(free) FILTER (WHERE small > 3) AS s, sum(span) FILTER (WHERE NOT flag) AS i,
        avg(fixed) FILTER (WHERE false) AS f FROM facts""",
    "products": """SELECT sum(fixed * 1.5) AS s, avg(fixed * fixed) AS a, sum(big * 0.10) AS b,
        sum(CASE WHEN flag THEN fixed * 2 ELSE 1.5 END) AS c FROM facts""",
    "nothing": "SELECT count(*) AS n, sum(whole) AS s, avg(free) AS a FROM facts WHERE id < 0",
    "grouped": "SELECT g, k, count(*) AS n, sum(free) AS s, avg(big) AS a FROM facts GROUP BY g, k",
    "joined": """SELECT count(*) AS n, sum(f.free * m.v) AS s
        FROM facts AS f JOIN marks AS m ON f.k = m.g""",
    "union": """SELECT count(*) AS n, sum(v) AS s
        FROM (SELECT whole AS v FROM facts UNION ALL SELECT v FROM marks) AS t""",
    "above": "SELECT id, fixed FROM facts WHERE fixed > (SELECT avg(fixed) FROM facts)",
    "having": "SELECT k, sum(whole) AS s FROM facts GROUP BY k HAVING count(*) > 9",
}
# Of joins whose frequent keys are spread.
JOINED = {
    "inner": "SELECT f.id, m.g, m.v FROM facts AS f JOIN marks AS m ON f.k = m.g",
    "left": """SELECT f.id, m.v FROM facts AS f LEFT JOIN marks AS m
        ON f.k = m.g AND m.v > f.whole""",
    "right": "SELECT f.id, m.v FROM marks AS m RIGHT JOIN facts AS f ON f.k = m.g",
    "full": "SELECT f.id, m.v FROM facts AS f FULL JOIN marks AS m ON f.k = m.g",
    "semi": "SELECT id FROM facts AS f WHERE EXISTS (SELECT FROM marks AS m WHERE m.g = f.k)",
    "anti": """SELECT id FROM facts AS f
        WHERE NOT EXISTS (SELECT FROM marks AS m WHERE m.g = f.k AND m.v < f.whole)""",
    "itself": "SELECT a.id, b.id AS other FROM facts AS a JOIN facts AS b ON a.k = b.k",
    "chain": """SELECT f.k, count(*) AS n, sum(f.fixed) AS s, max(m.v) AS v FROM facts AS f
        JOIN marks AS m ON f.k = m.g LEFT JOIN marks AS o ON o.g = m.g GROUP BY f.k""",
}


def test_joins_with_spread_keys_equal_their_queries(
    servers: Callable[[int], EmbeddedPostgres], monkeypatch: pytest.MonkeyPatch
) -> None:
    spread: set[str] = set()
    moved = Driver._move

    def noting(driver: Driver, given: EpochInput) -> None:
        spread.add(driver._view.identity)
        moved(driver, given)

    def heavy(
        counts: skew._StageCounts, sides: Sequence[int], average: float, buckets: int
    ) -> dict[int, int]:
        return {hash: sides[hash % len(sides)] for hash in counts.keys if hash % 3}

    monkeypatch.setattr(Driver, "_move", noting)
    # Whatever is frequent: here most keys are in both inputs.
    monkeypatch.setattr(skew._StageCounts, "heavy", heavy)
    schema = SCHEMAS["figures"]
    history = History(schema, SEED, singles=SINGLES, batches=3, batch=10, restarts=True)
    with new_database(servers(versions_to_test()[0])) as database:
        outcome = run_history(database, MemoryStore(), history, JOINED, Bucketed)
    assert not outcome.refused, outcome.refused
    command = f"TIDEMARK_TEST_SEED={SEED} pytest tests/equality/test_buckets.py -k spread"
    assert not outcome.faults, outcome.text(JOINED, command)
    assert len(spread) == len(JOINED) - 1, spread


@pytest.mark.whole
def test_sums_that_cross_equal_their_queries(
    servers: Callable[[int], EmbeddedPostgres], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregate, "SUMMED_ROWS", 1)
    schema = SCHEMAS["figures"]
    history = History(schema, SEED, singles=SINGLES, batches=3, batch=10, restarts=True)
    with new_database(servers(versions_to_test()[0])) as database:
        outcome = run_history(database, MemoryStore(), history, SUMMED, Bucketed)
    assert not outcome.refused, outcome.refused
    command = f"TIDEMARK_TEST_SEED={SEED} pytest tests/equality/test_buckets.py -k sums"
    assert not outcome.faults, outcome.text(SUMMED, command)


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
