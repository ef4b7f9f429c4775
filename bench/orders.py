"""The W1 workload: customers, orders, and a stream of changes to the orders, from one seed.

Half of the changes are inserts, 35 % updates (an update counts once; 6 of 10 change the status,
3 the amount, 1 moves the customer), 15 % deletes. The same seed gives the same workload.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

REGIONS = ("north", "south", "east", "west", "emea", "apac", "latam", "anz")
SEGMENTS = ("consumer", "corporate", "smb", "public", "startup")
STATUSES = ("new", "paid", "shipped", "returned", "cancelled")
STATUS_WEIGHTS = (30, 30, 25, 5, 10)

TABLES = """
CREATE TABLE customers (
    customer_id bigint PRIMARY KEY, region text NOT NULL, segment text NOT NULL
);
CREATE TABLE orders (
    order_id bigint PRIMARY KEY, customer_id bigint NOT NULL, status text NOT NULL,
    amount bigint NOT NULL
);
"""
QUERY = """
SELECT c.region, c.segment, count(*) AS n, sum(o.amount) AS total
FROM orders o JOIN customers c USING (customer_id)
WHERE o.status <> 'cancelled'
GROUP BY c.region, c.segment
"""

Order = tuple[int, int, str, int]
# (op "c", "u" or "d"; the row before; the row after), rows as (order, customer, status, amount)
Change = tuple[str, Order | None, Order | None]


@dataclass(frozen=True)
class Sizes:
    """Rows of the workload."""

    customers: int = 200_000
    orders: int = 1_000_000
    changes: int = 500_000


@dataclass(frozen=True)
class Workload:
    """Rows to begin with, and the changes in order."""

    customers: list[tuple[int, str, str]]
    orders: list[Order]
    changes: list[Change]


def generate(sizes: Sizes, seed: int = 42) -> Workload:
    """The workload of a seed."""
    rng = random.Random(seed)
    customers = [
        (number, rng.choice(REGIONS), rng.choice(SEGMENTS)) for number in range(sizes.customers)
    ]
    orders = [_new(rng, number, sizes.customers) for number in range(sizes.orders)]
    return Workload(customers, orders, _changes(rng, orders, sizes))


def _changes(rng: random.Random, orders: list[Order], sizes: Sizes) -> list[Change]:
    live, changes = list(orders), []
    following = sizes.orders
    for _ in range(sizes.changes):
        draw = rng.random()
        at = rng.randrange(len(live))
        if draw < 0.5:
            live.append(_new(rng, following, sizes.customers))
            following += 1
            changes.append(("c", None, live[-1]))
        elif draw < 0.85:
            old = live[at]
            live[at] = _updated(rng, old, sizes.customers)
            changes.append(("u", old, live[at]))
        else:
            changes.append(("d", live[at], None))
            live[at] = live[-1]
            live.pop()
    return changes


def _new(rng: random.Random, number: int, customers: int) -> Order:
    status = rng.choices(STATUSES, STATUS_WEIGHTS)[0]
    return (number, rng.randrange(customers), status, rng.randrange(100, 100_000))


def _updated(rng: random.Random, old: Order, customers: int) -> Order:
    order, customer, status, amount = old
    draw = rng.random()
    if draw < 0.6:
        return (order, customer, rng.choice(STATUSES), amount)
    if draw < 0.9:
        return (order, customer, status, rng.randrange(100, 100_000))
    return (order, rng.randrange(customers), status, amount)
