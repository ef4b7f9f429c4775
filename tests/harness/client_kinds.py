"""Values of every type of PostgreSQL's: their SQL beside what the Python client makes of them."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from datetime import UTC, date, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa

from tidemark import Interval

TEXT = pa.string()
INF, NAN = float("inf"), float("nan")
UUIDS = [UUID("00000000-0000-0000-0000-000000000000"), UUID("f" * 32)]


def stamp(*parts: int) -> datetime.datetime:
    return datetime.datetime(*parts)  # type: ignore[arg-type]


def utc(*parts: int) -> datetime.datetime:
    return datetime.datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type, misc]


@dataclass(frozen=True)
class Kind:
    """A type: two values as SQL and as Python, the Arrow type, and how Arrow gives them back."""

    type: str
    literals: tuple[str, str]
    values: tuple[Any, Any]
    arrow: pa.DataType = TEXT
    in_arrow: tuple[Any, Any] | None = None
    is_found: bool = True


KINDS = {
    "bool": Kind("boolean", ("true", "false"), (True, False), pa.bool_()),
    "int2": Kind("smallint", ("-32768", "7"), (-32768, 7), pa.int16()),
    "int4": Kind("int", ("-2147483648", "7"), (-(2**31), 7), pa.int32()),
    "int8": Kind("bigint", ("-9223372036854775808", "7"), (-(2**63), 7), pa.int64()),
    "float4": Kind(
        "real", ("0.1", "'-Infinity'"), (0.1, -INF), pa.float32(), (0.10000000149011612, -INF)
    ),
    "float8": Kind("float8", ("0.1", "'NaN'"), (0.1, NAN), pa.float64()),
    "tiny": Kind(
        "float8",
        ("5e-324", "1.7976931348623157e308"),
        (5e-324, 1.7976931348623157e308),
        pa.float64(),
    ),
    "fixed": Kind(
        "numeric(12,2)",
        ("0.10", "-9999999999.99"),
        (Decimal("0.10"), Decimal("-9999999999.99")),
        pa.decimal128(12, 2),
    ),
    "wide": Kind(
        "numeric(60,5)",
        ("1.00000", "123456789012345678901234567890.12345"),
        (Decimal("1.00000"), Decimal("123456789012345678901234567890.12345")),
        pa.decimal256(60, 5),
    ),
    "free": Kind(
        "numeric",
        ("1.10", "'Infinity'"),
        (Decimal("1.10"), Decimal("Infinity")),
        TEXT,
        ("1.10", "Infinity"),
    ),
    "long": Kind(
        "numeric",
        ("1e-30", "'NaN'"),
        (Decimal("1e-30"), Decimal("NaN")),
        TEXT,
        ("0." + "0" * 29 + "1", "NaN"),
    ),
    "text": Kind("text", ("''", "E'a\\u2028\\u0085\\n\"b\\\\'"), ("", 'a\u2028\x85\n"b\\')),
    "varchar": Kind("varchar(9)", ("'é'", "' x '"), ("é", " x ")),
    "bpchar": Kind("char(3)", ("'a'", "'abc'"), ("a  ", "abc")),
    "day": Kind(
        "date", ("'2024-02-29'", "'0001-01-01'"), (date(2024, 2, 29), date(1, 1, 1)), pa.date32()
    ),
    "far": Kind("date", ("'infinity'", "'0044-03-15 BC'"), ("infinity", "0044-03-15 BC")),
    "clock": Kind(
        "time",
        ("'04:05:06.789'", "'23:59:59.999999'"),
        (time(4, 5, 6, 789000), time(23, 59, 59, 999999)),
        pa.time64("us"),
    ),
    "midnight": Kind("time", ("'24:00'", "'00:00'"), ("24:00:00", time(0))),
    "zoned": Kind(
        "timetz",
        ("'04:05:06+05:30'", "'04:05:06.5-08'"),
        (
            time(4, 5, 6, tzinfo=timezone(timedelta(hours=5, minutes=30))),
            time(4, 5, 6, 500000, timezone(timedelta(hours=-8))),
        ),
        TEXT,
        ("04:05:06+05:30", "04:05:06.500000-08:00"),
    ),
    "moment": Kind(
        "timestamp",
        ("'2024-01-02 03:04:05.6'", "'9999-12-31 23:59:59.999999'"),
        (stamp(2024, 1, 2, 3, 4, 5, 600000), stamp(9999, 12, 31, 23, 59, 59, 999999)),
        pa.timestamp("us"),
    ),
    "instant": Kind(
        "timestamptz",
        ("'2024-01-02 03:04:05.000001+02'", "'1970-01-01 00:00+00'"),
        (utc(2024, 1, 2, 1, 4, 5, 1), utc(1970, 1, 1)),
        pa.timestamp("us", "UTC"),
    ),
    "never": Kind(
        "timestamptz",
        ("'infinity'", "'20000-01-01 00:00+00'"),
        ("infinity", "20000-01-01 00:00:00+00"),
    ),
    "span": Kind(
        "interval",
        ("'1 year 2 mons -3 days 04:05:06.7'", "'-00:00:00.000001'"),
        (Interval(14, -3, 14706700000), Interval(0, 0, -1)),
        pa.month_day_nano_interval(),
        (pa.MonthDayNano([14, -3, 14706700000000]), pa.MonthDayNano([0, 0, -1000])),
    ),
    "uuid": Kind("uuid", tuple(f"'{u}'" for u in UUIDS), tuple(UUIDS), pa.uuid()),  # type: ignore[arg-type]
    "raw": Kind("bytea", ("'\\x'", "'\\x00ff5c'"), (b"", b"\x00\xff\\"), pa.binary()),
    "doc": Kind(
        "jsonb",
        ('\'{"a": [1, null, "x"]}\'', "'{}'"),
        ({"a": [1, None, "x"]}, {}),
        TEXT,
        ('{"a": [1, null, "x"]}', "{}"),
    ),
    "plain": Kind(
        "json",
        ("'\"x\"'", "'12345678901234567890'"),
        ("x", 12345678901234567890),
        TEXT,
        ('"x"', "12345678901234567890"),
        is_found=False,
    ),
    "ints": Kind("int[]", ("'{1,NULL,3}'", "'{}'"), ([1, None, 3], []), pa.list_(pa.int32())),
    "texts": Kind(
        "text[]",
        ("ARRAY['a,b', 'NULL', '', '\"', '\\\\', '{}']", "ARRAY[NULL, 'null']::text[]"),
        (["a,b", "NULL", "", '"', "\\\\", "{}"], [None, "null"]),
        pa.list_(TEXT),
    ),
    "deep": Kind(
        "int[]", ("'{{1,2},{3,4}}'", "'[0:1]={5,6}'"), ([[1, 2], [3, 4]], [5, 6]), is_found=False
    ),
    "flags": Kind(
        "boolean[]", ("'{t,f}'", "'{NULL}'"), ([True, False], [None]), pa.list_(pa.bool_())
    ),
    "prices": Kind(
        "numeric(10,2)[]",
        ("'{1.50,2}'", "'{0}'"),
        ([Decimal("1.50"), Decimal("2.00")], [Decimal("0.00")]),
        pa.list_(pa.decimal128(10, 2)),
    ),
    "days": Kind("date[]", ("'{2024-01-01}'", "'{infinity}'"), ([date(2024, 1, 1)], ["infinity"])),
    "moments": Kind(
        "timestamptz[]",
        ("ARRAY['2024-01-01 00:00+00'::timestamptz]", "'{}'"),
        ([utc(2024, 1, 1)], []),
        pa.list_(pa.timestamp("us", "UTC")),
    ),
    "raws": Kind(
        "bytea[]", ("ARRAY['\\x00'::bytea]", "'{}'"), ([b"\x00"], []), pa.list_(pa.binary())
    ),
    "ids": Kind(
        "uuid[]",
        (f"ARRAY['{UUIDS[1]}'::uuid]", "'{}'"),
        ([UUIDS[1]], []),
        pa.list_(TEXT),
        ([str(UUIDS[1])], []),
    ),
    "docs": Kind(
        "jsonb[]",
        ("ARRAY['{\"a\": 1}'::jsonb]", "'{}'"),
        ([{"a": 1}], []),
        pa.list_(TEXT),
        (['{"a": 1}'], []),
    ),
    "mood": Kind("mood", ("'sad'", "'ok'"), ("sad", "ok")),
    "moods": Kind("mood[]", ("'{sad,ok}'", "'{}'"), (["sad", "ok"], []), pa.list_(TEXT)),
    # A domain: its table has the type that it is made of.
    "few": Kind("small", ("3", "4"), (3, 4), pa.int32(), (3, 4)),
    "range": Kind("int4range", ("'[1,5)'", "'empty'"), ("[1,5)", "empty")),
    "net": Kind("inet", ("'10.0.0.1/8'", "'::1'"), ("10.0.0.1/8", "::1")),
    "bits": Kind("bit(3)", ("'101'", "'000'"), ("101", "000")),
    "pair": Kind("pair", ("(1,'a b')", "(2,NULL)"), ('(1,"a b")', "(2,)")),
}
