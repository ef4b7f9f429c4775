"""Oracle: row images of a binary log, put together as MySQL's sql/rpl_record.cc reads them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tidemark_native import mysql

from tests.unit.native.noise import damaged

NULL, ABSENT = -1, -2
WIDTHS = [4, -1, 0, -2, 1]
SLOTS = [0, 1, -1, 2, 3]
VALUES = st.tuples(
    *(
        st.none() | (st.binary(min_size=w, max_size=w) if w >= 0 else st.binary(max_size=9))
        for w in WIDTHS
    )
)
COLUMNS = st.lists(st.booleans(), min_size=5, max_size=5)


def _image(row, present: list[bool]) -> bytes:
    there = [(v, w) for v, w, is_there in zip(row, WIDTHS, present, strict=True) if is_there]
    is_null = np.array([v is None for v, _ in there], np.bool_)
    bits = np.packbits(is_null, bitorder="little").tobytes()
    sized = [
        (v, (len(v).to_bytes(-w, "little") if w < 0 else b"")) for v, w in there if v is not None
    ]
    return bits + b"".join(size + v for v, size in sized)


def _walked(data: bytes, present, count: int):
    raw = np.frombuffer(b"before" + data + b"after", np.uint8)
    starts, lengths = np.zeros((count, 4), np.int64), np.zeros((count, 4), np.int64)
    images = mysql.walk(
        *(raw, 6, 6 + len(data), np.array(WIDTHS), np.array(present, np.bool_)),
        *(np.array(SLOTS), starts, lengths, 0),
    )
    return raw, images, starts, lengths


@given(st.lists(VALUES, max_size=6), COLUMNS, COLUMNS)
def test_images(rows, old: list[bool], new: list[bool]) -> None:
    present = [old, new]
    if not any(old) and not any(new):
        rows = []
    data = b"".join(_image(row, present[i % 2]) for i, row in enumerate(rows))
    while rows and not any(present[(len(rows) - 1) % 2]):
        # An image without columns at the end of an event takes no bytes, so it is not there.
        rows = rows[:-1]
    raw, images, starts, lengths = _walked(data, present, len(rows))
    assert images == len(rows)
    for i, row in enumerate(rows):
        for column, slot in enumerate(SLOTS):
            if slot < 0:
                continue
            start, length = starts[i, slot], lengths[i, slot]
            if not present[i % 2][column]:
                assert length == ABSENT
            elif row[column] is None:
                assert length == NULL
            else:
                assert raw[start : start + length].tobytes() == row[column]
    if rows:
        offsets, found = mysql.gather(raw, starts[:, 1].copy(), lengths[:, 1].copy())
        texts = [(row[1] or b"") if present[i % 2][1] else b"" for i, row in enumerate(rows)]
        assert found.tobytes() == b"".join(texts)
        assert np.diff(offsets).tolist() == [len(text) for text in texts]


@given(st.lists(VALUES, min_size=1, max_size=3), COLUMNS, st.randoms(use_true_random=False))
def test_a_damaged_event_is_broken_or_read_within_its_bytes(rows, new, random) -> None:
    present = [[True] * 5, new]
    data = b"".join(_image(row, present[i % 2]) for i, row in enumerate(rows))
    raw, images, starts, lengths = _walked(damaged(data, random), present, 8)
    assert images >= -1
    if images >= 0:
        assert (starts + lengths.clip(0) <= len(raw) - len(b"after")).all()


def test_images_without_columns_are_broken() -> None:
    assert _walked(b"x", [[False] * 5] * 2, 1)[1] == -1


@given(st.lists(st.binary(max_size=9), max_size=6))
def test_hexed(values) -> None:
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int64)
    ends, found = mysql.hexed(offsets, np.frombuffer(b"".join(values), np.uint8))
    texts = ["\\x" + value.hex() for value in values]
    assert found.tobytes().decode() == "".join(texts)
    assert ends.tolist() == np.cumsum([0, *map(len, texts)]).tolist()
