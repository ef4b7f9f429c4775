"""Oracle: PostgreSQL's answer to aggregates, after every transaction; and what planning says.

A query that leaves an order open is compared with one that states the documented order.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.postgres.evaluation.evaluator import PostgresEvaluator
from dataflow.collect import ErrorRows
from dataflow.delta import Column, Delta
from dataflow.graph import ViewDataflow
from dataflow.plan.explain import explain_text
from dataflow.plan.nodes import scans_of
from dataflow.sql.lower.lowering import lower
from dataflow.values import from_text
from storage.memory import MemoryStore
from tests.equality.history import History, opened_store, run_history
from tests.harness.compare import (
    Answer,
    Row,
    difference,
    empty_answer,
    pin_session,
    rows_of_query,
)
from tests.harness.counting_store import CountingStore
from tests.harness.postgres import Database, new_database
from tests.harness.schemas import SCHEMAS
from tests.sql.planning import plan, refusal

FIGURES = SCHEMAS["figures"]
# Only in newer versions: the least version, the query.
NEWER: dict[str, tuple[int, str]] = {
    "any_value": (16, "SELECT k, any_value(k * 2) AS a FROM facts GROUP BY k"),
    "any_value_ordered": (
        16,
        "SELECT g, any_value(word ORDER BY id) AS a, any_value(id ORDER BY id DESC) FILTER (WHERE "
        "flag) AS b FROM facts GROUP BY g",
    ),
    "json_arrayagg": (
        16,
        "SELECT g, json_arrayagg(word ORDER BY id) AS a, json_arrayagg(small ORDER BY id DESC NULL "
        "ON NULL RETURNING jsonb) AS b, json_arrayagg(id ORDER BY id RETURNING text) FILTER (WHERE "
        "flag) AS c FROM facts GROUP BY g",
    ),
    "json_objectagg": (
        16,
        "SELECT k, json_objectagg(id : word RETURNING jsonb) AS a, json_objectagg(id VALUE small "
        "ABSENT ON NULL WITH UNIQUE KEYS RETURNING jsonb) FILTER (WHERE flag) AS b FROM facts "
        "GROUP BY k",
    ),
    "strict_and_unique": (
        16,
        "SELECT g, json_agg_strict(word ORDER BY id) AS a, jsonb_object_agg_strict(id, small) AS b,"
        " jsonb_object_agg_unique(id, word) AS c, json_object_agg_unique_strict(id, small ORDER BY "
        "id) AS d FROM facts GROUP BY g",
    ),
    "extremes_of_bytes": (18, "SELECT g, min(body) AS a, max(body) AS b FROM facts GROUP BY g"),
}


def test_what_newer_versions_have(every_postgres: EmbeddedPostgres) -> None:
    with new_database(every_postgres) as database:
        version = int(database.rows("SHOW server_version_num")[0][0]) // 10000
        queries = {name: query for name, (least, query) in NEWER.items() if least <= version}
        if not queries:
            pytest.skip("nothing newer")
        history = History(FIGURES, 11, singles=25, batches=1)
        outcome = run_history(database, MemoryStore(), history, queries)
    assert not outcome.refused, outcome.refused
    assert not outcome.faults, outcome.text(queries, "pytest tests/sql/test_aggregates.py")


DDL = """
CREATE TABLE t (g integer, k text, v integer, n numeric, d float8);
ALTER TABLE t REPLICA IDENTITY FULL;
"""


class Fed:
    """A view of table t that is fed by hand, beside the same rows in PostgreSQL."""

    def __init__(self, database: Database, query: str, store) -> None:
        self.database, self.query = database, query
        self.plan = plan(database, query)
        self.scan = scans_of(self.plan.root)[0]
        self.errors = ErrorRows()
        self.failures: Counter = Counter()
        self.answer = empty_answer(self.plan.root.fields)
        self.evaluator = PostgresEvaluator(database.dsn)
        self.open(store)
        self._take(self.flow.seed())

    def open(self, store) -> None:
        """Stand on the state as it is, as after a restart."""
        nodes = lower(self.plan.root)
        self.flow = ViewDataflow(nodes, "v", store, self.evaluator, self.errors)

    def change(self, rows: list[Row], weight: int) -> None:
        """Insert (1) or delete (-1) rows of texts, here and there."""
        relation = self.scan.relation
        columns = [
            from_text(f.type, Column.of("s", [row[i] for row in rows]))
            for i, f in enumerate(relation.fields)
        ]
        needed = self.flow.needed_columns()[relation.name]
        delta = Delta([columns[i] for i in needed], Column.of("i", [weight] * len(rows)).values)
        self._take(self.flow.step({relation.name: delta.consolidate()}))
        connection = self.database.connect()
        with connection.cursor() as cursor:
            for row in rows:
                if weight > 0:
                    cursor.execute("INSERT INTO t VALUES (%s, %s, %s, %s, %s)", row)
                else:
                    cursor.execute(
                        "DELETE FROM t WHERE ctid = (SELECT min(ctid) FROM t WHERE (g, k, v, n, d) "
                        "IS NOT DISTINCT FROM (%s, %s, %s, %s::numeric, %s) "
                        "AND n::text IS NOT DISTINCT FROM %s)",
                        (*row, row[3]),
                    )
                    assert cursor.rowcount == 1
        connection.close()

    def _take(self, delta: Delta) -> None:
        self.answer.add(delta, self.plan.root.fields)
        for row, weight in self.errors.take().rows():
            self.failures[row] += weight
        self.failures = +self.failures

    def difference(self, query: str = "") -> str:
        """What differs from PostgreSQL's answer to this or the same query."""
        connection = self.database.connect()
        pin_session(connection)
        expected = Answer(self.answer.columns, rows_of_query(connection, query or self.query))
        connection.close()
        return difference(expected, self.answer)


def _rows(random: Random, count: int) -> list[Row]:
    def one(*values: str | None) -> str | None:
        return random.choice(values)

    return [
        (
            one("1", "2", "3", None),
            one("a", "b", "", None),
            one("1", "2", "-3", None),
            one("1.5", "1.50", "2", "-0.25", None),
            one("0.5", "-2.25", "1e10", None),
        )
        for _ in range(count)
    ]


ORDERED = """
SELECT g, string_agg(k, ',' ORDER BY v, k) AS a, array_agg(n ORDER BY n, n::text) AS b,
    mode() WITHIN GROUP (ORDER BY k) AS c, percentile_cont(0.5) WITHIN GROUP (ORDER BY d) AS d,
    stddev(n) AS e, var_pop(v) AS f, corr(d, v) AS h, bit_xor(v) AS i, count(*) AS j,
    jsonb_agg(k ORDER BY k) FILTER (WHERE v > 0) AS l, count(DISTINCT (k, v)) AS m,
    max(k COLLATE "C") AS o
FROM t GROUP BY g
"""
GLOBAL = ORDERED.replace("SELECT g, ", "SELECT ").replace("GROUP BY g", "")


@pytest.mark.parametrize("kind", ["memory", "rocks"])
@pytest.mark.parametrize("query", [ORDERED, GLOBAL], ids=["groups", "one row"])
def test_random_changes_and_a_restart(
    database: Database, query: str, kind: str, tmp_path: Path
) -> None:
    """Rows come several times and go again, to the last one."""
    database.execute(DDL)
    random = Random(7)
    held: list[Row] = []
    with opened_store(kind, tmp_path) as store:
        fed = Fed(database, query, store)
        for step in range(16):
            new = _rows(random, random.randint(1, 6)) * random.randint(1, 2)
            fed.change(new, 1)
            held += new
            random.shuffle(held)
            gone = held[: len(held) // 2 if step < 15 else len(held)]
            held = held[len(gone) :]
            fed.change(gone, -1)
            assert not fed.difference()
            store.commit()
            if step == 7:
                fed.open(store)
        assert not fed.failures


def test_an_open_order_is_that_of_the_values(every_database: Database) -> None:
    every_database.execute(DDL)
    query = (
        "SELECT g, array_agg(k) AS a, string_agg(k, ',' ORDER BY v) AS b, json_agg(n) AS c, "
        "array_agg(DISTINCT n) AS d, percentile_disc(0.5) WITHIN GROUP (ORDER BY n) AS e "
        "FROM t GROUP BY g"
    )
    fed = Fed(every_database, query, MemoryStore())
    warned = [w for w in fed.plan.warnings if "order inside" in w]
    assert len(warned) == 2
    assert "array_agg(" in warned[0]
    least = '(SELECT min(o.n::text COLLATE "C") FROM t o WHERE o.n = {} AND o.g = t.g)'
    stated = (
        'SELECT g, array_agg(k ORDER BY k COLLATE "default") AS a, '
        "string_agg(k, ',' ORDER BY v, k) AS b, "
        'json_agg(n ORDER BY n, n::text COLLATE "C") AS c, '
        f"array_agg(DISTINCT {least.format('t.n')}::numeric) AS d, "
        f"percentile_disc(0.5) WITHIN GROUP (ORDER BY {least.format('t.n')}::numeric) AS e "
        "FROM t WHERE g IS NOT NULL GROUP BY g"
    )
    random = Random(3)
    for _ in range(6):
        rows = [row for row in _rows(random, 12) if row[0] is not None]
        fed.change(rows, 1)
        assert not fed.difference(stated)


def test_a_group_that_fails_is_an_error_row_until_it_is_repaired(
    database: Database, tmp_path: Path
) -> None:
    database.execute(DDL)
    query = "SELECT g, jsonb_object_agg(k, v) AS o, count(*) AS n FROM t GROUP BY g"
    good, bad, other = ("1", "a", "1", None, None), ("1", None, "2", None, None), ("2", "b", "3")
    with opened_store("rocks", tmp_path) as store:
        fed = Fed(database, query, store)
        fed.change([good, (*other, None, None)], 1)
        assert not fed.difference()
        fed.change([bad], 1)
        assert fed.answer.rows == Counter({("2", '{"b": 3}', "1"): 1})
        ((row, count),) = fed.failures.items()
        assert count == 1
        assert row[1:] == (b"22023", b"field name must not be null", b"(1)")
        store.commit()
        fed.open(store)
        fed.change([bad], 1)
        assert list(fed.failures.values()) == [1]
        fed.change([bad, bad], -1)
        assert not fed.failures
        assert not fed.difference()


def test_a_failing_argument_leaves_its_row_out(database: Database) -> None:
    database.execute(DDL)
    query = "SELECT g, array_agg(6 / v ORDER BY v) FILTER (WHERE k = 'a') AS a FROM t GROUP BY g"
    fed = Fed(database, query, MemoryStore())
    fed.change([("1", "b", "0", None, None), ("1", "a", "3", None, None)], 1)
    assert fed.answer.rows == Counter({("1", "{2}"): 1})
    fed.change([("1", "a", "0", None, None)], 1)
    assert fed.answer.rows == Counter({("1", "{2}"): 1})
    assert [row[2] for row in fed.failures] == [b"division by zero"]


def test_floats_are_stable(database: Database) -> None:
    """Far from zero and close together; a great value comes and goes."""
    database.execute(DDL)
    query = "SELECT var_pop(d) AS a, stddev(d) AS b, corr(d, v) AS c, regr_slope(d, v) AS e FROM t"
    fed = Fed(database, query, MemoryStore())
    rows: list[Row] = [("1", "a", str(i), None, str(1e9 + i % 3)) for i in range(1, 9)]
    fed.change([*rows, ("1", "a", "4", None, "1e300")], 1)
    fed.change([("1", "a", "4", None, "1e300")], -1)
    assert not fed.difference()
    (row,) = fed.answer.rows
    assert math.isclose(float(row[0] or 0), 0.609375, rel_tol=1e-12)


def test_an_equal_column_has_no_variance_and_no_correlation(database: Database) -> None:
    """PostgreSQL may show what its rounding left."""
    database.execute(DDL)
    fed = Fed(database, "SELECT var_pop(d) AS a, corr(d, v) AS b FROM t", MemoryStore())
    fed.change([("1", "a", str(i), None, "0.1") for i in range(10)], 1)
    assert fed.answer.rows == Counter({("0", None): 1})


NATIVE = (
    "SELECT g, stddev(n) AS a, var_pop(v) AS b, corr(d, v) AS c, bit_or(v) AS e, sum(n) AS f "
    "FROM t GROUP BY g"
)


@pytest.mark.parametrize("size", [100, 1000, 10_000])
def test_a_row_costs_the_same_in_a_large_group(database: Database, size: int) -> None:
    """Counted are the rows of state that a step touches."""
    database.execute(DDL)
    store = CountingStore()
    fed = Fed(database, NATIVE, store)
    assert not [node for node in explain_text(fed.plan).split() if node == "recomputed"]
    random = Random(1)
    columns = [
        from_text(f.type, Column.of("s", [row[i] for row in _rows(random, size)]))
        for i, f in enumerate(fed.scan.relation.fields)
    ]
    needed = fed.flow.needed_columns()[fed.scan.relation.name]
    delta = Delta([columns[i] for i in needed], Column.of("i", [1] * size).values)
    fed.flow.step({fed.scan.relation.name: delta.consolidate()})
    store.reset()
    fed.flow.step({fed.scan.relation.name: delta.take(Column.of("i", [0]).values)})
    assert store.reset() <= 20


@pytest.mark.parametrize("size", [1000, 20_000])
def test_a_percentile_costs_the_same_in_a_large_group(database: Database, size: int) -> None:
    """Nodes of at most 128 rows, a few for each look."""
    database.execute(DDL)
    store = CountingStore()
    query = (
        "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY d) AS a, "
        "percentile_disc(0.99) WITHIN GROUP (ORDER BY d) AS b FROM t"
    )
    fed = Fed(database, query, store)
    assert "recomputed" not in explain_text(fed.plan)
    name = fed.scan.relation.name
    delta = Delta([Column.of("f", [i / 7 for i in range(size)])], Column.of("i", [1] * size).values)
    fed.answer.add(fed.flow.step({name: delta}), fed.plan.root.fields)
    store.reset()
    fed.flow.step({name: Delta.of("f", [(3.25,)])})
    assert store.reset() <= 3000


def test_percentiles_at_the_ends_and_of_what_is_not_finite(every_database: Database) -> None:
    every_database.execute(DDL)
    query = (
        "SELECT g, percentile_cont(0) WITHIN GROUP (ORDER BY d) AS a, "
        "percentile_cont(1) WITHIN GROUP (ORDER BY d DESC) AS b, "
        "percentile_cont(0.3) WITHIN GROUP (ORDER BY d DESC) FILTER (WHERE v > 0) AS c, "
        "percentile_disc(0) WITHIN GROUP (ORDER BY k DESC) AS e, "
        "percentile_disc(0.5) WITHIN GROUP (ORDER BY k) AS f, "
        "percentile_cont(0.5) WITHIN GROUP (ORDER BY n) AS h FROM t GROUP BY g"
    )
    fed = Fed(every_database, query, MemoryStore())
    assert "recomputed" not in explain_text(fed.plan)
    random = Random(5)
    for _ in range(8):
        rows = [
            (*row[:4], random.choice(["NaN", "Infinity", "-Infinity", "1", "2.5", None]))
            for row in _rows(random, 5)
        ]
        fed.change(rows, 1)
        assert not fed.difference()
        fed.change(rows[:3], -1)
        assert not fed.difference()
    error = refusal(every_database, query.replace("cont(0)", "cont(0.5, 1)"))
    assert error.code == "sql.undefined_function"


def test_groups_that_did_not_change_are_not_recomputed(database: Database) -> None:
    database.execute(DDL)
    store = CountingStore()
    query = "SELECT g, string_agg(k, ',' ORDER BY v, k) AS a, sum(n) AS b FROM t GROUP BY g"
    fed = Fed(database, query, store)
    rows: list[Row] = [(str(g), "a", str(i), "1", None) for g in range(20) for i in range(50)]
    fed.change(rows, 1)
    store.reset()
    fed.change([("3", "b", "7", "1", None)], 1)
    # The 51 rows of group 3, and what is kept of the group itself.
    assert store.reset() <= 51 + 20
    assert not fed.difference()


def test_what_is_recomputed_is_reported(shop: Database) -> None:
    found = plan(
        shop, "SELECT vip, string_agg(name, ',' ORDER BY id) AS s FROM customers GROUP BY 1"
    )
    assert "recomputed in PostgreSQL" in explain_text(found)
    assert any(sql.startswith("string_agg($1") for sql in found.evaluates)
    assert not found.warnings
    assert found.key == (0,)


def test_an_aggregate_with_volatile_functions_is_refused(database: Database) -> None:
    database.execute(
        "CREATE TABLE a (id integer PRIMARY KEY); CREATE FUNCTION f(s bigint, x integer) RETURNS "
        "bigint LANGUAGE sql AS 'SELECT x::bigint'; CREATE AGGREGATE own(integer) (sfunc = f, "
        "stype = bigint)"
    )
    error = refusal(database, "SELECT own(id) AS x FROM a")
    assert error.code == "sql.volatile_function"
    assert '"public.own"' in error.what
    database.execute("ALTER FUNCTION f IMMUTABLE")
    assert plan(database, "SELECT own(id) AS x FROM a")


def test_a_result_without_a_type_is_refused_by_name(shop: Database) -> None:
    query = "SELECT array_length(array_agg(ROW(id, name)), 1) AS n FROM customers"
    error = refusal(shop, query)
    assert error.code == "sql.not_maintained"
    assert "array_agg" in error.what
    assert error.position is not None
