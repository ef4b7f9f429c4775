"""Oracle: PostgreSQL's constraints; a key is claimed only where no two rows can agree on it."""

from __future__ import annotations

import pytest

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
]


@pytest.mark.parametrize(("query", "key"), KEYS)
def test_key_of_a_view(shop: Database, query: str, key: list[str]) -> None:
    found = plan(shop, query)
    assert [found.root.fields[i].name for i in found.key] == key
    assert not any(found.root.fields[i].is_nullable for i in found.key)


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
    ],
)
def test_what_may_be_null(shop: Database, query: str, nullable: list[bool]) -> None:
    assert [f.is_nullable for f in plan(shop, query).root.fields] == nullable
