"""The kernels behind subqueries: whole values as keys, and the one row of a scalar subquery.

"identity" is a text that differs for any two values that PostgreSQL prints differently, and is
never NULL; "value of" inverts it. "only row" is its first argument, and fails where the second one
is true: the subquery returned several rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tidemark_native.expressions import blank

from dataflow.delta import Column
from dataflow.expressions.frame import Frame, Value, column_of, value_of
from dataflow.expressions.kernel import Kernel
from dataflow.types import BOOL, TEXT, SqlType
from dataflow.values import from_text, to_text

TOO_MANY_ROWS = ("21000", "more than one row returned by a subquery used as an expression")
_MARK = ord("'")


def find(function: str, types: tuple[SqlType, ...], result: SqlType) -> Kernel | None:
    """Return the kernel of one of the functions above."""
    if function == "identity" and len(types) == 1 and result == TEXT:
        return Kernel(lambda frame, values: _identity(types[0], values[0]))
    if function == "value of" and types == (TEXT,):
        return Kernel(lambda frame, values: _value_of(result, values[0]))
    if function == "only row" and len(types) == 2 and types[1] == BOOL and types[0] == result:
        return Kernel(_only_row, can_fail=True)
    return None


def _identity(type: SqlType, value: Value) -> Column:
    """Return the text of each value after a marker byte; the empty text for NULL."""
    texts = to_text(type, column_of(value, type))
    valid = texts.mask()
    offsets, data = blank(texts.values, texts.data, valid)
    out = np.empty(len(data) + int(valid.sum()), np.uint8)
    marked = offsets.copy()
    marked[1:] += np.cumsum(valid)
    is_mark = np.zeros(len(out), np.bool_)
    is_mark[marked[:-1][valid]] = True
    out[is_mark] = _MARK
    out[~is_mark] = data
    return Column(marked, None, out)


def _value_of(type: SqlType, value: Value) -> Value:
    """Return the value that `_identity` encoded."""
    assert isinstance(value, Column) and value.data is not None
    offsets = value.values
    valid = np.diff(offsets) > 0
    data = value.data[offsets[0] : offsets[-1]]
    keep = np.ones(len(data), np.bool_)
    keep[(offsets[:-1] - offsets[0])[valid]] = False
    bare = offsets - offsets[0]
    bare[1:] -= np.cumsum(valid)
    texts = Column(bare, None if valid.all() else valid, np.ascontiguousarray(data[keep]))
    return value_of(from_text(type, texts), type)


def _only_row(frame: Frame, values: Sequence[Value]) -> Value:
    """Return the value; an error where the subquery has several rows."""
    value, is_many = values
    assert isinstance(is_many, Column)
    failed = is_many.values if is_many.valid is None else is_many.values & is_many.valid
    frame.fail(failed, *TOO_MANY_ROWS)
    return value
