"""Sums and averages of interval: months, days and microseconds apart, as PostgreSQL adds them.

Invariant: no unit is carried into another one by sum; avg cascades fractions down exactly as
interval_div of timestamp.c does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dataflow.delta import Column
from dataflow.expressions.intervals import parse_interval
from dataflow.operators.aggregates.sparse_sums import Entry, Ledger, Outcome

PLUS_INFINITY, MINUS_INFINITY, COUNT = -2, -3, -4
MONTHS, DAYS, MICROS = 0, 1, 2
_OUT_OF_RANGE = ("22008", "interval out of range")
_DAY_SECONDS = 86_400
_SECOND_US = 1_000_000


class IntervalSums:
    """Family of interval text. Slots 0, 1, 2: months, days, microseconds."""

    def entries(
        self, columns: Sequence[Column], weights: np.ndarray, group: np.ndarray
    ) -> Iterable[Entry]:
        for text, weight, owner in zip(
            columns[0].to_list(), weights.tolist(), group.tolist(), strict=True
        ):
            parts = parse_interval(text)
            if parts is None:
                yield owner, MINUS_INFINITY if text.startswith(b"-") else PLUS_INFINITY, weight
                continue
            yield owner, COUNT, weight
            for slot, amount in enumerate(parts):
                if amount:
                    yield owner, slot, amount * weight

    def outcome(self, function: str, ledger: Ledger) -> Outcome:
        return self.sum(ledger) if function == "sum" else self.average(ledger)

    def sum(self, ledger: Ledger) -> Outcome:
        special = _special(ledger)
        return special if special is not None else _outcome(*_parts(ledger))

    def average(self, ledger: Ledger) -> Outcome:
        special = _special(ledger)
        if special is not None:
            return special
        months, days, micros = _parts(ledger)
        if _outcome(months, days, micros)[1] is not None:
            return None, _OUT_OF_RANGE
        return _outcome(*_divided(months, days, micros, float(ledger[COUNT])))


def interval_text(months: int, days: int, micros: int) -> str:
    """Return PostgreSQL's output of an interval under IntervalStyle postgres (EncodeInterval).

    >>> interval_text(14, -3, 14706500000), interval_text(0, 0, 0), interval_text(-1, 1, -1)
    ('1 year 2 mons -3 days +04:05:06.5', '00:00:00', '-1 mons +1 day -00:00:00.000001')
    """
    years, months = _truncated(months, 12)
    out, is_before = [], False
    for amount, unit in ((years, "year"), (months, "mon"), (days, "day")):
        if amount:
            plus = "+" if is_before and amount > 0 else ""
            out.append(f"{plus}{amount} {unit}{'' if amount == 1 else 's'}")
            is_before = amount < 0
    if micros or not out:
        sign = "-" if micros < 0 else "+" if is_before else ""
        seconds, fraction = divmod(abs(micros), _SECOND_US)
        minutes, seconds = divmod(seconds, 60)
        hours, minutes = divmod(minutes, 60)
        tail = f".{fraction:06d}".rstrip("0") if fraction else ""
        out.append(f"{sign}{hours:02d}:{minutes:02d}:{seconds:02d}{tail}")
    return " ".join(out)


def _parts(ledger: Ledger) -> tuple[int, int, int]:
    return ledger.get(MONTHS, 0), ledger.get(DAYS, 0), ledger.get(MICROS, 0)


def _special(ledger: Ledger) -> Outcome | None:
    is_plus, is_minus = PLUS_INFINITY in ledger, MINUS_INFINITY in ledger
    if is_plus and is_minus:
        return None, _OUT_OF_RANGE
    if is_plus or is_minus:
        return ("infinity" if is_plus else "-infinity"), None
    return None


def _outcome(months: int, days: int, micros: int) -> Outcome:
    if max(abs(months), abs(days)) >= 2**31 or abs(micros) >= 2**63:
        return None, _OUT_OF_RANGE
    return interval_text(months, days, micros), None


def _divided(months: int, days: int, micros: int, factor: float) -> tuple[int, int, int]:
    """interval_div: fractions of months become days of 30 to a month, those of days time."""
    whole_months, whole_days = int(months / factor), int(days / factor)
    month_days = _rounded((months / factor - whole_months) * 30)
    seconds = (days / factor - whole_days + month_days - int(month_days)) * _DAY_SECONDS
    seconds = _rounded(seconds)
    if abs(seconds) >= _DAY_SECONDS:
        carried = int(seconds / _DAY_SECONDS)
        whole_days += carried
        seconds -= carried * _DAY_SECONDS
    whole_days += int(month_days)
    return whole_months, whole_days, round(micros / factor + seconds * _SECOND_US)


def _rounded(x: float) -> float:
    return round(x * 1_000_000) / 1_000_000


def _truncated(amount: int, unit: int) -> tuple[int, int]:
    whole, rest = divmod(abs(amount), unit)
    return (-whole, -rest) if amount < 0 else (whole, rest)
