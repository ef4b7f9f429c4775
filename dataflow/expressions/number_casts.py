"""Casts to and from numeric, and to numeric(p,s).

Floats go through the 15 (real: 6) significant digits that PostgreSQL prints them with. Rounding
is half away from zero; what does not fit numeric(p,s) is a "numeric field overflow".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal

import numpy as np

from dataflow.delta import Column
from dataflow.expressions.arithmetic import FLOAT_KINDS, INT_RANGES, OUT_OF_RANGE, single
from dataflow.expressions.decimals import narrow_rounded, to_scale
from dataflow.expressions.frame import NUMERIC_KINDS, Frame, Value, rows_in_postgres
from dataflow.expressions.kernel import Kernel, at_valid
from dataflow.expressions.numbers import Numbers
from dataflow.types import FIXED_NAN, SqlType, TypeKind

_EXACT_FLOAT = 2**53
_PLAIN_NUMERIC = re.compile(r"-?\d{1,300}(\.\d{1,300})?").fullmatch


def find(source: SqlType, result: SqlType) -> Kernel | None:
    """Return the kernel of a cast from or to numeric."""
    if result.kind in NUMERIC_KINDS:
        if source.kind in INT_RANGES:
            return _limited(_Read.ints, source, result)
        if source.kind in FLOAT_KINDS:
            digits = 15 if source.kind is TypeKind.FLOAT8 else 6
            return _limited(lambda frame, value: _Read.floats(value, digits), source, result)
        if source.kind in NUMERIC_KINDS:
            return _limited(lambda frame, value: value, source, result)
        return _text_to_numeric(source, result) if source.kind is TypeKind.TEXT else None
    if result.kind in INT_RANGES:
        return _to_int(result)
    return _to_float(source, result) if result.kind in FLOAT_KINDS else None


class _Read:
    """Numbers from columns of other types."""

    @staticmethod
    def ints(frame: Frame, value: Value) -> Numbers:
        assert isinstance(value, Column)
        if len(value) and (value.values.max() == FIXED_NAN or value.values.min() == -(2**63)):
            return Numbers.of_decimals([Decimal(x) for x in value.values.tolist()], value.valid)
        return Numbers.of_fixed(value.values, 0, value.valid)

    @staticmethod
    def floats(value: Value, digits: int) -> Numbers:
        assert isinstance(value, Column)
        out = []
        for x in value.values.tolist():
            number = Decimal(f"{x:.{digits}g}")
            is_whole = number.is_finite() and number.as_tuple().exponent > 0  # type: ignore[operator]
            out.append(to_scale(number, 0, ROUND_HALF_UP) if is_whole else number)
        return Numbers.of_decimals(out, value.valid)


def limits(type: SqlType) -> tuple[int, int] | None:
    """Return (precision, scale) of a numeric type, None when it has none."""
    if type.typmod < 4:
        return None
    scale = (type.typmod - 4) & 0x7FF
    return ((type.typmod - 4) >> 16) & 0xFFFF, scale - 2048 if scale >= 1024 else scale


def _limited(read, source: SqlType, result: SqlType) -> Kernel:
    """Return a cast to numeric or numeric(p,s) of what `read` gives."""
    limit = limits(result)
    fits_always = limit is None

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        numbers = read(frame, values[0])
        return numbers if limit is None else limited(frame, numbers, *limit)

    return Kernel(run, can_fail=not fits_always)


def limited(frame: Frame, numbers: Numbers, precision: int, scale: int) -> Numbers:
    """Return numbers rounded to numeric(precision, scale); those that do not fit fail."""
    out = narrow_rounded(numbers, scale, True)
    if out is not None:
        wrong = np.zeros(len(out), np.bool_)
        if precision <= 18:
            wrong = (np.abs(out.units) >= 10**precision) & (out.units != FIXED_NAN)
            out = Numbers.of_fixed(np.where(wrong, 0, out.units), scale, out.valid)
    else:
        rounded = [to_scale(x, scale, ROUND_HALF_UP) for x in numbers.decimals()]
        bound = Decimal(10) ** (precision - scale)
        wrong = np.fromiter(
            (not x.is_nan() and not -bound < x < bound for x in rounded), np.bool_, len(rounded)
        )
        kept = [Decimal(0) if bad else x for x, bad in zip(rounded, wrong, strict=True)]
        out = Numbers.of_decimals(kept, numbers.valid)
    if wrong.any():
        frame.fail(at_valid(wrong, numbers.valid), OUT_OF_RANGE, "numeric field overflow")
    return out


def _text_to_numeric(source: SqlType, result: SqlType) -> Kernel:
    limit = limits(result)
    sql = f"CAST($1 AS {result.name})"

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        (value,) = values
        assert isinstance(value, Column)
        texts = value.texts()
        good = [t is None or _PLAIN_NUMERIC(t) is not None for t in texts]
        plain = [Decimal(t) if t and ok else Decimal(0) for t, ok in zip(texts, good, strict=True)]
        numbers = Numbers.of_decimals(plain, value.valid)
        if limit is not None:
            numbers = limited(frame, numbers, *limit)
        return rows_in_postgres(
            frame, ~np.array(good, np.bool_), numbers, (sql, (source,), values, result)
        )

    return Kernel(run, can_fail=True)


def _to_int(result: SqlType) -> Kernel:
    low, high, message = INT_RANGES[result.kind]
    name = {"smallint": "smallint", "integer": "integer"}.get(result.name, "bigint")

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        (numbers,) = values
        assert isinstance(numbers, Numbers)
        valid = numbers.valid
        nan = numbers.is_nan()
        if nan.any():
            frame.fail(at_valid(nan, valid), "0A000", f"cannot convert NaN to {name}")
        infinite = ~numbers.is_finite() & ~nan
        if infinite.any():
            frame.fail(at_valid(infinite, valid), "0A000", f"cannot convert infinity to {name}")
        whole = narrow_rounded(numbers, 0, True)
        if whole is not None:
            wrong = ((whole.units < low) | (whole.units > high)) & ~nan
            out = np.where(wrong | nan, 0, whole.units)
        else:
            rounded = [to_scale(x, 0, ROUND_HALF_UP) for x in numbers.decimals()]
            ok = [x.is_finite() and low <= x <= high for x in rounded]
            wrong = ~np.array(ok, np.bool_) & ~nan & ~infinite
            out = np.array(
                [int(x) if fits else 0 for x, fits in zip(rounded, ok, strict=True)], np.int64
            )
        if wrong.any():
            frame.fail(at_valid(wrong, valid), OUT_OF_RANGE, message)
        return Column(out, valid)

    return Kernel(run, can_fail=True)


def _to_float(source: SqlType, result: SqlType) -> Kernel:
    is_single = result.kind is TypeKind.FLOAT4
    sql = f"CAST($1 AS {result.name})"

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        (numbers,) = values
        assert isinstance(numbers, Numbers)
        units, scales = numbers.units, numbers.scales
        if scales is not None and (np.abs(units) < _EXACT_FLOAT).all():
            # One division of exact doubles is the nearest double.
            out = units.astype(np.float64) / np.power(10.0, scales)
        else:
            out = np.array([float(x) for x in numbers.decimals()], np.float64)
        if is_single:
            out = _nearest_single(out, numbers)
        native = Column(out, numbers.valid)
        lost = (np.isinf(out) & numbers.is_finite()) | ((out == 0) & ~numbers.is_zero())
        lost = at_valid(lost, numbers.valid)
        return rows_in_postgres(frame, lost, native, (sql, (source,), values, result))

    return Kernel(run, can_fail=True)


def _nearest_single(wide: np.ndarray, numbers: Numbers) -> np.ndarray:
    """Return the single nearest to each number: rounding twice misses only when the double is a
    tie."""
    out = single(wide)
    tie = (wide.view(np.int64) & ((1 << 29) - 1)) == 1 << 28
    for row in np.flatnonzero(tie & np.isfinite(out)).tolist():
        exact = numbers.take(np.array([row])).decimals()[0]
        if exact != Decimal(wide[row]):
            toward = np.inf if exact > Decimal(wide[row]) else -np.inf
            out[row] = float(np.float32(np.nextafter(wide[row], toward)))
    return out
