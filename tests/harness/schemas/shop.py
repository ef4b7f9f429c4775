"""A shop: foreign keys that cascade, an enum, arrays, long notes, views on views, a function."""

from __future__ import annotations

from random import Random

from tests.harness import draw
from tests.harness.schemas.base import TableSpec, TestSchema

DDL = """
CREATE TYPE channel AS ENUM ('web', 'store', 'phone');

CREATE TABLE customers (
    customer_id integer PRIMARY KEY,
    name text NOT NULL,
    email varchar(40),
    region text,
    segment char(8) NOT NULL,
    credit numeric(12,2),
    vip boolean,
    joined date NOT NULL,
    referrer integer
);
CREATE TABLE products (
    product_id bigint PRIMARY KEY,
    title text NOT NULL,
    category text,
    price numeric(10,2) NOT NULL,
    weight_kg real,
    discontinued timestamptz,
    tags text[] NOT NULL DEFAULT '{}'
);
CREATE TABLE orders (
    order_id bigint PRIMARY KEY,
    customer_id integer REFERENCES customers ON DELETE SET NULL ON UPDATE CASCADE,
    status text NOT NULL,
    placed timestamptz NOT NULL,
    total numeric,
    sold channel,
    note text
);
CREATE TABLE order_lines (
    order_id bigint REFERENCES orders ON DELETE CASCADE ON UPDATE CASCADE,
    line_no smallint,
    product_id bigint NOT NULL,
    quantity integer NOT NULL,
    price numeric(10,2),
    discount numeric(3,2) NOT NULL DEFAULT 0,
    PRIMARY KEY (order_id, line_no)
);
ALTER TABLE orders ALTER COLUMN note SET STORAGE EXTERNAL;

CREATE VIEW paid_orders AS
    SELECT o.order_id, o.customer_id, o.placed, o.total, c.region, c.segment
    FROM orders o LEFT JOIN customers c USING (customer_id)
    WHERE o.status IN ('paid', 'shipped');
CREATE VIEW paid_by_region AS
    SELECT region, count(*) AS n, sum(total) AS total FROM paid_orders GROUP BY region;

CREATE FUNCTION rebate(amount numeric, vip boolean) RETURNS numeric
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF vip THEN
        RETURN round(amount * 0.15, 2);
    END IF;
    RETURN CASE WHEN amount > 100 THEN round(amount * 0.05, 3) ELSE 0 END;
END
$$;
CREATE FUNCTION sounds_like(one text, other text) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$ SELECT substr(md5(one), 1, 1) = substr(md5(other), 1, 1) $$;
"""

_STATUSES = draw.choice("new", "paid", "shipped", "returned", "cancelled")
_CATEGORIES = draw.choice("toys", "books", "garden", "music")


def new_order(rng: Random) -> list[str]:
    """Return an order with its lines, in one transaction."""
    order = rng.randint(1, 90)
    customer = rng.randint(1, 25)
    status, placed = _STATUSES(rng), draw.instants()(rng)
    lines = ", ".join(
        f"({order}, {line}, {rng.randint(1, 20)}, {rng.randint(1, 9)}, "
        f"{draw.nullable(draw.decimals(1, 90, 2), 0.1)(rng)}::numeric, 0.{rng.randint(0, 9)}0)"
        for line in range(1, rng.randint(2, 5))
    )
    return [
        f"INSERT INTO orders (order_id, customer_id, status, placed, total) "
        f"SELECT {order}, customer_id, {status}, {placed}, 0 FROM customers "
        f"WHERE customer_id <= {customer} ORDER BY customer_id DESC LIMIT 1 "
        f"ON CONFLICT (order_id) DO UPDATE SET status = excluded.status",
        f"INSERT INTO order_lines SELECT v.* FROM (VALUES {lines}) AS v "
        f"WHERE EXISTS (SELECT FROM orders WHERE order_id = {order}) "
        f"ON CONFLICT (order_id, line_no) DO UPDATE SET quantity = order_lines.quantity + 1",
        f"UPDATE orders SET total = (SELECT sum(quantity * price * (1 - discount)) "
        f"FROM order_lines l WHERE l.order_id = {order}) WHERE order_id = {order}",
    ]


def touch_status(rng: Random) -> list[str]:
    """Return an update that leaves the long note where it is, so that it is not sent."""
    return [f"UPDATE orders SET status = {_STATUSES(rng)} WHERE order_id % 7 = {rng.randrange(7)}"]


SHOP = TestSchema(
    name="shop",
    ddl=DDL,
    tables=(
        TableSpec(
            "customers",
            {
                "customer_id": draw.integers(1, 30),
                "name": draw.words(2),
                "email": draw.nullable(draw.choice("a@x.org", "b@x.org", "C@Y.net", "")),
                "region": draw.nullable(draw.choice("north", "south", "east", "west")),
                "segment": draw.choice("smb", "public", "consumer"),
                "credit": draw.nullable(draw.decimals(-50, 900, 2)),
                "vip": draw.nullable(draw.booleans()),
                "joined": draw.dates(),
                "referrer": draw.nullable(draw.integers(1, 30), 0.4),
            },
            key=("customer_id",),
            rows=25,
        ),
        TableSpec(
            "products",
            {
                "product_id": draw.integers(1, 24),
                "title": draw.words(2),
                "category": draw.nullable(_CATEGORIES, 0.1),
                "price": draw.decimals(1, 120, 2),
                "weight_kg": draw.nullable(draw.floats(0, 20)),
                "discontinued": draw.nullable(draw.instants(), 0.7),
                "tags": draw.arrays(draw.words(), "text"),
            },
            key=("product_id",),
            rows=18,
            weight=0.7,
        ),
        TableSpec(
            "orders",
            {
                "order_id": draw.integers(1, 90),
                "customer_id": draw.nullable(draw.integers(1, 30), 0.1),
                "status": _STATUSES,
                "placed": draw.instants(),
                "total": draw.nullable(
                    draw.mixed(draw.decimals(0, 500, 2), draw.decimals(0, 9, 4))
                ),
                "sold": draw.nullable(draw.choice("web", "store", "phone")),
                "note": draw.weighted(
                    [(6, draw.words(3)), (2, draw.raw("NULL")), (1, draw.long_texts(3000))]
                ),
            },
            key=("order_id",),
            rows=60,
            weight=2,
        ),
        TableSpec(
            "order_lines",
            {
                "order_id": draw.integers(1, 90),
                "line_no": draw.integers(1, 4),
                "product_id": draw.integers(1, 24),
                "quantity": draw.integers(1, 9),
                "price": draw.nullable(draw.decimals(1, 120, 2), 0.1),
                "discount": draw.decimals(0, 0.5, 2),
            },
            key=("order_id", "line_no"),
            rows=110,
            weight=2,
        ),
    ),
    templates=(new_order, touch_status),
    truncates=("orders, order_lines", "products"),
)
