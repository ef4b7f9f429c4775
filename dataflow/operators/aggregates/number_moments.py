"""Variance and standard deviation of integers and numerics, to PostgreSQL's last digit.

Display scale s has three slots: 3s counts the live values, 3s + 1 sums their units, 3s + 2 sums the
squares. Invariant: digits and scale of the result are those of numeric_stddev_internal (numeric.c),
from the live rows alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isqrt

import numpy as np

from dataflow.delta import KIND_BYTES, Column
from dataflow.expressions.numbers import Numbers, scale_of
from dataflow.long_integers import units_of
from dataflow.operators.aggregates.moments import product_sums
from dataflow.operators.aggregates.numeric_results import divided, fixed_text
from dataflow.operators.aggregates.sparse_sums import Entry, Ledger, Outcome, slot_sums
from dataflow.types import FIXED_NAN, SqlType, TypeKind

NAN = -1


class NumberMoments:
    """Family of integers, fixed point and numeric text. Slot -1 counts NaN and infinities."""

    def __init__(self, type: SqlType) -> None:
        self._type = type

    def entries(
        self, columns: Sequence[Column], weights: np.ndarray, group: np.ndarray
    ) -> Iterable[Entry]:
        column = columns[0]
        if column.kind == KIND_BYTES:
            numbers = Numbers.of_text(column)
            if numbers.scales is None:
                yield from _wide_entries(numbers, weights, group)
                return
            units, scales = numbers.units, numbers.scales
        else:
            units, scales = column.values, np.full(len(column), self._type.scale, np.int64)
        if self._type.kind in (TypeKind.FIXED, TypeKind.DECIMAL):
            is_nan = units == FIXED_NAN
            if is_nan.any():
                for owner, slot, _, count in slot_sums(
                    group[is_nan], np.full(is_nan.sum(), NAN), units[is_nan], weights[is_nan]
                ):
                    yield owner, slot, count
                stored = ~is_nan
                units, scales = units[stored], scales[stored]
                weights, group = weights[stored], group[stored]
        for owner, scale, total, count in slot_sums(group, scales, units, weights):
            yield owner, 3 * scale, count
            yield owner, 3 * scale + 1, total
        for owner, scale, total in product_sums(group, scales, (units, units), weights):
            yield owner, 3 * scale + 2, total

    def outcome(self, function: str, ledger: Ledger) -> Outcome:
        """See Family. function: (var or stddev)_(pop or samp)."""
        count = sum(n for slot, n in ledger.items() if slot % 3 == 0 or slot == NAN)
        is_sample = function.endswith("samp")
        if is_sample and count <= 1:
            return None, None
        if NAN in ledger:
            return "NaN", None
        scale = max(slot for slot in ledger if slot % 3 == 0) // 3
        total = sum(n * 10 ** (scale - s // 3) for s, n in ledger.items() if s % 3 == 1)
        squares = sum(n * 100 ** (scale - s // 3) for s, n in ledger.items() if s % 3 == 2)
        numerator = count * squares - total * total
        if numerator == 0:
            return "0", None
        divisor = count * (count - 1) if is_sample else count * count
        units, places = divided(numerator, 2 * scale, divisor)
        if function.startswith("stddev"):
            # One digit more than is shown, then rounded half up: sqrt_var.
            units = (isqrt(units * 10 ** (places + 2)) + 5) // 10
        return fixed_text(units, places), None


def _wide_entries(numbers: Numbers, weights: np.ndarray, group: np.ndarray) -> Iterable[Entry]:
    for number, weight, owner in zip(numbers.units, weights.tolist(), group.tolist(), strict=True):
        if not number.is_finite():
            yield owner, NAN, weight
            continue
        scale = scale_of(number)
        units = units_of(number, scale)
        yield owner, 3 * scale, weight
        yield owner, 3 * scale + 1, units * weight
        yield owner, 3 * scale + 2, units * units * weight
