"""Sums and averages of numeric without a fixed scale.

Slots: for each display scale, the number of live values and the sum of their units. So the result
has the greatest scale among the live rows, as in PostgreSQL. NaN and infinities are counted
(numeric.c, NumericAggState). Invariant: exact for every numeric.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dataflow.delta import Column
from dataflow.expressions.numbers import Numbers, scale_of
from dataflow.long_integers import units_of
from dataflow.operators.aggregates.numeric_results import average_text, fixed_text
from dataflow.operators.aggregates.sparse_sums import Entry, Ledger, Outcome, slot_sums
from dataflow.types import FIXED_NAN

NAN, PLUS_INFINITY, MINUS_INFINITY = -1, -2, -3


class DecimalSums:
    """Family of numeric text. Slot 2s counts the values of scale s, slot 2s + 1 sums them."""

    def entries(
        self, columns: Sequence[Column], weights: np.ndarray, group: np.ndarray
    ) -> Iterable[Entry]:
        numbers = Numbers.of_text(columns[0])
        if numbers.scales is None:
            yield from _wide_entries(numbers, weights, group)
            return
        scales = np.where(numbers.units == FIXED_NAN, NAN, numbers.scales)
        for owner, scale, total, count in slot_sums(group, scales, numbers.units, weights):
            if scale == NAN:
                yield owner, NAN, count
            else:
                yield owner, 2 * scale, count
                yield owner, 2 * scale + 1, total

    def outcome(self, function: str, ledger: Ledger) -> Outcome:
        return self.sum(ledger) if function == "sum" else self.average(ledger)

    def sum(self, ledger: Ledger) -> Outcome:
        special = special_text(ledger)
        return (fixed_text(*_total(ledger)) if special is None else special), None

    def average(self, ledger: Ledger) -> Outcome:
        special = special_text(ledger)
        if special is not None:
            return special, None
        count = sum(n for slot, n in ledger.items() if slot % 2 == 0)
        return average_text(*_total(ledger), count), None


def special_text(ledger: Ledger) -> str | None:
    """Return NaN or an infinity where live values make the sum one."""
    is_plus, is_minus = PLUS_INFINITY in ledger, MINUS_INFINITY in ledger
    if NAN in ledger or (is_plus and is_minus):
        return "NaN"
    if is_plus or is_minus:
        return "Infinity" if is_plus else "-Infinity"
    return None


def _total(ledger: Ledger) -> tuple[int, int]:
    """Return (units, scale) of the sum."""
    scale = max(slot for slot in ledger if slot % 2 == 0) // 2
    totals = ((slot // 2, units) for slot, units in ledger.items() if slot % 2)
    return sum(units * 10 ** (scale - at) for at, units in totals), scale


def _wide_entries(numbers: Numbers, weights: np.ndarray, group: np.ndarray) -> Iterable[Entry]:
    for number, weight, owner in zip(numbers.units, weights.tolist(), group.tolist(), strict=True):
        if number.is_nan():
            yield owner, NAN, weight
        elif number.is_infinite():
            yield owner, PLUS_INFINITY if number > 0 else MINUS_INFINITY, weight
        else:
            scale = scale_of(number)
            yield owner, 2 * scale, weight
            yield owner, 2 * scale + 1, units_of(number, scale) * weight
