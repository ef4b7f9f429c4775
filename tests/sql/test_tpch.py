"""Oracle: TPC-H itself: these queries are plans of joins on keys, wholly in native kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from dataflow.plan.nodes import Join, Plan, SemiJoin, ViewPlan, inputs_of, scans_of
from dataflow.plan.properties.unique_keys import keys_of
from tests.harness.postgres import Database, new_database
from tests.harness.schemas import SCHEMAS
from tests.sql.planning import plan

TPCH = SCHEMAS["tpch"]


@pytest.fixture(scope="module")
def tpch(every_postgres: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(every_postgres) as database:
        database.execute(TPCH.ddl)
        yield database


def planned(tpch: Database, name: str) -> ViewPlan:
    return plan(tpch, TPCH.queries()[name])


def joins(root: Plan) -> list[Join | SemiJoin]:
    own = [root] if isinstance(root, Join | SemiJoin) else []
    return own + [j for i in inputs_of(root) for j in joins(i)]


KEYS = {
    "q1": ["l_returnflag", "l_linestatus"],
    "q2": [],
    "q3": ["l_orderkey"],
    "q4": ["o_orderpriority"],
    "q5": ["n_name"],
    "q6": [],
    "q7": ["supp_nation", "cust_nation", "l_year"],
    "q8": ["o_year"],
    "q9": ["nation", "o_year"],
    "q10": ["c_custkey"],
    "q11": ["ps_partkey"],
    "q12": ["l_shipmode"],
    "q13": ["c_count"],
    "q14": [],
    "q15": ["s_suppkey"],
    "q16": ["p_brand", "p_type", "p_size"],
    "q17": [],
    "q18": ["o_orderkey"],
    "q19": [],
    "q20": [],
    "q21": ["s_name"],
    "q22": ["cntrycode"],
}


@pytest.mark.parametrize("name", TPCH.queries())
def test_keys_are_the_smallest(tpch: Database, name: str) -> None:
    found = planned(tpch, name)
    assert [found.root.fields[i].name for i in found.key] == KEYS[name]


@pytest.mark.parametrize("name", TPCH.queries())
def test_no_join_is_a_cross_join(tpch: Database, name: str) -> None:
    """But with the one row of a scalar subquery."""
    for join in joins(planned(tpch, name).root):
        assert join.left_keys or frozenset() in keys_of(join.right).keys


@pytest.mark.parametrize("name", TPCH.queries())
def test_every_query_is_planned_natively(tpch: Database, name: str) -> None:
    found = planned(tpch, name)
    assert found.evaluates == ()
    for scan in scans_of(found.root):
        assert len(scan.columns) < len(scan.relation.fields) or len(scan.columns) < 8
