"""Oracle: Python's csv and json."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tidemark_native import files

CELLS = st.text('ab,"\n;', max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('a"\\[]{},: é', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
COMMA, QUOTE, BACKSLASH = 44, 34, 92


def _bytes(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


@given(st.lists(st.lists(CELLS, min_size=1, max_size=3), max_size=5), st.integers(1, 7))
def test_records_of_csv(rows, limit: int) -> None:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
    data = out.getvalue().encode()
    found, at, before = [], 0, 0
    while at < len(data):
        records, end, lines = files.csv_records(_bytes(data[at:]), COMMA, QUOTE, QUOTE, limit)
        assert len(records) <= limit
        for start, stop, line in records.tolist():
            text = data[at + start : at + stop].decode()
            found.append(next(csv.reader(io.StringIO(text, newline=""))))
            assert before + line == data[: at + start].count(b"\n")
        at, before = at + end, before + lines
    assert found == rows


@given(st.binary(max_size=40))
def test_lines(data: bytes) -> None:
    records, rest, before = files.csv_records(_bytes(data), -1, -1, -1, 100)
    *lines, last = data.split(b"\n")
    assert [data[a:b] for a, b, _ in records.tolist()] == [li.removesuffix(b"\r") for li in lines]
    assert (rest, before) == (len(data) - len(last), len(lines))


def _split(data: bytes, in_list: bool, block: int) -> tuple[list[bytes], int, bool]:
    """Scan block by block; return the elements, the last state, and whether the text is wrong."""
    found, state, rest, at = [], files.FIRST, b"", 0
    while True:
        is_last = at >= len(data)
        rest, at = rest + data[at : at + block], at + block
        while True:
            bounds, end, state, wrong = files.json_elements(
                _bytes(rest), in_list, state, is_last, 2
            )
            found += [rest[a:b] for a, b in bounds.tolist()]
            rest = rest[end:]
            if wrong >= 0:
                return found, state, True
            if len(bounds) < 2:
                break
        if is_last:
            return found, state, bool(rest.strip())


@given(st.lists(JSON, max_size=5), st.integers(1, 30), st.sampled_from([None, 1]))
def test_elements_of_a_list(values, block: int, indent) -> None:
    data = json.dumps(values, ensure_ascii=False, indent=indent).encode()
    found, state, is_wrong = _split(data[1:], True, block)
    assert [json.loads(element) for element in found] == values
    assert (state, is_wrong) == (files.ENDED, False)


@given(st.lists(JSON, max_size=5), st.integers(1, 30))
def test_consecutive_values(values, block: int) -> None:
    data = "\n".join(json.dumps(value) for value in values).encode()
    found, _, is_wrong = _split(data, False, block)
    assert [json.loads(element) for element in found] == values
    assert not is_wrong


@given(st.binary(max_size=40) | st.text('[]{},:"\\1 ', max_size=30).map(str.encode), st.booleans())
def test_any_bytes_are_scanned_within_their_bounds(data: bytes, flag: bool) -> None:
    for state in (files.FIRST, files.AFTER, files.NEXT, files.ENDED):
        bounds, end, _, wrong = files.json_elements(_bytes(data), flag, state, True, 9)
        assert 0 <= end <= len(data) and wrong <= len(data)
        assert (bounds <= len(data)).all()
    for quote, escape in ((QUOTE, QUOTE), (QUOTE, BACKSLASH), (-1, -1)):
        records, rest, _ = files.csv_records(_bytes(data), COMMA, quote, escape, 9)
        assert (records[:, :2] <= rest).all() and rest <= len(data)
