"""A lower bound for the engine: W1 as a Python programmer would write it by hand, in dictionaries.

Nothing is durable or general. Old rows are looked up, as under the default replica identity.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench.measure import peak_rss_mb, reset_peak_rss_mb
from bench.rows import DELETE, INSERT, OLD, Generated
from bench.workloads import CUSTOMERS, ORDERS, WORKLOADS, Answer, Table, difference

# kind, order, customer, status, amount
Change = tuple[int, int, int, str, int]


class ByHand:
    """The view, with the orders and customers that it must store."""

    def __init__(
        self, customers: list[tuple[int, str, str]], orders: list[tuple[int, int, str, int]]
    ) -> None:
        self.customers = {c: (region, segment) for c, region, segment in customers}
        self.orders: dict[int, tuple[int, str, int]] = {}
        self.groups: dict[tuple[str, str], list[int]] = {}
        for order, customer, status, amount in orders:
            self.orders[order] = (customer, status, amount)
            self._add(customer, status, amount, 1)

    def apply(self, changes: list[Change]) -> None:
        """Apply changes as a replication stream sends them: the old row is looked up."""
        for kind, order, customer, status, amount in changes:
            if kind != INSERT:
                self._add(*self.orders.pop(order), -1)
            if kind != DELETE:
                self.orders[order] = (customer, status, amount)
                self._add(customer, status, amount, 1)

    def rows(self) -> Answer:
        """Return (region, segment) -> (count, sum)."""
        return {key: (n, total) for key, (n, total) in self.groups.items() if n}

    def _add(self, customer: int, status: str, amount: int, weight: int) -> None:
        if status != "cancelled":
            group = self.groups.setdefault(self.customers[customer], [0, 0])
            group[0] += weight
            group[1] += weight * amount


@dataclass(frozen=True)
class DictionaryResult:
    """The figures of the hand-written run."""

    changes: int
    wall_s: float
    cpu_s: float
    load_rows: int
    load_s: float
    peak_rss_mb: float
    fault: str | None


def run(rows: Generated) -> DictionaryResult:
    """Run the hand-written W1; call it in a process of its own."""
    customers = list(tuples(rows, CUSTOMERS, "load"))
    orders = list(tuples(rows, ORDERS, "load"))
    changes: list[Change] = [c for c in tuples(rows, ORDERS, "changes", "kind") if c[0] != OLD]  # type: ignore[misc]
    rss_before = reset_peak_rss_mb()
    started = time.perf_counter()
    view = ByHand(customers, orders)  # type: ignore[arg-type]
    loaded, loaded_cpu = time.perf_counter(), time.process_time()
    view.apply(changes)
    ended, ended_cpu = time.perf_counter(), time.process_time()
    return DictionaryResult(
        len(changes),
        ended - loaded,
        ended_cpu - loaded_cpu,
        len(orders) + len(customers),
        loaded - started,
        peak_rss_mb() - rss_before,
        difference(rows.answer(WORKLOADS["w1"]), view.rows()),
    )


def tuples(rows: Generated, table: Table, part: str, *more: str) -> Iterator[tuple[object, ...]]:
    """Yield a part's rows as Python values, with `more` columns in front."""
    names = [*more, *table.names]
    read = rows.read(table, part, names, 0, rows.count(table, part))
    columns = []
    for name in names:
        values = read[name].tolist()
        if dict(table.columns).get(name) == "s":
            words = rows.words(table, name)
            values = [words[number] for number in values]
        columns.append(values)
    return zip(*columns, strict=True)
