"""NOT, IS NULL, IS TRUE and similar tests: three-valued logic without errors.

AND and OR are lazy; they are in `nodes`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dataflow.delta import Column
from dataflow.expressions.frame import Frame, Value
from dataflow.expressions.kernel import Kernel, elementwise
from dataflow.types import SqlType, TypeKind


def find(function: str, types: tuple[SqlType, ...], result: SqlType) -> Kernel | None:
    """Return the kernel of a boolean test, if it is one."""
    if len(types) != 1:
        return None
    if function in ("is null", "is not null"):
        return None if _may_be_a_row(types[0]) else _NULL_TESTS[function]
    return _TESTS.get(function) if types[0].kind is TypeKind.BOOL else None


def _may_be_a_row(type: SqlType) -> bool:
    """Return whether the type may be composite. A row of NULLs IS NULL too, so PostgreSQL
    decides."""
    is_composite = type.oid >= 16384 and not type.is_enum
    return type.kind is TypeKind.OPAQUE and (is_composite or type.name == "record")


def _is_null(frame: Frame, values: Sequence[Value]) -> Value:
    return Column(~values[0].mask())


def _is_not_null(frame: Frame, values: Sequence[Value]) -> Value:
    return Column(values[0].mask())


def _test(wanted: bool | None, negated: bool) -> Kernel:
    def run(frame: Frame, values: Sequence[Value]) -> Value:
        (value,) = values
        assert isinstance(value, Column)
        if wanted is None:
            out = ~value.mask()
        else:
            out = value.values if wanted else ~value.values
            if value.valid is not None:
                out = out & value.valid
        return Column(~out if negated else out)

    return Kernel(run)


_NULL_TESTS = {"is null": Kernel(_is_null), "is not null": Kernel(_is_not_null)}
_TESTS = {
    "not": elementwise(np.logical_not),
    "is true": _test(True, False),
    "is not true": _test(True, True),
    "is false": _test(False, False),
    "is not false": _test(False, True),
    "is unknown": _test(None, False),
    "is not unknown": _test(None, True),
}
