"""Exact sums too wide or too varied for a fixed vector: a few integers of any size for each group.

A ledger maps slots to integers; ledgers add, and slots that sum to zero are gone. What a slot
means is known to the family (decimal_sums, float_sums, interval_sums). Invariant: a ledger is
exact and depends on the group's live rows alone, not on their order or history.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from dataflow.delta import KIND_BYTES, Column, Delta
from dataflow.expressions.evaluator import RowErrors
from dataflow.operators.base import Context
from dataflow.operators.groups import Touched, touch
from dataflow.operators.linear import Feed
from dataflow.types import SqlType
from storage import kernels

Ledger = dict[int, int]
Entry = tuple[int, int, int]
Outcome = tuple[str | float | None, tuple[str, str] | None]


class Family(Protocol):
    """How values of some types become slots, and slots a result."""

    def entries(self, column: Column, weights: np.ndarray, group: np.ndarray) -> Iterable[Entry]:
        """(group, slot, integer to add) of rows that are not NULL."""
        ...

    def sum(self, ledger: Ledger) -> Outcome:
        """(the sum or None, the error or None) of a ledger that is not empty."""
        ...

    def average(self, ledger: Ledger) -> Outcome:
        """(the average or None, the error or None) of a ledger that is not empty."""
        ...


class SparseSums:
    """The ledgers of one column of one feed.

    State: (group, ledger as text) by group.
    Cost: O(rows of the delta), and some Python for each touched group.
    """

    def __init__(self, context: Context, role: str, key_kinds: str, family: Family) -> None:
        self._family = family
        self._position = -1
        key = tuple(range(len(key_kinds)))
        self._state = context.arrange(role, key_kinds + KIND_BYTES, key)

    def advance(self, touched: Touched, column: Column, feed: Feed) -> list[Ledger]:
        """Take a feed: the ledgers of the touched groups before, then those after."""
        index, kept = self._state.lookup(touched.keys)
        texts = dict(zip(index.tolist(), kept.columns[-1].to_list(), strict=True))
        old = [_read(texts.get(g)) for g in range(touched.count)]
        new = [dict(ledger) for ledger in old]
        weights, group = feed.weights, feed.group
        if column.valid is not None:
            chosen = np.flatnonzero(column.valid)
            column, weights, group = column.take(chosen), weights[chosen], group[chosen]
        for owner, slot, amount in self._family.entries(column, weights, group):
            ledger = new[owner]
            total = ledger.get(slot, 0) + amount
            if total:
                ledger[slot] = total
            else:
                ledger.pop(slot, None)
        self._replace(touched, old, new)
        return old + new

    def _replace(self, touched: Touched, old: list[Ledger], new: list[Ledger]) -> None:
        moved = [g for g in range(touched.count) if old[g] != new[g]]
        gone = [g for g in moved if old[g]]
        come = [g for g in moved if new[g]]
        if not moved:
            return
        keys = [k.take(np.array(gone + come, np.int64)) for k in touched.keys]
        texts = [_write(old[g]) for g in gone] + [_write(new[g]) for g in come]
        weights = np.array([-1] * len(gone) + [1] * len(come), np.int64)
        self._state.apply(Delta([*keys, Column.of(KIND_BYTES, texts)], weights))

    def result(
        self, function: str, ledgers: list[Ledger], type: SqlType
    ) -> tuple[Column, RowErrors]:
        """sum or avg of each ledger as a column of `type`; NULL for an empty one."""
        compute = self._family.sum if function == "sum" else self._family.average
        errors = RowErrors()
        values: list[str | float | None] = []
        for position, ledger in enumerate(ledgers):
            value, error = compute(ledger) if ledger else (None, None)
            values.append(value)
            if error is not None:
                errors.add(position, *error)
        return Column.of(type.physical, values), errors


def _read(text: bytes | None) -> Ledger:
    if text is None:
        return {}
    pairs = (entry.split(b":") for entry in text.split())
    return {int(slot): int(amount, 16) for slot, amount in pairs}


def _write(ledger: Ledger) -> str:
    # Hexadecimal: decimal digits of very long integers are quadratic, and limited in Python.
    return " ".join(f"{slot}:{amount:x}" for slot, amount in sorted(ledger.items()))


def slot_sums(
    group: np.ndarray, slot: np.ndarray, units: np.ndarray, weights: np.ndarray
) -> list[tuple[int, int, int, int]]:
    """(group, slot, sum of units * weight, sum of weights) of each (group, slot), exactly."""
    pairs = touch((Column(group), Column(slot)), len(group))
    first = pairs.representative
    counts = pairs.sum(weights)
    low = kernels.sum_by_group(pairs.group, (units & 0xFFFFFFFF) * weights, len(first))
    high = kernels.sum_by_group(pairs.group, (units >> 32) * weights, len(first))
    rows = (group[first], slot[first], low, high, counts)
    return [
        (g, s, (hi << 32) + lo, n)
        for g, s, lo, hi, n in zip(*map(np.ndarray.tolist, rows), strict=True)
    ]
