"""Oracle: PostgreSQL's constraints; a key is claimed only where no two rows can agree on it."""

from __future__ import annotations

import pytest

from dataflow.plan.explain import explain_tree
from dataflow.plan.properties.view_key import reason_without_key
from tests.harness.postgres import Database
from tests.sql.planning import plan

KEYS = [
    ("SELECT id, name FROM customers", ["id"]),
    ("SELECT name FROM customers", []),
    ("SELECT id AS a, id AS b FROM customers WHERE vip", ["a"]),
    ("SELECT id + 1 AS x FROM customers", []),
    ("SELECT o.id, c.name FROM orders o JOIN customers c ON c.id = o.customer", ["id"]),
    ("SELECT o.id, c.name FROM orders o LEFT JOIN customers c ON c.id = o.customer", ["id"]),
    ("SELECT o.id, c.name FROM customers c RIGHT JOIN orders o ON c.id = o.customer", ["id"]),
    ("SELECT o.id, c.id AS c FROM orders o FULL JOIN customers c ON c.id = o.customer", []),
    ("SELECT o.id, c.id AS c FROM orders o, customers c", ["id", "c"]),
    ("SELECT c.id, o.total FROM customers c JOIN orders o ON o.customer = c.id", []),
    ("SELECT c.id, o.id AS o FROM customers c LEFT JOIN orders o ON o.customer = c.id", []),
    (
        "SELECT l.order_id, l.line, o.placed FROM lines l JOIN orders o ON o.id = l.order_id",
        ["order_id", "line"],
    ),
    ("SELECT o.id, l.line FROM lines l JOIN orders o ON o.id = l.order_id", ["id", "line"]),
    ("SELECT city, count(*) AS n FROM customers GROUP BY city", []),
    ("SELECT vip, count(*) AS n FROM customers GROUP BY vip", ["vip"]),
    ("SELECT coalesce(city, '') AS city, count(*) AS n FROM customers GROUP BY 1", ["city"]),
    ("SELECT count(*) AS n FROM customers GROUP BY vip", []),
    ("SELECT id, name, count(*) AS n FROM customers GROUP BY id", ["id"]),
    (
        "SELECT c.id, c.name, count(*) AS n FROM customers c JOIN orders o ON o.customer = c.id "
        "GROUP BY c.id",
        ["id"],
    ),
    ("SELECT count(*) AS n FROM customers", []),
    ("SELECT DISTINCT vip, name FROM customers", ["vip", "name"]),
    ("SELECT DISTINCT id, name FROM customers", ["id"]),
    ("SELECT id FROM customers UNION SELECT product FROM lines", ["id"]),
    ("SELECT id FROM customers UNION ALL SELECT product FROM lines", []),
    (
        "SELECT id FROM customers c WHERE EXISTS (SELECT FROM orders o WHERE o.customer = c.id)",
        ["id"],
    ),
    ("SELECT id, (SELECT max(total) FROM orders) AS m FROM customers", ["id"]),
    ("SELECT id, id IN (SELECT product FROM lines) AS sold FROM customers", ["id"]),
    ("SELECT a, b FROM whole", []),
    ("SELECT a, b FROM renamed_key", ["a"]),
    ("SELECT id, name FROM vips", ["id"]),
    ("WITH x AS (SELECT id, vip FROM customers) SELECT x.id FROM x JOIN x y USING (id)", ["id"]),
    ("VALUES (1)", []),
    (
        "SELECT o.id, c.name, sum(l.price) AS s FROM lines l, orders o, customers c "
        "WHERE l.order_id = o.id AND o.customer = c.id GROUP BY o.id, c.name, o.placed",
        ["id"],
    ),
    (
        "SELECT c.name, o.customer, count(*) AS n FROM orders o LEFT JOIN customers c "
        "ON o.customer = c.id GROUP BY c.id, c.name, o.customer",
        [],
    ),
    (
        "SELECT c.name, c.id, count(*) AS n FROM orders o JOIN customers c "
        "ON o.customer = c.id GROUP BY c.name, c.id",
        ["id"],
    ),
    # A filter or a join that leaves no NULL.
    ("SELECT city, count(*) AS n FROM customers WHERE city IS NOT NULL GROUP BY city", ["city"]),
    ("SELECT city, count(*) AS n FROM customers WHERE city > 'B' GROUP BY city", ["city"]),
    ("SELECT city, count(*) AS n FROM customers WHERE city > 'B' OR vip GROUP BY city", []),
    (
        "SELECT city, count(*) AS n FROM customers WHERE length(city) > 2 OR city LIKE 'a%' "
        "GROUP BY city",
        ["city"],
    ),
    ("SELECT city, count(*) AS n FROM customers WHERE NOT city = 'B' GROUP BY city", ["city"]),
    ("SELECT city, count(*) AS n FROM customers WHERE (city = 'B') IS NOT TRUE GROUP BY 1", []),
    ("SELECT city, count(*) AS n FROM customers WHERE city IN ('a', 'b') GROUP BY city", ["city"]),
    (
        "SELECT c.city, count(*) AS n FROM customers c JOIN whole w ON w.b = c.city "
        "GROUP BY c.city",
        ["city"],
    ),
    (
        "SELECT c.city, count(*) AS n FROM customers c LEFT JOIN whole w ON w.b = c.city "
        "GROUP BY c.city",
        [],
    ),
    (
        "SELECT c.city, count(*) AS n FROM customers c WHERE city IN (SELECT b FROM whole) "
        "GROUP BY c.city",
        ["city"],
    ),
    ("SELECT DISTINCT b FROM whole WHERE b IS NOT NULL", ["b"]),
    (
        "SELECT o.id, c.id AS c FROM orders o LEFT JOIN customers c ON c.id = o.customer "
        "WHERE c.vip",
        ["id"],
    ),
    # Constants and equalities of a filter.
    ("SELECT line FROM lines WHERE order_id = 5", ["line"]),
    ("SELECT order_id, line FROM lines WHERE order_id = 5", ["line"]),
    ("SELECT name FROM customers WHERE id = 5", ["name"]),
    ("SELECT id, name FROM customers WHERE id = 5", ["id"]),
    ("SELECT l.line FROM lines l JOIN orders o ON o.id = l.order_id WHERE o.id = 5", ["line"]),
    ("SELECT line, order_id FROM lines WHERE order_id = line", ["line", "order_id"]),
    ("SELECT line, product FROM lines WHERE line = product AND order_id = 5", ["line"]),
    (
        "SELECT a.line FROM lines a JOIN lines b USING (order_id, line) WHERE a.order_id = 1",
        ["line"],
    ),
    ("SELECT vip, name FROM (SELECT DISTINCT vip, name FROM customers) x WHERE vip", ["name"]),
    # UNION ALL of inputs that a constant tells apart.
    (
        "SELECT 'c' AS kind, id FROM customers UNION ALL SELECT 'p', id FROM products",
        ["kind", "id"],
    ),
    (
        "SELECT 'c' AS kind, id FROM customers UNION ALL SELECT 'o', id FROM orders",
        ["kind", "id"],
    ),
    ("SELECT 'c' AS kind, id FROM customers UNION ALL SELECT 'c', id FROM products", []),
    ("SELECT NULL AS kind, id FROM customers UNION ALL SELECT 'p', id FROM products", []),
    (
        "SELECT vip, id FROM customers WHERE vip UNION ALL "
        "SELECT vip, id FROM customers WHERE NOT vip",
        ["vip", "id"],
    ),
    ("SELECT t.n FROM (VALUES (1), (2)) t (n)", ["n"]),
    ("SELECT t.n FROM (VALUES (1), (1)) t (n)", []),
    ("SELECT c.id, t.n FROM customers c, (VALUES (1, 'a'), (2, 'b')) t (n, l)", ["id", "n"]),
    # Set operations, windows, what a determined expression adds.
    ("SELECT id FROM customers INTERSECT SELECT product FROM lines", ["id"]),
    ("SELECT id FROM customers EXCEPT ALL SELECT product FROM lines", ["id"]),
    ("SELECT product FROM lines INTERSECT ALL SELECT id FROM customers", ["product"]),
    ("SELECT product FROM lines EXCEPT ALL SELECT id FROM customers", []),
    ("SELECT city FROM customers INTERSECT SELECT name FROM customers", ["city"]),
    ("SELECT city FROM customers EXCEPT SELECT name FROM customers", []),
    ("SELECT id, name FROM customers EXCEPT SELECT id, label FROM products", ["id"]),
    ("SELECT DISTINCT id, upper(name) AS name, id + 1 AS next FROM customers", ["id"]),
    (
        "SELECT customer, row_number() OVER (PARTITION BY customer ORDER BY id) AS n FROM orders",
        ["customer", "n"],
    ),
    ("SELECT id, sum(total) OVER (PARTITION BY customer) AS s FROM orders", ["id"]),
    (
        "SELECT DISTINCT ON (customer) customer, placed FROM orders ORDER BY customer, id",
        ["customer"],
    ),
    ("SELECT id, total FROM orders ORDER BY total LIMIT 3", ["id"]),
    (
        "SELECT p.id, t.o FROM products p, unnest(p.tags) WITH ORDINALITY AS t (tag, o)",
        ["id", "o"],
    ),
    ("SELECT p.id, t.tag FROM products p, unnest(p.tags) AS t (tag)", []),
    # Grouping sets: what a set lacks is NULL, also where the column is not.
    ("SELECT vip, count(*) AS n FROM customers GROUP BY ROLLUP (vip)", []),
    ("SELECT vip, count(*) AS n FROM customers GROUP BY GROUPING SETS ((vip))", ["vip"]),
    (
        "SELECT coalesce(vip::text, 'all') AS vip, GROUPING(vip) AS g, count(*) AS n "
        "FROM customers GROUP BY ROLLUP (vip)",
        [],
    ),
    # Two full joined rows of nothing in common are two rows.
    (
        "SELECT a.n, b.m FROM (SELECT count(*) AS n FROM orders) a "
        "FULL JOIN (SELECT count(*) AS m FROM customers) b ON a.n = b.m",
        [],
    ),
]


@pytest.mark.parametrize(("query", "key"), KEYS)
def test_key_of_a_view(shop: Database, query: str, key: list[str]) -> None:
    found = plan(shop, query)
    assert [found.root.fields[i].name for i in found.key] == key
    assert not any(found.root.fields[i].is_nullable for i in found.key)


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELECT id, name FROM customers", ""),
        ("SELECT name FROM customers", "no output columns"),
        ("SELECT city, count(*) AS n FROM customers GROUP BY city", '"city" may be NULL'),
        ("SELECT count(*) AS n FROM customers", "at most one row"),
    ],
)
def test_a_multiset_says_why(shop: Database, query: str, why: str) -> None:
    found = plan(shop, query)
    assert why in reason_without_key(found.root) and bool(reason_without_key(found.root)) == bool(
        why
    )
    tree = explain_tree(found)
    assert tree["why_no_key"] == tree["why_bag"] == reason_without_key(found.root)


@pytest.mark.parametrize(
    ("query", "nullable"),
    [
        ("SELECT id, name, city FROM customers", [False, False, True]),
        ("SELECT id + 1 AS a, name || city AS b FROM customers", [False, True]),
        ("SELECT c.id, o.id AS o FROM customers c LEFT JOIN orders o ON true", [False, True]),
        ("SELECT c.id, o.id AS o FROM customers c RIGHT JOIN orders o ON true", [True, False]),
        ("SELECT c.id, o.id AS o FROM customers c FULL JOIN orders o ON c.id = o.id", [True, True]),
        (
            "SELECT city IS NULL AS a, coalesce(city, name) AS b, NULL::text AS c FROM customers",
            [False, False, True],
        ),
        (
            "SELECT CASE WHEN vip THEN 1 ELSE 2 END AS a, CASE WHEN vip THEN 1 END AS b "
            "FROM customers",
            [False, True],
        ),
        ("SELECT count(city) AS n, max(id) AS m FROM customers", [False, True]),
        ("SELECT twice(id) AS t, (SELECT 1) AS s FROM customers", [True, False]),
        ("SELECT id FROM customers UNION ALL SELECT length(city) FROM customers", [True]),
        ("SELECT id FROM customers UNION ALL SELECT product FROM lines", [False]),
        ("SELECT city, name FROM customers WHERE city LIKE 'A%'", [False, False]),
        ("SELECT city || name AS x FROM customers WHERE upper(city) <> 'A'", [False]),
        (
            "SELECT c.city, w.b, w.a FROM customers c JOIN whole w ON c.city = w.b",
            [False] * 2 + [True],
        ),
    ],
)
def test_what_may_be_null(shop: Database, query: str, nullable: list[bool]) -> None:
    assert [f.is_nullable for f in plan(shop, query).root.fields] == nullable
