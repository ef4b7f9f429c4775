"""Exact sums too wide or too varied for a fixed vector: a few integers of any size for each group.

A ledger maps slots to integers; ledgers add, and slots with sum zero are removed. The family
(decimal_sums, float_sums, interval_sums) defines the meaning of a slot. Invariant: a ledger is
exact and depends on the group's live rows alone, not on their order or history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
from tidemark_native import storage as kernels

from dataflow.delta import KIND_BYTES, Column, Delta
from dataflow.expressions.evaluator import RowErrors
from dataflow.operators.aggregates.linear import Feed
from dataflow.operators.base import Context
from dataflow.operators.groups import Touched, null_keys, touch
from dataflow.types import SqlType

Ledger = dict[int, int]
Entry = tuple[int, int, int]
Value = str | float | None
Outcome = tuple[Value, tuple[str, str] | None]


class Family(Protocol):
    """How values of some types become slots, and slots a result."""

    def entries(
        self, columns: Sequence[Column], weights: np.ndarray, group: np.ndarray
    ) -> Iterable[Entry]:
        """Return (group, slot, integer to add) of rows in which no column is NULL."""
        ...

    def outcome(self, function: str, ledger: Ledger) -> Outcome:
        """Return (the result or None, the error or None) of a ledger that is not empty."""
        ...


class SparseSums:
    """The ledgers of one or several columns of one feed; a row with a NULL in them is ignored.

    State: (group, ledger as text) by group.
    Cost: O(rows of the delta), and some Python for each touched group.
    """

    def __init__(self, context: Context, role: str, key_kinds: str, family: Family) -> None:
        self._family = family
        key = tuple(range(len(key_kinds)))
        self._state = context.arrange(role, key_kinds + KIND_BYTES, key)

    def forget(self, keys: Sequence[Column]) -> None:
        """Free the ledgers of some groups, each once."""
        self._state.apply(self._state.lookup(keys)[1].negate())

    def entries(self, columns: Sequence[Column], feed: Feed) -> Iterable[Entry]:
        """Return what the columns of a feed add to the ledgers of its groups."""
        weights, group = feed.weights, feed.group
        nulls = null_keys(columns)
        if nulls is not None:
            chosen = np.flatnonzero(~nulls)
            columns = [column.take(chosen) for column in columns]
            weights, group = weights[chosen], group[chosen]
        return self._family.entries(columns, weights, group)

    def advance(self, touched: Touched, entries: Iterable[Entry]) -> list[Ledger]:
        """Apply entries; return the ledgers of the touched groups before, then those after."""
        index, stored = self._state.lookup(touched.keys)
        texts = dict(zip(index.tolist(), stored.columns[-1].to_list(), strict=True))
        old = [_read(texts.get(g)) for g in range(touched.count)]
        new = [dict(ledger) for ledger in old]
        _add(new, entries)
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
        """Return the function of each ledger as a column of `type`; NULL for an empty one."""
        errors = RowErrors()
        values: list[Value] = []
        # Over no rows all results are NULL but the count.
        empty = 0 if function == "regr_count" else None
        for position, ledger in enumerate(ledgers):
            value, error = self._family.outcome(function, ledger) if ledger else (empty, None)
            values.append(value)
            if error is not None:
                errors.add(position, *error)
        return Column.of(type.physical, values), errors


def ledger_column(entries: Iterable[Entry], count: int) -> Column:
    """Return the entries of so many groups added up, as text; NULL for nothing."""
    ledgers: list[Ledger] = [{} for _ in range(count)]
    _add(ledgers, entries)
    return Column.of(KIND_BYTES, [_write(ledger) if ledger else None for ledger in ledgers])


def entries_of(column: Column, weights: np.ndarray, group: np.ndarray) -> Iterator[Entry]:
    """Yield the entries of a column of ledgers, each so many times."""
    for text, weight, owner in zip(column.to_list(), weights.tolist(), group.tolist(), strict=True):
        for slot, amount in _read(text).items():
            yield owner, slot, amount * weight


def _add(ledgers: list[Ledger], entries: Iterable[Entry]) -> None:
    for owner, slot, amount in entries:
        ledger = ledgers[owner]
        total = ledger.get(slot, 0) + amount
        if total:
            ledger[slot] = total
        else:
            ledger.pop(slot, None)


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
    """Return (group, slot, sum of units * weight, sum of weights) of each (group, slot),
    exactly."""
    return [(g, s, total, n) for g, s, (total,), n in limb_sums(group, slot, [units], weights)]


def limb_sums(
    group: np.ndarray, slot: np.ndarray, limbs: Sequence[np.ndarray], weights: np.ndarray
) -> list[tuple[int, int, tuple[int, ...], int]]:
    """Return (group, slot, sums of each limb * weight, sum of weights) of each (group, slot),
    exactly."""
    pairs = touch((Column(group), Column(slot)), len(group))
    first = pairs.representative
    counts = pairs.sum(weights).tolist()
    totals = []
    for units in limbs:
        low = kernels.sum_by_group(pairs.group, (units & 0xFFFFFFFF) * weights, len(first))
        high = kernels.sum_by_group(pairs.group, (units >> 32) * weights, len(first))
        parts = zip(low.tolist(), high.tolist(), strict=True)
        totals.append([(hi << 32) + lo for lo, hi in parts])
    owners, slots = group[first].tolist(), slot[first].tolist()
    return list(zip(owners, slots, zip(*totals, strict=True), counts, strict=True))
