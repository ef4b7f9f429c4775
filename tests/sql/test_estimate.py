"""Oracle: PostgreSQL's count of the rows, and averages that the test works out by itself.

The estimator need not be exact; it must ask PostgreSQL about every part of a plan, come near on
tables whose statistics say all there is to know, and name what is dear.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from connectors.postgres.analysis.planner_statistics import PlannerStatistics
from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.sink import SinkTable
from dataflow.errors import SqlError
from dataflow.sql.lower.estimate_queries import queries_of
from dataflow.sql.lower.lowering import lower
from dataflow.sql.planner import plan_view
from service.backfill.engine_choice import LOCAL, EngineChoice
from service.engine.engine import ViewDefinition
from service.verify.estimate import MAX_ROWS, WARNED_ROWS, Estimator, check_rows, speed_of
from service.views.estimate_models import Estimate
from tests.harness.maintained import plan_all
from tests.harness.postgres import Database, new_database
from tests.harness.schemas import SCHEMAS

TABLES = """
CREATE TABLE small (id int PRIMARY KEY, name text NOT NULL);
CREATE TABLE big (id int PRIMARY KEY, small_id int NOT NULL, v int NOT NULL, note text);
CREATE TABLE fresh (id int PRIMARY KEY, v int NOT NULL) WITH (autovacuum_enabled = off);
INSERT INTO small SELECT i, 'name ' || i FROM generate_series(1, 50) i;
INSERT INTO big SELECT i, 1 + i % 50, i % 1000, repeat('x', 20) FROM generate_series(1, 30000) i;
ANALYZE;
INSERT INTO fresh SELECT i, i % 10 FROM generate_series(1, 20000) i;
"""


@pytest.fixture(scope="module")
def place(postgres: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(postgres) as made:
        made.execute(TABLES)
        yield made


def estimator(place: Database, query: str) -> Estimator:
    with PostgresAnalyzer(place.dsn, "source") as analyzer:
        plan = plan_view(query, analyzer)
    table = SinkTable("public", "v", plan.root.fields, plan.key)
    return Estimator(place.dsn, ViewDefinition("v", table, query, plan), [])


def estimate(place: Database, query: str) -> Estimate:
    return estimator(place, query).estimate(
        lambda work: EngineChoice(LOCAL, "", {LOCAL: work.local_s()}), {LOCAL: 1.0}
    )


JOINED = """SELECT s.name, count(*) AS n, min(b.v) AS least FROM big b
    JOIN small s ON s.id = b.small_id WHERE b.v < 500 GROUP BY s.name"""


def test_rows_state_and_amplification_of_a_join(place: Database) -> None:
    found = estimate(place, JOINED)
    assert found.source_rows == 30_050
    assert 40 <= found.output_rows <= 60
    # The table with three columns, its filtered half in the join, the values of each group.
    assert 300_000 < found.state_bytes < 3_000_000
    assert {"public.big", "public.small"} <= {s.operator for s in found.state}
    into_big, into_small = found.amplification["public.big"], found.amplification["public.small"]
    # Half of them pass the filter, and change a group: one old row, one new row.
    assert 0.5 <= into_big.rows_out <= 1.1
    # 15,000 rows pass, 300 of them meet each row of small.
    assert 250 <= into_small.rows_touched <= 1_300
    assert not found.notes
    assert [r for r in found.risks if r.operator != "output"] == []


@pytest.mark.parametrize(
    ("query", "operator", "words"),
    [
        ("SELECT a.id AS x, b.id AS y FROM small a, small b", "join", "every row of the other"),
        ("SELECT s.id, b.v FROM small s JOIN big b ON b.small_id < s.id", "join", "every row"),
        (
            "SELECT b.id, c.id AS other FROM big b JOIN big c ON c.small_id = b.small_id",
            "join",
            "pairs with about",
        ),
        ("SELECT id, ntile(4) OVER (ORDER BY v, id) AS n FROM big", "window", "whole partition"),
        (
            "SELECT small_id, string_agg(note, ',' ORDER BY id) AS n FROM big GROUP BY 1",
            "aggregate",
            "string_agg",
        ),
        ("SELECT id, regexp_replace(note, 'x', 'y') AS n FROM big", "project", "by PostgreSQL"),
        ("SELECT note FROM big", "output", "no unique key"),
    ],
)
def test_what_is_dear_is_named(place: Database, query: str, operator: str, words: str) -> None:
    risks = estimate(place, query).risks
    assert any(operator in r.operator and words in r.why and r.hint for r in risks), risks


def test_tables_that_were_never_analyzed_are_sampled(place: Database) -> None:
    found = estimate(place, "SELECT id FROM fresh WHERE v % 10 = 3")
    assert abs(found.source_rows - 20_000) < 4_000
    assert 1_000 < found.output_rows < 4_000
    assert any("fresh" in note for note in found.notes)


@pytest.mark.parametrize("name", ["tpch", "shop"])
def test_every_part_of_a_plan_is_a_query_that_postgresql_takes(
    database: Database, name: str
) -> None:
    database.execute(SCHEMAS[name].ddl)
    plans, _ = plan_all(database, SCHEMAS[name].queries())
    unknown: list[str] = []
    count = 0
    with PlannerStatistics(database.dsn) as planner:
        for query, plan in plans.items():
            nodes = lower(plan.root)
            asked = queries_of(nodes, lambda _: None)
            count += len(asked)
            unknown += [
                f"{query} {node.name}"
                for node, text in zip(nodes, asked, strict=True)
                if text is None or planner.guess(text) is None
            ]
    # A form that cannot be asked has the rows of what it reads.
    assert len(unknown) <= count * 0.03, f"of {count}: {unknown}"


def test_very_many_rows_are_reported_and_refused(place: Database) -> None:
    query = "SELECT a.id, b.id AS b FROM big a, big b, big c, small d, small e"
    crossed = estimate(place, query)
    assert crossed.largest_rows > MAX_ROWS
    with pytest.raises(SqlError) as caught:
        check_rows(crossed, None)
    assert caught.value.code == "sql.too_many_rows"
    assert crossed.largest_operator in caught.value.detail
    assert "max_rows" in caught.value.hint
    assert any("rows" in warning for warning in check_rows(crossed, 10**15))
    assert check_rows(estimate(place, f"{query} ORDER BY b.id, a.id LIMIT 10"), None) == []
    dear = estimate(place, "SELECT count(*) AS n FROM big a, big b")
    assert WARNED_ROWS < dear.largest_rows < MAX_ROWS
    assert check_rows(dear, None)
    with pytest.raises(SqlError):
        check_rows(dear, 1_000)
    assert check_rows(estimate(place, JOINED), None) == []
    assert check_rows(None, None) == []


def test_the_speed_is_that_of_earlier_builds() -> None:
    draw = Random(1)
    builds = [(draw.uniform(5, 50), 0.0) for _ in range(9)]
    assert speed_of([(seconds, seconds * 2) for seconds, _ in builds]) == pytest.approx(0.5)
    assert speed_of([(1.0, 1000.0)] * 5) == 0.2
