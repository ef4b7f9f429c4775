"""Oracle: Python's int, Decimal, datetime and str; the scale of a quotient is that of numeric.c."""

from __future__ import annotations

import datetime
import itertools
import re
from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_DOWN, ROUND_FLOOR, ROUND_HALF_UP, Context, Decimal

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tidemark_native import expressions as kernels

from dataflow.delta import Column

NAN, MOST = 2**63 - 1, 2**63 - 2
EXACT = Context(prec=300)
NO_MASK = np.empty(0, np.bool_)
UNITS = st.integers(-999, 999) | st.integers(-MOST, MOST) | st.sampled_from([NAN, MOST, -MOST])
SCALES = st.integers(0, 18)
NARROW = st.tuples(UNITS, SCALES)
TEXTS = st.text("ab äö€\U0001f600", max_size=8)
EPOCH = datetime.datetime(2000, 1, 1)
US = datetime.timedelta(microseconds=1)
OPERATIONS = (
    (kernels.ADD, EXACT.add),
    (kernels.SUBTRACT, EXACT.subtract),
    (kernels.MULTIPLY, EXACT.multiply),
)


def _ints(items) -> np.ndarray:
    return np.array(items, np.int64)


def _decimal(units: int, scale: int) -> Decimal:
    return Decimal("NaN") if units == NAN else Decimal(units).scaleb(-scale, EXACT)


def _numbers(rows: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return _ints([units for units, _ in rows]), _ints([scale for _, scale in rows])


def _text(number: Decimal) -> str:
    return "NaN" if number.is_nan() else f"{number:f}".replace("-0", "-0" if number else "0", 1)


def _strings(column: tuple[np.ndarray, np.ndarray]) -> list[str]:
    offsets, data = column
    return [data[a:b].tobytes().decode() for a, b in itertools.pairwise(offsets)]


def _column(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    column = Column.of("s", list(texts))
    assert column.data is not None
    return column.values, column.data


def _sign(a, b) -> int:
    return (a > b) - (a < b)


def _order(a: Decimal, b: Decimal) -> int:
    if a.is_nan() or b.is_nan():
        return a.is_nan() - b.is_nan()
    return _sign(a, b)


@given(st.lists(NARROW))
def test_numbers_are_printed_and_parsed(rows) -> None:
    texts = [_text(_decimal(*row)) for row in rows]
    assert _strings(kernels.format_numbers(*_numbers(rows), NO_MASK)) == texts
    units, scales, fits = kernels.parse_numbers(*_column(texts))
    # A number of nineteen digits is left to the words.
    if all(len(text.strip("-")) <= 18 for text in texts):
        assert fits
    if fits:
        shown = [(unit, 0 if unit == NAN else scale) for unit, scale in rows]
        assert list(zip(units.tolist(), scales.tolist(), strict=True)) == shown


@given(NARROW, NARROW)
def test_narrow_arithmetic(a, b) -> None:
    x, y = _decimal(*a), _decimal(*b)
    for operation, exact in OPERATIONS:
        units, scales, fits = kernels.combine_numbers(operation, *_numbers([a]), *_numbers([b]))
        scale = a[1] + b[1] if operation == kernels.MULTIPLY else max(a[1], b[1])
        expected = exact(x, y)
        if fits:
            assert scales.tolist() == [scale]
            assert _order(_decimal(int(units[0]), scale), expected) == 0
        else:
            each = (x.scaleb(scale, EXACT), y.scaleb(scale, EXACT), expected.scaleb(scale, EXACT))
            assert scale > 18 or any(abs(number) > MOST for number in each)


@given(st.lists(st.tuples(NARROW, NARROW), min_size=2), st.booleans(), st.booleans())
def test_one_row_stands_for_all(rows, is_left_one: bool, is_right_one: bool) -> None:
    left, right = [a for a, _ in rows], [b for _, b in rows]
    a = _numbers(left[:1] if is_left_one else left)
    b = _numbers(right[:1] if is_right_one else right)
    n = 1 if is_left_one and is_right_one else len(rows)
    xs, ys = (left[:1] * n if is_left_one else left), (right[:1] * n if is_right_one else right)
    expected = [_order(_decimal(*x), _decimal(*y)) for x, y in zip(xs, ys, strict=True)]
    assert kernels.compare_numbers(*a, *b).tolist() == expected
    words, others = kernels.words_of_units(*a), kernels.words_of_units(*b)
    assert kernels.compare_words(*words, *others)[0].tolist() == expected
    sums = kernels.combine_words(kernels.ADD, *words, *others)
    texts = [_text(EXACT.add(_decimal(*x), _decimal(*y))) for x, y in zip(xs, ys, strict=True)]
    assert sums[3] and _strings(kernels.format_words(*sums[:3], NO_MASK)) == texts


@given(NARROW, SCALES)
def test_rounding(row, scale: int) -> None:
    number, valid = _decimal(*row), np.ones(1, np.bool_)
    unit = Decimal(1).scaleb(-scale)
    words = kernels.words_of_units(*_numbers([row]))
    for is_half_up in (True, False):
        units, fits = kernels.round_numbers(*_numbers([row]), scale, is_half_up, valid)
        wide, wide_fits = kernels.round_words(*words, scale, is_half_up)
        rounding = ROUND_HALF_UP if is_half_up else ROUND_DOWN
        if number.is_nan():
            assert fits and wide_fits and units.tolist() == wide.tolist() == [NAN]
            continue
        expected = number.quantize(unit, rounding, EXACT).scaleb(scale, EXACT)
        does_fit = abs(expected) <= MOST
        assert (fits, wide_fits) == (does_fit, does_fit)
        if fits:
            assert units.tolist() == wide.tolist() == [int(expected)]
    units, fits = kernels.rescale_numbers(*_numbers([row]), scale, valid)
    whole = number.scaleb(scale, EXACT)
    assert fits == (number.is_nan() or (whole == int(whole) and abs(whole) <= MOST))
    if fits:
        assert _order(_decimal(int(units[0]), scale), number) == 0
    for up, rounding in ((True, ROUND_CEILING), (False, ROUND_FLOOR)):
        (found,) = kernels.floor_or_ceil(*_numbers([row]), up).tolist()
        assert found == (NAN if number.is_nan() else int(number.to_integral_value(rounding)))


def _stripped(number: Decimal) -> tuple[Decimal, int]:
    if number.is_nan() or number == 0:
        return (number if number.is_nan() else Decimal(0)), 0
    short = number.normalize(EXACT)
    return number, max(-short.as_tuple().exponent, 0)  # type: ignore[operator]


@given(st.lists(st.tuples(UNITS, st.integers(0, 6), st.integers(0, 12))))
def test_zeros_at_the_end_are_stripped(rows) -> None:
    parts = [(u if u == NAN else int(u / 10**9) * 10**k, s + k) for u, s, k in rows if k < 9]
    units, scales = kernels.strip_numbers(*_numbers(parts))
    signs, limbs, old = kernels.words_of_units(*_numbers(parts))
    texts = _strings(kernels.format_words(signs, *kernels.strip_words(signs, limbs, old), NO_MASK))
    for part, unit, scale, text in zip(parts, units.tolist(), scales.tolist(), texts, strict=True):
        number, shown = _stripped(_decimal(*part))
        assert scale == shown and _order(_decimal(unit, scale), number) == 0
        assert _order(Decimal(text), number) == 0 and len(text.partition(".")[2]) == shown


WIDE = st.tuples(st.integers(-(10**36), 10**36) | st.integers(-9999, 9999), st.integers(0, 20))


def _words(*rows: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    signs, limbs, scales, fits = kernels.parse_words(
        *_column([_text(Decimal(units).scaleb(-scale, EXACT)) for units, scale in rows])
    )
    assert fits
    return signs, limbs, scales


@given(WIDE, WIDE)
def test_wide_arithmetic(a, b) -> None:
    x, y = (Decimal(units).scaleb(-scale, EXACT) for units, scale in (a, b))
    for operation, exact in OPERATIONS:
        *words, fits = kernels.combine_words(operation, *_words(a), *_words(b))
        scale = a[1] + b[1] if operation == kernels.MULTIPLY else max(a[1], b[1])
        expected = exact(x, y).quantize(Decimal(1).scaleb(-scale), context=EXACT)
        sizes = [abs(int(number.scaleb(scale, EXACT))) for number in (x, y, expected)]
        does_fit = all(size < 2**160 for size in sizes)
        assert fits if does_fit else not fits or operation == kernels.MULTIPLY
        if fits:
            assert _strings(kernels.format_words(*words, NO_MASK)) == [_text(expected)]
    # Different signs decide alone; else both are taken to the larger scale.
    at, are_alike = max(a[1], b[1]), x * y > 0
    does_fit = all(abs(int(number.scaleb(at, EXACT))) < 2**160 for number in (x, y))
    found, fits = kernels.compare_words(*_words(a), *_words(b))
    assert fits == (does_fit or not are_alike) and (not fits or found == _sign(x, y))


def _quotient(x: Decimal, y: Decimal, least: int) -> Decimal:
    def leading(number: Decimal) -> tuple[int, int]:
        if number == 0:
            return 0, 0
        weight = abs(number).adjusted() // 4
        return weight, int(abs(number).scaleb(-4 * weight, EXACT))

    (weight, first), (other, second) = leading(x), leading(y)
    scale = max(16 - 4 * (weight - other - (first <= second)), least, 0)
    return EXACT.divide(x, y).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, EXACT)


@given(WIDE, WIDE)
def test_quotients_are_those_of_numeric_div(a, b) -> None:
    x, y = (Decimal(units).scaleb(-scale, EXACT) for units, scale in (a, b))
    *words, fits = kernels.divide_words(*_words(a), *_words(b))
    if y == 0:
        assert fits and words[0].tolist() == [0]
        return
    expected = _quotient(x, y, max(a[1], b[1]))
    if fits:
        assert _strings(kernels.format_words(*words, NO_MASK)) == [_text(expected)]
    elif len(expected.as_tuple().digits) < 40 and abs(b[0]) < 10**30:
        # Only what has many digits, or more places in the dividend than in the quotient, is left.
        assert -expected.as_tuple().exponent + b[1] < a[1]  # type: ignore[operator]


@given(st.lists(WIDE, min_size=1))
def test_keys_have_the_order_of_the_numbers(rows) -> None:
    keys, fits = kernels.rank_keys(*_words(*rows), max(scale for _, scale in rows))
    if fits:
        order = np.lexsort(keys[::-1]).tolist()
        numbers = [Decimal(units).scaleb(-scale, EXACT) for units, scale in rows]
        assert [numbers[i] for i in order] == sorted(numbers)


@given(st.lists(st.tuples(TEXTS, TEXTS)), st.booleans())
def test_texts_are_compared_and_joined(rows, is_padded: bool) -> None:
    a, b = _column([x for x, _ in rows]), _column([y for _, y in rows])
    keys = [tuple((t.rstrip(" ") if is_padded else t).encode() for t in row) for row in rows]
    assert kernels.compare_texts(*a, *b, is_padded).tolist() == [_sign(x, y) for x, y in keys]
    assert kernels.differ(*a, *b, is_padded).tolist() == [x != y for x, y in keys]
    assert _strings(kernels.join(*a, *b)) == [x + y for x, y in rows]
    assert kernels.find(*a, *b).tolist() == [x.find(y) + 1 for x, y in rows]
    assert kernels.not_ascii(*a).tolist() == [not x.isascii() for x, _ in rows]
    lengths = [len(x.rstrip(" ") if is_padded else x) for x, _ in rows]
    assert kernels.lengths(*a, is_padded).tolist() == lengths
    valid = np.array([x < y for x, y in rows], np.bool_)
    assert _strings(kernels.blank(*a, valid)) == [x if x < y else "" for x, y in rows]


@given(st.lists(TEXTS), st.integers(-2, 9), st.integers(-2, 9) | st.just(2**40))
def test_texts_are_cut_between_characters(texts, first: int, stop: int) -> None:
    found = kernels.cut(*_column(texts), _ints([first]), _ints([stop]))
    assert _strings(found) == [text[max(first, 0) : max(stop, 0)] for text in texts]


@given(st.lists(TEXTS), st.sets(st.sampled_from("ab ")), st.booleans(), st.booleans())
def test_texts_are_trimmed(texts, unwanted, at_left: bool, at_right: bool) -> None:
    marks = np.zeros(256, np.bool_)
    marks[[ord(c) for c in unwanted]] = True
    characters = "".join(unwanted)
    found = _strings(kernels.trim(*_column(texts), marks, at_left, at_right))
    for text, trimmed in zip(texts, found, strict=True):
        left = text.lstrip(characters) if at_left and characters else text
        assert trimmed == (left.rstrip(characters) if at_right and characters else left)


@given(st.lists(TEXTS), st.text("%_abä", max_size=6))
def test_like(texts, pattern: str) -> None:
    wild = {"%": [kernels.ANY_RUN], "_": [kernels.ANY_ONE]}
    codes = [code for c in pattern for code in wild.get(c) or c.encode()]
    words = {"%": ".*", "_": "."}
    expected = re.compile("".join(words.get(c, c) for c in pattern), re.DOTALL)
    found = kernels.match_like(*_column(texts), _ints(codes))
    assert found.tolist() == [expected.fullmatch(text) is not None for text in texts]


@given(st.lists(TEXTS), st.integers(1, 6))
def test_char_is_padded(texts, size: int) -> None:
    *found, too_long = kernels.pad_blank(*_column(texts), size)
    assert _strings((found[0], found[1])) == [text[:size].ljust(size) for text in texts]
    assert too_long.tolist() == [bool(text[size:].strip(" ")) for text in texts]


@given(st.lists(st.text("azAZ{`ä", max_size=5)))
def test_only_ascii_letters_change_their_case(texts) -> None:
    column = _column(texts)
    upper = [re.sub("[a-z]", lambda c: c[0].upper(), text) for text in texts]
    assert _strings(kernels.change_case(*column, ord("a"), ord("z"), -32)) == upper


INSTANTS = st.datetimes(datetime.datetime(2, 1, 1), datetime.datetime(9990, 12, 31))


@given(INSTANTS, st.integers(-2_000, 2_000), st.integers(-100, 100), st.integers(-(10**15), 10**15))
def test_intervals_are_added(stamp: datetime.datetime, months: int, days: int, us: int) -> None:
    total = stamp.year * 12 + stamp.month - 1 + months
    year, month = divmod(total, 12)
    if not 2 < year < 9_900 or abs(us) > 3 * 10**13:
        return
    last = (datetime.date(year + month // 11, (month + 1) % 12 + 1, 1) - datetime.timedelta(1)).day
    moved = stamp.replace(year=year, month=month + 1, day=min(stamp.day, last))
    expected = moved + datetime.timedelta(days=days, microseconds=us)
    parts = (_ints([(stamp - EPOCH) // US]), _ints([months]), _ints([days]), _ints([us]))
    found, wrong = kernels.shift(*parts)
    assert (found.tolist(), wrong.tolist()) == ([(expected - EPOCH) // US], [False])


@given(st.integers(-2, 9_999), st.integers(0, 13), st.integers(0, 32))
def test_days_are_made(year: int, month: int, day: int) -> None:
    found, wrong = kernels.make_days(_ints([year]), _ints([month]), _ints([day]))
    if year < 0:
        # The years before 1 have the calendar of those 400 years later.
        assert found.tolist() == [0] if wrong[0] else found[0] < -730_000
        year += 401
    try:
        datetime.date(year, month, day)
    except ValueError:
        assert wrong.tolist() == [True]
    else:
        assert wrong.tolist() == [False]


@given(st.dates(datetime.date(1, 1, 8)))
def test_calendar_fields(date: datetime.date) -> None:
    iso = date.isocalendar()
    expected = {
        kernels.YEAR: date.year,
        kernels.MONTH: date.month,
        kernels.DAY: date.day,
        kernels.QUARTER: (date.month + 2) // 3,
        kernels.DOW: date.isoweekday() % 7,
        kernels.ISODOW: date.isoweekday(),
        kernels.DOY: date.timetuple().tm_yday,
        kernels.WEEK: iso.week,
        kernels.ISOYEAR: iso.year,
        kernels.DECADE: date.year // 10,
        kernels.CENTURY: (date.year + 99) // 100,
        kernels.MILLENNIUM: (date.year + 999) // 1000,
    }
    days = _ints([(date - EPOCH.date()).days])
    assert {which: int(kernels.fields(days, which)[0]) for which in expected} == expected


@given(INSTANTS)
def test_stamps_are_truncated(stamp: datetime.datetime) -> None:
    midnight = datetime.datetime(stamp.year, stamp.month, stamp.day)
    expected = {
        kernels.DAY: midnight,
        kernels.WEEK: midnight - datetime.timedelta(midnight.weekday()),
        kernels.MONTH: midnight.replace(day=1),
        kernels.QUARTER: midnight.replace(month=(stamp.month - 1) // 3 * 3 + 1, day=1),
        kernels.YEAR: midnight.replace(month=1, day=1),
    }
    us = _ints([(stamp - EPOCH) // US])
    for which, start in expected.items():
        assert kernels.truncate(us, which).tolist() == [(start - EPOCH) // US]
