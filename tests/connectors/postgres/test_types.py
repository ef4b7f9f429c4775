"""Oracle: PostgreSQL's own text output of each value, on both roads, and each road the other's."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from dataflow.changes import Changes
from tests.connectors.postgres.reading import (
    Replay,
    changes_of,
    opened,
    raw_rows,
    read_all,
    snapshot_rows,
    streaming,
    table_rows,
)
from tests.harness.postgres import Database

pytestmark = pytest.mark.versions

# Each type with edge values as SQL literals; NULL is added to all.
VALUES = {
    "boolean": ["true", "false"],
    "smallint": ["-32768", "32767", "0"],
    "integer": ["-2147483648", "2147483647", "-70000"],
    "bigint": ["-9223372036854775808", "9223372036854775807", "-9000000000"],
    "real": ["1.1", "'-Infinity'", "'NaN'", "1e-20", "3.4e38", "'-0'", "1e-45"],
    "double precision": ["'NaN'", "'Infinity'", "1e300", "0.1", "'-0'", "5e-324", "1e15", "1e16"],
    "numeric": [
        "'NaN'",
        "'Infinity'",
        "'-Infinity'",
        "1.500",
        "123456789012345678901234.000000000123",
    ],
    "numeric(10,2)": ["12345678.91", "-0.05", "0", "'NaN'", "99999999.99", "100"],
    "numeric(18,0)": ["999999999999999999", "-999999999999999999", "10000", "1"],
    "numeric(18,18)": ["0.999999999999999999", "-0.000000000000000001"],
    "numeric(18,5)": ["1234567890123.00001", "-0.00010", "20000"],
    "numeric(30,3)": ["123456789012345678901234567.125"],
    "numeric(5,-2)": ["1234500", "-100"],
    "text": ["'héé'", "''", "E'tab\\tline\\nback\\\\slash'", "'NULL'", "repeat('lang', 3000)"],
    "varchar(9)": ["'abc'", "'  '"],
    "character(5)": ["'ab'", "''", "'abcde'"],
    "bytea": [r"'\xdeadbeef'", "''", r"'\x00ff27'"],
    "date": ["'2026-02-03'", "'infinity'", "'-infinity'", "'0044-03-15 BC'", "'5874897-12-31'"],
    "time": ["'12:34:56.789'", "'24:00'", "'00:00'", "'23:59:59.999999'"],
    "timestamp": ["'2026-02-03 04:05:06.7'", "'-infinity'", "'infinity'", "'4714-11-24 00:00 BC'"],
    "timestamptz": ["'2026-02-03 04:05:06.7+02'", "'infinity'", "'294276-12-31 23:59:59.9+00'"],
    "timetz": ["'12:00:00+05:30'"],
    "interval": ["'1 year 2 mons 3 days 04:05:06.7'", "'-1 day'", "'0'"],
    "uuid": ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"],
    "json": ["""'{"a": 1,  "a": 2}'""", "'null'"],
    "jsonb": ["""'{"b": [1, 2.50], "a": "x"}'""", "'null'"],
    "integer[]": ["'{1,2,NULL}'", "'{}'", "'{{1,2},{3,4}}'", "'[5:6]={1,2}'"],
    "text[]": ["""'{x,"y z","q\\"uo","NULL"}'"""],
    "mood": ["'sad'", "'very ok'"],
    "positive": ["7"],
    "pair": ["ROW(1, 'a b')", "ROW(NULL, NULL)"],
    "inet": ["'10.0.0.1/8'", "'10.0.0.1'"],
    "cidr": ["'10.0.0.0/8'"],
    '"char"': ["'x'"],
    "name": ["'abc'"],
    "bit(3)": ["B'101'"],
    "box": ["'(1,2),(3,4)'"],
    "int4range": ["'[1,5)'", "'empty'"],
    "tsvector": ["'a fat cat'"],
    "money": ["12.5"],
    "oid": ["4000000000"],
}

PREPARE = """
CREATE TYPE mood AS ENUM ('sad', 'very ok');
CREATE DOMAIN positive AS integer CHECK (VALUE > 0);
CREATE TYPE pair AS (n integer, t text);
"""


def make_table(database: Database, name: str) -> None:
    columns = ", ".join(f"c{i} {type}" for i, type in enumerate(VALUES))
    database.execute(
        f"CREATE TABLE {name} (id integer PRIMARY KEY, {columns},"
        " twice integer GENERATED ALWAYS AS (id * 2) STORED)"
    )


def inserts(name: str) -> list[str]:
    """One row a number of value: the first values, the second ones ..., NULL where they end."""
    most = max(map(len, VALUES.values())) + 1
    out = []
    for row in range(most):
        cells = [v[row] if row < len(v) else "NULL" for v in VALUES.values()]
        names = ", ".join(f"c{i}" for i in range(len(cells)))
        out.append(f"INSERT INTO {name} (id, {names}) VALUES ({row}, {', '.join(cells)})")
    return out


def test_stream_and_snapshot_give_what_postgresql_prints(every_database: Database) -> None:
    every_database.execute(PREPARE)
    make_table(every_database, "kinds")
    with opened(every_database, "kinds") as (source, [relation]):
        start = source.current_position()
        with streaming(source, start, [relation]) as stream:
            every_database.execute(";".join(inserts("kinds")))
            batches = read_all(source, stream)
        replay = Replay(relation)
        for changes in changes_of(batches):
            assert set(changes.kinds.tolist()) == {Changes.INSERT}
            replay.apply(changes)
        expected = table_rows(every_database, relation)
        assert sum(expected.values()) > 5
        assert replay.rows == expected
        snapshot = source.open_snapshot([relation])
        try:
            assert snapshot_rows(snapshot, relation) == expected
        finally:
            snapshot.close()


def test_both_engines_give_equal_bits(database: Database) -> None:
    """Rows are compared and hashed as bits, so a NaN or a NULL slot must be the same one."""
    database.execute(PREPARE)
    make_table(database, "kinds")
    database.execute(";".join(inserts("kinds")))
    # A NaN with its sign bit set, as the processor makes it.
    database.execute("UPDATE kinds SET c5 = 'Infinity'::float8 - 'Infinity' WHERE c5 = 'NaN'")
    with opened(database, "kinds") as (source, [relation]):
        snapshot = source.open_snapshot([relation])
        [part] = snapshot.parts(relation, range(len(relation.fields)), 1)
        [loaded] = part.read()
        snapshot.close()
        with streaming(source, snapshot.position, [relation]) as stream:
            database.execute("DELETE FROM kinds; " + ";".join(inserts("kinds")))
            [sent] = changes_of(read_all(source, stream))
    inserted = np.flatnonzero(sent.kinds == Changes.INSERT)
    order = loaded.columns[0].values.argsort()
    for field, left, right in zip(relation.fields, loaded.columns, sent.columns, strict=True):
        one, two = left.take(order), right.take(inserted)
        assert one.mask().tolist() == two.mask().tolist(), field
        assert one.values.tobytes() == two.values.tobytes(), field
        assert (one.data is None) == (two.data is None)
        assert one.data is None or bytes(one.data) == bytes(two.data), field


def test_settings_of_role_and_environment_do_not_change_values(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(
        f"ALTER DATABASE {database.name} SET TimeZone TO 'Asia/Tokyo';"
        f"ALTER DATABASE {database.name} SET DateStyle TO 'German';"
        f"ALTER DATABASE {database.name} SET IntervalStyle TO 'iso_8601';"
        f"ALTER DATABASE {database.name} SET bytea_output TO 'escape';"
        f"ALTER DATABASE {database.name} SET extra_float_digits TO -5"
    )
    monkeypatch.setenv("PGTZ", "America/New_York")
    monkeypatch.setenv("PGDATESTYLE", "SQL, DMY")
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, z timestamptz, d date, i interval, b bytea,"
        " f float8, x text)"
    )
    insert = (
        "INSERT INTO t VALUES (1, '2026-02-03 04:05:06+00', '2026-02-03', '1 day 02:00:00',"
        r" '\x0102', 0.1234567890123456, 'é')"
    )
    expected = Counter(
        [("1", "2026-02-03 04:05:06+00", "2026-02-03", "1 day 02:00:00", "\\x0102",
          "0.1234567890123456", "é")]
    )  # fmt: skip
    with opened(database, "t") as (source, [relation]):
        with streaming(source, source.current_position(), [relation]) as stream:
            database.execute(insert)
            replay = Replay(relation)
            for changes in changes_of(read_all(source, stream)):
                replay.apply(changes)
        assert replay.rows == expected
        snapshot = source.open_snapshot([relation])
        assert snapshot_rows(snapshot, relation) == expected
        snapshot.close()
    assert Counter(raw_rows(database, "SELECT * FROM t")) == expected
