"""Oracle: PostgreSQL's own answer to a query over another one, after every transaction.

The plan is that of a view which computes the view that its query names: the plans of a sample of
queries of each schema, below others. TIDEMARK_TEST_SEED repeats a failure.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import pytest

from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from connectors.postgres.embedded.server import EmbeddedPostgres
from dataflow.errors import SourceError, SqlError
from dataflow.plan.nodes import ViewPlan, scans_of
from dataflow.schema import VIEW_SOURCE, Relation, RelationName, stored
from dataflow.sql.planner import plan_view
from service.factory.computed_views import composed
from storage.memory import MemoryStore
from tests.equality.history import History, run_history
from tests.harness.maintained import MARKER, SOURCE, Maintained, plan_each
from tests.harness.postgres import new_database, versions_to_test
from tests.harness.schemas import SCHEMAS
from tests.harness.tiers import count

SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "1"))
QUERIES = count("TIDEMARK_TEST_COMPUTED_QUERIES", 2, 40)
# Over the other query {v}, and its first and last column.
READERS = (
    "SELECT * FROM {v} AS v",
    "SELECT {last} FROM {v} AS v WHERE {first} IS NOT NULL",
    "SELECT {first} AS one, count(*) AS n, count({last}) AS l FROM {v} AS v GROUP BY {first}",
    "SELECT v.{first} AS one, w.{last} AS two FROM {v} AS v JOIN {v} AS w ON v.{first} = w.{first}",
    "SELECT v.{first} AS one FROM {v} AS v WHERE NOT EXISTS"
    " (SELECT FROM {v} AS w WHERE w.{last} = v.{last} AND w.{first} > v.{first})",
    "SELECT {first} AS one FROM {v} AS v UNION ALL SELECT {first} FROM {v} AS v",
    "SELECT DISTINCT {last} AS two FROM {v} AS v",
)


@pytest.mark.parametrize("schema_name", SCHEMAS)
def test_computed_views_equal_their_queries(
    servers: Callable[[int], EmbeddedPostgres], schema_name: str
) -> None:
    schema = SCHEMAS[schema_name]
    queries = schema.queries()
    draw = Random(SEED)
    chosen = draw.sample(sorted(queries), min(QUERIES, len(queries)))
    history = History(schema, SEED, singles=6, batches=2, batch=10, restarts=True)
    plans: dict[str, ViewPlan] = {}
    asked: dict[str, str] = {}

    class Computing(Maintained):
        """Maintains the composed plans in place of those of the whole queries."""

        def __init__(self, database: Any, given: Mapping[str, ViewPlan], *rest: Any) -> None:
            own = {name: plans[name] for name in given if name != MARKER}
            super().__init__(database, {**given, **own}, *rest)

    with new_database(servers(versions_to_test()[0])) as database:

        def compose(_connection: Any) -> dict[str, str]:
            found = plan_each(database, {name: queries[name] for name in chosen})
            for name, below in found.plans.items():
                asked.update(_over(database.dsn, name, queries[name], below, plans))
            return asked

        outcome = run_history(database, MemoryStore(), history, compose, Computing)
    assert len(asked) > len(chosen)
    assert not outcome.refused, outcome.refused
    command = f"TIDEMARK_TEST_SEED={SEED} pytest {__file__} -k {schema_name}"
    assert not outcome.faults, outcome.text(asked, command)


def _over(
    dsn: str, name: str, query: str, below: ViewPlan, plans: dict[str, ViewPlan]
) -> dict[str, str]:
    """Return queries over another one, by name, and note the composed plan of each."""
    if below.pinned:
        return {}
    view = RelationName(VIEW_SOURCE, "public", f"v_{name.replace('-', '_').replace(' ', '_')}")
    relation = Relation(view, 0, stored(below.root.fields), below.key)
    found = {}
    # A view's table has the base type of a domain.
    casts = (f'"{f.name}"::{f.type.name} AS "{f.name}"' for f in relation.fields)
    rows = f"SELECT {', '.join(casts)} FROM own"
    with PostgresAnalyzer(dsn, SOURCE, [relation], has_stubs=True) as analyzer:
        for number, reader in enumerate(READERS):
            ends = (f'"{below.root.fields[at].name}"' for at in (0, -1))
            words = dict(zip(("first", "last"), ends, strict=True))
            try:
                plan = plan_view(
                    reader.format(v=f'"{view.schema}"."{view.name}"', **words), analyzer
                )
            except (SqlError, SourceError):
                # Such as an order that its type lacks; PostgreSQL's connection is used up then.
                analyzer.close()
                continue
            whole = composed(plan, {view: below})
            assert not any(s.relation.name == view for s in scans_of(whole.root))
            plans[f"{name} {number}"] = whole
            # As a subquery, it might read columns of the query around it.
            above = reader.format(v="below", **words)
            found[f"{name} {number}"] = f"WITH own AS ({query}), below AS ({rows}) {above}"
    return found
