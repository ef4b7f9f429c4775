"""Oracle: PostgreSQL's own answer over a table of the rows that were written in each format; and
each road of a backfill for the other: rows, errors, rejected records, and how the state goes on."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from connectors.files import snapshot as files_snapshot
from connectors.kafka.embedded import EmbeddedKafka
from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.postgres.evaluation.evaluator import PostgresEvaluator
from connectors.postgres.source import PostgresSource
from connectors.source import MAIN_SOURCE
from connectors.spark.backfill import SparkBackfill
from connectors.spark.result import BackfillResult
from connectors.spark.session import LazySession
from dataflow.changes import Changes
from dataflow.collect import ErrorRows
from dataflow.delta import Delta
from dataflow.graph import ViewDataflow, needed_columns
from dataflow.operators.tables.table import TableState
from dataflow.plan.nodes import Plan, scans_of
from dataflow.schema import Relation
from dataflow.sql.lower.lowering import lower
from dataflow.sql.planner import plan_view
from dataflow.values import to_text
from service.backfill.local_backfill import BackfillJob, backfill
from service.backfill.spark_backfill import run_on_spark
from storage.rocks import RocksStore
from tests.connectors.spark.sources import (
    FILE_FORMATS,
    TOPICS,
    Case,
    Row,
    draw,
    file_case,
    topic_case,
)
from tests.connectors.spark.test_backfill import bag
from tests.connectors.spark.views import to_delta
from tests.harness.postgres import Database, new_database

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None, reason="no Java on this machine, Spark needs it"
)
ROWS = 90
# Groups over a join, and a multiset of which some rows fail.
QUERY = """
SELECT c.region, count(*) AS n, sum(p.price) AS total
FROM {bought} p JOIN customers c ON c.id = p.customer GROUP BY c.region
UNION ALL SELECT p.note, 60 / p.qty, p.price FROM {bought} p {where}
"""
CUSTOMERS = """
CREATE TABLE customers (id int PRIMARY KEY, region text);
INSERT INTO customers SELECT i, 'r' || i % 3 FROM generate_series(0, 9) i;
CREATE TABLE bought (id int8, customer int4, qty int4, price numeric(9,2), note text)
"""
CHANGE = """
UPDATE customers SET region = 'new' WHERE id < 4;
DELETE FROM customers WHERE id = 5;
INSERT INTO customers VALUES (10, 'r1'), (11, NULL)
"""
CASES = [
    *(f"{format} {how}" for format in FILE_FORMATS for how in ("plain", "gzip")),
    "jsonl folders",
    "parquet folders",
    *(f"topic {name}" for name in TOPICS),
]


@pytest.fixture(scope="module")
def shop(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """Customers, and room for what was bought."""
    with new_database(postgres) as database:
        database.execute(CUSTOMERS)
        yield database


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    """The rows in the format that the parameter names."""
    format, how = request.param.split(" ")
    if format == "topic":
        broker: EmbeddedKafka = request.getfixturevalue("broker")
        made = topic_case(broker, how, draw(ROWS))
    else:
        made = file_case(format, how, tmp_path / "in", draw(ROWS))
    yield made
    made.close()


def jobs(plan: Plan, case: Case, database: Database, folder: Path) -> Iterator[BackfillJob]:
    """For each road one; the database's snapshot is open until the next is asked for."""
    relations = {scan.relation.name: scan.relation for scan in scans_of(plan)}
    columns = needed_columns(lower(plan))
    [bought] = case.source.relations()
    start_position = case.source.start_position(bought)
    [customers] = [r for r in relations.values() if r != bought]
    for road in ("local", "spark"):
        (folder / road).mkdir()
        side = case.source.open_snapshot(
            [bought], {"bought": start_position.position}, start_position.notes
        )
        with closing(PostgresSource(database.dsn, MAIN_SOURCE)) as source:
            snapshot = source.open_snapshot([customers])
            parts = {
                bought.name: side.parts(bought, columns[bought.name], 2),
                customers.name: snapshot.parts(customers, columns[customers.name], 2),
            }
            assert len(parts[bought.name]) > 1
            evaluator = partial(PostgresEvaluator, database.dsn)
            given = (tuple(relations.values()), columns, parts, evaluator, folder / road)
            yield BackfillJob(plan, "v1", *given)
            snapshot.close()
        side.close()


def run_spark(session: LazySession, job: BackfillJob) -> BackfillResult:
    return run_on_spark(SparkBackfill(session, 1), job, lambda _: None)


def rows_of(plan: Plan, output: Delta) -> Counter:
    """In PostgreSQL's text."""
    texts = [to_text(f.type, c).texts() for f, c in zip(plan.fields, output.columns, strict=True)]
    return Counter(dict(zip(zip(*texts, strict=True), output.weights.tolist(), strict=True)))


def answer(database: Database, rows: list[Row]) -> Counter:
    """PostgreSQL's, of the rows that do not fail."""
    database.execute("TRUNCATE bought")
    for row in rows:
        database.execute("INSERT INTO bought VALUES (%s, %s, %s, %s, %s)", row)
    query = QUERY.format(bought="bought", where="WHERE p.qty <> 0")
    return Counter(database.rows(f"SELECT region, n::text, total::text FROM ({query}) q"))


def change_of(customers: Relation) -> Changes:
    """CHANGE, as the stream would tell it."""
    rows = [*((n, b"new") for n in range(4)), (5, None), (10, b"r1"), (11, None)]
    kinds = [Changes.NEW] * 4 + [Changes.DELETE_KEY] + [Changes.INSERT] * 2
    every = tuple(range(len(customers.fields)))
    return Changes(customers, np.array(kinds, np.uint8), to_delta(customers, rows, every).columns)


def go_on(job: BackfillJob, result: BackfillResult, folder: Path) -> Delta:
    """What the view tells of the change, from the state that a backfill has left."""
    store = RocksStore(folder)
    evaluator = job.evaluator()
    assert isinstance(evaluator, PostgresEvaluator)
    try:
        dataflow = ViewDataflow(lower(job.root), job.scope, store, evaluator, ErrorRows())
        [customers] = [r for r in job.relations if r.name.source == MAIN_SOURCE]
        tables = {r: TableState(r, job.columns[r.name], store, job.scope) for r in job.relations}
        store.ingest(result.files)
        return dataflow.step({customers.name: tables[customers].resolve(change_of(customers))})
    finally:
        store.close()
        evaluator.close()


@pytest.mark.whole
@pytest.mark.parametrize("case", CASES, indirect=True)
def test_both_engines_give_the_answer(
    case: Case,
    session: LazySession,
    shop: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(files_snapshot, "LEAST_PART_BYTES", 1)
    with PostgresAnalyzer(shop.dsn, MAIN_SOURCE, feeds=case.source.relations()) as analyzer:
        query = QUERY.format(bought="shop.bought", where="")
        plan = plan_view(query, analyzer).root
    shop.execute("BEGIN; DELETE FROM customers;" + CUSTOMERS.split(";")[1] + "; COMMIT")
    wanted = answer(shop, case.rows)
    results = []
    for job, run in zip(
        jobs(plan, case, shop, tmp_path),
        (lambda job: backfill(job, lambda _: None), partial(run_spark, session)),
        strict=False,
    ):
        results.append((job, run(job)))
    (_, local), (_, spark) = results
    outputs = [Delta.concat(list(r.read_output())) for _, r in results]
    assert [rows_of(plan, output) for output in outputs] == [wanted, wanted]
    failing = sum(row[2] == 0 for row in case.rows)
    assert failing and bag(local.errors) == bag(spark.errors)
    assert sum(bag(local.errors).values()) == failing
    assert bag(local.rejected) == bag(spark.rejected)
    assert local.rejected is not None and len(local.rejected) == case.bad
    assert local.rows == spark.rows

    shop.execute(CHANGE)
    wanted = answer(shop, case.rows)
    for output, (job, result) in zip(outputs, results, strict=True):
        told = go_on(job, result, job.work_dir / "state")
        assert rows_of(plan, Delta.concat([output, told]).consolidate()) == wanted
