"""Time zones: local times of instants and back, as PostgreSQL's localtime.c and datetime.c.

A query in a time zone becomes calls that name it: "timezone" (AT TIME ZONE), "date_trunc" with a
zone, "instant of" (what a date or timestamp is compared as beside a timestamptz), "add in zone" and
"subtract in zone". The zone is always a text literal. Its offsets come from the PostgreSQL that
evaluates expressions, asked once a zone; whatever lies beyond FIRST_US and END_US, and every error,
is PostgreSQL's row by row. Invariant: the answer does not depend on the session's own time zone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from tidemark_native import expressions as kernels

from dataflow.delta import Column
from dataflow.expressions.calendar import CLOCK_TRUNCATIONS, TRUNCATIONS, constant_text
from dataflow.expressions.evaluator import Evaluator
from dataflow.expressions.frame import Frame, Value, in_postgres, rows_in_postgres
from dataflow.expressions.intervals import DAY_US, parts_of
from dataflow.expressions.kernel import Kernel, at_valid, both_valid, fixed_width
from dataflow.expressions.stamps import BEYOND, STAMP_MAX, STAMP_MIN, stamps_of
from dataflow.types import (
    BOOL,
    EPOCH_2000_US,
    INT4,
    INT8,
    INTERVAL,
    TEXT,
    TIMESTAMPTZ,
    SqlType,
    TypeKind,
)

INSTANT = "instant of"
ADD, SUBTRACT = "add in zone", "subtract in zone"
# Instants and local times within are computed here: 1800-01-01 to 2200-01-01, less some days.
_FIRST_S, _END_S = -5_364_662_400, 7_258_118_400
_STEP_S = 6 * 3600
_MARGIN_US = 3 * DAY_US
FIRST_US = _FIRST_S * 1_000_000 - EPOCH_2000_US + _MARGIN_US
END_US = _END_S * 1_000_000 - EPOCH_2000_US - _MARGIN_US


@dataclass(frozen=True)
class Offsets:
    """A zone's offsets in microseconds east of UTC: us[i] from the instant starts[i] on."""

    starts: np.ndarray
    us: np.ndarray

    def local(self, instants: np.ndarray) -> np.ndarray:
        """Return local times of instants; both int64 microseconds since 2000."""
        return instants + self.us[np.searchsorted(self.starts, instants, side="right") - 1]

    def instants(self, local: np.ndarray) -> np.ndarray:
        """Return the instants of local times (DetermineTimeZoneOffset).

        A time that a change skips or repeats has the offset that is farther behind UTC: the one
        before the change where it skips, the one after it where it repeats.
        """
        at = np.searchsorted(self.starts, local - DAY_US, side="right")
        last = len(self.starts) - 1
        boundary = self.starts[np.minimum(at, last)]
        before, after = self.us[np.minimum(at, last + 1) - 1], self.us[np.minimum(at, last)]
        early, late = local - before, local - after
        is_before = (early < boundary) & (late < boundary)
        is_after = (early > boundary) & (late >= boundary)
        takes_before = is_before | (~is_after & (early > late)) | (at > last)
        return np.where(takes_before, early, late)


_known: WeakKeyDictionary[Evaluator, dict[str, Offsets | None]] = WeakKeyDictionary()


def offsets_of(zone: str, evaluator: Evaluator) -> Offsets | None:
    """Return a zone's offsets, asked of PostgreSQL at the first use.

    None where PostgreSQL must compute each row: it does not know the name, or the name is an
    abbreviation, which AT TIME ZONE reads by rules of its own.
    """
    found = _known.setdefault(evaluator, {})
    if zone not in found:
        found[zone] = _queried(zone, evaluator)
    return found[zone]


def _queried(zone: str, evaluator: Evaluator) -> Offsets | None:
    quoted = _quoted(zone)
    sampled = (
        f"(SELECT CASE WHEN upper({quoted}) IN (SELECT abbrev FROM pg_timezone_abbrevs) THEN NULL"
        " ELSE (SELECT string_agg(s || ' ' || o, ',' ORDER BY s) FROM"
        " (SELECT s, o, lag(o) OVER (ORDER BY s) AS before FROM"
        f" (SELECT s, {_offset('s', quoted)} AS o"
        f" FROM generate_series({_FIRST_S}::bigint, {_END_S}, {_STEP_S}) s) a) b"
        " WHERE o IS DISTINCT FROM before) END)"
    )
    column, errors = evaluator.evaluate(sampled, (), (), 1, TEXT)
    (text,) = column.texts()
    if errors or text is None:
        return None
    samples = np.array([part.split() for part in text.split(",")], np.int64)

    def at(seconds: np.ndarray) -> np.ndarray:
        sql = _offset("$1", quoted)
        found, _ = evaluator.evaluate(sql, (INT8,), (Column(seconds),), len(seconds), INT8)
        return found.values

    parts = [samples[:1]]
    # Between two samples there may be several changes.
    low, known = samples[1:, 0] - _STEP_S, samples[:-1, 1]
    end, last = samples[1:, 0], samples[1:, 1]
    while len(low):
        first, limit = low.copy(), end.copy()
        while (limit - first > 1).any():
            middle = (first + limit) // 2
            is_old = at(middle) == known
            is_open = limit - first > 1
            first = np.where(is_open & is_old, middle, first)
            limit = np.where(is_open & ~is_old, middle, limit)
        reached = at(limit)
        parts.append(np.stack([limit, reached], axis=1))
        more = reached != last
        low, known, end, last = limit[more], reached[more], end[more], last[more]
    table = np.concatenate(parts)
    table = table[np.argsort(table[:, 0], kind="stable")]
    return Offsets(table[:, 0] * 1_000_000 - EPOCH_2000_US, table[:, 1] * 1_000_000)


def _offset(second: str, zone: str) -> str:
    """Return SQL of the seconds east of UTC; second: SQL of an instant, in seconds since 1970."""
    local = f"(to_timestamp({second}) AT TIME ZONE {zone}) - timestamp 'epoch'"
    return f"(extract(epoch FROM {local})::bigint - {second})"


def _quoted(zone: str) -> str:
    return "'" + zone.replace("'", "''") + "'"


def find(function: str, types: tuple[SqlType, ...], result: SqlType) -> Kernel | None:
    """Return the kernel of a function of a time zone, if it is one."""
    kinds = tuple(t.kind for t in types)
    text, instant, local = TypeKind.TEXT, TypeKind.TIMESTAMPTZ, TypeKind.TIMESTAMP
    if function == "timezone" and kinds == (text, instant):
        return _at_zone(types, result, is_local=False)
    if function == "timezone" and kinds == (text, local):
        return _at_zone(types, result, is_local=True)
    if function == "date_trunc" and kinds == (text, instant, text):
        return Kernel(_truncated, can_fail=True)
    if function == INSTANT and len(kinds) == 2 and kinds[0] in (local, TypeKind.DATE):
        return _instant(types[0])
    if function in (ADD, SUBTRACT) and kinds == (instant, TypeKind.INTERVAL, text):
        return _shifted(-1 if function == SUBTRACT else 1)
    return None


def _at_zone(types: tuple[SqlType, ...], result: SqlType, *, is_local: bool) -> Kernel:
    sql = "timezone($1, $2)"

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        offsets = _offsets(values[0], frame)
        if offsets is None:
            return in_postgres(frame, sql, types, values, result)
        stamps = values[1].values  # type: ignore[union-attr]
        found = offsets.instants(stamps) if is_local else offsets.local(stamps)
        endless = _is_endless(stamps)
        native = fixed_width(np.where(endless, stamps, found), values[1].valid)
        doubtful = at_valid(_beyond(stamps) & ~endless, values[1].valid)
        return rows_in_postgres(frame, doubtful, native, (sql, types, values, result))

    return Kernel(run, can_fail=True)


def _truncated(frame: Frame, values: Sequence[Value]) -> Value:
    unit, offsets = constant_text(values[0]), _offsets(values[2], frame)
    call = ("date_trunc($1, $2, $3)", (TEXT, TIMESTAMPTZ, TEXT), values, TIMESTAMPTZ)
    if offsets is None or unit not in (*TRUNCATIONS, *CLOCK_TRUNCATIONS):
        return in_postgres(frame, *call)
    stamps = values[1].values  # type: ignore[union-attr]
    local = offsets.local(stamps)
    if unit in TRUNCATIONS:
        found = offsets.instants(kernels.truncate(local, TRUNCATIONS[unit]))
    else:
        # An hour keeps the offset of the instant, even where it is repeated.
        found = stamps - local % CLOCK_TRUNCATIONS[unit]
    endless = _is_endless(stamps)
    native = fixed_width(np.where(endless, stamps, found), values[1].valid)
    # A year may begin before what is known of the zone.
    doubtful = at_valid((_beyond(stamps) | _beyond(found)) & ~endless, values[1].valid)
    return rows_in_postgres(frame, doubtful, native, call)


def _instant(type: SqlType) -> Kernel:
    """Return an instant that compares as a date or timestamp does."""

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        call = ("timezone($2, $1::timestamp)", (type, TEXT), values, TIMESTAMPTZ)
        offsets = _offsets(values[1], frame)
        if offsets is None:
            return in_postgres(frame, *call)
        stamps = stamps_of(values[0], type)
        endless = _is_endless(stamps) | (stamps == BEYOND)
        native = fixed_width(np.where(endless, stamps, offsets.instants(stamps)), values[0].valid)
        doubtful = at_valid(_beyond(stamps) & ~endless, values[0].valid)
        return rows_in_postgres(frame, doubtful, native, call)

    return Kernel(run, can_fail=True)


def _shifted(sign: int) -> Kernel:
    """Return timestamptz_pl_interval: months, then days in local time, then microseconds."""

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        months, days, micros, finite = parts_of(values[1])
        parts = np.broadcast_arrays(values[0].values, sign * months, sign * days, sign * micros)  # type: ignore[union-attr]
        found, months, days, micros = (np.array(part, np.int64) for part in parts)
        none, valid = np.zeros_like(found), both_valid(values[:2])
        endless = _is_endless(found)
        doubtful = np.array(np.broadcast_to(~finite, len(found)))
        offsets = _offsets(values[2], frame) if months.any() or days.any() else None
        for by in ((months, none), (none, days)):
            rows = np.flatnonzero(((by[0] != 0) | (by[1] != 0)) & ~endless & ~doubtful)
            if offsets is None:
                doubtful[rows] = True
            elif len(rows):
                before = found[rows]
                by_rows = (by[0][rows], by[1][rows], none[rows])
                local, is_out = kernels.shift(offsets.local(before), *by_rows)
                found[rows] = offsets.instants(local)
                doubtful[rows] = is_out | _beyond(before) | _beyond(local)
        found, is_out = kernels.shift(found, none, none, micros)
        native = fixed_width(found, valid)
        doubtful = at_valid(doubtful | is_out, valid)
        if not doubtful.any():
            return native
        return rows_in_postgres(frame, doubtful, native, _exact(values, sign))

    return Kernel(run, can_fail=True)


def _exact(values: Sequence[Value], sign: int) -> tuple[str, list[SqlType], list[Value], SqlType]:
    """Return the sum as a call in PostgreSQL that does not depend on the session's time zone."""
    months, days, micros, finite = parts_of(values[1])
    moved = "$1"
    for unit, at in (("months", 4), ("days", 5)):
        local = f"({moved} AT TIME ZONE $3) + make_interval({unit} => ${at})"
        moved = f"CASE WHEN ${at} = 0 THEN {moved} ELSE ({local}) AT TIME ZONE $3 END"
    symbol = "+" if sign > 0 else "-"
    rest = "make_interval(hours => ($6 / 3600000000)::int)"
    rest += " + ($6 % 3600000000) * interval '1 microsecond'"
    sql = f"(CASE WHEN $7 THEN $1 {symbol} $2 ELSE {moved} + ({rest}) END)"
    valid = values[1].valid
    parts: list[Value] = [fixed_width(sign * part, valid) for part in (months, days, micros)]
    types = [TIMESTAMPTZ, INTERVAL, TEXT, INT4, INT4, INT8, BOOL]
    return sql, types, [*values, *parts, fixed_width(~finite, valid)], TIMESTAMPTZ


def _offsets(zone: Value, frame: Frame) -> Offsets | None:
    name = constant_text(zone, is_lowered=False)
    return None if name is None else offsets_of(name, frame.evaluator)


def _beyond(stamps: np.ndarray) -> np.ndarray:
    return (stamps < FIRST_US) | (stamps >= END_US)


def _is_endless(stamps: np.ndarray) -> np.ndarray:
    return (stamps == STAMP_MAX) | (stamps == STAMP_MIN)
