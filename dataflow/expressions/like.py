"""LIKE and ILIKE. A pattern is read once; % and _ count characters, the rest compares bytes.

PostgreSQL evaluates patterns that end in their escape, escapes of several characters, and ILIKE
beyond ASCII.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from tidemark_native.expressions import (
    ANY_ONE,
    ANY_RUN,
    change_case,
    match_like,
    not_ascii,
)

from dataflow.delta import Column
from dataflow.expressions.frame import Frame, Value, rows_in_postgres
from dataflow.expressions.kernel import Kernel, both_valid, fixed_width
from dataflow.types import SqlType, TypeKind

_FUNCTIONS = ("like", "not like", "ilike", "not ilike")
_TEXTS = (TypeKind.TEXT, TypeKind.BPCHAR)


def find(function: str, types: tuple[SqlType, ...], result: SqlType) -> Kernel | None:
    """Return the kernel of a LIKE over text."""
    if function not in _FUNCTIONS or len(types) not in (2, 3):
        return None
    if types[0].kind not in _TEXTS or any(t.kind is not TypeKind.TEXT for t in types[1:]):
        return None
    is_plain = types[0].kind is TypeKind.TEXT and not any(t.may_be_turkic for t in types)
    if "ilike" in function and not is_plain:
        return None
    return _like(function, types, result)


@lru_cache(maxsize=4096)
def pattern_codes(pattern: bytes, escape: bytes, is_folded: bool) -> np.ndarray | None:
    """Return int64 codes of a pattern for match_like; None when PostgreSQL must read it.

    >>> pattern_codes(rb"a%\\_", b"\\\\", False).tolist()
    [97, -1, 95]
    """
    if len(escape.decode()) > 1 or (is_folded and not pattern.isascii()):
        return None
    codes: list[int] = []
    at = 0
    while at < len(pattern):
        if escape and pattern.startswith(escape, at):
            at += len(escape)
            if at == len(pattern):
                return None
            codes.append(pattern[at])
        elif pattern[at] == 37:
            if not codes or codes[-1] != ANY_RUN:
                codes.append(ANY_RUN)
        elif pattern[at] == 95:
            codes.append(ANY_ONE)
        else:
            codes.append(pattern[at])
        at += 1
    if is_folded:
        codes = [c + 32 if 65 <= c <= 90 else c for c in codes]
    return np.array(codes, np.int64)


def _like(function: str, types: tuple[SqlType, ...], result: SqlType) -> Kernel:
    is_negated, is_folded = function.startswith("not"), function.endswith("ilike")
    sql = f"($1 {function.upper()} $2{' ESCAPE $3' if len(types) == 3 else ''})"

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        text, pattern = values[0], values[1]
        assert isinstance(text, Column) and isinstance(pattern, Column)
        valid = both_valid(values)
        n = 1 if all(len(v) == 1 for v in values) else frame.n
        escapes: list[bytes | None] = [b"\\"]
        if len(values) == 3:
            escapes = values[2].to_list()  # type: ignore[union-attr]
        doubtful = np.zeros(n, np.bool_)
        offsets, data = text.values, text.data
        if is_folded:
            doubtful |= not_ascii(offsets, data)
            offsets, data = change_case(offsets, data, 65, 90, 32)
        text = Column(offsets, None, data)
        if len(pattern) == 1 and len(escapes) == 1:
            given = pattern.to_list()[0] or b""
            codes = pattern_codes(given, escapes[0] or b"", is_folded)
            if codes is None:
                doubtful[:] = True
                out = doubtful
            else:
                out = match_like(offsets, data, codes)
        else:
            out = _row_by_row(text, pattern, escapes, is_folded, doubtful)
        native = fixed_width(~out if is_negated else out, valid)
        if valid is not None:
            doubtful &= valid
        return rows_in_postgres(frame, doubtful, native, (sql, types, values, result))

    return Kernel(run, can_fail=True)


def _row_by_row(
    text: Column,
    pattern: Column,
    escapes: list[bytes | None],
    is_folded: bool,
    doubtful: np.ndarray,
) -> np.ndarray:
    """Match each row with its own pattern, a distinct pattern at a time; marks doubtful rows."""
    n = len(doubtful)
    patterns = pattern.to_list() * (n if len(pattern) == 1 else 1)
    escapes = escapes * (n if len(escapes) == 1 else 1)
    groups: dict[tuple[bytes, bytes], list[int]] = {}
    for row, key in enumerate(zip(patterns, escapes, strict=True)):
        groups.setdefault((key[0] or b"", key[1] or b""), []).append(row)
    out = np.zeros(n, np.bool_)
    for (given, escape), rows in groups.items():
        codes = pattern_codes(given, escape, is_folded)
        index = np.array(rows, np.int64)
        if codes is None:
            doubtful[index] = True
            continue
        part = text if len(text) == 1 else text.take(index)
        out[index] = match_like(part.values, part.data, codes)
    return out
