"""Properties of functions that return sets: which of them have a kernel.

Names are those of the canonical text: without a schema a function is built in.
"""

from __future__ import annotations

import re

from dataflow.plan.nodes import SetCall, TableFunction
from dataflow.types import SqlType, TypeKind

SERIES = "generate_series"
_SERIES_CALL = re.compile(rf"{SERIES}\(\$1, \$2(, \$3)?\)")
_STAMPS = (TypeKind.TIMESTAMP, TypeKind.TIMESTAMPTZ)
_INTEGERS = (TypeKind.INT4, TypeKind.INT8)


def series_of(plan: TableFunction) -> SetCall | None:
    """Return the only call of a node if it is a series with a kernel."""
    (first, *others) = plan.calls
    if others or not _SERIES_CALL.fullmatch(first.sql):
        return None
    return first if has_series_kernel([a.type for a in first.arguments]) else None


def has_series_kernel(types: list[SqlType]) -> bool:
    """Return whether there is a kernel for (start, stop[, step]) of these types.

    >>> from dataflow.types import INT4, INT8, INTERVAL, TIMESTAMP
    >>> has_series_kernel([INT4, INT4]), has_series_kernel([INT4, INT8])
    (True, False)
    >>> has_series_kernel([TIMESTAMP, TIMESTAMP, INTERVAL]), has_series_kernel([TIMESTAMP] * 2)
    (True, False)
    """
    kinds = [t.kind for t in types]
    if len(kinds) == 3 and kinds[0] in _STAMPS:
        return kinds[1] is kinds[0] and kinds[2] is TypeKind.INTERVAL
    return len(kinds) in (2, 3) and kinds[0] in _INTEGERS and len(set(kinds)) == 1
