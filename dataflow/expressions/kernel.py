"""The contract of a native function, and helpers that most functions share.

A Kernel computes one function over whole columns. Arguments and result have n rows, or one row that
stands for all. Invariant: a kernel records failed rows in the frame, and only where no argument is
NULL. NULL slots of its result may hold anything: the root blanks them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dataflow.delta import Column
from dataflow.expressions.frame import Frame, Value
from dataflow.types import SqlType

Run = Callable[[Frame, Sequence[Value]], Value]
Lookup = Callable[[str, tuple[SqlType, ...], SqlType], "Kernel | None"]


@dataclass(frozen=True)
class Kernel:
    """run computes the answer. can_fail: some row may be an error, or may need PostgreSQL."""

    run: Run
    can_fail: bool = False


def both_valid(values: Sequence[Value]) -> np.ndarray | None:
    """Return bool[n] or bool[1]: rows where no value is NULL; None when there is no NULL at all."""
    valid = None
    for value in values:
        if value.valid is not None:
            valid = value.valid if valid is None else valid & value.valid
    return valid


def fixed_width(values: np.ndarray, valid: np.ndarray | None) -> Column:
    """Return a Column of values and mask, either of which may be one row for all."""
    if valid is not None and len(valid) != len(values):
        if len(valid) == 1:
            valid = np.repeat(valid, len(values))
        else:
            values = np.repeat(values, len(valid))
    return Column(values, valid)


def bytes_column(offsets: np.ndarray, data: np.ndarray | None, valid: np.ndarray | None) -> Column:
    """Return a bytes column of strings and mask, either of which may be one row for all."""
    column = Column(offsets, None, data)
    if valid is None:
        return column
    if len(column) == 1:
        column = column.take(np.zeros(len(valid), np.int64))
    elif len(valid) == 1:
        valid = np.repeat(valid, len(column))
    return Column(column.values, valid, column.data)


def at_valid(mask: np.ndarray, valid: np.ndarray | None) -> np.ndarray:
    """Return the rows of a mask that are not NULL."""
    return mask if valid is None else mask & valid


def elementwise(compute: Callable[..., np.ndarray]) -> Kernel:
    """Return the kernel of a strict function of fixed-width values that never fails: numpy in,
    numpy out."""

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        return fixed_width(compute(*(v.values for v in values)), both_valid(values))  # type: ignore[union-attr]

    return Kernel(run)


def identity(frame: Frame, values: Sequence[Value]) -> Value:
    """Return the first argument as it is."""
    return values[0]


IDENTITY = Kernel(identity)
