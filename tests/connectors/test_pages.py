"""Oracle: the rows that went in, as Python values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.pages import decode_delta, encode_delta
from dataflow.delta import Delta
from dataflow.errors import InvariantError

VALUES = {
    "i": st.integers(-(2**63), 2**63 - 1),
    "f": st.floats(allow_nan=False),
    "b": st.booleans(),
    "s": st.binary(max_size=20),
}


@st.composite
def deltas(draw: st.DrawFn) -> Delta:
    kinds = draw(st.text("ifbs", max_size=5))
    cells = [st.none() | VALUES[kind] for kind in kinds]
    rows = draw(st.lists(st.tuples(*cells), max_size=9))
    weights = [draw(st.integers(-5, 5)) for _ in rows]
    return Delta.of(kinds, rows, weights)


@given(deltas())
def test_a_page_has_the_rows_that_went_in(delta: Delta) -> None:
    back = decode_delta(encode_delta(delta))
    assert back.kinds == delta.kinds
    assert back.rows() == delta.rows()


@given(deltas(), st.data())
def test_a_slice_travels_without_the_rest(delta: Delta, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(delta)))
    stop = data.draw(st.integers(start, len(delta)))
    part = delta.slice(start, stop)
    page = encode_delta(part)
    assert decode_delta(page).rows() == delta.rows()[start:stop]
    assert len(page) == len(encode_delta(part.take(np.arange(len(part)))))


def test_other_bytes_are_refused() -> None:
    with pytest.raises(InvariantError):
        decode_delta(b"PK\x03\x04" + bytes(60))
