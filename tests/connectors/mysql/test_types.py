"""Oracle: PostgreSQL's values of the same texts; and a query's rows, to which those of the log must
be equal bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.connectors.mysql.reading import Held, follow, snapshot, source_of, starts
from tests.harness.mariadb import MariaDb

DAY_US = 86_400_000_000
Case = tuple[str, str, Any]


def us(days: int, hours: int = 0, minutes: int = 0, seconds: float = 0) -> int:
    """Microseconds since 2000-01-01."""
    return days * DAY_US + round(((hours * 60 + minutes) * 60 + seconds) * 1_000_000)


# (column, value as SQL, value here)
CASES: Sequence[Case] = (
    ("tinyint", "-128", -128),
    ("tinyint", "127", 127),
    ("tinyint unsigned", "255", 255),
    ("tinyint(1)", "1", 1),
    ("smallint", "-32768", -32768),
    ("smallint unsigned", "65535", 65535),
    ("mediumint", "-8388608", -8388608),
    ("mediumint unsigned", "16777215", 16777215),
    ("int", "-2147483648", -2147483648),
    ("int unsigned", "4294967295", 4294967295),
    ("bigint", "-9223372036854775808", -(2**63)),
    ("bigint unsigned", "18446744073709551615", b"18446744073709551615"),
    ("bigint unsigned", "7", b"7"),
    ("decimal(5,2)", "-123.45", -12345),
    ("decimal(5,2)", "0.00", 0),
    ("decimal(18,9)", "-999999999.999999999", -999999999999999999),
    ("decimal(18,0)", "123456789012345678", 123456789012345678),
    ("decimal(3,3)", "-0.007", -7),
    ("decimal(38,10)", "-1234567890123456789012345678.0123456789", None),
    ("decimal(65,30)", "0.000000000000000000000000000001", None),
    ("decimal(30,0)", "-1", b"-1"),
    ("float", "3.4028234e38", 3.4028234663852886e38),
    ("float", "0.1", 0.10000000149011612),
    ("float", "-1.17549435e-38", -1.1754943508222875e-38),
    ("double", "0.1", 0.1),
    ("double", "1.7976931348623157e308", 1.7976931348623157e308),
    ("double", "-2.2250738585072014e-308", -2.2250738585072014e-308),
    ("double", "123456789.12345679", 123456789.12345679),
    ("bit(1)", "b'1'", True),
    ("bit(1)", "b'0'", False),
    ("bit(10)", "b'1000000001'", b"\\x0201"),
    ("bit(64)", "x'8000000000000001'", b"\\x8000000000000001"),
    ("char(5) character set utf8mb4", "'ab  '", b"ab"),
    ("char(200) character set utf8mb4", "'ü😀'", "ü😀".encode()),
    ("varchar(20) character set utf8mb4", "'ü😀 '", "ü😀 ".encode()),
    ("varchar(300) character set utf8mb3", "repeat('ä', 300)", ("ä" * 300).encode()),
    ("varchar(20) character set latin1", "'äß€'", "äß€".encode()),
    ("varchar(20) character set latin2", "'ąž'", "ąž".encode()),
    ("varchar(20) character set cp1251", "'Привет'", "Привет".encode()),
    ("varchar(20) character set koi8r", "'Привет'", "Привет".encode()),
    ("varchar(20) character set greek", "'αβγ'", "αβγ".encode()),
    ("varchar(20) character set ucs2", "'aü€'", "aü€".encode()),
    ("varchar(20) character set utf16", "'a😀'", "a😀".encode()),
    ("varchar(20) character set utf32", "'a😀'", "a😀".encode()),
    ("varchar(20) character set sjis", "'日本ｱ'", "日本ｱ".encode()),
    ("varchar(20) character set cp932", "'日本①'", "日本①".encode()),
    ("varchar(20) character set ujis", "'日本'", "日本".encode()),
    ("varchar(20) character set euckr", "'한국'", "한국".encode()),
    ("varchar(20) character set gbk", "'中国'", "中国".encode()),
    ("varchar(20) character set big5", "'中國'", "中國".encode()),
    ("varchar(20) character set ascii", "'abc'", b"abc"),
    ("varchar(20)", "''", b""),
    ("tinytext", "'x'", b"x"),
    ("text", "repeat('ab', 20000)", b"ab" * 20000),
    ("mediumtext character set latin1", "'é'", "é".encode()),
    ("longtext", "'x'", b"x"),
    ("binary(4)", "x'41'", b"\\x41000000"),
    ("binary(4)", "x'00000000'", b"\\x00000000"),
    ("varbinary(8)", "x'4100'", b"\\x4100"),
    ("varbinary(300)", "''", b"\\x"),
    ("tinyblob", "x'ff'", b"\\xff"),
    ("blob", "x'00ff00'", b"\\x00ff00"),
    ("longblob", "x'00'", b"\\x00"),
    ("enum('a','b','ü') character set latin1", "'ü'", "ü".encode()),
    ("enum('a','b')", "''", b""),
    ("set('x','y','z')", "'z,x'", b"x,z"),
    ("set('x','y')", "''", b""),
    ("date", "'1000-01-01'", -365242),
    ("date", "'9999-12-31'", 2921939),
    ("date", "'2000-02-29'", 59),
    ("datetime", "'2000-01-02 03:04:05'", us(1, 3, 4, 5)),
    ("datetime(1)", "'1999-12-31 23:59:59.9'", us(0) - 100_000),
    ("datetime(3)", "'2000-01-01 00:00:00.123'", 123_000),
    ("datetime(6)", "'9999-12-31 23:59:59.999999'", us(2921940) - 1),
    ("timestamp", "'2000-01-01 00:00:01'", us(0, 0, 0, 1)),
    ("timestamp(6)", "'2030-03-04 05:06:07.000001'", us(11020, 5, 6, 7) + 1),
    ("time", "'838:59:59'", b"838:59:59"),
    ("time", "'-838:59:59'", b"-838:59:59"),
    ("time", "'00:00:00'", b"00:00:00"),
    ("time(2)", "'-00:00:00.01'", b"-00:00:00.01"),
    ("time(3)", "'-01:02:03.500'", b"-01:02:03.5"),
    ("time(6)", "'25:00:00.000001'", b"25:00:00.000001"),
    ("year", "1901", 1901),
    ("year", "2155", 2155),
    ("year", "0", 0),
    ("json", """'{"b": [1, 2.50, null, "ü"], "a": true}'""", None),
    ("longtext", "'not json'", b"not json"),
)


@pytest.fixture
def types(mariadb: MariaDb) -> MariaDb:
    """A table with a column of each case, all of which may be NULL."""
    mariadb.execute("SET SESSION time_zone = '+00:00'")
    mariadb.execute("SET SESSION sql_mode = ''")
    columns = ", ".join(f"c{i} {type_name} NULL" for i, (type_name, _, _) in enumerate(CASES))
    mariadb.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns}) ROW_FORMAT=DYNAMIC")
    return mariadb


def _row(held: Held, id: int) -> tuple[Any, ...]:
    (found,) = (row for row in held.rows["t"] if row[0] == id)
    return found


def test_every_type_is_the_same_by_query_and_by_log(types: MariaDb) -> None:
    source = source_of(types.options("t"))
    source.check()
    before = starts(source)
    types.execute(f"INSERT INTO t VALUES (1, {', '.join(value for _, value, _ in CASES)})")
    types.execute(f"INSERT INTO t VALUES (2{', NULL' * len(CASES)})")
    held = follow(source, snapshot(source, before), lambda h: len(h.rows.get("t", ())) == 2)
    queried = snapshot(source, starts(source))
    by_log, by_query = _row(held, 1), _row(queried, 1)
    for i, (type_name, value, expected) in enumerate(CASES, start=1):
        case = f"{type_name} {value}"
        assert repr(by_log[i]) == repr(by_query[i]), case
        if expected is not None:
            assert repr(by_log[i]) == repr(expected), case
    assert _row(held, 2) == _row(queried, 2) == (2, *[None] * len(CASES))
    # What a row was is what removes it.
    types.execute("DELETE FROM t")
    held = follow(source, queried, lambda h: not h.rows["t"])


def test_json_and_long_decimals_are_postgresqls(types: MariaDb, database: Any) -> None:
    source = source_of(types.options("t"))
    types.execute(f"INSERT INTO t VALUES (1, {', '.join(value for _, value, _ in CASES)})")
    row = _row(snapshot(source, starts(source)), 1)
    for i, (type_name, value, _) in enumerate(CASES, start=1):
        if type_name == "json":
            assert row[i].decode() == database.rows(f"SELECT ({value}::jsonb)::text")[0][0]
        elif type_name.startswith(("decimal(38", "decimal(65")):
            numeric = type_name.replace("decimal", "numeric")
            assert row[i].decode() == database.rows(f"SELECT ({value}::{numeric})::text")[0][0]


def test_other_types_may_be_declared(mariadb: MariaDb) -> None:
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY, b tinyint(1), n int, d decimal(10,2), s longtext, "
        "at datetime(3), day date, y year, u char(36), w bigint unsigned)"
    )
    declared = {"b": "boolean", "n": "numeric(12,1)", "d": "double precision", "s": "jsonb"}
    declared |= {"at": "text", "day": "text", "y": "text", "u": "uuid", "w": "bigint"}
    source = source_of(mariadb.options("t"), **declared)
    source.check()
    before = starts(source)
    uuid = "00112233-4455-6677-8899-aabbccddeeff"
    mariadb.execute(
        "INSERT INTO t VALUES (1, 1, 7, 1.50, '{\"a\":1}', '2020-01-02 03:04:05.6', '2020-01-02', "
        f"1999, '{uuid}', 5)"
    )
    held = follow(source, snapshot(source, before), lambda h: bool(h.rows.get("t")))
    (row,) = held.rows["t"]
    expected = (1, True, 70, 1.5, b'{"a": 1}', b"2020-01-02 03:04:05.600", b"2020-01-02", b"1999")
    assert row == (*expected, uuid.encode(), 5)
    assert snapshot(source, starts(source)).rows == held.rows


@pytest.mark.parametrize("zero_dates", ["null", "reject"])
def test_zero_dates(mariadb: MariaDb, zero_dates: str) -> None:
    mariadb.execute("SET SESSION sql_mode = 'ALLOW_INVALID_DATES'")
    mariadb.execute(
        "CREATE TABLE t (id int PRIMARY KEY, d date, at datetime, ts timestamp NULL, x date)"
    )
    more = {"zero_dates": zero_dates, "on_error": "dead_letter"}
    source = source_of(mariadb.options("t", **more), x="text")
    before = starts(source)
    rows = ("'0000-00-00', '0000-00-00 00:00:00', '0000-00-00 00:00:00', '0000-00-00'",)
    rows += ("'2020-00-05', '2020-01-00 10:00:00', NULL, '2020-00-00'",)
    for id, row in enumerate(rows):
        mariadb.execute(f"INSERT INTO t VALUES ({id}, {row})")
    mariadb.execute("INSERT INTO t VALUES (8, '2020-02-03', NULL, NULL, NULL)")
    mariadb.execute("INSERT INTO t VALUES (9, '2020-02-31', NULL, NULL, NULL)")
    is_read = {"null": 3, "reject": 1}[zero_dates]
    held = follow(source, snapshot(source, before), lambda h: len(h.rejected) == 4 - is_read)
    queried = snapshot(source, starts(source))
    assert len(held.rows["t"]) == is_read
    assert held.rows == queried.rows
    assert {letter[3] for letter in held.rejected} == {b"record.value"}
    assert sorted(r[5] for r in held.rejected) == sorted(r[5] for r in queried.rejected)
    if zero_dates == "null":
        assert _row(held, 0) == (0, None, None, None, b"0000-00-00")
