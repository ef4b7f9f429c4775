"""Sums and averages of real and double precision: exact, rounded once at the end.

Every finite double is an integer times a power of two; values are added up by bins of eight
exponents (a superaccumulator). So a sum does not depend on the order of arrival, and what was
added and retracted leaves no trace. Invariant: the result is the exact sum, correctly rounded; a
sum is -0 if every value is. PostgreSQL's averages start from 0, so none of them is -0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from dataflow.delta import Column
from dataflow.operators.aggregates.sparse_sums import Entry, Ledger, Outcome, slot_sums

NAN, PLUS_INFINITY, MINUS_INFINITY, COUNT, NEGATIVE_ZERO = -1, -2, -3, -4, -5
_BIN_BITS = 3
_MANTISSA_BITS = 53
# The least exponent of frexp is -1073: bins start from here, so that none is negative.
BIAS = 1136
OVERFLOW = ("22003", "value out of range: overflow")


class FloatSums:
    """Family of float columns. Slot b >= 0 sums units of 2^(8b - 1136).

    COUNT has the number of finite values, NEGATIVE_ZERO how many of them are -0.
    """

    def __init__(self, *, is_single: bool) -> None:
        self._is_single = is_single

    def entries(
        self, columns: Sequence[Column], weights: np.ndarray, group: np.ndarray
    ) -> Iterable[Entry]:
        values = columns[0].values
        finite = np.isfinite(values)
        if not finite.all():
            kinds = np.where(
                np.isnan(values), NAN, np.where(values > 0, PLUS_INFINITY, MINUS_INFINITY)
            )
            kinds = np.where(finite, COUNT, kinds)
            values = np.where(finite, values, 0.0)
        else:
            kinds = np.full(len(values), COUNT, np.int64)
        units, bins = binned(values)
        for owner, slot, total, _ in slot_sums(group, bins, units, weights):
            yield owner, slot, total
        for owner, slot, _, count in slot_sums(group, kinds, units, weights):
            yield owner, slot, count
        zeros = np.flatnonzero((values == 0) & np.signbit(values))
        if len(zeros):
            slots = np.full(len(zeros), NEGATIVE_ZERO, np.int64)
            for owner, slot, _, count in slot_sums(
                group[zeros], slots, units[zeros], weights[zeros]
            ):
                yield owner, slot, count

    def outcome(self, function: str, ledger: Ledger) -> Outcome:
        return self.sum(ledger) if function == "sum" else self.average(ledger)

    def sum(self, ledger: Ledger) -> Outcome:
        """See Family. real sums are real, and overflow as such."""
        special = _special(ledger)
        if special is not None:
            return special, None
        if ledger.get(NEGATIVE_ZERO) == ledger[COUNT]:
            return -0.0, None
        total, error = _quotient(ledger, 1)
        if error is None and self._is_single and total is not None:
            with np.errstate(over="ignore"):
                total = float(np.float32(total))
            if math.isinf(total):
                return None, OVERFLOW
        return total, error

    def average(self, ledger: Ledger) -> Outcome:
        """See Family; double precision for both types."""
        special = _special(ledger)
        return (special, None) if special is not None else _quotient(ledger, ledger[COUNT])


def binned(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (int64[n] units, int64[n] bins) of finite float64[n]: units * 2^(8 bins - BIAS)."""
    mantissas, exponents = np.frexp(values)
    units = np.ldexp(mantissas, _MANTISSA_BITS).astype(np.int64)
    shifts = exponents.astype(np.int64) - _MANTISSA_BITS + BIAS
    return units << (shifts & ((1 << _BIN_BITS) - 1)), shifts >> _BIN_BITS


def _special(ledger: Ledger) -> float | None:
    is_plus, is_minus = PLUS_INFINITY in ledger, MINUS_INFINITY in ledger
    if NAN in ledger or (is_plus and is_minus):
        return math.nan
    if is_plus or is_minus:
        return math.inf if is_plus else -math.inf
    return None


def _quotient(ledger: Ledger, divisor: int) -> Outcome:
    bins = [(slot << _BIN_BITS, units) for slot, units in ledger.items() if slot >= 0]
    total = sum(units << shift for shift, units in bins)
    try:
        # Division of integers is correctly rounded, whatever their size.
        return total / (divisor << BIAS), None
    except OverflowError:
        return None, OVERFLOW
