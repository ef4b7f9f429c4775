"""The demo's clicks: a Kafka topic, a Parquet file of products, and a tally of the records.

The view over them is also written to a topic of deltas, which a separate reader sums up.

One thread produces records and counts them; the view over topic, file and table is compared with
that tally. `hold` stops the thread between batches, so that all records are delivered.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from connectors.kafka.client import Client
from connectors.kafka.connection import Connection
from connectors.kafka.deltas import DeltaReader
from connectors.kafka.embedded import EmbeddedKafka
from connectors.option_reader import OptionReader

TOPIC = "clicks"
PARTITIONS = 3
PRODUCTS = 500
CATEGORIES = ("books", "music", "garden", "kitchen", "games")
BATCH = 20
FLUSH_S = 30.0

VIEW = "clicks_by_category"
QUERY = """
SELECT p.category, c.region, count(*) AS clicks, sum(p.price) AS value
FROM web.clicks AS k JOIN customers AS c ON c.id = k.customer_id
JOIN catalogue.products AS p ON p.id = k.product_id
GROUP BY p.category, c.region"""

# The same query over the demo's own tally.
TALLY = """
CREATE TEMP TABLE demo_products (id bigint, category text, price numeric(10,2)) ON COMMIT DROP;
CREATE TEMP TABLE demo_tally (customer_id bigint, product_id bigint, n bigint) ON COMMIT DROP
"""
EXPECTED = """
SELECT p.category, c.region, sum(k.n)::bigint AS clicks, sum(p.price * k.n) AS value
FROM demo_tally AS k JOIN customers AS c ON c.id = k.customer_id
JOIN demo_products AS p ON p.id = k.product_id
GROUP BY p.category, c.region"""


class Clicks:
    """The external sources of the demo, and the view over them."""

    view, query, expected = VIEW, QUERY, EXPECTED

    def __init__(self, broker: EmbeddedKafka, folder: Path, customers: int, seed: int = 42) -> None:
        self._broker = broker
        self._folder = folder
        self._customers = customers
        self._random = random.Random(seed)
        self._turn = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._products: list[tuple[int, str, str]] = []
        options = OptionReader({"bootstrap_servers": broker.bootstrap}, "source")
        self._client = Client(Connection.of(options), "source", "demo")
        self._reader: DeltaReader | None = None
        self._rows: Counter[tuple[Any, ...]] = Counter()
        self.tally: Counter[tuple[int, int]] = Counter()
        self.failure: Exception | None = None
        self.sent = 0

    def fill(self) -> None:
        """Create the topic and the file of products."""
        self._broker.create_topic(TOPIC, PARTITIONS)
        for number in range(PRODUCTS):
            cents = self._random.randint(100, 20_000)
            price = f"{cents // 100}.{cents % 100:02d}"
            self._products.append((number, CATEGORIES[number % len(CATEGORIES)], price))
        ids, categories, prices = zip(*self._products, strict=True)
        decimals = pyarrow.array(prices).cast(pyarrow.decimal128(10, 2))
        table = pyarrow.table({"id": ids, "category": categories, "price": decimals})
        pyarrow.parquet.write_table(table, self._folder / "products.parquet")

    def sources(self) -> list[dict[str, Any]]:
        """Return both sources in the form of POST /sources."""
        clicks = {"format": "json", "columns": {"customer_id": "bigint", "product_id": "bigint"}}
        columns = {"id": "bigint", "category": "text", "price": "numeric(10,2)"}
        products = {
            "path": str(self._folder / "*.parquet"),
            "columns": [{"name": n, "type": t} for n, t in columns.items()],
        }
        kafka = {"bootstrap_servers": self._broker.bootstrap, "topics": {TOPIC: clicks}}
        files = {"relations": {"products": products}}
        return [
            {"name": "web", "type": "kafka", "options": kafka},
            {"name": "catalogue", "type": "files", "options": files},
        ]

    def sink(self) -> dict[str, Any]:
        """Return the sink for the view's deltas in the form of POST /views/{name}/sinks."""
        options = {"bootstrap_servers": self._broker.bootstrap, "topic": VIEW}
        return {"name": "deltas", "type": "kafka", "options": options}

    def read_deltas(self, timeout_s: float) -> Counter[tuple[Any, ...]]:
        """Return the sum of the topic's deltas as rows of the view; wait for all clicks."""
        if self._reader is None:
            self._reader = DeltaReader(self._client, VIEW)
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for change in self._reader.read(timeout_s):
                row = change["row"]
                key = (row["category"], row["region"], row["clicks"], Decimal(row["value"]))
                self._rows[key] += change["weight"]
            if sum(row[2] * n for row, n in self._rows.items()) == self.sent:
                break
            time.sleep(0.02)
        return +self._rows

    def start_traffic(self, per_s: float) -> None:
        """Produce about per_s records per second until `stop`."""
        self._thread = threading.Thread(
            target=self._write, args=(per_s,), name="demo-clicks", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the traffic."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        if self._reader is not None:
            self._reader.close()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Pause the producer during this block; all its records are delivered."""
        with self._turn:
            yield

    def load_tally(self, cursor: Any) -> None:
        """Load the tally and the products into tables of the cursor's transaction."""
        cursor.execute(TALLY)
        products = [list(column) for column in zip(*self._products, strict=True)]
        cursor.execute(
            "INSERT INTO demo_products "
            "SELECT * FROM unnest(%s::bigint[], %s::text[], %s::numeric[])",
            products,
        )
        pairs = list(self.tally)
        tally = [[c for c, _ in pairs], [p for _, p in pairs], list(self.tally.values())]
        cursor.execute(
            "INSERT INTO demo_tally SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[])",
            tally,
        )

    def _write(self, per_s: float) -> None:
        try:
            producer = self._client.producer(linger_ms=2)
            due = time.monotonic()
            while not self._stopping.is_set():
                with self._turn:
                    for _ in range(BATCH):
                        self._click(producer)
                    if producer.flush(FLUSH_S):
                        raise RuntimeError("the broker does not accept records")
                due = max(due + BATCH / per_s, time.monotonic() - 0.1)
                time.sleep(max(0.0, due - time.monotonic()))
        except Exception as error:
            self.failure = error

    def _click(self, producer: Any) -> None:
        customer = self._random.randint(1, self._customers)
        product = self._random.randrange(PRODUCTS)
        value = json.dumps({"customer_id": customer, "product_id": product}).encode()
        producer.produce(TOPIC, value, partition=self.sent % PARTITIONS)
        self.tally[customer, product] += 1
        self.sent += 1
