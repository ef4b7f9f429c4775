"""The kernels of "key form": values whose bits are equal exactly when PostgreSQL says equal.

Built by `expressions.keys`, which lists the form of each type.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
from tidemark_native import expressions as kernels

from dataflow.delta import Column
from dataflow.expressions.arithmetic import FLOAT_KINDS, INT_RANGES
from dataflow.expressions.frame import NUMERIC_KINDS, Frame, Value
from dataflow.expressions.intervals import spans
from dataflow.expressions.kernel import Kernel, elementwise
from dataflow.expressions.number_casts import find as find_number_cast
from dataflow.expressions.numbers import EXACT, Numbers
from dataflow.expressions.stamps import STAMPS, stamps_of
from dataflow.types import SqlType, TypeKind

_JSON_NUMBER = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d+\.\d+')
_BLANK = np.zeros(256, np.bool_)
_BLANK[32] = True


def find(function: str, types: tuple[SqlType, ...], result: SqlType) -> Kernel | None:
    """Return the kernel of "key form" for one argument."""
    if function != "key form" or len(types) != 1:
        return None
    source = types[0]
    if source.kind in FLOAT_KINDS:
        return elementwise(_float_key)
    if source.kind in NUMERIC_KINDS and result.kind is TypeKind.DECIMAL:
        return Kernel(_numeric_key)
    if source.kind in INT_RANGES and result.kind is TypeKind.DECIMAL:
        cast = find_number_cast(source, result)
        return cast and Kernel(lambda frame, values: _numeric_key(frame, [cast.run(frame, values)]))
    if source.kind is TypeKind.INTERVAL and result.kind is TypeKind.DECIMAL:
        return Kernel(_interval_key)
    if source.kind is TypeKind.DATE and result.kind in STAMPS:
        return Kernel(lambda frame, values: Column(stamps_of(values[0], source), values[0].valid))
    return _BY_KIND.get(source.kind)


def _float_key(values: np.ndarray) -> np.ndarray:
    """Replace -0 by 0 and every NaN by one."""
    return np.where(np.isnan(values), np.nan, values + 0.0)


def _numeric_key(frame: Frame, values: Sequence[Value]) -> Value:
    """Strip trailing zeros of the fraction."""
    (value,) = values
    assert isinstance(value, Numbers)
    if value.scales is not None:
        return Numbers(*kernels.strip_numbers(value.units, value.scales), value.valid)
    if value.words is not None:
        signs, words, scales = value.words
        return Numbers.of_words((signs, *kernels.strip_words(signs, words, scales)), value.valid)
    out = []
    for number in value.units:
        if number.is_finite():
            number = number.normalize(EXACT)
            if number.as_tuple().exponent > 0:
                number = number.quantize(1, context=EXACT)
        out.append(number)
    return Numbers.of_decimals(out, value.valid)


def _padded_key(frame: Frame, values: Sequence[Value]) -> Value:
    (value,) = values
    assert isinstance(value, Column)
    offsets, data = kernels.trim(value.values, value.data, _BLANK, False, True)
    return Column(offsets, value.valid, data)


def _interval_key(frame: Frame, values: Sequence[Value]) -> Value:
    """Return the span in microseconds: what intervals are compared by, more than 64 bits of it."""
    (value,) = values
    return Numbers.of_decimals([Decimal(span) for span in spans(value)], value.valid)


def _jsonb_key(frame: Frame, values: Sequence[Value]) -> Value:
    """Normalize the numbers in a jsonb, which compare as numerics: 1.0 equals 1."""
    (value,) = values
    assert isinstance(value, Column)
    out = [None if t is None else _JSON_NUMBER.sub(_json_number, t) for t in value.to_list()]
    return Column.of("s", out)


def _json_number(found: re.Match[bytes]) -> bytes:
    text = found.group()
    return text if text.startswith(b'"') else text.rstrip(b"0").rstrip(b".")


_BY_KIND = {
    TypeKind.BPCHAR: Kernel(_padded_key),
    TypeKind.JSONB: Kernel(_jsonb_key),
}
