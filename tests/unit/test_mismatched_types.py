"""Oracle: PostgreSQL's messages beside the columns that stand in the query."""

from __future__ import annotations

import pytest

from dataflow.mismatched_types import mismatch_of

# A query, its operator's text, and what is said: (left, right), or None.
CASES = [
    ("SELECT FROM a JOIN b ON a.id = b.id", " = ", ("a.id", "b.id")),
    ('SELECT FROM a, b WHERE "A"."I d"=s.b.x', "=s", ('"A"."I d"', "s.b.x")),
    ("SELECT FROM a WHERE x /* = */ <> Y AND z", "<> Y", ("x", "Y")),
    ("SELECT FROM a WHERE x >= y", ">= y", ("x", "y")),
    ("SELECT FROM a WHERE f(x) = y", " = y", None),
    ("SELECT FROM a WHERE x = f(y)", " = f", None),
    ("SELECT FROM a WHERE x::date = y", " = y", None),
    ("SELECT FROM a WHERE x = y::date", " = y", None),
    ("SELECT FROM a WHERE x = 'y'", " = 'y'", None),
    ("SELECT FROM a WHERE x = 7", " = 7", None),
    ("SELECT FROM a WHERE x =", " =", None),
]


@pytest.mark.parametrize(("query", "operator", "columns"), CASES)
def test_both_columns_are_named(query: str, operator: str, columns: tuple[str, str] | None) -> None:
    offset = query.rindex(operator) + len(operator) - len(operator.lstrip())
    sign = ">=" if ">=" in operator else "<>" if "<>" in operator else "="
    found = mismatch_of(f"operator does not exist: bigint {sign} text", query, offset)
    if columns is None:
        assert found is None
        return
    left, right = columns
    assert found is not None and found.offset == offset
    assert found.detail == f"{left} is bigint, {right} is text"
    assert f"{left} {sign} {right}::bigint" in found.hint
    assert f"{left}::text {sign} {right}" in found.hint


def test_other_types_are_cast_to_text() -> None:
    found = mismatch_of("operator does not exist: uuid = time with time zone", "SELECT a = b", 9)
    assert found is not None and found.hint.endswith("a::text = b::text")


def test_using_has_a_position_too() -> None:
    query = "SELECT FROM a JOIN b USING (Id)"
    message = "JOIN/USING types bigint and text cannot be matched"
    found = mismatch_of(message, query, None)
    assert found is not None and found.offset == query.index("Id")
    assert "a.Id = b.Id::bigint" in found.hint
    assert mismatch_of(message, query + " JOIN c USING (x)", None) is None
    assert mismatch_of("division by zero", query, 3) is None
