"""PostgreSQL's estimates for a query, and samples of tables without statistics.

Runs only EXPLAIN, and counts over a small part of a table's pages, under a timeout. Planning
computes constants and calls operators' estimators, so it happens in the sandbox. A failing question
returns None, since these are estimates. TemporaryError when the session is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import psycopg2

from connectors.postgres.evaluation import sandbox
from connectors.postgres.session.session import connect, is_temporary, to_error
from dataflow.errors import TidemarkError
from dataflow.schema import Relation, RelationName

_VIEW = "tidemark_estimated"
_SETTINGS = {
    "max_parallel_workers_per_gather": "0",
    "lock_timeout": "1s",
    "jit": "off",
    # Fail on a row security policy instead of running its code.
    "row_security": "off",
}
_FACTS = """
SELECT c.oid::bigint, greatest(c.reltuples, 0)::bigint,
  coalesce((SELECT sum(pg_relation_size(t.relid)) FROM pg_partition_tree(c.oid) t WHERE t.isleaf),
           pg_relation_size(c.oid))::bigint / current_setting('block_size')::int,
  c.reltuples >= 0 AND EXISTS (
    SELECT FROM pg_stats s WHERE s.schemaname = n.nspname AND s.tablename = c.relname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid::bigint = ANY (%s)
"""
SAMPLE_PAGES = 200


class Guess(NamedTuple):
    """Estimated rows, bytes per row, and cost in PostgreSQL's units."""

    rows: float
    width: float
    cost: float


class TableFacts(NamedTuple):
    """From pg_class: rows when last counted, current pages; whether the planner has statistics."""

    rows: int
    pages: int
    has_statistics: bool

    @property
    def sample_percent(self) -> float:
        """Return the percentage of the table that is about SAMPLE_PAGES pages."""
        return min(100.0, max(0.001, 100.0 * SAMPLE_PAGES / max(self.pages, 1)))


class PlannerStatistics:
    """One session with one transaction; always close it.

    timeout_s: of each question. role: whose rights functions have, "" for none.
    """

    def __init__(self, dsn: str, timeout_s: float = 1.0, role: str = "") -> None:
        settings = {**_SETTINGS, "statement_timeout": str(int(timeout_s * 1000))}
        self._session = connect(dsn, application_name="tidemark planner", settings=settings)
        try:
            self._sandbox = sandbox.enter(self._session.cursor(), dsn, role)
        except psycopg2.Error as error:
            self._session.close()
            raise to_error(error, "source", "the planner does not answer") from error
        except TidemarkError:
            self._session.close()
            raise

    def __enter__(self) -> PlannerStatistics:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def guess(self, query: str) -> Guess | None:
        """Return the planner's estimate for a query, which need not be runnable."""
        found = self._run_question(lambda cursor: self._explained(cursor, query))
        if not found:
            return None
        plan = found[0]["Plan"]
        return Guess(float(plan["Plan Rows"]), float(plan["Plan Width"]), float(plan["Total Cost"]))

    def tables(self, relations: Iterable[Relation]) -> dict[RelationName, TableFacts]:
        """Return the facts of the database's own relations."""
        by_oid = {r.oid: r.name for r in relations if r.oid}
        found = self._run_question(lambda cursor: _rows(cursor, _FACTS, (list(by_oid),))) or []
        return {by_oid[oid]: TableFacts(*facts) for oid, *facts in found if oid in by_oid}

    def sampled_rows(self, relation: Relation, facts: TableFacts) -> float | None:
        """Estimate the number of rows of a table from a sample of its pages."""
        percent = facts.sample_percent
        name = f'"{_doubled(relation.name.schema)}"."{_doubled(relation.name.name)}"'
        sample = f"SELECT count(*) FROM {name} TABLESAMPLE SYSTEM ({percent:g})"
        found = self._run_question(lambda cursor: self._answered(cursor, sample))
        return found[0][0] * 100.0 / percent if found else None

    def counts(self, query: str) -> tuple[int, int] | None:
        """Return the two counts of a query's single row."""
        found = self._run_question(lambda cursor: self._answered(cursor, query))
        return (found[0][0], found[0][1]) if found else None

    def _explained(self, cursor: Any, query: str) -> list[Any]:
        self._sandbox.make_view(cursor, _VIEW, query)
        self._sandbox.lend_tables(cursor, _VIEW)
        return self._sandbox.explain(cursor, f"SELECT * FROM pg_temp.{_VIEW}")

    def _answered(self, cursor: Any, query: str) -> list[Any]:
        self._sandbox.make_view(cursor, _VIEW, query)
        self._sandbox.lend_tables(cursor, _VIEW)
        sandboxed = self._sandbox.confine(cursor, _VIEW)
        cursor.execute("SET LOCAL transaction_read_only = on")
        return _rows(cursor, f"SELECT * FROM {sandboxed}")

    def _run_question(self, question: Callable[[Any], list[Any]]) -> list[Any] | None:
        """Run a question and undo its effects; None when it fails."""
        try:
            with self._session.cursor() as cursor:
                cursor.execute("SAVEPOINT question")
                try:
                    return question(cursor)
                except psycopg2.Error as error:
                    if self._session.closed or (error.pgcode is None and is_temporary(error)):
                        raise
                    return None
                finally:
                    if not self._session.closed:
                        cursor.execute("ROLLBACK TO SAVEPOINT question")
        except psycopg2.Error as error:
            raise to_error(error, "source", "the planner does not answer") from error


def _rows(cursor: Any, sql: str, parameters: Any = None) -> list[Any]:
    cursor.execute(sql, parameters)
    return cursor.fetchall()


def _doubled(name: str) -> str:
    return name.replace('"', '""')
