"""The registry of native functions, which binder and compiler query.

A family is a file with find(function, argument types, result type). A function without a family is
evaluated in PostgreSQL: leaving one out is never wrong, only slower.
"""

from __future__ import annotations

from dataflow.expressions import (
    arithmetic,
    booleans,
    calendar,
    casts,
    comparison,
    decimals,
    key_kernels,
    row_kernels,
    stamps,
    text,
    time_zones,
)
from dataflow.expressions.frame import NUMERIC_KINDS
from dataflow.expressions.ir import links_of
from dataflow.expressions.kernel import Kernel, Lookup
from dataflow.types import SqlType, TypeKind

FAMILIES: tuple[Lookup, ...] = (
    booleans.find,
    comparison.find,
    casts.find,
    arithmetic.find,
    decimals.find,
    text.find,
    calendar.find,
    stamps.find,
    key_kernels.find,
    row_kernels.find,
    time_zones.find,
)


def kernel_for(function: str, types: tuple[SqlType, ...], result: SqlType) -> Kernel | None:
    """Return the kernel of a function over these argument types, None when there is none."""
    for find in FAMILIES:
        kernel = find(function, types, result)
        if kernel is not None:
            return kernel
    return None


def has_kernel(function: str, argument_types: tuple[SqlType, ...], result: SqlType) -> bool:
    """Return whether a plan may contain a Call of this function over these types.

    False is always a valid answer: PostgreSQL then evaluates the function.

    >>> from dataflow.types import INT4, BOOL, JSONB
    >>> has_kernel("<", (INT4, INT4), BOOL), has_kernel("<", (JSONB, JSONB), BOOL)
    (True, False)
    """
    if function in ("and", "or"):
        return all(t.kind is TypeKind.BOOL for t in argument_types) and bool(argument_types)
    if function == "case":
        conditions = argument_types[0 : len(argument_types) // 2 * 2 : 2]
        branches = argument_types[1::2] + argument_types[-1:] * (len(argument_types) % 2)
        return all(t.kind is TypeKind.BOOL for t in conditions) and _alike(branches, result)
    if function == "coalesce":
        return _alike(argument_types, result)
    if links := links_of(function):
        steps = set(zip(links, argument_types[1:], strict=True))
        return argument_types[0] == result and all(
            kernel_for(link, (result, type), result) is not None for link, type in steps
        )
    return kernel_for(function, argument_types, result) is not None


def _alike(types: tuple[SqlType, ...], result: SqlType) -> bool:
    """Return whether values of all types are unchanged values of the result type."""
    if result.kind in NUMERIC_KINDS:
        scales = {t.scale for t in types}
        is_fixed = result.kind is TypeKind.FIXED
        return all(t.kind in NUMERIC_KINDS for t in types) and (
            not is_fixed or scales == {result.scale}
        )
    return bool(types) and all(t.kind is result.kind for t in types)
