"""The workloads: tables, queries, sizes, and the check of an answer.

Uses the standard library only: runs in a peer's own environment import this too, so that all runs
measure the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

REGIONS = ("north", "south", "east", "west", "emea", "apac", "latam", "anz")
SEGMENTS = ("consumer", "corporate", "smb", "public", "startup")
STATUSES = ("new", "paid", "shipped", "returned", "cancelled")
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
EPOCH = 10_000
# Relative: what two ways of adding the same floats may differ by.
TOLERANCE = 1e-9

Answer = dict[tuple[Any, ...], tuple[Any, ...]]


@dataclass(frozen=True)
class Table:
    """columns: (name, kind), with kind "i" for an int64 or "s" for a text. key: how many of them,
    from the first, are the key.
    """

    name: str
    columns: tuple[tuple[str, str], ...]
    key: int = 1

    @property
    def names(self) -> list[str]:
        """Return the names of its columns."""
        return [name for name, _ in self.columns]


CUSTOMERS = Table("customers", (("customer_id", "i"), ("region", "s"), ("segment", "s")))
ORDERS = Table(
    "orders", (("order_id", "i"), ("customer_id", "i"), ("status", "s"), ("amount", "i"))
)
PERSON = Table("person", (("id", "i"), ("name", "s"), ("city", "s"), ("state", "s")))
AUCTION = Table(
    "auction", (("id", "i"), ("seller", "i"), ("category", "i"), ("ts", "i"), ("expires", "i"))
)
BID = Table(
    "bid", (("bid_id", "i"), ("auction", "i"), ("bidder", "i"), ("price", "i"), ("ts", "i"))
)


@dataclass(frozen=True)
class Workload:
    """A query over tables that change.

    rows: the name of the generated rows; several workloads may read the same. stream: the tables
    whose changes are sent and counted; the other tables, and the initial rows of these, are loaded.
    keys: how many columns of the answer are its key. An answer without a key is identified by its
    count and the sums of the columns `summed`. has_small_epochs: it is measured in those too.
    """

    name: str
    title: str
    rows: str
    tables: tuple[Table, ...]
    stream: tuple[Table, ...]
    query: str
    keys: int = 0
    summed: tuple[int, ...] = ()
    has_old_rows: bool = False
    has_small_epochs: bool = False


_ABOUT_MAX = "max bid of each auction, then the average of each category"
_MAX_OF_AUCTION = """
SELECT category, avg(final) AS average
FROM (
    SELECT a.id, a.category, max(b.price) AS final
    FROM auction a JOIN bid b ON a.id = b.auction
    WHERE b.ts BETWEEN a.ts AND a.expires
    GROUP BY a.id, a.category
) AS won
GROUP BY category
"""
WORKLOADS = {
    w.name: w
    for w in (
        Workload(
            "w1",
            "orders join customers, count and sum of 40 groups; "
            "50 % inserts, 35 % updates, 15 % deletes",
            "orders",
            (CUSTOMERS, ORDERS),
            (ORDERS,),
            """
SELECT c.region, c.segment, count(*) AS n, sum(o.amount) AS total
FROM orders o JOIN customers c ON o.customer_id = c.customer_id
WHERE o.status <> 'cancelled'
GROUP BY c.region, c.segment
""",
            keys=2,
            has_old_rows=True,
            has_small_epochs=True,
        ),
        Workload(
            "w2",
            f"Nexmark q4: {_ABOUT_MAX}; append-only",
            "bids",
            (AUCTION, BID),
            (AUCTION, BID),
            _MAX_OF_AUCTION,
            keys=1,
        ),
        Workload(
            "w2r",
            f"{_ABOUT_MAX}; 10 % of the bids retracted",
            "retracted",
            (AUCTION, BID),
            (AUCTION, BID),
            _MAX_OF_AUCTION,
            keys=1,
            has_old_rows=True,
            has_small_epochs=True,
        ),
        Workload(
            "q1",
            "Nexmark q1: a projection of each bid",
            "bids",
            (BID,),
            (BID,),
            "SELECT auction, bidder, CAST(price AS double precision) * 0.908e0 AS price, ts "
            "FROM bid",
            summed=(0, 1, 2, 3),
        ),
        Workload(
            "q2",
            "Nexmark q2: the bids of few auctions",
            "bids",
            (BID,),
            (BID,),
            "SELECT auction, price FROM bid WHERE mod(auction, 123) = 0",
            summed=(0, 1),
        ),
        Workload(
            "q3",
            "Nexmark q3: auctions of a category join sellers of three states",
            "people",
            (PERSON, AUCTION),
            (PERSON, AUCTION),
            """
SELECT p.name, p.city, p.state, a.id
FROM auction a JOIN person p ON a.seller = p.id
WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
""",
            summed=(3,),
        ),
    )
}


@dataclass(frozen=True)
class Sizes:
    """Numbers of rows: W1's customers, orders and changes; the bids of W2; persons and auctions of
    q3.
    """

    customers: int = 200_000
    orders: int = 1_000_000
    changes: int = 500_000
    bids: int = 1_000_000
    people: int = 1_000_000

    @property
    def label(self) -> str:
        """Return a folder name."""
        return f"{self.customers}-{self.orders}-{self.changes}-{self.bids}-{self.people}"


FULL = Sizes()
# A smoke test, and what every run is warmed up and checked with.
QUICK = Sizes(500, 2_000, 30_000, 20_000, 20_000)


def fold(workload: Workload, rows: Iterable[tuple[Sequence[Any], int]]) -> Answer:
    """Return the answer that (row, weight) pairs add up to, including rows with a wrong weight."""
    if not workload.keys:
        count, sums = 0, [0] * len(workload.summed)
        for row, weight in rows:
            count += weight
            for at, column in enumerate(workload.summed):
                sums[at] += weight * row[column]
        return {(): (count, *sums)}
    counts: dict[tuple[Any, ...], int] = {}
    for row, weight in rows:
        counts[tuple(row)] = counts.get(tuple(row), 0) + weight
    answer: Answer = {}
    for row, count in counts.items():
        if count:
            key = row[: workload.keys]
            value = row[workload.keys :]
            answer[key] = value if count == 1 and key not in answer else ("not once", count)
    return answer


def difference(expected: Answer, found: Answer) -> str | None:
    """Return in a line how an answer is wrong; None if it is right."""
    for key, values in expected.items():
        if key not in found:
            return f"{_title(key)} is missing"
        if not _is_same(values, found[key]):
            return f"{_title(key)} is {_title(found[key])}, not {_title(values)}"
    for key in found:
        if key not in expected:
            return f"{_title(key)} should not be there"
    return None


def _is_same(expected: tuple[Any, ...], found: tuple[Any, ...]) -> bool:
    if len(expected) != len(found):
        return False
    for one, other in zip(expected, found, strict=True):
        if isinstance(other, str):
            return False
        if isinstance(one, int):
            if one != other:
                return False
        elif abs(float(one) - float(other)) > TOLERANCE * max(1.0, abs(float(one))):
            return False
    return True


def _title(values: tuple[Any, ...]) -> str:
    return "(" + ", ".join(map(str, values)) + ")"
