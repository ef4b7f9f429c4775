"""Oracle: Python's integers, and the average of numeric_div in plain Python (test_results)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark_native.aggregates import parse_limbs

from dataflow.delta import Column
from dataflow.errors import InvariantError
from dataflow.expressions.ir import Call, ColumnRef, Expression, Literal
from dataflow.expressions.numeric_form import NumericForm
from dataflow.operators.aggregates.linear import Parsed, limbs_for, text_form
from dataflow.operators.aggregates.numeric_results import (
    Masks,
    average_column,
    average_text,
    fixed_text,
    limbs_of,
    sum_column,
)
from dataflow.plan.nodes import Values
from dataflow.plan.properties.numeric_forms import numeric_form
from dataflow.types import INT4, INT8, NUMERIC, fixed, sql_type

_NO_MASK = np.empty(0, np.bool_)
_NOTHING = Values((), ())
COUNTS = st.one_of(st.integers(1, 12), st.sampled_from([10**4, 9999, 10**8, 2**31 - 1, 10**15]))


def _limbs(value: int, count: int) -> list[int]:
    return [value >> 32 * k & 0xFFFFFFFF for k in range(count - 1)] + [value >> 32 * (count - 1)]


@settings(max_examples=300)
@given(st.data(), st.integers(2, 8), st.sampled_from([0, 1, 2, 4, 17, 30]))
def test_sums_and_averages_are_those_of_whole_numbers(data, limbs: int, scale: int) -> None:
    bits = st.integers(0, 32 * limbs - 2).flatmap(lambda b: st.integers(-(2**b), 2**b))
    totals = data.draw(st.lists(bits, min_size=1, max_size=8))
    counts = data.draw(st.lists(COUNTS, min_size=len(totals), max_size=len(totals)))
    parts = zip(*(_limbs(t, limbs) for t in totals), strict=True)
    columns = [np.array(part, np.int64) for part in parts]
    masks = Masks(np.ones(len(totals), np.bool_))
    assert sum_column(columns, scale, scale, masks).texts() == [
        fixed_text(t, scale) for t in totals
    ]
    averages = average_column(columns, np.array(counts, np.int64), scale, scale, masks)
    assert averages.texts() == [
        average_text(t, scale, c) for t, c in zip(totals, counts, strict=True)
    ]


def test_sums_that_were_never_carried() -> None:
    """Halves of 2^31 rows, and sums of negative and positive rows."""
    low = np.array([2**62, -(2**62), -1, 0xFFFFFFFF << 31], np.int64)
    high = np.array([-(2**30), 2**30, 0, -1], np.int64)
    totals = [(int(h) << 32) + int(x) for x, h in zip(low, high, strict=True)]
    found = sum_column((low, high), 3, 3, Masks(np.ones(4, np.bool_)))
    assert found.texts() == [fixed_text(t, 3) for t in totals]


def test_a_sum_shows_the_scale_of_its_rows() -> None:
    totals = np.array([12_0000, 0, 7_5000, -3_1000], np.int64)
    masks = Masks(np.array([True, True, True, True]), np.array([False, False, True, False]))
    shown = np.array([0, 0, 4, 1], np.int64)
    found = sum_column(limbs_of(totals), 4, shown, masks)
    assert found.texts() == ["12", "0", "NaN", "-3.1"]
    counts = np.full(4, 8, np.int64)
    found = average_column(limbs_of(totals), counts, 4, shown, masks)
    assert found.texts() == [
        average_text(12, 0, 8),
        average_text(0, 0, 8),
        "NaN",
        "-0.38750000000000000000",
    ]
    none = Masks(np.zeros(4, np.bool_))
    assert sum_column(limbs_of(totals), 4, 4, none).to_list() == [None] * 4


@given(st.lists(st.tuples(st.integers(-(10**40), 10**40), st.integers(0, 12)), min_size=1))
def test_text_as_limbs(rows: list[tuple[int, int]]) -> None:
    texts = Column.of("s", [fixed_text(units, scale) for units, scale in rows])
    limbs, nan, own, bad = parse_limbs(texts.values, texts.data, _NO_MASK, 12, 6)
    assert bad == -1 and not nan.any()
    assert own.tolist() == [scale for _, scale in rows]
    for i, (units, scale) in enumerate(rows):
        value = sum(int(limbs[k, i]) << 32 * k for k in range(6))
        assert value == units * 10 ** (12 - scale)


@pytest.mark.parametrize(
    ("text", "bad"),
    [("4294967295", -1), ("-4294967296", 0), ("9223372036854775807", 0), ("0.001", 0), ("x", 0)],
)
def test_what_does_not_fit_is_named(text: str, bad: int) -> None:
    """Two limbs at scale 2: less than 2^63 hundredths."""
    column = Column.of("s", [text if text != "-4294967296" else "-92233720368547758.08"])
    assert parse_limbs(column.values, column.data, _NO_MASK, 2, 2)[3] == bad


def test_nan_and_null_are_no_numbers() -> None:
    column = Column.of("s", ["NaN", None, "-1.5"])
    limbs, nan, _, bad = parse_limbs(column.values, column.data, column.mask(), 1, 1)
    assert (limbs.tolist(), nan.tolist(), bad) == ([[0, 0, -15]], [True, False, False], -1)


PRICE, RATE = ColumnRef(0, fixed(15, 2)), ColumnRef(1, fixed(4, 3))
ONE, ZERO = Literal("1", NUMERIC), Literal("0", NUMERIC)
NET = Call("*", (PRICE, Call("-", (ONE, RATE), NUMERIC)), NUMERIC)


@pytest.mark.parametrize(
    ("expression", "form"),
    [
        (PRICE, (13, {2})),
        (NET, (15, {5})),
        (Call("case", (Literal("t", sql_type("boolean", 16)), NET, ZERO), NUMERIC), (15, {0, 5})),
        (Call("coalesce", (NET, Literal(None, NUMERIC)), NUMERIC), (15, {5})),
        (Call("cast", (ColumnRef(2, INT4),), NUMERIC), (10, {0})),
        (Call("cast", (Call("/", (NET, NET), NUMERIC),), fixed(20, 6)), (14, {6})),
        (Call("-", (Call("+", (PRICE, ColumnRef(2, INT8)), NUMERIC),), NUMERIC), (20, {2})),
        (Call("/", (NET, NET), NUMERIC), None),
        (Literal("NaN", NUMERIC), None),
        (Call("key form", (ColumnRef(0, NUMERIC),), NUMERIC), None),
    ],
)
def test_what_is_known_of_an_expression(
    expression: Expression, form: tuple[int, set[int]] | None
) -> None:
    wanted = None if form is None else NumericForm(form[0], frozenset(form[1]))
    assert numeric_form(_NOTHING, expression) == wanted


def test_a_form_fits_its_digits() -> None:
    for digits in range(1, 77):
        limbs = limbs_for(NumericForm(digits, frozenset({0})))
        assert 2 ** (32 * limbs - 1) > 10**digits
    assert text_form(NumericForm(80, frozenset({2}))) is None
    assert text_form(NumericForm(3, frozenset())) is None


def test_a_form_that_lies_is_an_invariant_error() -> None:
    with pytest.raises(InvariantError):
        Parsed(Column.of("s", ["1.50"]), NumericForm(3, frozenset({1, 3})))
