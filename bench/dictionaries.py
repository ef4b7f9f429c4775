"""The peer of the engine alone: what a Python programmer writes by hand, in dictionaries.

Nothing is durable, nothing is general: the floor that any row-at-a-time Python starts from.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench.measure import peak_rss_mb, reset_peak_rss_mb
from bench.orders import Change, Order, Sizes, Workload, generate


class ByHand:
    """The view, with the orders and customers that it needs to keep."""

    def __init__(self, workload: Workload) -> None:
        self.customers = {c: (region, segment) for c, region, segment in workload.customers}
        self.orders: dict[int, tuple[int, str, int]] = {}
        self.groups: dict[tuple[str, str], list[int]] = {}
        for order, customer, status, amount in workload.orders:
            self.orders[order] = (customer, status, amount)
            self._add(customer, status, amount, 1)

    def apply(self, changes: list[Change]) -> None:
        """Changes as a replication stream gives them: the old row is looked up."""
        for op, before, after in changes:
            if op != "c":
                key = before[0]  # type: ignore[index]
                self._add(*self.orders.pop(key), -1)
            if op != "d":
                order, customer, status, amount = after  # type: ignore[misc]
                self.orders[order] = (customer, status, amount)
                self._add(customer, status, amount, 1)

    def rows(self) -> dict[tuple[str, str], tuple[int, int]]:
        """(region, segment) -> (count, sum)."""
        return {key: (n, total) for key, (n, total) in self.groups.items() if n}

    def _add(self, customer: int, status: str, amount: int, weight: int) -> None:
        if status != "cancelled":
            group = self.groups.setdefault(self.customers[customer], [0, 0])
            group[0] += weight
            group[1] += weight * amount


@dataclass(frozen=True)
class DictionaryResult:
    """What the run by hand gave."""

    snapshot_rows_s: float
    changes_s: float
    rss_mb: float
    rows: dict[tuple[str, str], tuple[int, int]]


def run(sizes: Sizes) -> DictionaryResult:
    """The whole workload by hand; run it in a process of its own."""
    workload = generate(sizes)
    rss_before = reset_peak_rss_mb()
    started = time.perf_counter()
    view = ByHand(workload)
    loaded = time.perf_counter()
    view.apply(workload.changes)
    ended = time.perf_counter()
    return DictionaryResult(
        (len(workload.orders) + len(workload.customers)) / (loaded - started),
        len(workload.changes) / (ended - loaded),
        peak_rss_mb() - rss_before,
        view.rows(),
    )


def final_orders(workload: Workload) -> dict[int, Order]:
    """The orders after all changes."""
    orders = {order[0]: order for order in workload.orders}
    for op, before, after in workload.changes:
        if op != "c":
            del orders[before[0]]  # type: ignore[index]
        if after is not None:
            orders[after[0]] = after
    return orders
