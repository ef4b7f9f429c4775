"""Arithmetic on integers and floats, with PostgreSQL's range errors.

Integers never wrap: "integer out of range" instead. Floats follow src/include/utils/float.h: an
infinite result of finite numbers is an overflow, a zero product of non-zero factors an underflow,
and real (float4) results are rounded to single precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from dataflow.delta import Column
from dataflow.expressions.frame import Frame, Value
from dataflow.expressions.kernel import Kernel, at_valid, both_valid, elementwise, fixed_width
from dataflow.types import SqlType, TypeKind

INT_RANGES = {
    TypeKind.INT2: (-(2**15), 2**15 - 1, "smallint out of range"),
    TypeKind.INT4: (-(2**31), 2**31 - 1, "integer out of range"),
    TypeKind.INT8: (-(2**63), 2**63 - 1, "bigint out of range"),
}
FLOAT_KINDS = (TypeKind.FLOAT4, TypeKind.FLOAT8)
OUT_OF_RANGE, DIVISION_BY_ZERO = "22003", "22012"
OVERFLOW, UNDERFLOW = "value out of range: overflow", "value out of range: underflow"
_INT8_MIN = -(2**63)


def find(function: str, types: tuple[SqlType, ...], result: SqlType) -> Kernel | None:
    """Return the kernel of an operator or function on integers or floats, if it is one."""
    kinds = tuple(t.kind for t in types)
    if kinds and all(k in INT_RANGES for k in kinds):
        return _integers(function, len(kinds), result)
    if kinds and all(k in FLOAT_KINDS for k in kinds):
        return _floats(function, kinds, result)
    return None


def _integers(function: str, count: int, result: SqlType) -> Kernel | None:
    if result.kind not in INT_RANGES:
        return None
    if count == 2 and function in _INT_BINARY:
        return _checked(_INT_BINARY[function], result)
    if function in ("/", "%", "mod") and count == 2:
        return _division(function == "/", result)
    if count == 1 and function == "+":
        return elementwise(lambda a: a)
    if count == 1 and function in ("-", "@", "abs"):
        return _negation(function == "-", result)
    return None


def _add(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    out = a + b
    return out, ((a ^ out) & (b ^ out)) < 0


def _subtract(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    out = a - b
    return out, ((a ^ b) & (a ^ out)) < 0


def _multiply(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    out = a * b
    # A product of doubles, exact to one part in 2^52, shows whether the integer product wrapped.
    rough = a.astype(np.float64) * b.astype(np.float64)
    wrapped = np.abs(rough) > 9.3e18
    edge = (np.abs(rough) > 9.1e18) & ~wrapped
    if edge.any():
        a, b = np.broadcast_arrays(a, b)
        for i in np.flatnonzero(edge).tolist():
            wrapped[i] = not -(2**63) <= int(a[i]) * int(b[i]) < 2**63
    return out, wrapped


_INT_BINARY = {"+": _add, "-": _subtract, "*": _multiply}


def _checked(compute: Callable[..., tuple[np.ndarray, np.ndarray]], result: SqlType) -> Kernel:
    low, high, message = INT_RANGES[result.kind]
    is_wide = result.kind is TypeKind.INT8

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        a, b = (v.values for v in values)  # type: ignore[union-attr]
        valid = both_valid(values)
        out, wrong = compute(a, b)
        if not is_wide:
            wrong = (out < low) | (out > high)
        if wrong.any():
            frame.fail(at_valid(wrong, valid), OUT_OF_RANGE, message)
        return fixed_width(out, valid)

    return Kernel(run, can_fail=True)


def _division(is_quotient: bool, result: SqlType) -> Kernel:
    low, _high, message = INT_RANGES[result.kind]

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        a, b = (v.values for v in values)  # type: ignore[union-attr]
        valid = both_valid(values)
        zero = b == 0
        if zero.any():
            broken = np.broadcast_to(zero, max(len(a), len(b)) if len(a) and len(b) else 0)
            frame.fail(at_valid(broken, valid), DIVISION_BY_ZERO, "division by zero")
            b = np.where(zero, 1, b)
        # The lowest integer divided by -1 wraps to itself; its remainder is still 0.
        wrong = (a == low) & (b == -1)
        if wrong.any():
            b = np.where(wrong, 1, b)
            if is_quotient:
                frame.fail(at_valid(wrong, valid), OUT_OF_RANGE, message)
        # numpy rounds down, PostgreSQL toward zero.
        floor = a // b
        rest = a - floor * b
        is_low = (rest != 0) & ((a < 0) != (b < 0))
        return fixed_width(floor + is_low if is_quotient else rest - is_low * b, valid)

    return Kernel(run, can_fail=True)


def _negation(always: bool, result: SqlType) -> Kernel:
    low, _, message = INT_RANGES[result.kind]

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        (value,) = values
        assert isinstance(value, Column)
        wrong = value.values == low
        if wrong.any():
            frame.fail(at_valid(wrong, value.valid), OUT_OF_RANGE, message)
        return Column(-value.values if always else np.abs(value.values), value.valid)

    return Kernel(run, can_fail=True)


def _floats(function: str, kinds: tuple[TypeKind, ...], result: SqlType) -> Kernel | None:
    if result.kind not in FLOAT_KINDS:
        return None
    if len(kinds) == 2:
        compute = _FLOAT_BINARY.get(function)
        return _float_binary(function, compute, result) if compute else None
    if function in _FLOAT_EXACT:
        return elementwise(_FLOAT_EXACT[function])
    if function in _FLOAT_DOMAINS and kinds[0] is TypeKind.FLOAT8:
        return _float_function(function)
    return None


def single(values: np.ndarray) -> np.ndarray:
    """Return float64 values rounded to single precision."""
    return values.astype(np.float32).astype(np.float64)


_FLOAT_BINARY = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}


def _float_binary(function: str, compute: Callable[..., np.ndarray], result: SqlType) -> Kernel:
    is_single = result.kind is TypeKind.FLOAT4

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        a, b = (v.values for v in values)  # type: ignore[union-attr]
        valid = both_valid(values)
        # Single operands in double precision, rounded once more, give the single result.
        out = single(compute(a, b)) if is_single else compute(a, b)
        if function == "/":
            zero = (b == 0) & ~np.isnan(a)
            if zero.any():
                frame.fail(at_valid(zero, valid), DIVISION_BY_ZERO, "division by zero")
        infinite = np.isinf(out)
        if infinite.any():
            wrong = infinite & ~np.isinf(a)
            if function != "/":
                wrong = wrong & ~np.isinf(b)
            frame.fail(at_valid(wrong, valid), OUT_OF_RANGE, OVERFLOW)
        if function in "*/":
            wrong = (out == 0) & (a != 0)
            if wrong.any():
                wrong = wrong & (b != 0 if function == "*" else ~np.isinf(b))
                frame.fail(at_valid(wrong, valid), OUT_OF_RANGE, UNDERFLOW)
        return fixed_width(out, valid)

    return Kernel(run, can_fail=True)


_FLOAT_EXACT = {
    "+": lambda a: a,
    "-": np.negative,
    "@": np.abs,
    "abs": np.abs,
    "ceil": np.ceil,
    "ceiling": np.ceil,
    "floor": np.floor,
    "round": np.rint,
    "trunc": np.trunc,
    "sign": lambda a: np.where(a > 0, 1.0, np.where(a < 0, -1.0, 0.0)),
}
_NO_LOG_OF_ZERO = ("2201E", "cannot take logarithm of zero")
_NO_LOG_OF_NEGATIVE = ("2201E", "cannot take logarithm of a negative number")
_NO_ROOT = ("2201F", "cannot take square root of a negative number")
_FLOAT_DOMAINS = {
    "sqrt": (math.sqrt, _NO_ROOT, None),
    "ln": (math.log, _NO_LOG_OF_NEGATIVE, _NO_LOG_OF_ZERO),
    "log": (math.log10, _NO_LOG_OF_NEGATIVE, _NO_LOG_OF_ZERO),
    "log10": (math.log10, _NO_LOG_OF_NEGATIVE, _NO_LOG_OF_ZERO),
    "exp": (math.exp, None, None),
}


def _float_function(function: str) -> Kernel:
    scalar, negative_error, zero_error = _FLOAT_DOMAINS[function]
    # The C library's functions, as PostgreSQL calls them; numpy's sometimes differ in the last bit.
    compute = np.frompyfunc(lambda x: _total(scalar, x), 1, 1)

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        (value,) = values
        assert isinstance(value, Column)
        a, valid = value.values, value.valid
        good = np.ones(len(a), np.bool_)
        if negative_error:
            good &= ~(a < 0)
            frame.fail(at_valid(a < 0, valid), *negative_error)
        if zero_error:
            good &= a != 0
            frame.fail(at_valid(a == 0, valid), *zero_error)
        if function == "sqrt":
            return Column(np.sqrt(np.where(good, a, 0.0)), valid)
        out = np.asarray(compute(np.where(good, a, 1.0)), np.float64)
        frame.fail(at_valid(np.isinf(out) & ~np.isinf(a), valid), OUT_OF_RANGE, OVERFLOW)
        if function == "exp":
            frame.fail(at_valid((out == 0) & ~np.isinf(a), valid), OUT_OF_RANGE, UNDERFLOW)
        return Column(out, valid)

    return Kernel(run, can_fail=True)


def _total(scalar: Callable[[float], float], x: float) -> float:
    """Return a C function that answers infinity on overflow."""
    try:
        return scalar(x)
    except OverflowError:
        return math.inf
