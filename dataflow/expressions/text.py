"""Text functions and operators whose answer does not depend on a locale.

Case conversion is native for ASCII only: PostgreSQL computes rows with any other character. It
computes all rows of initcap beyond the collations C and POSIX, since ICU finds words differently.
Positions and lengths count characters, not bytes. char(n) keeps its trailing blanks only where
PostgreSQL does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tidemark_native import expressions as kernels

from dataflow.delta import Column
from dataflow.expressions import scalar_text
from dataflow.expressions.frame import Frame, Value, rows_in_postgres
from dataflow.expressions.kernel import Kernel, at_valid, both_valid, bytes_column, fixed_width
from dataflow.expressions.like import find as find_like
from dataflow.types import SqlType, TypeKind
from dataflow.values import to_text

_INTS = (TypeKind.INT2, TypeKind.INT4)
_TEXTS = (TypeKind.TEXT, TypeKind.BPCHAR)


def find(function: str, types: tuple[SqlType, ...], result: SqlType) -> Kernel | None:
    """Return the kernel of a text function, if the types have one."""
    if not types:
        return None
    if function in ("concat", "concat_ws"):
        is_known = all(t.kind in _TEXTS or t.kind in (*_INTS, TypeKind.INT8) for t in types)
        is_known = is_known and (function == "concat" or types[0].kind is TypeKind.TEXT)
        return _concat(types, function == "concat_ws") if is_known else None
    kinds = tuple(t.kind for t in types)
    if function in _LENGTHS and len(kinds) == 1 and kinds[0] in _TEXTS:
        return _LENGTHS[function](kinds[0] is TypeKind.BPCHAR)
    texts = scalar_text.text_arguments(function, len(kinds))
    expected = [
        k is TypeKind.TEXT if is_text else k in _INTS
        for k, is_text in zip(kinds, texts, strict=False)
    ]
    if len(expected) != len(kinds) or not all(expected):
        return find_like(function, types, result)
    if function in ("lower", "upper") and types[0].may_be_turkic:
        return None
    if function == "initcap" and not types[0].is_bytewise:
        return None
    return _native(function, types, result)


def _native(function: str, types: tuple[SqlType, ...], result: SqlType) -> Kernel | None:
    if function in ("lower", "upper"):
        return _case(function, types[0], result)
    if function in _COLUMNWISE:
        return _COLUMNWISE[function]
    if function in ("trim", "btrim", "ltrim", "rtrim"):
        return _trim(function, types, result)
    scalar = scalar_text.SCALARS.get(function)
    if scalar is None:
        return None
    return _by_row(function, scalar, types, result)


def as_text(value: Value, type: SqlType) -> Column:
    """Return the bytes column of PostgreSQL's text output of a value."""
    if isinstance(value, Column):
        return to_text(type, value)
    return value.to_text()


def _length(is_blank_padded: bool) -> Kernel:
    def run(frame: Frame, values: Sequence[Value]) -> Value:
        (value,) = values
        assert isinstance(value, Column)
        out = kernels.lengths(value.values, value.data, is_blank_padded)
        return Column(out, value.valid)

    return Kernel(run)


def _octet_length(is_blank_padded: bool) -> Kernel:
    def run(frame: Frame, values: Sequence[Value]) -> Value:
        (value,) = values
        assert isinstance(value, Column)
        return Column(np.diff(value.values), value.valid)

    return Kernel(run)


_LENGTHS = {
    "length": _length,
    "char_length": _length,
    "character_length": _length,
    "octet_length": _octet_length,
}


def _case(function: str, type: SqlType, result: SqlType) -> Kernel:
    first, last, by = (65, 90, 32) if function == "lower" else (97, 122, -32)
    sql = f"{function}($1)"

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        (value,) = values
        assert isinstance(value, Column)
        offsets, data = kernels.change_case(value.values, value.data, first, last, by)
        doubtful = at_valid(kernels.not_ascii(value.values, value.data), value.valid)
        native = Column(offsets, value.valid, data)
        return rows_in_postgres(frame, doubtful, native, (sql, (type,), values, result))

    return Kernel(run, can_fail=True)


def _join(frame: Frame, values: Sequence[Value]) -> Value:
    a, b = values
    assert isinstance(a, Column) and isinstance(b, Column)
    offsets, data = kernels.join(a.values, a.data, b.values, b.data)
    return bytes_column(offsets, data, both_valid(values))


def _substring(frame: Frame, values: Sequence[Value]) -> Value:
    text, start = values[0], values[1]
    assert isinstance(text, Column) and isinstance(start, Column) and text.data is not None
    valid = both_valid(values)
    first = start.values - 1
    if len(values) == 2:
        stop = np.full(1, 2**40, np.int64)
    else:
        size = values[2]
        assert isinstance(size, Column)
        negative = size.values < 0
        if negative.any():
            shape = np.broadcast_shapes(text.mask().shape, first.shape, negative.shape)
            wrong = at_valid(np.broadcast_to(negative, shape), valid)
            frame.fail(wrong, "22011", "negative substring length not allowed")
        stop = first + np.maximum(size.values, 0)
    offsets, data = kernels.cut(text.values, text.data, np.maximum(first, 0), stop)
    return bytes_column(offsets, data, valid)


def _left(frame: Frame, values: Sequence[Value]) -> Value:
    text, count = values
    assert isinstance(text, Column) and isinstance(count, Column)
    stop = count.values
    if (stop < 0).any():
        size = kernels.lengths(text.values, text.data, False)
        stop = np.where(stop < 0, size + stop, stop)
    offsets, data = kernels.cut(text.values, text.data, np.zeros(1, np.int64), stop)
    return bytes_column(offsets, data, both_valid(values))


def _right(frame: Frame, values: Sequence[Value]) -> Value:
    text, count = values
    assert isinstance(text, Column) and isinstance(count, Column)
    size = kernels.lengths(text.values, text.data, False)
    # PostgreSQL's -n of the lowest integer overflows, so nothing is cut off.
    skipped = np.where(count.values == -(2**31), 0, -count.values)
    first = np.where(count.values < 0, skipped, np.maximum(size - count.values, 0))
    offsets, data = kernels.cut(text.values, text.data, first, np.full(1, 2**40, np.int64))
    return bytes_column(offsets, data, both_valid(values))


def _position(frame: Frame, values: Sequence[Value]) -> Value:
    a, b = values
    assert isinstance(a, Column) and isinstance(b, Column)
    out = kernels.find(a.values, a.data, b.values, b.data)
    return fixed_width(out, both_valid(values))


def _starts_with(frame: Frame, values: Sequence[Value]) -> Value:
    a, b = values
    assert isinstance(a, Column) and isinstance(b, Column)
    size = np.diff(b.values)
    short = np.minimum(np.diff(a.values), size)
    a, b = (_rows_of(v, len(short)) for v in (a, b))
    heads = Column.of("s", [t[:k] if t else b"" for t, k in zip(a.to_list(), short, strict=True)])
    differs = kernels.differ(heads.values, heads.data, b.values, b.data, False)
    return fixed_width(~differs, both_valid(values))


def _rows_of(column: Column, n: int) -> Column:
    return column if len(column) == n else column.take(np.zeros(n, np.int64))


_COLUMNWISE = {
    "||": Kernel(_join),
    "substr": Kernel(_substring, can_fail=True),
    "substring": Kernel(_substring, can_fail=True),
    "left": Kernel(_left),
    "right": Kernel(_right),
    "strpos": Kernel(_position),
    "position": Kernel(_position),
    "starts_with": Kernel(_starts_with),
}


def _trim(function: str, types: tuple[SqlType, ...], result: SqlType) -> Kernel:
    name = "btrim" if function == "trim" else function
    by_row = _by_row(name, scalar_text.SCALARS[name], types, result)
    at_left, at_right = name != "rtrim", name != "ltrim"

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        text = values[0]
        assert isinstance(text, Column)
        to_drop = b" "
        if len(values) == 2:
            given = values[1]
            assert isinstance(given, Column) and given.data is not None
            if len(given) != 1 or (given.data >= 128).any():
                return by_row.run(frame, values)
            to_drop = given.to_list()[0] or b""
        desired = np.zeros(256, np.bool_)
        desired[list(to_drop)] = True
        offsets, data = kernels.trim(text.values, text.data, desired, at_left, at_right)
        return bytes_column(offsets, data, both_valid(values))

    return Kernel(run)


def _concat(types: tuple[SqlType, ...], has_separator: bool) -> Kernel:
    def run(frame: Frame, values: Sequence[Value]) -> Value:
        columns = [as_text(v, t) for v, t in zip(values, types, strict=True)]
        n = 1 if all(len(c) == 1 for c in columns) else frame.n
        rows = [_rows_of(c, n).to_list() for c in columns]
        if not has_separator:
            joined = [b"".join(x for x in row if x is not None) for row in zip(*rows, strict=True)]
            return Column.of("s", joined)
        return Column.of(
            "s",
            [
                None if row[0] is None else row[0].join(x for x in row[1:] if x is not None)
                for row in zip(*rows, strict=True)
            ],
        )

    return Kernel(run)


def _by_row(function: str, scalar: Callable, types: tuple[SqlType, ...], result: SqlType) -> Kernel:
    """Return a kernel of a strict function over one row of Python strings and ints.

    The function returns NotImplemented for a row that PostgreSQL must compute.
    """
    sql = f"{function}({', '.join(f'${i + 1}' for i in range(len(types)))})"

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        n = 1 if all(len(v) == 1 for v in values) else frame.n
        columns = [_rows_of(v, n) for v in values]  # type: ignore[arg-type]
        rows = zip(
            *(c.texts() if c.data is not None else c.to_list() for c in columns), strict=True
        )
        out = [None if any(x is None for x in row) else scalar(*row) for row in rows]
        doubtful = np.fromiter((x is NotImplemented for x in out), np.bool_, n)
        if not doubtful.any():
            return Column.of(result.physical, out)
        native = Column.of(result.physical, [None if x is NotImplemented else x for x in out])
        return rows_in_postgres(frame, doubtful, native, (sql, types, values, result))

    return Kernel(run, can_fail=True)
