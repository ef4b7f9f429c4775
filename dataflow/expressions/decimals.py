"""Arithmetic and rounding of numerics with PostgreSQL's display scales (numeric.c).

Sums have the greater scale, products the sum of scales, quotients at least 16 significant digits
(select_div_scale). Narrow numbers are computed in int64, numbers of up to 48 digits in words, all
others in exact decimals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import ROUND_CEILING, ROUND_DOWN, ROUND_FLOOR, ROUND_HALF_UP, Decimal

import numpy as np
from tidemark_native import expressions as kernels

from dataflow.delta import Column
from dataflow.expressions.arithmetic import DIVISION_BY_ZERO, OUT_OF_RANGE
from dataflow.expressions.frame import NUMERIC_KINDS, Frame, Value, rows_in_postgres
from dataflow.expressions.kernel import Kernel, at_valid, both_valid
from dataflow.expressions.numbers import EXACT, NAN, ZERO, Numbers, rounded, scale_of, scaled
from dataflow.long_integers import digits_of, units_of
from dataflow.types import FIXED_DIGITS, FIXED_NAN, SqlType, TypeKind

MAX_SCALE, MAX_WEIGHT_DIGITS, FAR_SCALE = 16_383, 131_072, 2_000
_MIN_SIGNIFICANT_DIGITS, _MAX_DISPLAY_SCALE, _BASE_DIGITS = 16, 1_000, 4
_NARROW = {"+": kernels.ADD, "-": kernels.SUBTRACT, "*": kernels.MULTIPLY}


def find(function: str, types: tuple[SqlType, ...], result: SqlType) -> Kernel | None:
    """Return the kernel of an operator or function on numerics, if it is one."""
    if result.kind not in NUMERIC_KINDS or not types:
        return None
    if function in ("round", "trunc") and len(types) == 2:
        is_known = types[0].kind in NUMERIC_KINDS and types[1].kind in (
            TypeKind.INT2,
            TypeKind.INT4,
        )
        return _round_to(function, types, result) if is_known else None
    if not all(t.kind in NUMERIC_KINDS for t in types):
        return None
    if len(types) == 2:
        if function in _NARROW:
            return _combine(function)
        if function in ("/", "%", "mod"):
            return _divide(quotient if function == "/" else remainder)
    return _UNARY.get(function) if len(types) == 1 else None


def _combine(function: str) -> Kernel:
    operation = _NARROW[function]
    wide = {"+": EXACT.add, "-": EXACT.subtract, "*": _product}[function]

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        a, b = values
        assert isinstance(a, Numbers) and isinstance(b, Numbers)
        valid = both_valid(values)
        if a.scales is not None and b.scales is not None:
            units, scales, fits = kernels.combine_numbers(
                operation, a.units, a.scales, b.units, b.scales
            )
            if fits:
                return Numbers(units, scales, None).with_valid(valid)
        if a.words is not None and b.words is not None:
            *words, fits = kernels.combine_words(operation, *a.words, *b.words)
            if fits:
                return Numbers.of_words(words, None).with_valid(valid)
        left, right = np.broadcast_arrays(a.decimals(), b.decimals())
        out = [wide(x, y) for x, y in zip(left, right, strict=True)]
        return _checked(frame, out, valid)

    return Kernel(run, can_fail=True)


def _product(a: Decimal, b: Decimal) -> Decimal:
    out = EXACT.multiply(a, b)
    if out.is_finite() and scale_of(out) > MAX_SCALE:
        return rounded(out, MAX_SCALE, ROUND_HALF_UP)
    return out


def _checked(frame: Frame, numbers: Sequence[Decimal], valid: np.ndarray | None) -> Numbers:
    """Return numbers under a mask; numbers with too many digits fail."""
    out = Numbers.of_decimals(numbers, None).with_valid(valid)
    wrong = np.fromiter(
        (x.is_finite() and x.adjusted() >= MAX_WEIGHT_DIGITS for x in out.units), np.bool_, len(out)
    )
    if wrong.any():
        frame.fail(at_valid(wrong, valid), OUT_OF_RANGE, "value overflows numeric format")
    return out


def _divide(compute: Callable[[int, int, int, int], tuple[int, int]]) -> Kernel:
    def run(frame: Frame, values: Sequence[Value]) -> Value:
        a, b = values
        assert isinstance(a, Numbers) and isinstance(b, Numbers)
        valid = both_valid(values)
        zero = b.is_zero() & ~a.is_nan()
        if zero.any():
            frame.fail(at_valid(zero, valid), DIVISION_BY_ZERO, "division by zero")
        found = _words_quotient(a, b) if compute is quotient else _narrow_remainder(a, b)
        if found is not None:
            return found.with_valid(valid)
        left, right = np.broadcast_arrays(a.decimals(), b.decimals())
        out = [_wide_quotient(x, y, compute) for x, y in zip(left, right, strict=True)]
        return _checked(frame, out, valid)

    return Kernel(run, can_fail=True)


def _words_quotient(a: Numbers, b: Numbers) -> Numbers | None:
    """Return a / b, zero where b is zero; None where a quotient does not fit."""
    if a.words is None or b.words is None:
        return None
    *words, fits = kernels.divide_words(*a.words, *b.words)
    return Numbers.of_words(words, None) if fits else None


def _narrow_remainder(a: Numbers, b: Numbers) -> Numbers | None:
    """Return a % b with the sign of a; None where a remainder does not fit."""
    if a.scales is None or b.scales is None:
        return None
    nan = (a.units == FIXED_NAN) | (b.units == FIXED_NAN)
    scales = np.where(nan, 0, np.maximum(a.scales, b.scales))
    sides = []
    for number in (a, b):
        missing = np.where(nan, 0, scales - number.scales)
        size = 10 ** np.minimum(missing, FIXED_DIGITS)
        units = np.where(nan, 0, number.units)
        if (missing > FIXED_DIGITS).any() or (np.abs(units) > FIXED_NAN // size).any():
            return None
        sides.append(units * size)
    left, right = sides
    rest = np.fmod(left, np.where(right == 0, 1, right))
    return Numbers(np.where(nan, FIXED_NAN, rest), scales, None)


def _wide_quotient(a: Decimal, b: Decimal, compute: Callable) -> Decimal:
    if a.is_nan() or b.is_nan() or not b:
        return NAN
    if a.is_infinite():
        return NAN if b.is_infinite() or compute is remainder else a.copy_sign(a * b.copy_sign(b))
    if b.is_infinite():
        return a if compute is remainder else ZERO
    s, t = scale_of(a), scale_of(b)
    return scaled(*compute(units_of(a, s), s, units_of(b, t), t))


def quotient(a: int, a_scale: int, b: int, b_scale: int) -> tuple[int, int]:
    """Return (units, scale) of a / 10^a_scale over b / 10^b_scale, b not zero.

    >>> quotient(1, 0, 3, 0), quotient(-90000, 2, 3, 0)
    ((33333333333333333333, 20), (-3000000000000000000, 16))
    """
    weight, first = _leading(a, a_scale)
    b_weight, b_first = _leading(b, b_scale)
    weight -= b_weight
    if first <= b_first:
        weight -= 1
    scale = max(_MIN_SIGNIFICANT_DIGITS - weight * _BASE_DIGITS, a_scale, b_scale, 0)
    scale = min(scale, _MAX_DISPLAY_SCALE)
    shift = scale + b_scale - a_scale
    top, bottom = abs(a), abs(b)
    if shift >= 0:
        top *= 10**shift
    else:
        bottom *= 10**-shift
    units = (2 * top + bottom) // (2 * bottom)
    return (units if (a < 0) == (b < 0) else -units), scale


def _leading(units: int, scale: int) -> tuple[int, int]:
    """Return weight and value of the first base-10,000 digit, as numeric.c stores a number."""
    if units == 0:
        return 0, 0
    digits = digits_of(abs(units))
    weight = (len(digits) - 1 - scale) // _BASE_DIGITS
    above = len(digits) - scale - weight * _BASE_DIGITS
    return weight, int(digits[:above].ljust(above, "0"))


def remainder(a: int, a_scale: int, b: int, b_scale: int) -> tuple[int, int]:
    """Return (units, scale) of a % b with the sign of a, b not zero.

    >>> remainder(-75, 1, 2, 0)
    (-15, 1)
    """
    scale = max(a_scale, b_scale)
    top, bottom = abs(a) * 10 ** (scale - a_scale), abs(b) * 10 ** (scale - b_scale)
    rest = top % bottom
    return (-rest if a < 0 else rest), scale


def _unary(
    narrow: Callable[[Numbers], Numbers | None], wide: Callable[[Decimal], Decimal]
) -> Kernel:
    def run(frame: Frame, values: Sequence[Value]) -> Value:
        (value,) = values
        assert isinstance(value, Numbers)
        out = narrow(value)
        if out is not None:
            return out
        return Numbers.of_decimals([wide(x) for x in value.decimals()], value.valid)

    return Kernel(run)


def _keeping_nan(
    compute: Callable[[np.ndarray], np.ndarray],
) -> Callable[[Numbers], Numbers | None]:
    def narrow(value: Numbers) -> Numbers | None:
        if value.scales is None:
            if value.words is None:
                return None
            signs, words, scales = value.words
            signs = np.where(value.is_nan(), signs, compute(signs))
            return Numbers.of_words((signs, words, scales), value.valid)
        nan = value.units == FIXED_NAN
        return Numbers(np.where(nan, FIXED_NAN, compute(value.units)), value.scales, value.valid)

    return narrow


def _sign(value: Numbers) -> Numbers | None:
    if value.scales is None:
        return None
    signs = np.where(value.units == FIXED_NAN, FIXED_NAN, np.sign(value.units))
    return Numbers.of_fixed(signs, 0, value.valid)


def _whole(up: bool) -> Callable[[Numbers], Numbers | None]:
    def narrow(value: Numbers) -> Numbers | None:
        if value.scales is None:
            return None
        units = kernels.floor_or_ceil(value.units, value.scales, up)
        return Numbers.of_fixed(units, 0, value.valid)

    return narrow


def _rounded_whole(is_half_up: bool) -> Callable[[Numbers], Numbers | None]:
    def narrow(value: Numbers) -> Numbers | None:
        return narrow_rounded(value, 0, is_half_up)

    return narrow


def narrow_rounded(value: Numbers, scale: int, is_half_up: bool) -> Numbers | None:
    """Return numbers at a scale as narrow ones, None when they do not fit."""
    if not 0 <= scale <= 18:
        return None
    if value.scales is None:
        if value.words is None:
            return None
        units, fits = kernels.round_words(*value.words, scale, is_half_up)
        return Numbers.of_fixed(units, scale, value.valid) if fits else None
    units, fits = kernels.round_numbers(value.units, value.scales, scale, is_half_up, value.mask())
    return Numbers.of_fixed(units, scale, value.valid) if fits else None


def to_scale(number: Decimal, scale: int, mode: str) -> Decimal:
    """Return a number at a scale; NaN and infinities stay."""
    return rounded(number, scale, mode) if number.is_finite() else number


def _wide_sign(number: Decimal) -> Decimal:
    return number if number.is_nan() else Decimal((number > 0) - (number < 0))


_UNARY = {
    "+": _unary(lambda v: v, lambda x: x),
    "-": _unary(_keeping_nan(np.negative), lambda x: x.copy_negate()),
    "@": _unary(_keeping_nan(np.abs), lambda x: x.copy_abs()),
    "abs": _unary(_keeping_nan(np.abs), lambda x: x.copy_abs()),
    "sign": _unary(_sign, _wide_sign),
    "ceil": _unary(_whole(True), lambda x: to_scale(x, 0, ROUND_CEILING)),
    "ceiling": _unary(_whole(True), lambda x: to_scale(x, 0, ROUND_CEILING)),
    "floor": _unary(_whole(False), lambda x: to_scale(x, 0, ROUND_FLOOR)),
    "round": _unary(_rounded_whole(True), lambda x: to_scale(x, 0, ROUND_HALF_UP)),
    "trunc": _unary(_rounded_whole(False), lambda x: to_scale(x, 0, ROUND_DOWN)),
}


def _round_to(function: str, types: tuple[SqlType, ...], result: SqlType) -> Kernel:
    is_half_up = function == "round"
    mode = ROUND_HALF_UP if is_half_up else ROUND_DOWN
    sql = f"{function}($1, $2)"

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        number, scale = values
        assert isinstance(number, Numbers) and isinstance(scale, Column)
        valid = both_valid(values)
        if len(scale) == 1:
            out = narrow_rounded(number, int(scale.values[0]), is_half_up)
            if out is not None:
                return out.with_valid(valid)
        # PostgreSQL's releases differ in what a scale beyond this does.
        far = at_valid(np.abs(scale.values) > FAR_SCALE, scale.valid)
        pairs = np.broadcast_arrays(number.decimals(), np.where(far, 0, scale.values))
        out = _checked(
            frame, [to_scale(x, int(places), mode) for x, places in zip(*pairs, strict=True)], valid
        )
        doubtful = np.broadcast_to(far, len(out))
        return rows_in_postgres(frame, doubtful, out, (sql, types, values, result))

    return Kernel(run, can_fail=True)
