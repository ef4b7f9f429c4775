"""Queries in time zones: what is asked of PostgreSQL about a zone, and what sqlite computes.

Oracle: Python's own zone data and calendar, row by row; the product asks for a zone's offsets and
computes in columns.
"""

from __future__ import annotations

import calendar
import functools
import re
import sqlite3
from datetime import UTC, datetime, timedelta
from random import Random
from zoneinfo import ZoneInfo

from dataflow.types import BOOL, INTERVAL, TEXT, TIMESTAMPTZ, SqlType

ZONED = "zoned"
_NOW = f"(SELECT n.at FROM {ZONED}.now n)"
_TODAY = f"date_trunc('day'::text, {_NOW})"
_YESTERDAY = f"({_NOW} - '1 day'::interval)"
QUERIES = (
    f" SELECT id, kind FROM public.moments WHERE (due > {_YESTERDAY})",
    f" SELECT id, due FROM public.moments WHERE (due <= ({_NOW} - '1 mon'::interval))",
    f" SELECT kind, count(*) AS n FROM public.moments WHERE (due >= {_TODAY}) GROUP BY kind",
    f" SELECT id, date_trunc('day'::text, due) AS day FROM public.moments WHERE (due < {_NOW})",
    f" SELECT id, date_trunc('month'::text, due) AS month, (due > {_YESTERDAY}) AS fresh"
    " FROM public.moments",
    f" SELECT kind, max(due) AS last FROM public.moments WHERE (due < {_YESTERDAY}) GROUP BY kind",
)
# By zone, in UTC: when its clocks change, both ways, and times a day or a month after that; when
# months, a leap day and a year begin.
MOMENTS = {
    "America/New_York": (
        *("2027-03-14T07:00", "2027-11-07T06:00", "2027-03-15T06:30", "2027-11-08T06:30"),
        *("2027-04-14T06:30", "2027-12-07T06:30", "2027-03-14T05:00", "2028-02-29T05:00"),
    ),
    "Europe/Berlin": ("2027-03-28T01:00", "2027-10-31T01:00", "2027-11-01T01:30"),
    "Australia/Lord_Howe": (
        *("2027-04-03T15:00", "2027-10-02T15:30", "2027-10-03T15:10", "2027-04-04T15:10"),
        *("2027-11-02T15:10", "2027-10-02T13:30"),
    ),
    "America/St_Johns": ("2027-03-14T05:30", "2027-11-07T04:30", "2027-11-08T04:40"),
    "Asia/Kolkata": ("2028-02-28T18:30", "2027-12-31T18:30", "2027-03-30T18:30"),
    "Pacific/Apia": ("2027-04-30T11:00", "2028-02-29T11:00"),
    "UTC": ("2027-03-31T00:00", "2028-02-29T00:00", "2028-03-01T00:00", "2028-01-01T00:00"),
}
ZONES = tuple(MOMENTS)
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_DAY_US = 86_400_000_000
_SHIFT = re.compile(r"\((\(SELECT [^()]*\)|[\w.]+) ([-+]) '(\d+) (day|mon)s?'::interval\)")
_TRUNCATED = re.compile(r"date_trunc\('(\w+)'::text, (\(SELECT [^()]*\)|[\w.]+)\)")
# PostgreSQL's question about a zone's offsets: all changes between two seconds, or those at some.
_ASKED = re.compile(r"AT TIME ZONE '([\w/]+)'")
_FIRST, _LAST = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (2026, 2030))
_STEP_S, _LEAST_S = 6 * 3600, -5_364_662_400


def drawn(random: Random) -> tuple[str, int]:
    """Return a zone, and when a run begins, in microseconds since 2000: shortly before something
    happens there."""
    zone = random.choice(ZONES)
    at = datetime.fromisoformat(f"{random.choice(MOMENTS[zone])}+00:00")
    return zone, _us_of(at - timedelta(seconds=random.choice((2.0, 8.0, 20.0))))


def due_us(random: Random, now_us: int) -> int:
    """Return a moment that some threshold passes about now, or within a day."""
    days = random.choice((0, 0, 1, 1, 2, 28, 29, 30, 31))
    hours = random.choice((0, 0, 0, 1, -1, 0.5, 24))
    seconds = random.choice((0.0, 5.0, 20.0, 1000.0)) * random.random()
    return now_us - days * _DAY_US - round((hours * 3600 - seconds) * 1e6)


def in_sqlite(query: str, zone: str) -> str:
    """Return a query whose calls of a zone are those that `add_functions` has defined."""

    def shifted(found: re.Match[str]) -> str:
        value, sign, count, unit = found.groups()
        return f"zone_shift('{zone}', {value}, {sign}{count}, '{unit}')"

    def truncated(found: re.Match[str]) -> str:
        return f"zone_trunc('{zone}', {found[2]}, '{found[1]}')"

    return _TRUNCATED.sub(truncated, _SHIFT.sub(shifted, query))


def type_of(expression: str) -> SqlType | None:
    """Return the type of an expression of times, as far as these queries have any."""
    if re.search(r" (?:<|<=|>|>=) ", expression):
        return BOOL
    if expression.endswith("::text"):
        return TEXT
    if expression.endswith("::interval") and expression.startswith("'"):
        return INTERVAL
    if re.search(r"^date_trunc\(| - '[^']*'::interval\)?$", expression):
        return TIMESTAMPTZ
    return None


def add_functions(session: sqlite3.Connection) -> None:
    """Define PostgreSQL's functions of a zone."""
    session.create_function("zone_shift", 4, _shifted, deterministic=True)
    session.create_function("zone_trunc", 3, _truncated, deterministic=True)


def _shifted(zone: str, at: int, count: int, unit: str) -> int:
    """As timestamptz_pl_interval: in local time, a month at most to its last day."""
    local = _local(zone, at)
    if unit == "day":
        return _instant(zone, local + timedelta(days=count))
    months = local.year * 12 + local.month - 1 + count
    year, month = months // 12, months % 12 + 1
    day = min(local.day, calendar.monthrange(year, month)[1])
    return _instant(zone, local.replace(year=year, month=month, day=day))


def _truncated(zone: str, at: int, unit: str) -> int:
    local = _local(zone, at).replace(hour=0, minute=0, second=0, microsecond=0)
    return _instant(zone, local if unit == "day" else local.replace(day=1))


def _local(zone: str, at: int) -> datetime:
    """Return a local time without a zone; at: microseconds since 2000."""
    moment = _EPOCH + timedelta(microseconds=at)
    return moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None)


def _instant(zone: str, local: datetime) -> int:
    """As DetermineTimeZoneOffset: what is skipped, or is there twice, has the lesser offset."""
    both = (local.replace(tzinfo=ZoneInfo(zone), fold=fold).utcoffset() for fold in (0, 1))
    least = min(offset for offset in both if offset is not None)
    return _us_of(local.replace(tzinfo=UTC) - least)


def _us_of(moment: datetime) -> int:
    return round((moment - _EPOCH) / timedelta(microseconds=1))


def answer_about_zone(sql: str, row: tuple[int, ...]) -> str | int | None:
    """Return what PostgreSQL says of a zone; None for another question."""
    found = _ASKED.search(sql)
    if found is None:
        return None
    return _offset(found[1], row[0]) if row else _changes(found[1])


@functools.cache
def _changes(zone: str) -> str:
    """Return "second offset" of the first second and of those at which the offset is another."""
    seconds = [_LEAST_S, *range(_FIRST, _LAST, _STEP_S)]
    found, before = [], None
    for second in seconds:
        offset = _offset(zone, second)
        if offset != before:
            found.append(f"{second} {offset}")
        before = offset
    return ",".join(found)


def _offset(zone: str, second: int) -> int:
    """Return seconds east of UTC; before and after the years of the runs it is as at their ends."""
    moment = datetime.fromtimestamp(min(max(second, _FIRST), _LAST), ZoneInfo(zone))
    offset = moment.utcoffset()
    assert offset is not None
    return round(offset.total_seconds())
