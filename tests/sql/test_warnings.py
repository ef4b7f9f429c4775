"""Oracle: what a user wrote; a warning names that, and comes once, where something is open."""

from __future__ import annotations

import pytest

from tests.harness.postgres import Database
from tests.sql.planning import plan

SETTINGS = "computed with TimeZone UTC"
TIES, ORDER, JOINED = "leaves open", "the order inside", "a subquery that is joined"
SORTED_SUBQUERY = "which PostgreSQL need not preserve"
PARTITION = "which PostgreSQL leaves open: write ORDER BY inside OVER"
DROPPED = "ORDER BY is dropped"
OF_ORDERS = "SELECT o.id, c.name FROM orders o"
LATEST = "(SELECT l.product FROM lines l WHERE l.order_id = o.id ORDER BY l.line DESC LIMIT 1)"


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("at - interval '1 day' AS a, at + interval '1 h' AS b", ("operator +", "operator -")),
        ("at::date AS a, placed::timestamptz AS b", ("cast to date", "cast to timestamp with")),
        ("note || id AS a, at < placed AS b", ("operator ||", "operator <")),
        ("at AT TIME ZONE 'UTC' AS a, to_char(at, 'YYYY') AS b", ('"to_char"',)),
        ("(at, at - at) OVERLAPS (at, at) AS a", ("OVERLAPS",)),
        ("extract(hour FROM at) AS a, date(at) AS b", ('"extract"', '"date"')),
    ],
)
def test_settings_are_reported_once_with_what_was_written(
    shop: Database, columns: str, words: tuple[str, ...]
) -> None:
    warnings = plan(shop, f"SELECT id, {columns} FROM orders").warnings
    (told,) = [w for w in warnings if SETTINGS in w]
    assert all(word in told for word in words), told
    assert "timestamptz_" not in told and "textany" not in told


def test_each_kind_of_stable_call_is_reported_once(shop: Database) -> None:
    query = "SELECT id, now() AS a, CURRENT_DATE AS b, settled(customer) AS c FROM orders"
    once, kept = plan(shop, f"{query} WHERE note @@ 'x'").warnings
    assert '"now"' in once and "CURRENT_DATE" in once and once.endswith("when the view is created")
    assert '"public.settled"' in kept and "operator @@" in kept and "when it arrives" in kept


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("SELECT product FROM lines WHERE order_id = 1 ORDER BY line LIMIT 1", ()),
        (
            "SELECT product FROM lines WHERE order_id IS NOT DISTINCT FROM 1 ORDER BY line LIMIT 1",
            (),
        ),
        ("SELECT product FROM lines WHERE order_id = 1 AND line = 2 LIMIT 1", ()),
        ("SELECT product FROM lines WHERE order_id > 1 ORDER BY line LIMIT 1", (TIES,)),
        (f"SELECT o.id, {LATEST} AS p FROM orders o", ()),
        (f"SELECT o.id, {LATEST.replace('l.line DESC', 'l.price')} AS p FROM orders o", (TIES,)),
        (f"SELECT o.id, {LATEST.replace(' = ', ' > ')} AS p FROM orders o", (TIES,)),
        (
            "SELECT o.id, x.n FROM orders o, LATERAL (SELECT row_number() OVER (ORDER BY l.line)"
            " AS n FROM lines l WHERE l.order_id = o.id) x",
            (),
        ),
        ("SELECT json_agg(s) FROM (SELECT id FROM customers ORDER BY name) s", ()),
        ("SELECT json_agg(s) FROM (SELECT id FROM customers) s", (ORDER,)),
        ("SELECT id FROM (SELECT id FROM customers ORDER BY name) s", (DROPPED,)),
        ("SELECT count(*) FROM (SELECT id FROM customers ORDER BY name) s", (DROPPED,)),
        ("WITH s AS (SELECT id FROM customers ORDER BY name) SELECT json_agg(s) FROM s", ()),
        ("WITH s AS (SELECT id FROM customers ORDER BY name) SELECT id FROM s", (DROPPED,)),
        (
            "SELECT json_agg(s) FROM (SELECT id FROM customers ORDER BY name) s"
            " JOIN orders o ON o.customer = s.id",
            (JOINED, ORDER),
        ),
        (
            "SELECT json_agg(s) FROM orders o JOIN (SELECT id FROM customers ORDER BY name) s"
            " ON o.customer = s.id",
            (JOINED, ORDER),
        ),
        (
            "SELECT vip, json_agg(id) FROM (SELECT * FROM customers ORDER BY name) s GROUP BY vip",
            (ORDER, SORTED_SUBQUERY),
        ),
        (
            "SELECT array_agg(id) OVER (PARTITION BY vip) FROM"
            " (SELECT * FROM customers ORDER BY name, id) s",
            (PARTITION, TIES),
        ),
        ("SELECT array_agg(id) OVER () FROM (SELECT * FROM customers ORDER BY name, id) s", ()),
        ("SELECT id FROM (SELECT id FROM customers ORDER BY name, id) s LIMIT 2", ()),
        ("SELECT id FROM (SELECT id FROM customers ORDER BY name) s LIMIT 2", (TIES,)),
        ("SELECT json_agg(id ORDER BY id) FROM customers", ()),
        (f"{OF_ORDERS} LEFT JOIN customers c ON c.id = o.customer ORDER BY o.id LIMIT 4", ()),
        (
            "SELECT o.id, c.name FROM customers c RIGHT JOIN orders o ON o.customer = c.id"
            " AND c.vip ORDER BY o.id LIMIT 4",
            (),
        ),
        (f"{OF_ORDERS} LEFT JOIN customers c ON c.id = 7 ORDER BY o.id LIMIT 4", ()),
        (f"{OF_ORDERS} LEFT JOIN customers c ON c.id >= o.customer ORDER BY o.id LIMIT 4", (TIES,)),
        (f"{OF_ORDERS} LEFT JOIN customers c ON c.vip ORDER BY o.id LIMIT 4", (TIES,)),
        (
            f"{OF_ORDERS} LEFT JOIN customers c ON c.vip OR c.id = o.customer ORDER BY 1 LIMIT 4",
            (TIES,),
        ),
        (f"{OF_ORDERS} LEFT JOIN customers c ON c.id = c.id % 5 ORDER BY o.id LIMIT 4", (TIES,)),
        (f"{OF_ORDERS} FULL JOIN customers c ON c.id = o.customer ORDER BY o.id LIMIT 4", (TIES,)),
    ],
)
def test_an_open_order_is_reported_and_no_other(
    shop: Database, query: str, told: tuple[str, ...]
) -> None:
    warnings = plan(shop, query).warnings
    known = (TIES, ORDER, JOINED, SORTED_SUBQUERY, PARTITION, DROPPED)
    assert {k for k in known if any(k in w for w in warnings)} == set(told), warnings


@pytest.mark.parametrize(
    ("clauses", "word"),
    [
        ("FOR UPDATE", "UPDATE"),
        ("FOR NO KEY UPDATE OF customers SKIP LOCKED", "UPDATE"),
        ("FOR KEY SHARE NOWAIT", "SHARE"),
    ],
)
def test_locks_are_dropped(shop: Database, clauses: str, word: str) -> None:
    found = plan(shop, f"SELECT id FROM customers {clauses}")
    assert [w.split(" is dropped")[0] for w in found.warnings] == [f"FOR {word}"]
