"""Oracle: Python's own equality of values: NULL is equal to no value, whatever its bits."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from storage.delta import Column, Delta, row_hashes

# The value whose mixed bits are those that stood for NULL in the first form of the hash.
LIKE_NULL = 5_518_387_817_044_054_849


def test_no_value_is_taken_for_null() -> None:
    values = np.array([LIKE_NULL, 0, LIKE_NULL, 0], np.int64)
    valid = np.array([True, False, True, False])
    rows = Delta([Column(values, valid)], np.array([1, 1, 1, 2])).consolidate()
    assert sorted(rows.rows(), key=repr) == [((LIKE_NULL,), 2), ((None,), 3)]


def test_a_null_keeps_its_position_among_the_columns() -> None:
    columns = [
        Column(np.array([7, 0, 0], np.int64), np.array([True, False, False])),
        Column(np.array([0, 7, 0], np.int64), np.array([False, True, False])),
    ]
    for hashes in row_hashes(columns, 3):
        assert len(set(hashes.tolist())) == 3


@pytest.mark.parametrize("protocol", [4, 5])
def test_deltas_are_pickled_whole(protocol: int) -> None:
    """Their buffers too: writable ones stay so, or loops would be compiled for others."""
    rows = [
        (1, 2.5, True, "x"),
        (None, None, None, None),
        (-3, -0.0, False, ""),
        (4, 1e9, True, "é"),
    ]
    whole = Delta.of("ifbs", rows, [1, -1, 2, 3])
    strided = Delta(whole.columns, np.arange(8)[::2])
    for delta in (whole, whole.slice(1, 3), strided, Delta.empty("ifbs"), Delta.of("", [()])):
        found = pickle.loads(pickle.dumps(delta, protocol=protocol))
        assert found.rows() == delta.rows()
        assert found.kinds == delta.kinds
        for column, original in zip(found.columns, delta.columns, strict=True):
            assert column.values.dtype == original.values.dtype
            assert column.values.flags.writeable == original.values.flags.writeable
