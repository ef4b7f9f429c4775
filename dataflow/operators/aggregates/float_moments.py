"""Variance of floats, and covariance, correlation and regression of pairs of them.

As in float_sums, every finite double is an integer times a power of two, so the sums of values,
squares and products are exact integers. Each result is rounded once at its end; PostgreSQL's
Youden-Cramer sums round at every row (float.c). Invariant: a result does not depend on the order of
the rows; values that are all equal have variance 0 and no correlation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from dataflow.delta import Column
from dataflow.operators.aggregates.float_sums import BIAS, OVERFLOW, binned
from dataflow.operators.aggregates.moments import product_sums
from dataflow.operators.aggregates.sparse_sums import Entry, Ledger, Outcome, slot_sums
from dataflow.plan.aggregate_functions import PAIR_FUNCTIONS

# Slot 1024 k + b sums units of 2^(8b - BIAS) for values, of 2^(8b - 2 BIAS) for products.
_SPAN = 1024
_X, _Y, _XX, _YY, _XY = range(5)
# The kinds of values of a column: finite, NaN, infinity, minus infinity.
_KINDS_OF_X, _KINDS_OF_Y = -4, -8
_BINS_BITS = 3


class FloatMoments:
    """Family of one float column, or of two (y, x) as regr_* take them."""

    def entries(
        self, columns: Sequence[Column], weights: np.ndarray, group: np.ndarray
    ) -> Iterable[Entry]:
        kinds = ((_KINDS_OF_Y, _Y, _YY), (_KINDS_OF_X, _X, _XX))[-len(columns) :]
        parts: list[tuple[np.ndarray, np.ndarray]] = []
        for column, (first_kind, single, square) in zip(columns, kinds, strict=True):
            values = column.values
            kind, values = _kinds(values)
            for owner, slot, _, count in slot_sums(group, kind + first_kind, kind, weights):
                yield owner, slot, count
            units, bins = binned(values)
            parts.append((units, bins))
            for owner, slot, total, _ in slot_sums(group, bins + single * _SPAN, units, weights):
                yield owner, slot, total
            yield from product_sums(group, 2 * bins + square * _SPAN, (units, units), weights)
        if len(parts) == 2:
            (y, y_bins), (x, x_bins) = parts
            yield from product_sums(group, x_bins + y_bins + _XY * _SPAN, (x, y), weights)

    def outcome(self, function: str, ledger: Ledger) -> Outcome:
        try:
            return _RESULTS[function](_Sums(ledger, function)), None
        except OverflowError:
            return None, OVERFLOW


def _kinds(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(0 finite, 1 NaN, 2 infinity, 3 minus infinity) of each value, and the finite ones."""
    finite = np.isfinite(values)
    if finite.all():
        return np.zeros(len(values), np.int64), values
    kinds = np.where(np.isnan(values), 1, np.where(values > 0, 2, 3))
    return np.where(finite, 0, kinds), np.where(finite, values, 0.0)


class _Sums:
    """The sums of a ledger: xx, yy, xy are those of the deviations from the mean, times n.

    Values are integers in units of 2^-BIAS, products of 2^(-2 BIAS). A special column (NaN or
    infinite) leaves its deviations NaN.
    """

    def __init__(self, ledger: Ledger, function: str) -> None:
        totals = [0] * 5
        counts = {slot: n for slot, n in ledger.items() if slot < 0}
        for slot, units in ledger.items():
            if slot >= 0:
                totals[slot // _SPAN] += units << (slot % _SPAN << _BINS_BITS)
        self.special_x = _special(counts, _KINDS_OF_X)
        self.special_y = _special(counts, _KINDS_OF_Y)
        self.n = sum(n for slot, n in counts.items() if slot >= _KINDS_OF_X)
        self.x, self.y = totals[_X], totals[_Y]
        self.xx = self.n * totals[_XX] - self.x * self.x
        self.yy = self.n * totals[_YY] - self.y * self.y
        self.xy = self.n * totals[_XY] - self.x * self.y
        if function != "regr_count":
            # PostgreSQL fails when one of its sums overflows, whatever the result.
            for total in (self.x, self.y):
                _quotient(total, 1 << BIAS)
            for product in (self.xx, self.yy, self.xy):
                _quotient(product, self.n << 2 * BIAS)


def _special(counts: dict[int, int], first: int) -> float | None:
    is_nan, is_plus, is_minus = (counts.get(first + k, 0) > 0 for k in (1, 2, 3))
    if is_nan or (is_plus and is_minus):
        return math.nan
    if is_plus or is_minus:
        return math.inf if is_plus else -math.inf
    return None


def _quotient(numerator: int, denominator: int) -> float:
    # Division of integers is correctly rounded, whatever their size.
    return numerator / denominator


def _variance(is_sample: bool, is_deviation: bool) -> Callable[[_Sums], float | None]:
    def result(sums: _Sums) -> float | None:
        n = sums.n
        if is_sample and n <= 1:
            return None
        if sums.special_x is not None:
            return math.nan
        found = _quotient(sums.xx, n * (n - 1 if is_sample else n) << 2 * BIAS)
        return math.sqrt(found) if is_deviation else found

    return result


def _deviations(name: str, columns: str) -> Callable[[_Sums], float | None]:
    def result(sums: _Sums) -> float | None:
        if any(getattr(sums, f"special_{c}") is not None for c in columns):
            return math.nan
        return _quotient(getattr(sums, name), sums.n << 2 * BIAS)

    return result


def _covariance(is_sample: bool) -> Callable[[_Sums], float | None]:
    def result(sums: _Sums) -> float | None:
        n = sums.n
        if is_sample and n <= 1:
            return None
        if sums.special_x is not None or sums.special_y is not None:
            return math.nan
        return _quotient(sums.xy, n * (n - 1 if is_sample else n) << 2 * BIAS)

    return result


def _average(name: str) -> Callable[[_Sums], float | None]:
    def result(sums: _Sums) -> float | None:
        special = getattr(sums, f"special_{name}")
        return special if special is not None else _quotient(getattr(sums, name), sums.n << BIAS)

    return result


def _is_flat(special: float | None, deviations: int) -> bool:
    return special is None and deviations == 0


def _correlation(sums: _Sums) -> float | None:
    if _is_flat(sums.special_x, sums.xx) or _is_flat(sums.special_y, sums.yy):
        return None
    if sums.special_x is not None or sums.special_y is not None:
        return math.nan
    found = math.sqrt(_quotient(sums.xy * sums.xy, sums.xx * sums.yy))
    return -found if sums.xy < 0 else found


def _determination(sums: _Sums) -> float | None:
    if _is_flat(sums.special_x, sums.xx):
        return None
    if _is_flat(sums.special_y, sums.yy):
        return 1.0
    if sums.special_x is not None or sums.special_y is not None:
        return math.nan
    return _quotient(sums.xy * sums.xy, sums.xx * sums.yy)


def _slope(sums: _Sums) -> float | None:
    if _is_flat(sums.special_x, sums.xx):
        return None
    if sums.special_x is not None or sums.special_y is not None:
        return math.nan
    return _quotient(sums.xy, sums.xx)


def _intercept(sums: _Sums) -> float | None:
    if _is_flat(sums.special_x, sums.xx):
        return None
    if sums.special_x is not None or sums.special_y is not None:
        return math.nan
    return _quotient(sums.y * sums.xx - sums.x * sums.xy, (sums.n * sums.xx) << BIAS)


_RESULTS: dict[str, Callable[[_Sums], float | None]] = {
    "var_pop": _variance(False, False),
    "var_samp": _variance(True, False),
    "stddev_pop": _variance(False, True),
    "stddev_samp": _variance(True, True),
    "regr_count": lambda sums: sums.n,
    "regr_sxx": _deviations("xx", "x"),
    "regr_syy": _deviations("yy", "y"),
    "regr_sxy": _deviations("xy", "xy"),
    "regr_avgx": _average("x"),
    "regr_avgy": _average("y"),
    "covar_pop": _covariance(False),
    "covar_samp": _covariance(True),
    "corr": _correlation,
    "regr_r2": _determination,
    "regr_slope": _slope,
    "regr_intercept": _intercept,
}
assert {f for f in _RESULTS if f.startswith(("regr", "covar", "corr"))} == PAIR_FUNCTIONS
