"""Plans of the workloads, from the real analyzer in a database with their tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from bench.server import create_table, session
from bench.workloads import Workload
from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from connectors.postgres.embedded.server import EmbeddedPostgres
from dataflow.plan.nodes import ViewPlan
from dataflow.sql.planner import plan_view

SOURCE = "source"
# Replica identities.
Identity = str
DEFAULT, WHOLE = "default", "full"


def plan(dsn: str, workload: Workload, *, full: bool = False) -> ViewPlan:
    """Return the plan of a workload's view; its tables are created and dropped again."""
    names = ", ".join(table.name for table in workload.tables)
    with session(dsn) as cursor:
        cursor.execute("".join(create_table(t, full=full) for t in workload.tables))
        try:
            with PostgresAnalyzer(dsn, SOURCE) as analyzer:
                return plan_view(workload.query, analyzer)
        finally:
            cursor.execute(f"DROP TABLE {names}")


@contextmanager
def planned(
    expected: Iterable[tuple[Workload, Identity]],
) -> Iterator[dict[tuple[str, Identity], ViewPlan]]:
    """Return the plans of workloads under a replica identity, from a temporary server."""
    with EmbeddedPostgres() as postgres:
        plans = {(w.name, i): plan(postgres.dsn, w, full=i == WHOLE) for w, i in expected}
    yield plans
