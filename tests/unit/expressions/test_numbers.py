"""Oracle: the wide (exact decimal) road; the narrow (int64) road must give the same numbers."""

from __future__ import annotations

from decimal import Context, Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataflow.delta import Column
from dataflow.errors import InvariantError
from dataflow.expressions.compile import compile_expression
from dataflow.expressions.decimals import quotient, remainder, to_scale
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import Call, ColumnRef, Expression, Literal
from dataflow.expressions.keys import common_key_forms, key_form
from dataflow.expressions.numbers import EXACT, Numbers, scale_of, scaled, text_of
from dataflow.operators.ordered.ordering import peer_ranks, text_ranks
from dataflow.types import BOOL, FIXED_NAN, FLOAT8, INT4, NUMERIC, TEXT, SqlType, fixed, sql_type

units = st.one_of(
    st.integers(-(10**18) + 1, 10**18 - 1), st.integers(-1000, 1000), st.just(FIXED_NAN)
)
numbers = st.tuples(units, st.integers(0, 18))


def run(expression: Expression, *columns: Column) -> list:
    compiled = compile_expression(expression, NoEvaluator())
    column, errors = compiled.evaluate(columns, len(columns[0]))
    return [errors.by_row.get(i) or x for i, x in enumerate(column.to_list())]


@given(st.lists(numbers, min_size=1, max_size=20))
def test_text_of_narrow_and_wide(rows: list[tuple[int, int]]) -> None:
    units, scales = (np.array(x, np.int64) for x in zip(*rows, strict=True))
    narrow = Numbers(units, scales, None)
    text = narrow.to_text()
    assert text.texts() == [text_of(x) for x in narrow.decimals()]
    back = Numbers.of_text(text)
    assert back.to_text().texts() == text.texts()


@settings(max_examples=200)
@given(st.sampled_from("+-*"), st.lists(st.tuples(numbers, numbers), min_size=1, max_size=5))
def test_arithmetic_of_narrow_and_wide(function: str, rows) -> None:
    columns = [Column.of("s", [text_of(_decimal(*pair[i])) for pair in rows]) for i in range(2)]
    ours = run(Call(function, (ColumnRef(0, NUMERIC), ColumnRef(1, NUMERIC)), NUMERIC), *columns)
    exact = {"+": Decimal.__add__, "-": Decimal.__sub__, "*": Decimal.__mul__}[function]
    with localcontext(Context(prec=100, traps=[])):
        theirs = [text_of(exact(_decimal(*x), _decimal(*y))) for x, y in rows]
    assert [x.decode() for x in ours] == theirs


def _decimal(unit: int, scale: int) -> Decimal:
    return Decimal("NaN") if unit == FIXED_NAN else scaled(unit, scale)


@settings(max_examples=200)
@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=5))
def test_comparison_of_narrow_and_wide(rows) -> None:
    a, b = (Column.of("s", [text_of(_decimal(*pair[i])) for pair in rows]) for i in range(2))
    out = run(Call("<", (ColumnRef(0, NUMERIC), ColumnRef(1, NUMERIC)), BOOL), a, b)
    for row, (x, y) in enumerate(rows):
        left, right = _decimal(*x), _decimal(*y)
        if left.is_nan() or right.is_nan():
            assert out[row] == (right.is_nan() and not left.is_nan())
        else:
            assert out[row] == (left < right)


# Up to 10^45: int64, words, and what fits neither.
wide_units = st.one_of(
    st.integers(0, 46).flatmap(lambda p: st.integers(-(10**p), 10**p)),
    st.sampled_from([0, 1, 9999, 10_000, 10**18, 10**19 - 1, 2**63 - 1, 2**63, 2**160 - 1, 2**160]),
)
wide_numbers = st.one_of(
    st.tuples(wide_units, st.integers(0, 24)).map(lambda x: scaled(*x)), st.just(Decimal("NaN"))
)
rows_of_two = st.lists(st.tuples(wide_numbers, wide_numbers), min_size=1, max_size=5)


def _texts(rows, side: int) -> Column:
    return Column.of("s", [text_of(pair[side]) for pair in rows])


@settings(max_examples=300)
@given(st.sampled_from("+-*/%"), rows_of_two)
def test_arithmetic_in_every_form(function: str, rows) -> None:
    columns = _texts(rows, 0), _texts(rows, 1)
    ours = run(Call(function, (ColumnRef(0, NUMERIC), ColumnRef(1, NUMERIC)), NUMERIC), *columns)
    for found, (x, y) in zip(ours, rows, strict=True):
        if function in "/%":
            if not y and not x.is_nan():
                assert found[0] == "22012"
                continue
            wanted = _quotient(x, y, quotient if function == "/" else remainder)
        else:
            compute = {"+": EXACT.add, "-": EXACT.subtract, "*": EXACT.multiply}[function]
            wanted = text_of(compute(x, y))
        assert found.decode() == wanted, (x, y)


def _place(x: Decimal) -> tuple[bool, Decimal]:
    return x.is_nan(), Decimal(0) if x.is_nan() else x


def _quotient(x: Decimal, y: Decimal, compute) -> str:
    if x.is_nan() or y.is_nan():
        return "NaN"
    s, t = scale_of(x), scale_of(y)
    found = compute(int(x.scaleb(s, EXACT)), s, int(y.scaleb(t, EXACT)), t)
    return text_of(scaled(*found))


@settings(max_examples=200)
@given(rows_of_two)
def test_comparison_and_order_in_every_form(rows) -> None:
    columns = _texts(rows, 0), _texts(rows, 1)
    for function, wanted in (("<", lambda x, y: x < y), ("=", lambda x, y: x == y)):
        out = run(Call(function, (ColumnRef(0, NUMERIC), ColumnRef(1, NUMERIC)), BOOL), *columns)
        assert out == [wanted(_place(x), _place(y)) for x, y in rows]
    every = [x for pair in rows for x in pair]
    column = Column.of("s", [text_of(x) for x in every])
    ranks = peer_ranks(NUMERIC, column, NoEvaluator()).tolist()
    for i, x in enumerate(every):
        for j, y in enumerate(every):
            assert (ranks[i] < ranks[j]) == (_place(x) < _place(y))


@settings(max_examples=200)
@given(st.lists(wide_numbers, min_size=1, max_size=6), st.integers(0, 18))
def test_rounding_and_signs_in_every_form(numbers: list[Decimal], places: int) -> None:
    column = Column.of("s", [text_of(x) for x in numbers])
    value = ColumnRef(0, NUMERIC)
    for function, mode in (("round", "ROUND_HALF_UP"), ("trunc", "ROUND_DOWN")):
        found = run(Call(function, (value, Literal(str(places), INT4)), NUMERIC), column)
        assert [x.decode() for x in found] == [text_of(to_scale(x, places, mode)) for x in numbers]
    for function, compute in (("-", EXACT.minus), ("abs", EXACT.abs)):
        found = run(Call(function, (value,), NUMERIC), column)
        assert [x.decode() for x in found] == [text_of(compute(x)) for x in numbers]
    form = key_form(value)
    assert form is not None
    keys = run(form, column)
    for key, x in zip(keys, numbers, strict=True):
        assert b"." not in key or not key.endswith(b"0")
        assert Decimal(key.decode()) == x or x.is_nan()


def test_ranks_of_bytes_are_their_order() -> None:
    texts = ["", "a", "ab", "b", "\xff\u20ac", "a\x7f", "aa", "\U0001f600"]
    places = text_ranks(Column.of("s", texts * 2))
    ordered = sorted({t.encode() for t in texts})
    assert places.tolist() == [ordered.index(t.encode()) for t in texts * 2]
    assert text_ranks(Column.of("s", [])).tolist() == []


def test_fixed_stays_fixed_where_the_type_says_so() -> None:
    price, rate = ColumnRef(0, fixed(9, 2)), ColumnRef(1, fixed(4, 2))
    product = Call("*", (price, rate), fixed(13, 4))
    columns = Column.of("i", [12345, FIXED_NAN, None]), Column.of("i", [50, 1, 1])
    assert run(product, *columns) == [617250, FIXED_NAN, None]
    total = Call("+", (price, rate), fixed(10, 2))
    assert run(total, *columns) == [12395, FIXED_NAN, None]


def test_a_type_that_lies_is_an_invariant_error() -> None:
    quotient = Call("/", (ColumnRef(0, fixed(9, 2)), Literal("3", NUMERIC)), fixed(9, 2))
    with pytest.raises(InvariantError):
        run(quotient, Column.of("i", [100]))


BPCHAR = sql_type("character(4)", 1042, 8)
POINT = sql_type("point", 600)


@pytest.mark.parametrize(
    ("type", "same"),
    [
        (NUMERIC, ["1.5", "1.50", "1.500"]),
        (NUMERIC, ["0", "0.00"]),
        (NUMERIC, ["1" + "0" * 30, "1" + "0" * 30 + ".00"]),
        (BPCHAR, ["ab", "ab  "]),
        (sql_type("interval", 1186), ["1 day", "24:00:00"]),
        (sql_type("jsonb", 3802), ['{"a": [1.0, "1.0"]}', '{"a": [1, "1.0"]}']),
    ],
)
def test_equal_values_have_one_key(type: SqlType, same: list[str]) -> None:
    form = key_form(ColumnRef(0, type))
    assert form is not None
    assert len(set(run(form, Column.of("s", same)))) == 1


def test_floats_have_one_zero_and_one_nan() -> None:
    form = key_form(ColumnRef(0, sql_type("double precision", 701)))
    assert form is not None
    odd = np.array([0x7FF8000000000001, 0x7FF8000000000000], np.int64).view(np.float64)
    column = Column(np.concatenate([odd, [-0.0, 0.0]]))
    key, _ = compile_expression(form, NoEvaluator()).evaluate([column], 4)
    bits = key.values.view(np.int64).tolist()
    assert bits[0] == bits[1] and bits[2] == bits[3] == 0


@pytest.mark.parametrize(
    ("function", "arguments"), [("-", 1), ("+", 1), ("@", 1), ("-", 2), ("+", 2), ("/", 2)]
)
def test_an_expression_computes_one_nan(function: str, arguments: int) -> None:
    floats = tuple(ColumnRef(i, FLOAT8) for i in range(arguments))
    infinite = Column.of("f", [np.nan, np.inf, -np.inf])
    other = Column.of("f", [np.inf, np.inf if function != "+" else -np.inf, np.inf])
    found, _ = compile_expression(Call(function, floats, FLOAT8), NoEvaluator()).evaluate(
        [infinite, other], 3
    )
    nan = np.isnan(found.values)
    assert nan[0]
    assert set(found.values[nan].view(np.int64)) == {np.array([np.nan]).view(np.int64)[0]}


def test_types_without_a_known_key() -> None:
    assert key_form(ColumnRef(0, POINT)) is None
    assert key_form(ColumnRef(0, sql_type("json", 114))) is None
    assert key_form(ColumnRef(0, sql_type("citext", 70000))) is None
    mood = SqlType("mood", 70001, -1, POINT.kind, is_enum=True)
    assert key_form(ColumnRef(0, mood)) == ColumnRef(0, mood)
    assert common_key_forms(ColumnRef(0, TEXT), ColumnRef(1, INT4)) is None


def test_small_numbers_meet_as_fixed_point() -> None:
    forms = common_key_forms(ColumnRef(0, INT4), ColumnRef(1, fixed(9, 2)))
    assert forms is not None
    assert [f.type.physical for f in forms] == ["i", "i"]
    left, right = Column.of("i", [1, 2**31 - 1]), Column.of("i", [100, 99])
    assert [run(f, left, right) for f in forms] == [[100, 100 * (2**31 - 1)], [100, 99]]
