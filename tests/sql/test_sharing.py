"""Oracle: counts. A part of a query that is read in several places is one node of the plan, and
planning visits it once: were it otherwise, the deep chains here would never end.
"""

from __future__ import annotations

import pickle

import pytest

from dataflow.plan.explain import explain_text, explain_tree
from dataflow.plan.nodes import Aggregate, Distinct, Join, Plan, Scan
from dataflow.plan.properties.unique_keys import keys_of
from dataflow.plan.walk import nodes_of, shared_nodes, with_equal_parts_shared
from dataflow.sql.lower.lowering import lower
from service.engine.encoding.registered import decode, encode
from tests.harness.postgres import Database
from tests.sql.planning import plan

DEPTH = 40
LINKS = {
    "join": "SELECT a.id, b.n FROM {0} a JOIN {0} b ON a.id = b.n WHERE a.n > 0",
    "union": "SELECT id, n FROM {0} UNION SELECT n, id FROM {0}",
    "union all": "SELECT id, n FROM {0} WHERE n > 3 UNION ALL SELECT n, id FROM {0}",
    "subquery": "SELECT id, n FROM {0} WHERE n IN (SELECT id FROM {0} WHERE n > 1)",
    "aggregate": "SELECT id, (SELECT max(n) FROM {0})::integer AS n FROM {0} WHERE id < 9",
}


def _chain(link: str, depth: int) -> str:
    parts = ["x0 AS MATERIALIZED (SELECT id, count(*)::integer AS n FROM customers GROUP BY id)"]
    for i in range(depth):
        parts.append(f"x{i + 1} AS (SELECT q.id, q.n FROM ({link.format(f'x{i}')}) q (id, n))")
    return f"WITH {', '.join(parts)} SELECT id, n FROM x{depth}"


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
def test_nested_parts_are_visited_once(shop: Database, link: str) -> None:
    sizes = []
    for depth in (DEPTH // 2, DEPTH):
        found = plan(shop, _chain(link, depth))
        nodes = lower(found.root)
        assert len(explain_text(found).splitlines()) < 12 * depth
        assert explain_tree(found)["plan"]["fields"]
        assert pickle.loads(pickle.dumps(found)) == found
        assert decode(encode(found)) == found
        assert sum(isinstance(n.plan, Scan) for n in nodes) == 1
        sizes.append(len(nodes))
    assert sizes[1] < 2 * sizes[0] + 10


def test_views_on_views_are_bound_once(shop: Database) -> None:
    shop.execute("CREATE VIEW deep0 AS SELECT city, count(*) AS n FROM customers GROUP BY city")
    for i in range(12):
        shop.execute(
            f"CREATE VIEW deep{i + 1} AS SELECT a.city, b.n FROM deep{i} a JOIN deep{i} b USING (n)"
        )
    found = plan(shop, "SELECT * FROM deep12")
    assert _count(found.root, Aggregate) == 1
    assert _count(found.root, Join) == 12


def test_a_shared_part_keeps_its_rows_and_its_columns(shop: Database) -> None:
    found = plan(
        shop,
        "WITH x AS (SELECT city, vip, count(*) AS n, max(id) AS m, min(id) AS l FROM customers "
        "GROUP BY city, vip) "
        "SELECT a.n FROM x a JOIN x b ON a.city = b.city WHERE a.vip AND b.m > 3",
    )
    (aggregate,) = (n for n in nodes_of(found.root) if isinstance(n, Aggregate))
    assert [f.name for f in aggregate.fields] == ["city", "vip", "count", "max"]
    assert "filter" not in explain_text(aggregate)
    joins = [n for n in nodes_of(found.root) if isinstance(n, Join)]
    assert [len(side.fields) for side in (joins[0].left, joins[0].right)] == [2, 1]


def test_scans_are_each_readers_own(shop: Database) -> None:
    found = plan(
        shop,
        "WITH x AS (SELECT id, city, name FROM customers WHERE vip) "
        "SELECT a.name FROM x a JOIN x b ON a.city = b.city WHERE b.id > 3",
    )
    scans = [n for n in nodes_of(found.root) if isinstance(n, Scan)]
    names = [[f.name for f in s.fields] for s in scans]
    assert names == [["name", "city", "vip"], ["id", "city", "vip"]]
    assert not shared_nodes(found.root)


def test_equal_parts_become_one_node(shop: Database) -> None:
    found = plan(
        shop,
        "SELECT count(*) AS n FROM (SELECT DISTINCT city FROM customers) a, "
        "(SELECT DISTINCT city FROM customers) b",
    )
    assert _count(found.root, Distinct) == 2
    assert _count(with_equal_parts_shared(found.root), Distinct) == 1
    assert sum("aggregate" in n.name for n in lower(found.root)) == 2


def test_hashes_and_keys_of_a_deep_plan(shop: Database) -> None:
    first, second = (plan(shop, _chain(LINKS["join"], 15)).root for _ in range(2))
    assert first is not second and hash(first) == hash(second) and first == second
    assert keys_of(first) == keys_of(second)


def _count(root: Plan, kind: type) -> int:
    return sum(isinstance(node, kind) for node in nodes_of(root))
