"""Prices that a function gives, an order book in PostgreSQL, and a view over both, in one script.

Run it: python examples/engine.py
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import tidemark


def main() -> None:
    """Start an engine, change what is below a view, and print each epoch of it."""
    prices = {"apple": 3.0, "pear": 4.0, "plum": 1.5}

    with tidemark.Engine() as engine:

        @engine.register("prices", key="fruit", refresh_every_s=0.5)
        def read_prices() -> Iterator[dict[str, object]]:
            for fruit, price in prices.items():
                yield {"fruit": fruit, "price": price}

        engine.execute("CREATE TABLE orders (id int PRIMARY KEY, fruit text, kilos int)")
        engine.execute("INSERT INTO orders VALUES (1, 'apple', 10), (2, 'plum', 5)")
        worth = engine.view(
            "SELECT fruit, sum(kilos * price) AS worth "
            "FROM orders JOIN prices USING (fruit) GROUP BY fruit",
            name="worth",
        )
        with worth.changes(timeout_ms=5_000) as changes:
            print("at first:", sorted((row.fruit, row.worth) for row, _ in next(changes)))
            prices["apple"] = round(random.uniform(3.5, 5), 2)
            for epoch in changes:
                for row, weight in epoch:
                    print("+" if weight > 0 else "-", row.fruit, row.worth)
                break
        engine.execute("DELETE FROM orders WHERE fruit = 'plum'")
        engine.wait()
        print("at last:", worth.rows().to_list())


if __name__ == "__main__":
    main()
