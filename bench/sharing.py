"""`python -m bench.sharing [--orders N]`: ten similar views, with shared computation and without.

Without sharing, each view steps its own nodes over its own rows, in one store with one commit an
epoch. Both variants take the same changes in turn, epoch by epoch, in one run. Figures are CPU time
of the process, which other load hardly affects; printed, and written to bench/sharing.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bench.measure import in_child, percentile
from bench.server import session
from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.sink import SinkTable
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.delta import Column, Delta
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.plan.nodes import ViewPlan, scans_of
from dataflow.schema import Relation
from dataflow.sql.planner import plan_view
from service.engine.engine import Engine, View, ViewDefinition
from storage.rocks import RocksStore

SOURCE = "source"
RESULT = Path(__file__).parent / "sharing.json"
VIEWS = 10
CACHE_BYTES = 1 << 30
EPOCHS = ((2_000, 12), (100, 60), (1, 300))
LOAD_ROWS = 65_536
TABLES = """
CREATE TABLE customers (
    customer_id bigint PRIMARY KEY, region text NOT NULL, segment text NOT NULL
);
CREATE TABLE orders (
    order_id bigint PRIMARY KEY, customer_id bigint NOT NULL, status text NOT NULL,
    amount bigint NOT NULL
);
"""
WORDS = {
    "region": [b"north", b"south", b"east", b"west", b"emea", b"apac", b"latam", b"anz"],
    "segment": [b"consumer", b"corporate", b"smb", b"public", b"startup"],
    "status": [b"new", b"paid", b"shipped", b"returned"],
}
SUMS = """SELECT c.region, c.segment, count(*) AS n, sum(o.amount) AS total
FROM orders o JOIN customers c USING (customer_id) GROUP BY c.region, c.segment"""
COLUMNS = ("region", "segment", "region, segment", "region, status", "segment, status")


def alike() -> list[str]:
    """Return queries of one join and its sums under ten conditions: only the last step differs."""
    return [f"SELECT * FROM ({SUMS}) s WHERE total > {i} * 100" for i in range(VIEWS)]


def kindred() -> list[str]:
    """Return queries that join the same tables, each with its own columns and filter."""
    return [
        f"SELECT {COLUMNS[i % len(COLUMNS)]}, count(*) AS n, max(amount) AS most "
        f"FROM orders o JOIN customers c USING (customer_id) WHERE amount > {i} GROUP BY "
        + COLUMNS[i % len(COLUMNS)]
        for i in range(VIEWS)
    ]


class Shop:
    """Rows of both tables and changes of the orders, from one seed.

    The changes are 50 % inserts, 35 % updates and 15 % deletes; a delete has only the key.
    """

    def __init__(self, orders: int, seed: int = 42) -> None:
        self._random = np.random.default_rng(seed)
        self._customers = max(orders // 5, 1)
        self._living = list(range(orders))
        self._next = orders
        ids = np.arange(self._customers)
        self.rows = {
            "customers": [Column(ids), self._word("region", ids), self._word("segment", ids)],
            "orders": self._orders(np.arange(orders)),
        }

    def _word(self, name: str, ids: np.ndarray) -> Column:
        words = Column.of("s", WORDS[name])
        return words.take(self._random.integers(0, len(words), len(ids)))

    def _orders(self, ids: np.ndarray) -> list[Column]:
        customers = self._random.integers(0, self._customers, len(ids))
        amounts = self._random.integers(1, 500, len(ids))
        return [Column(ids), Column(customers), self._word("status", ids), Column(amounts)]

    def chunks(self, relation: Relation, columns: Sequence[int]) -> list[Delta]:
        """Return the initial rows of a table in these columns."""
        kept = [self.rows[relation.name.name][c] for c in columns]
        rows = Delta(kept, np.ones(len(kept[0]), np.int64))
        starts = range(0, len(rows), LOAD_ROWS)
        return [rows.slice(at, min(at + LOAD_ROWS, len(rows))) for at in starts]

    def batch(self, relation: Relation, size: int, position: int) -> SourceBatch:
        """Return the next changes of the orders."""
        kinds = self._random.choice(
            np.array([Changes.INSERT, Changes.NEW, Changes.DELETE_KEY], np.uint8),
            size,
            p=[0.5, 0.35, 0.15],
        )
        ids = np.array([self._target(int(kind)) for kind in kinds], np.int64)
        changes = Changes(relation, kinds, tuple(self._orders(ids)))
        return SourceBatch(position, [changes], size, size)

    def _target(self, kind: int) -> int:
        if kind == Changes.INSERT:
            self._living.append(self._next)
            self._next += 1
            return self._living[-1]
        at = int(self._random.integers(0, len(self._living)))
        if kind == Changes.NEW:
            return self._living[at]
        self._living[at], self._living[-1] = self._living[-1], self._living[at]
        return self._living.pop()


@dataclass(frozen=True)
class Cost:
    """state_bytes: of all views. cpu_us: of one change, by changes in an epoch."""

    views: int
    state_bytes: int
    load_cpu_s: float
    cpu_us: dict[int, float]


@dataclass(frozen=True)
class Result:
    """One set of views in both variants, and a single view of it."""

    together: Cost
    apart: Cost
    single: Cost


class Together:
    """One engine with sharing: views join as in the service."""

    def __init__(self, plans: Sequence[ViewPlan], shop: Shop, folder: Path) -> None:
        self.store = RocksStore(folder, cache_bytes=CACHE_BYTES)
        self.engine = Engine(self.store, NoEvaluator(), SOURCE)
        self.outputs: dict[str, int] = {}
        for number, plan in enumerate(plans):
            definition = definition_of(number, plan)
            read = [r for d in self.engine.views.values() for r in d.reads()]
            kept = self.engine.columns_to_keep(definition, read)
            view = View(definition, self.store, NoEvaluator(), kept)
            load(view, shop)
            self.engine.add(view)
            self.store.commit()

    def step(self, batch: SourceBatch) -> None:
        """Step one epoch."""
        epoch = self.engine.step(batch)
        self.engine.commit(epoch, written=epoch.progress.epoch)
        for table, delta in epoch.rows.deltas:
            self.outputs[table.name] = self.outputs.get(table.name, 0) + len(delta)


class Apart:
    """Each view in an engine of its own."""

    def __init__(self, plans: Sequence[ViewPlan], shop: Shop, folder: Path) -> None:
        self.store = RocksStore(folder, cache_bytes=CACHE_BYTES)
        self.outputs: dict[str, int] = {}
        self.views = []
        for number, plan in enumerate(plans):
            view = View(definition_of(number, plan), self.store, NoEvaluator())
            load(view, shop)
            self.views.append(view)
            self.store.commit()

    def step(self, batch: SourceBatch) -> None:
        """Step one epoch."""
        for view in self.views:
            delta = view.step(view.resolve(batch.changes))
            if len(delta):
                name = view.definition.table.name
                self.outputs[name] = self.outputs.get(name, 0) + len(delta)
        self.store.commit()


def definition_of(number: int, plan: ViewPlan) -> ViewDefinition:
    """Return the definition of a view with this number."""
    table = SinkTable("public", f"v{number}", plan.root.fields, plan.key)
    return ViewDefinition(f"{number}", table, "", plan)


def load(view: View, shop: Shop) -> None:
    """Load the initial rows as a backfill does."""
    view.dataflow.seed()
    for location in view.locations:
        name = location.relation.name
        for rows in shop.chunks(location.relation, location.columns):
            view.tables[name].load(rows)
            view.step({name: view.needed(name, rows)})


def measure(orders: int, plans: Sequence[ViewPlan]) -> Result:
    """Run both variants in turn; call it in a process of its own."""
    shop = Shop(orders)
    with TemporaryDirectory(prefix="tidemark-bench-") as folder:
        ways: list[Together | Apart] = []
        loads = []
        made: list[Callable[[], Together | Apart]] = [
            lambda: Together(plans, shop, Path(folder) / "together"),
            lambda: Apart(plans, shop, Path(folder) / "apart"),
            lambda: Apart(plans[:1], shop, Path(folder) / "single"),
        ]
        for make in made:
            started = time.process_time()
            ways.append(make())
            loads.append(time.process_time() - started)
        relation = _orders_of(plans[0])
        cpu: list[dict[int, list[float]]] = [{size: [] for size, _ in EPOCHS} for _ in ways]
        for size, epochs in EPOCHS:
            for number in range(epochs):
                batch = shop.batch(relation, size, number + 1)
                for way, spent in zip(ways, cpu, strict=True):
                    started = time.process_time()
                    way.step(batch)
                    spent[size].append((time.process_time() - started) / size * 1e6)
        if ways[0].outputs != ways[1].outputs:
            raise AssertionError(f"different: {ways[0].outputs} and {ways[1].outputs}")
        costs = [
            Cost(
                views,
                sum(way.store.size(name)[1] for name in way.store.names()),
                spent_s,
                {size: percentile(found, 0.5) for size, found in spent.items()},
            )
            for views, way, spent_s, spent in zip(
                (len(plans), len(plans), 1), ways, loads, cpu, strict=True
            )
        ]
        for way in ways:
            way.store.close()
    return Result(*costs)


def _orders_of(plan: ViewPlan) -> Relation:
    return next(s.relation for s in scans_of(plan.root) if s.relation.name.name == "orders")


def text_of(name: str, result: Result) -> str:
    """Return the result for human readers."""
    lines = [
        f"{name}: {result.together.views} views",
        "| | together | apart | apart / together | one view |",
        "|---|---|---|---|---|",
    ]
    ways = (result.together, result.apart, result.single)
    rows = [
        ("state, MB", [way.state_bytes / 1e6 for way in ways]),
        ("load, CPU s", [way.load_cpu_s for way in ways]),
    ]
    rows += [
        (f"a change in epochs of {size:,}, CPU us", [way.cpu_us[size] for way in ways])
        for size, _ in EPOCHS
    ]
    for what, (together, apart, single) in rows:
        ratio = apart / together
        lines.append(f"| {what} | {together:.1f} | {apart:.1f} | {ratio:.1f}x | {single:.1f} |")
    return "\n".join(lines)


def run(orders: int) -> dict[str, Result]:
    """Measure both sets of views, each in a child process."""
    sets = {"alike": alike(), "kindred": kindred()}
    with EmbeddedPostgres() as postgres:
        with session(postgres.dsn) as cursor:
            cursor.execute(TABLES)
        with PostgresAnalyzer(postgres.dsn, SOURCE) as analyzer:
            plans = {name: [plan_view(q, analyzer) for q in found] for name, found in sets.items()}
    return {name: in_child(measure, orders, found) for name, found in plans.items()}


def main(arguments: list[str]) -> int:
    """Measure, print, and write the file."""
    parser = argparse.ArgumentParser(prog="python -m bench.sharing", description=__doc__)
    parser.add_argument("--orders", type=int, default=100_000, help="rows to begin with")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args(arguments)
    results = run(options.orders)
    for name, result in results.items():
        print("\n" + text_of(name, result))
    found = {name: asdict(result) for name, result in results.items()}
    found = {"orders": options.orders, "sets": found}
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
