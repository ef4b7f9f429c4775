"""Dates and times as numbers: counts of a declared unit since 1970, or since midnight.

Fractions of a microsecond round half away from zero; a value that PostgreSQL cannot hold is
malformed.
"""

from __future__ import annotations

import numpy as np

from connectors.formats.columns import Faults, column_of_texts, without
from dataflow.delta import Column
from dataflow.types import INT8, SqlType, TypeKind, fixed

UNIT_DIGITS = {"s": 6, "ms": 3, "us": 0}
_UNIT_US = {"d": 86_400_000_000, "s": 1_000_000, "ms": 1_000, "us": 1}
_DAY_US = 86_400_000_000
_EPOCH_DAYS = 10_957  # 1970 to 2000
_STAMP_LEAST, _STAMP_END = -211_813_488_000_000_000, 9_223_371_331_200_000_000
_DATE_LEAST, _DATE_END = -2_451_545, 2_145_031_949


def column_of_counts(type: SqlType, unit: str, texts: Column) -> tuple[Column, Faults]:
    """Convert numbers as texts ("1700000000.5") to dates, times or timestamps.

    >>> from dataflow.types import TIMESTAMP
    >>> column_of_counts(TIMESTAMP, "ms", Column.of("s", ["946684800000.5"]))[0].to_list()
    [500]
    """
    if unit in UNIT_DIGITS:
        counts, faults = column_of_texts(fixed(18, UNIT_DIGITS[unit]), texts)
        unit = "us"
    else:
        counts, faults = column_of_texts(INT8, texts)
    column, more = column_of_integers(type, unit, counts)
    return column, more | faults


def column_of_integers(type: SqlType, unit: str, counts: Column) -> tuple[Column, Faults]:
    """Convert int64 counts of a unit to dates, times or timestamps; NULL stays NULL."""
    values, mask = counts.values, counts.mask()
    if unit == "ns":
        # Half away from zero, like every other rounding of values.
        values = np.sign(values) * ((np.abs(values) + 500) // 1_000)
        unit = "us"
    per_us = _UNIT_US[unit]
    if type.kind is TypeKind.DATE:
        days = values if unit == "d" else values // (_DAY_US // per_us)
        answer = days - _EPOCH_DAYS
        bad = (answer < _DATE_LEAST) | (answer >= _DATE_END)
    elif type.kind is TypeKind.TIME:
        bad = (values < 0) | (values > _DAY_US // per_us)
        answer = np.where(bad, 0, values) * per_us
    else:
        start = _EPOCH_DAYS * (_DAY_US // per_us)
        bad = (values < _STAMP_LEAST // per_us + start) | (values >= _STAMP_END // per_us + start)
        answer = (np.where(bad, start, values) - start) * per_us
    bad &= mask
    faults = dict.fromkeys(np.flatnonzero(bad).tolist(), f"out of the range of {type.name}")
    valid = without(counts.valid, faults, len(counts))
    if valid is not None:
        answer = np.where(valid, answer, 0)
    return Column(answer.astype(np.int64), valid), faults
