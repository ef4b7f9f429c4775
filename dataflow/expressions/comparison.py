"""Comparison of like types: = <> < > <= >=, IS DISTINCT FROM, IN, NULLIF, GREATEST and LEAST.

Equality of text is equality of bytes (deterministic collations). Its order is native only where
both collations are bytewise. NaN equals NaN and is above every number; char(n) ignores trailing
blanks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import numpy as np
from tidemark_native import expressions as kernels

from dataflow.delta import Column
from dataflow.expressions.frame import NUMERIC_KINDS, Frame, Value, gather
from dataflow.expressions.intervals import spans
from dataflow.expressions.kernel import Kernel, both_valid, fixed_width
from dataflow.expressions.numbers import Numbers
from dataflow.expressions.stamps import stamps_of
from dataflow.types import SqlType, TypeKind

# Two values as arrays whose numpy order is PostgreSQL's order of the values.
Comparable = Callable[[Value, Value], tuple[np.ndarray, np.ndarray]]

_OPERATORS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}
_INTS = {TypeKind.INT2, TypeKind.INT4, TypeKind.INT8}
_FLOATS = {TypeKind.FLOAT4, TypeKind.FLOAT8}
_STAMPS = {TypeKind.DATE, TypeKind.TIMESTAMP, TypeKind.TIMESTAMPTZ}
_BYTES = {TypeKind.UUID, TypeKind.BYTEA}


def find(function: str, types: tuple[SqlType, ...], result: SqlType) -> Kernel | None:
    """Return the kernel of a comparison, if the types have one."""
    if function in ("greatest", "least") and types:
        return _extreme(function == "greatest", types)
    if len(types) < 2:
        return None
    if function == "in":
        tests = [comparable(types[0], t, False) for t in types[1:]]
        return _membership(tests) if all(tests) else None  # type: ignore[arg-type]
    if len(types) != 2:
        return None
    if function in _OPERATORS:
        is_order = function not in ("=", "<>")
        pair = comparable(types[0], types[1], is_order)
        return _compare(pair, _OPERATORS[function]) if pair else None
    pair = comparable(types[0], types[1], False)
    if pair is None:
        return None
    if function in ("is distinct from", "is not distinct from"):
        return _distinct(pair, function == "is distinct from")
    return _nullif(pair) if function == "nullif" else None


def comparable(left: SqlType, right: SqlType, is_order: bool) -> Comparable | None:
    """Return how to compare two types natively; None when PostgreSQL must."""
    kinds = {left.kind, right.kind}
    if kinds <= _INTS or kinds == {TypeKind.BOOL} or kinds == {TypeKind.TIME}:
        return _plain
    if kinds <= _FLOATS:
        return _floats
    if kinds <= NUMERIC_KINDS:
        return _numerics
    if kinds <= _STAMPS:
        is_mixed = len(kinds) > 1 and TypeKind.DATE in kinds
        return _stamps(left, right) if is_mixed else _plain
    if kinds == {TypeKind.TEXT} or kinds == {TypeKind.BPCHAR}:
        if is_order and not (left.is_bytewise and right.is_bytewise):
            return None
        return (
            _bytes_order(kinds == {TypeKind.BPCHAR})
            if is_order
            else _bytes_equal(kinds == {TypeKind.BPCHAR})
        )
    if len(kinds) == 1 and kinds <= _BYTES:
        return _bytes_order(False)
    if kinds == {TypeKind.INTERVAL}:
        return _intervals
    if left.is_text_equal and left.oid == right.oid and not is_order:
        return _bytes_equal(False)
    return None


def _plain(a: Value, b: Value) -> tuple[np.ndarray, np.ndarray]:
    return a.values, b.values  # type: ignore[union-attr]


def float_order(values: np.ndarray) -> np.ndarray:
    """int64 that orders as PostgreSQL orders floats: NaN above all, -0 equal to 0."""
    bits = (values + 0.0).view(np.int64)
    return np.where(
        np.isnan(values), np.int64(2**63 - 1), np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)
    )


def _floats(a: Value, b: Value) -> tuple[np.ndarray, np.ndarray]:
    x, y = a.values, b.values  # type: ignore[union-attr]
    if np.isnan(x).any() or np.isnan(y).any():
        return float_order(x), float_order(y)
    return x, y


def _numerics(a: Value, b: Value) -> tuple[np.ndarray, np.ndarray]:
    assert isinstance(a, Numbers) and isinstance(b, Numbers)
    if a.scales is not None and b.scales is not None:
        if len(a.scales) == 1 and len(b.scales) == 1 and a.scales[0] == b.scales[0]:
            return a.units, b.units
        return kernels.compare_numbers(a.units, a.scales, b.units, b.scales), _ZERO
    if a.words is not None and b.words is not None:
        found, fits = kernels.compare_words(*a.words, *b.words)
        if fits:
            return found, _ZERO
    left, right = np.broadcast_arrays(a.decimals(), b.decimals())
    signs = [_sign(x, y) for x, y in zip(left, right, strict=True)]
    return np.array(signs, np.int8), _ZERO


_ZERO = np.zeros(1, np.int8)


def _sign(x, y) -> int:
    if x.is_nan() or y.is_nan():
        return int(x.is_nan()) - int(y.is_nan())
    return (x > y) - (x < y)


def _stamps(left: SqlType, right: SqlType) -> Comparable:
    def compare(a: Value, b: Value) -> tuple[np.ndarray, np.ndarray]:
        return stamps_of(a, left), stamps_of(b, right)

    return compare


def _intervals(a: Value, b: Value) -> tuple[np.ndarray, np.ndarray]:
    return spans(a), spans(b)


def _bytes_order(is_blank_padded: bool) -> Comparable:
    def compare(a: Value, b: Value) -> tuple[np.ndarray, np.ndarray]:
        assert isinstance(a, Column) and isinstance(b, Column)
        signs = kernels.compare_texts(a.values, a.data, b.values, b.data, is_blank_padded)
        return signs, _ZERO

    return compare


def _bytes_equal(is_blank_padded: bool) -> Comparable:
    def compare(a: Value, b: Value) -> tuple[np.ndarray, np.ndarray]:
        assert isinstance(a, Column) and isinstance(b, Column)
        differs = kernels.differ(a.values, a.data, b.values, b.data, is_blank_padded)
        return differs, _FALSE

    return compare


_FALSE = np.zeros(1, np.bool_)


def _compare(pair: Comparable, test: Callable) -> Kernel:
    def run(frame: Frame, values: Sequence[Value]) -> Value:
        a, b = pair(values[0], values[1])
        return fixed_width(test(a, b), both_valid(values))

    return Kernel(run)


def _distinct(pair: Comparable, desired: bool) -> Kernel:
    def run(frame: Frame, values: Sequence[Value]) -> Value:
        a, b = pair(values[0], values[1])
        differs = a != b
        if values[0].valid is not None or values[1].valid is not None:
            left, right = values[0].mask(), values[1].mask()
            differs = (differs & left & right) | (left != right)
        return Column(differs if desired else ~differs)

    return Kernel(run)


def _membership(tests: Sequence[Comparable]) -> Kernel:
    def run(frame: Frame, values: Sequence[Value]) -> Value:
        found: np.ndarray = _FALSE
        has_null: np.ndarray = _FALSE
        for test, value in zip(tests, values[1:], strict=True):
            a, b = test(values[0], value)
            equal = a == b
            if value.valid is not None:
                equal = equal & value.valid
                has_null = has_null | ~value.valid
            found = found | equal
        valid = values[0].valid
        if has_null.any():
            known = found | ~has_null
            valid = known if valid is None else valid & known
        return fixed_width(found, valid)

    return Kernel(run)


def _nullif(pair: Comparable) -> Kernel:
    def run(frame: Frame, values: Sequence[Value]) -> Value:
        value = values[0]
        a, b = pair(value, values[1])
        equal = a == b
        valid = both_valid(values)
        if valid is not None:
            equal = equal & valid
        keep = value.mask() & ~equal
        return with_valid(value, keep)

    return Kernel(run)


def with_valid(value: Value, valid: np.ndarray) -> Value:
    """Return the value under another mask, bool[n]; the value has n rows or one row for all."""
    if len(value) != len(valid):
        value = value.take(np.zeros(len(valid), np.int64))
    if isinstance(value, Numbers):
        return value.with_valid(valid)
    return Column(value.values, valid, value.data)


def _extreme(is_greatest: bool, types: tuple[SqlType, ...]) -> Kernel | None:
    pair = comparable(types[0], types[-1], True)
    if pair is None or any(
        (t.kind, t.oid, t.is_bytewise) != (types[0].kind, types[0].oid, types[0].is_bytewise)
        and t.kind not in NUMERIC_KINDS
        for t in types
    ):
        return None
    better = operator.gt if is_greatest else operator.lt

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        best = values[0]
        for value in values[1:]:
            a, b = pair(value, best)
            takes = value.mask() & (better(a, b) | ~best.mask())
            n = len(takes)
            rows = np.flatnonzero(takes)
            rest = np.flatnonzero(~takes)
            chosen = value if len(value) == 1 else value.take(rows)
            kept = best if len(best) == 1 else best.take(rest)
            best = gather([(rows, chosen), (rest, kept)], n)
        return best

    return Kernel(run)
