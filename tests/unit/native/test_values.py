"""Oracle: Python's int, Decimal, float and datetime."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tidemark_native import values

from dataflow.delta import Column

INT64 = st.integers(-(2**63), 2**63 - 1)
SCALES = st.integers(0, 18)
UNITS = st.integers(-(10**18) + 1, 10**18 - 1)
EPOCH = datetime.datetime(2000, 1, 1)
INSTANTS = st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31))
_NO_MASK = np.empty(0, np.bool_)


def _parse(kernel, texts: Sequence[str | None], *more) -> tuple[list, int]:
    column = Column.of("s", list(texts))
    mask = _NO_MASK if column.valid is None else column.valid
    found, row = kernel(column.values, column.data, mask, *more)
    return found.tolist(), row


def _print(kernel, column: np.ndarray, *more) -> list[str]:
    offsets, data = kernel(column, _NO_MASK, *more)
    return [data[a:b].tobytes().decode() for a, b in itertools.pairwise(offsets)]


@given(st.lists(INT64 | st.none()))
def test_integers(numbers) -> None:
    texts = [None if n is None else str(n) for n in numbers]
    parsed = _parse(values.parse_ints, texts, -(2**63), 2**63 - 1)
    assert parsed == ([n or 0 for n in numbers], -1)
    present = [n for n in numbers if n is not None]
    assert _print(values.print_ints, np.array(present, np.int64)) == [str(n) for n in present]


@given(st.text("-0123456789", max_size=22), st.sampled_from([15, 31, 63]))
def test_what_is_no_integer_of_the_range_is_named(text: str, bits: int) -> None:
    parsed, row = _parse(values.parse_ints, ["7", text, "8"], -(2**bits), 2**bits - 1)
    # No integer that PostgreSQL prints has leading zeros to more than nineteen digits.
    is_short = len(text.removeprefix("-")) <= 19
    try:
        number = int(text) if is_short else 2**99
    except ValueError:
        number = 2**99
    fits = -(2**bits) <= number < 2**bits
    assert (parsed, row) == (([7, number, 8], -1) if fits else ([7, 0, 0], 1))


@given(st.lists(UNITS), SCALES)
def test_fixed_point(units, scale: int) -> None:
    texts = [f"{Decimal(unit).scaleb(-scale):f}" for unit in units]
    assert _print(values.print_fixed, np.array(units, np.int64), scale) == texts
    assert _parse(values.parse_fixed, texts, scale) == (units, -1)


@given(st.decimals(allow_nan=False, allow_infinity=False), SCALES)
def test_no_digit_is_lost(number: Decimal, scale: int) -> None:
    text = f"{number:f}"
    units = number.scaleb(scale) if abs(number.adjusted()) < 50 else Decimal("0.5")
    fits = number == 0 or (units == units.to_integral_value() and abs(units) < 10**18)
    is_near = abs(number.adjusted()) < 50 or number == 0
    parsed, row = _parse(values.parse_fixed, [text], scale)
    if is_near:
        assert (row == -1) == fits and parsed == [int(units) if fits and number else 0]
    else:
        assert row == 0


@given(st.lists(st.booleans()))
def test_booleans(items) -> None:
    texts = _print(values.print_bools, np.array(items, np.bool_))
    assert texts == ["t" if item else "f" for item in items]
    assert _parse(values.parse_bools, texts) == (items, -1)


@given(st.text("truefals", max_size=6))
def test_other_words_are_no_booleans(text: str) -> None:
    known = {"t": True, "true": True, "f": False, "false": False}
    assert _parse(values.parse_bools, [text]) == (
        ([known[text]], -1) if text in known else ([False], 0)
    )


@given(st.floats(), st.booleans())
def test_a_printed_float_is_the_shortest_that_reads_back(number: float, is_single: bool) -> None:
    number = float(np.float32(number)) if is_single else number
    column = np.array([number])
    slots, lengths, marks = values.print_floats(column, _NO_MASK, is_single)
    texts = _print(lambda *_: values.join_slots(slots, lengths), column)
    shortest = str(np.float32(number)) if is_single else repr(number)
    if marks[0]:
        # Left over: only what has more digits, or is out of the range of printed ones.
        size = abs(number)
        digits = len(Decimal(shortest).normalize().as_tuple().digits) if size < 1e99 else 99
        assert texts == [""] and (digits > (5 if is_single else 14) or not 1e-4 < size < 1e5)
    else:
        assert Decimal(texts[0]) == Decimal(shortest)
        assert texts[0].startswith("-") == shortest.startswith("-")


@given(st.floats() | st.integers(-(10**9), 10**9), st.sampled_from(["{}", "{:.3e}", "{:E}"]))
def test_a_parsed_float_is_exact_or_marked(number: float, form: str) -> None:
    text = form.format(number)
    column = Column.of("s", [text])
    parsed, marks = values.parse_floats(column.values, column.data, _NO_MASK)
    if not marks[0]:
        assert parsed.tobytes() == np.array([float(text)]).tobytes()
    is_plain = abs(number) < 1e6 and text.lstrip("-").isdigit()
    assert not (marks[0] and is_plain)


@given(st.lists(st.dates()))
def test_dates(dates) -> None:
    days = [(date - EPOCH.date()).days for date in dates]
    texts = [date.isoformat() for date in dates]
    assert _print(values.print_dates, np.array(days, np.int64)) == texts
    assert _parse(values.parse_dates, texts) == (days, -1)
    assert [values.days_of(date.year, date.month, date.day) for date in dates] == days


@given(st.integers(-3, 10_001), st.integers(0, 14), st.integers(0, 33))
def test_only_dates_are_dates(year: int, month: int, day: int) -> None:
    text = f"{abs(year):04}-{month:02}-{day:02}"
    parsed, row = _parse(values.parse_dates, [text])
    try:
        expected = ([(datetime.date(abs(year), month, day) - EPOCH.date()).days], -1)
    except ValueError:
        if abs(year) > 9_999:
            return
        expected = ([0], 0)
    assert (parsed, row) == expected


@given(st.lists(st.times()))
def test_times(times) -> None:
    us = [
        ((time.hour * 60 + time.minute) * 60 + time.second) * 1_000_000 + time.microsecond
        for time in times
    ]
    texts = [
        time.isoformat().rstrip("0") if time.microsecond else time.isoformat() for time in times
    ]
    assert _print(values.print_times, np.array(us, np.int64)) == texts
    assert _parse(values.parse_times, texts) == (us, -1)


@given(st.lists(INSTANTS), st.integers(-86_399, 86_399))
def test_stamps(stamps, east_s: int) -> None:
    us = [(stamp - EPOCH) // datetime.timedelta(microseconds=1) for stamp in stamps]
    texts = [
        stamp.isoformat(" ").rstrip("0") if stamp.microsecond else stamp.isoformat(" ")
        for stamp in stamps
    ]
    column = np.array(us, np.int64)
    assert _print(values.print_stamps, column, False) == texts
    assert _print(values.print_stamps, column, True) == [f"{text}+00" for text in texts]
    assert _parse(values.parse_stamps, texts, False) == (us, -1)
    minutes, seconds = divmod(abs(east_s), 60)
    zone = f"{'-' if east_s < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"
    parsed = _parse(values.parse_stamps, [text + zone for text in texts], True)
    assert parsed == ([stamp - east_s * 1_000_000 for stamp in us], -1)
