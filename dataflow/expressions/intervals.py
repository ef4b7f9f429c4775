"""Intervals, which are stored as text and parsed once for each distinct value.

An interval is months, days and microseconds. Addition to a date keeps them separate. Comparison
uses one span, in which a month has 30 days of 24 hours (interval_cmp_value).
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from dataflow.delta import Column
from dataflow.expressions.frame import Value

DAY_US = 86_400_000_000
_PART = re.compile(rb"([+-]?\d+) (year|mon|day)s?")
_CLOCK = re.compile(rb"([+-]?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?$")
_INFINITE_SPAN = 10**30


@lru_cache(maxsize=65536)
def parse_interval(text: bytes) -> tuple[int, int, int] | None:
    """Return (months, days, microseconds) of PostgreSQL's text output; None for an infinite
    interval.

    >>> parse_interval(b"1 year 2 mons -3 days +04:05:06.5")
    (14, -3, 14706500000)
    """
    if text.endswith(b"infinity"):
        return None
    units = {b"year": 0, b"mon": 0, b"day": 0}
    for number, unit in _PART.findall(text):
        units[unit] += int(number)
    micros = 0
    clock = _CLOCK.search(text)
    if clock:
        sign, hours, minutes, seconds, fraction = clock.groups()
        micros = (int(hours) * 3600 + int(minutes) * 60 + int(seconds)) * 1_000_000
        micros += int((fraction or b"").ljust(6, b"0"))
        micros = -micros if sign == b"-" else micros
    return units[b"year"] * 12 + units[b"mon"], units[b"day"], micros


@lru_cache(maxsize=65536)
def span_of(text: bytes) -> int:
    """Return the microseconds by which an interval is compared; beyond every finite one when
    infinite."""
    parts = parse_interval(text)
    if parts is None:
        return -_INFINITE_SPAN if text.startswith(b"-") else _INFINITE_SPAN
    months, days, micros = parts
    return (months * 30 + days) * DAY_US + micros


def spans(value: Value) -> np.ndarray:
    """Return object[k] of int: the span of each interval, zero for NULL."""
    assert isinstance(value, Column)
    out = np.empty(len(value), object)
    for i, text in enumerate(value.to_list()):
        out[i] = 0 if text is None else span_of(text)
    return out


def parts_of(value: Value) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """int64 months, days, microseconds and bool is_finite of each interval, zeros for NULL.

    The lowest int64 of microseconds, which cannot be negated, counts as infinite.
    """
    assert isinstance(value, Column)
    parts = [(0, 0, 0) if t is None else parse_interval(t) for t in value.to_list()]
    finite = np.array([p is not None and p[2] != -(2**63) for p in parts], np.bool_)
    table = np.array([p or (0, 0, 0) for p in parts], np.int64).reshape(len(parts), 3)
    return table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy(), finite


def print_spans(micros: np.ndarray) -> list[str]:
    """Return the interval text of spans without months, whole days counted as days (justify_hours).

    >>> print_spans(np.array([-90_000_000_000, 500_000]))
    ['-1 days -01:00:00', '00:00:00.5']
    """
    return [_print_span(span) for span in micros.tolist()]


def _print_span(span: int) -> str:
    sign = "-" if span < 0 else ""
    days, rest = divmod(abs(span), DAY_US)
    out = f"{sign}{days} day{'' if sign + str(days) == '1' else 's'}" if days else ""
    if days and not rest:
        return out
    seconds, fraction = divmod(rest, 1_000_000)
    clock = f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    if fraction:
        clock += f".{fraction:06d}".rstrip("0")
    return f"{out} {clock}" if out else clock
