"""Oracle: counts. Queries of the Join Order Benchmark's shapes are planned with a few questions to
PostgreSQL, into joins that all have keys; the time is shown (pytest -s), not judged.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from connectors.postgres.embedded.server import EmbeddedPostgres
from dataflow.plan.nodes import Join, scans_of
from dataflow.plan.walk import nodes_of
from dataflow.sql.lower.lowering import lower
from dataflow.sql.planner import plan_view
from tests.harness.postgres import Database, new_database
from tests.sql.movies import DDL, QUERIES


class CountingAnalyzer(PostgresAnalyzer):
    """Counts the questions of each kind."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn, "movies")
        self.asked: Counter[str] = Counter()

    def relation(self, schema: str, name: str) -> Any:
        """Counted by name."""
        self.asked[name] += 1
        return super().relation(schema, name)

    def types(self, columns: Any, expressions: Any) -> Any:
        """Counted."""
        self.asked["types of expressions"] += 1
        return super().types(columns, expressions)

    def constants(self, expressions: Any, types: Any) -> Any:
        """Counted."""
        self.asked["values of constants"] += 1
        return super().constants(expressions, types)


@pytest.fixture(scope="module")
def movies(postgres: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(postgres) as database:
        database.execute(DDL)
        yield database


@pytest.mark.parametrize("name", QUERIES)
def test_joins_of_many_relations_are_planned_with_few_questions(
    movies: Database, name: str
) -> None:
    begin = time.perf_counter()
    analyzer = CountingAnalyzer(movies.dsn)
    with analyzer:
        found = plan_view(QUERIES[name], analyzer)
        nodes = lower(found.root)
    print(f"{name}: {time.perf_counter() - begin:.3f} s, {len(nodes)} nodes, {analyzer.asked}")
    asked = analyzer.asked
    blocks = QUERIES[name].count("SELECT") + QUERIES[name].count(" ON ")
    assert asked.pop("types of expressions") <= 3 * blocks
    assert asked.pop("values of constants", 0) <= blocks
    assert asked == Counter({s.relation.name.name: 1 for s in scans_of(found.root)})
    joins = [node for node in nodes_of(found.root) if isinstance(node, Join)]
    assert all(join.left_keys for join in joins)
    # A scan, its filter, a join, and what the join reads of either side.
    assert len(nodes) <= 5 * len(scans_of(found.root)) + 3


class TextsAnalyzer(PostgresAnalyzer):
    """Notes the queries whose columns PostgreSQL is asked for."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn, "movies")
        self.texts: list[str] = []

    def _read_fields(self, text: str) -> Any:
        self.texts.append(text)
        return super()._read_fields(text)


def test_equal_types_are_queried_once_for_any_number_of_relations(movies: Database) -> None:
    asked = {}
    for count in (5, 20):
        joins = (f"JOIN title t{i} ON t{i}.id = t{i - 1}.id" for i in range(1, count))
        branches = (f"SELECT max(id) AS m FROM title WHERE id > {i // 20}" for i in range(count))
        queries = f"SELECT t0.id FROM title t0 {' '.join(joins)}", " UNION ALL ".join(branches)
        with TextsAnalyzer(movies.dsn) as analyzer:
            for query in queries:
                plan_view(query, analyzer)
        asked[count] = analyzer.texts
    assert len(set(asked[20])) == len(asked[20]) == len(asked[5]) > 0
