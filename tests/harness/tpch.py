"""TPC-H rows at a very small scale, from a seed: our own generator of the published schema.

Invariant: the same seed gives the same rows. Domains are narrower than the specification's, so
that at a few hundred rows every query still has an answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from random import Random

from tests.harness.draw import WORDS, quote

FIRST_DAY = date(1993, 1, 1)
DAYS = 1200
NATIONS = (
    ("FRANCE", 3), ("GERMANY", 3), ("RUSSIA", 3), ("CHINA", 2), ("INDIA", 2), ("JAPAN", 2),
    ("BRAZIL", 1), ("CANADA", 1), ("KENYA", 0), ("IRAN", 4),
)  # fmt: skip
REGIONS = ("AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST")
SEGMENTS = ("BUILDING", "AUTOMOBILE", "MACHINERY")
PRIORITIES = ("1-URGENT", "2-HIGH", "3-MEDIUM", "5-LOW")
MODES = ("AIR", "AIR REG", "MAIL", "SHIP", "TRUCK")
INSTRUCTIONS = ("DELIVER IN PERSON", "COLLECT COD", "NONE")
BRANDS = ("Brand#12", "Brand#23", "Brand#34", "Brand#45")
KINDS = ("PROMO BRUSHED TIN", "MEDIUM POLISHED BRASS", "STANDARD PLATED STEEL")
CONTAINERS = ("SM CASE", "SM BOX", "MED BAG", "MED PKG", "LG CASE", "LG BOX")
ORDERS = 160


@dataclass
class Tpch:
    """Rows of the eight tables, as SQL tuples, and of single orders with their lines."""

    seed: int
    suppliers: int = 8
    customers: int = 24
    parts: int = 30

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)

    def fixed_rows(self) -> dict[str, list[str]]:
        """Return the rows of all tables but orders and lineitem."""
        rng = self.rng
        return {
            "region": [f"({k}, {quote(name)}, 'c')" for k, name in enumerate(REGIONS)],
            "nation": [f"({k}, {quote(n)}, {r}, 'c')" for k, (n, r) in enumerate(NATIONS)],
            "supplier": [
                f"({k}, 'Supplier#{k}', 'a', {rng.randrange(len(NATIONS))}, '1-{k}', "
                f"{rng.uniform(-900, 9000):.2f}, {quote(_comment(rng))})"
                for k in range(self.suppliers)
            ],
            "customer": [
                f"({k}, 'Customer#{k:09}', 'a{k}', {rng.randrange(len(NATIONS))}, "
                f"'{10 + k % 9}-{k:03}', {rng.uniform(-900, 9000):.2f}, "
                f"{quote(rng.choice(SEGMENTS))}, {quote(_comment(rng))})"
                for k in range(self.customers)
            ],
            "part": [
                f"({k}, {quote(' '.join(rng.sample(WORDS, 3)))}, 'Manufacturer#{k % 3}', "
                f"{quote(rng.choice(BRANDS))}, {quote(rng.choice(KINDS))}, {rng.randint(1, 15)}, "
                f"{quote(rng.choice(CONTAINERS))}, {900 + k}.{k % 100:02}, 'c')"
                for k in range(self.parts)
            ],
            "partsupp": [
                f"({part}, {supplier}, {rng.randint(1, 999)}, {rng.uniform(1, 999):.2f}, 'c')"
                for part in range(self.parts)
                for supplier in rng.sample(range(self.suppliers), 2)
            ],
        }

    def order(self, rng: Random, key: int) -> tuple[str, list[str]]:
        """Return the row of one order, and the rows of its lines."""
        day = FIRST_DAY + timedelta(rng.randrange(DAYS))
        lines = [self._line(rng, key, number, day) for number in range(1, rng.randint(2, 6))]
        row = (
            f"({key}, {rng.randrange(self.customers)}, '{rng.choice('FOP')}', "
            f"{rng.uniform(900, 90000):.2f}, '{day}', {quote(rng.choice(PRIORITIES))}, "
            f"'Clerk#{rng.randint(1, 9)}', 0, {quote(_comment(rng))})"
        )
        return row, lines

    def _line(self, rng: Random, key: int, number: int, day: date) -> str:
        shipped = day + timedelta(rng.randint(1, 90))
        committed = day + timedelta(rng.randint(20, 80))
        received = shipped + timedelta(rng.randint(1, 30))
        quantity = rng.randint(1, 50)
        return (
            f"({key}, {rng.randrange(self.parts)}, {rng.randrange(self.suppliers)}, {number}, "
            f"{quantity}, {quantity * rng.uniform(900, 1000):.2f}, 0.{rng.randint(0, 10):02}, "
            f"0.0{rng.randint(0, 8)}, '{rng.choice('NRA')}', '{rng.choice('OF')}', '{shipped}', "
            f"'{committed}', '{received}', {quote(rng.choice(INSTRUCTIONS))}, "
            f"{quote(rng.choice(MODES))}, {quote(_comment(rng))})"
        )

    def rows(self) -> dict[str, list[str]]:
        """Return all rows to begin with."""
        rows = self.fixed_rows()
        rows["orders"], rows["lineitem"] = [], []
        for key in range(ORDERS):
            order, lines = self.order(self.rng, key)
            rows["orders"].append(order)
            rows["lineitem"].extend(lines)
        return rows


def _comment(rng: Random) -> str:
    filler = rng.choice(["", " special ", " Customer ", " requests ", " Complaints "])
    return rng.choice(WORDS) + filler + rng.choice(["requests", "Complaints", "deposits"])
