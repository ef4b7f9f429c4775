"""Casts among numbers, booleans, dates and text, to the typmod of the result.

A cast is explicit: varchar(n) and char(n) cut, numeric(p,s) rounds and may overflow. Casts to and
from numeric are in `number_casts`. PostgreSQL parses any text that is not in its plain output form,
so that errors and liberal input syntax are exactly PostgreSQL's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from tidemark_native import expressions as kernels

from dataflow.delta import Column
from dataflow.expressions import number_casts
from dataflow.expressions.arithmetic import (
    FLOAT_KINDS,
    INT_RANGES,
    OUT_OF_RANGE,
    OVERFLOW,
    UNDERFLOW,
    single,
)
from dataflow.expressions.frame import NUMERIC_KINDS, Frame, Value, rows_in_postgres
from dataflow.expressions.kernel import IDENTITY, Kernel, at_valid, elementwise
from dataflow.expressions.stamps import (
    OUT_OF_RANGE as STAMP_OUT_OF_RANGE,
)
from dataflow.expressions.stamps import (
    STAMPS,
    days_to_stamps,
    stamps_to_days,
    trim_stamp,
)
from dataflow.expressions.text import as_text
from dataflow.types import SqlType, TypeKind
from dataflow.values import from_text

_NAME_OID = 19
_TEXTS = (TypeKind.TEXT, TypeKind.BPCHAR)
_OUTPUT_IS_CAST = (
    *INT_RANGES,
    *FLOAT_KINDS,
    *NUMERIC_KINDS,
    TypeKind.DATE,
    TypeKind.TIME,
    *STAMPS,
    TypeKind.INTERVAL,
    TypeKind.UUID,
    TypeKind.BYTEA,
    TypeKind.JSON,
    TypeKind.JSONB,
)


def find(function: str, types: tuple[SqlType, ...], result: SqlType) -> Kernel | None:
    """Return the kernel of a cast, if the types have one."""
    if function != "cast" or len(types) != 1:
        return None
    source = types[0]
    if result.kind in _TEXTS:
        return _to_text(source, result)
    if source.oid == result.oid and result.typmod in (-1, source.typmod):
        return IDENTITY
    if source.kind in NUMERIC_KINDS or result.kind in NUMERIC_KINDS:
        return number_casts.find(source, result)
    if source.kind is TypeKind.TEXT:
        return _from_text(source, result)
    if result.kind in INT_RANGES:
        return _to_int(source, result)
    if result.kind in FLOAT_KINDS:
        return _to_float(source, result)
    if result.kind is TypeKind.BOOL and source.kind is TypeKind.INT4:
        return elementwise(lambda a: a != 0)
    return _to_stamp(source, result)


def _to_int(source: SqlType, result: SqlType) -> Kernel | None:
    low, high, message = INT_RANGES[result.kind]
    if source.kind is TypeKind.BOOL:
        return elementwise(lambda a: a.astype(np.int64)) if result.kind is TypeKind.INT4 else None
    if source.kind not in (*INT_RANGES, *FLOAT_KINDS):
        return None
    is_float = source.kind in FLOAT_KINDS

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        (value,) = values
        assert isinstance(value, Column)
        out = np.rint(value.values) if is_float else value.values
        # float(high) may round up to 2^63, which is out of range itself.
        wrong = (
            ~((out >= low) & (out < float(high) + 1)) if is_float else (out < low) | (out > high)
        )
        if wrong.any():
            frame.fail(at_valid(wrong, value.valid), OUT_OF_RANGE, message)
            out = np.where(wrong, 0, out)
        return Column(out.astype(np.int64), value.valid)

    return Kernel(run, can_fail=True)


def _to_float(source: SqlType, result: SqlType) -> Kernel | None:
    is_single = result.kind is TypeKind.FLOAT4
    if source.kind in INT_RANGES:
        width = np.float32 if is_single else np.float64
        return elementwise(lambda a: a.astype(width).astype(np.float64))
    if source.kind not in FLOAT_KINDS:
        return None
    if not is_single:
        return IDENTITY

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        (value,) = values
        assert isinstance(value, Column)
        wide, out = value.values, single(value.values)
        for wrong, message in (
            (np.isinf(out) & ~np.isinf(wide), OVERFLOW),
            ((out == 0) & (wide != 0), UNDERFLOW),
        ):
            frame.fail(at_valid(wrong, value.valid), OUT_OF_RANGE, message)
        return Column(out, value.valid)

    return Kernel(run, can_fail=True)


def _to_stamp(source: SqlType, result: SqlType) -> Kernel | None:
    if result.kind is TypeKind.DATE and source.kind in STAMPS:
        return elementwise(stamps_to_days)
    if result.kind not in STAMPS or source.kind not in (TypeKind.DATE, *STAMPS):
        return None
    if source.kind is not TypeKind.DATE:
        return elementwise(lambda a: trim_stamp(a, result.typmod))

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        (value,) = values
        assert isinstance(value, Column)
        stamps, beyond = days_to_stamps(value.values)
        if beyond.any():
            wrong = at_valid(beyond, value.valid)
            frame.fail(wrong, STAMP_OUT_OF_RANGE, "date out of range for timestamp")
        return Column(stamps, value.valid)

    return Kernel(run, can_fail=True)


def _to_text(source: SqlType, result: SqlType) -> Kernel | None:
    if result.oid == _NAME_OID:
        return IDENTITY if source.oid == _NAME_OID else None
    # The text of regclass and similar types depends on the search_path.
    is_array = source.name.endswith("[]") and not source.name.startswith("reg")
    is_known = source.kind in _OUTPUT_IS_CAST or source.is_enum or is_array
    if source.kind is TypeKind.BOOL:
        spell = _spell_bool
    elif source.kind is TypeKind.TEXT or (
        source.kind is TypeKind.BPCHAR and result.kind is TypeKind.BPCHAR
    ):
        spell = _as_is
    elif source.kind is TypeKind.BPCHAR:
        spell = _without_blanks
    elif is_known:

        def spell(value: Value) -> Column:
            return as_text(value, source)
    else:
        return None
    size = result.typmod - 4 if result.typmod >= 4 else -1
    is_padded = result.kind is TypeKind.BPCHAR
    if size < 0 and spell is _as_is:
        return IDENTITY

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        text = spell(values[0])
        if size < 0:
            return text
        if is_padded:
            offsets, data, _ = kernels.pad_blank(text.values, text.data, size)
        else:
            stop = np.array([size], np.int64)
            offsets, data = kernels.cut(text.values, text.data, _START, stop)
        return Column(offsets, text.valid, data)

    return Kernel(run)


_START = np.zeros(1, np.int64)
_BLANK_ONLY = np.zeros(256, np.bool_)
_BLANK_ONLY[32] = True
_TRUE_FALSE = Column.of("s", ["false", "true"])


def _as_is(value: Value) -> Column:
    assert isinstance(value, Column)
    return value


def _spell_bool(value: Value) -> Column:
    assert isinstance(value, Column)
    text = _TRUE_FALSE.take(value.values.astype(np.int64))
    return Column(text.values, value.valid, text.data)


def _without_blanks(value: Value) -> Column:
    assert isinstance(value, Column)
    offsets, data = kernels.trim(value.values, value.data, _BLANK_ONLY, False, True)
    return Column(offsets, value.valid, data)


# The plain forms that values.from_text parses as PostgreSQL does.
_PLAIN = {
    TypeKind.INT2: rb"-?\d{1,18}",
    TypeKind.INT4: rb"-?\d{1,18}",
    TypeKind.INT8: rb"-?\d{1,18}",
    TypeKind.FLOAT4: rb"-?\d{1,20}(\.\d{1,20})?",
    TypeKind.FLOAT8: rb"-?\d{1,20}(\.\d{1,20})?(e[+-]\d\d)?",
    TypeKind.BOOL: rb"t|f",
    TypeKind.DATE: rb"\d{4}-\d\d-\d\d",
    TypeKind.TIMESTAMP: rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,5}[1-9])?",
    TypeKind.TIMESTAMPTZ: rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,5}[1-9])?\+00",
    TypeKind.UUID: rb"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}",
}


def _from_text(source: SqlType, result: SqlType) -> Kernel | None:
    if result.kind not in _PLAIN or (result.kind in STAMPS and result.typmod >= 0):
        return None
    return parsed(source, result, _PLAIN[result.kind])


def parsed(source: SqlType, result: SqlType, plain: bytes) -> Kernel:
    """Return a cast from text: rows in the plain form are parsed here, all others by PostgreSQL."""
    is_plain = re.compile(plain).fullmatch
    sql = f"CAST($1 AS {result.name})"
    ranges = INT_RANGES.get(result.kind)

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        (value,) = values
        assert isinstance(value, Column)
        texts = value.to_list()
        good = np.fromiter((t is None or bool(is_plain(t)) for t in texts), np.bool_, len(texts))
        if ranges:
            low, high, _ = ranges
            for row in np.flatnonzero(good).tolist():
                text = texts[row]
                if text is not None and not low <= int(text) <= high:
                    good[row] = False
        text = value if good.all() else _only(value, good)
        try:
            native = from_text(result, text)
        except ValueError:
            good[:] = value.valid is not None and ~value.mask()
            native = Column.nulls(result.physical, len(value))
        return rows_in_postgres(frame, ~good, native, (sql, (source,), values, result))

    return Kernel(run, can_fail=True)


def _only(value: Column, good: np.ndarray) -> Column:
    """Return the column with all other rows NULL and empty."""
    valid = value.mask() & good
    offsets, data = kernels.blank(value.values, value.data, valid)
    return Column(offsets, valid, data)
