"""Exact second moments: sums of values, of their squares and of the products of two columns.

Products of 64-bit integers are added up as five limbs of 22 bits, so that no sum of them overflows
for fewer than 2^31 rows of a step. Invariant: a ledger is exact, so what was added and retracted
leaves no trace, and a variance is never negative.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dataflow.operators.aggregates.sparse_sums import limb_sums

LIMB_BITS = 22
_MASK = (1 << LIMB_BITS) - 1


def product_sums(
    group: np.ndarray,
    slot: np.ndarray,
    factors: tuple[np.ndarray, np.ndarray],
    weights: np.ndarray,
) -> Iterator[tuple[int, int, int]]:
    """(group, slot, sum of left * right * weight) of int64[n] factors, exactly."""
    left, right = factors
    limbs, shifts = product_limbs(left, right)
    for owner, at, totals, _ in limb_sums(group, slot, limbs, weights):
        yield owner, at, sum(total << shift for total, shift in zip(totals, shifts, strict=True))


def product_limbs(left: np.ndarray, right: np.ndarray) -> tuple[list[np.ndarray], Sequence[int]]:
    """Return (int64[n] limbs, the power of two that each stands for): their sum is left * right.

    >>> limbs, shifts = product_limbs(np.array([-(2**63)]), np.array([2**63 - 1]))
    >>> sum(int(l[0]) << s for l, s in zip(limbs, shifts)) == -(2**63) * (2**63 - 1)
    True
    """
    if _is_short(left) and _is_short(right):
        return [left * right], (0,)
    a, b = _limbs(left), _limbs(right)
    limbs = [
        a[0] * b[0],
        a[0] * b[1] + a[1] * b[0],
        a[0] * b[2] + a[1] * b[1] + a[2] * b[0],
        a[1] * b[2] + a[2] * b[1],
        a[2] * b[2],
    ]
    return limbs, range(0, 5 * LIMB_BITS, LIMB_BITS)


def _is_short(values: np.ndarray) -> bool:
    return len(values) == 0 or (values.min() > -(2**31) and values.max() < 2**31)


def _limbs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return values & _MASK, (values >> LIMB_BITS) & _MASK, values >> (2 * LIMB_BITS)
