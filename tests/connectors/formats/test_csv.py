"""CSV and text records. Oracle: Python's csv module, and PostgreSQL's COPY for NULLs."""

from __future__ import annotations

import csv
import io
import random
from typing import Any

import pytest

from connectors.formats.csv_reader import Dialect, split_record
from connectors.formats.declared import declare_columns
from connectors.formats.open_format import open_format
from connectors.formats.record_format import Decoded
from dataflow.errors import SourceError
from tests.harness.postgres import Database

TEXTS = [{"name": "a", "type": "text"}, {"name": "b", "type": "text"}]


def decode(options: dict[str, Any], declared: list[dict[str, Any]], *records: bytes) -> Decoded:
    return open_format(options, declare_columns(declared)).decode(records)


@pytest.mark.parametrize("escape", ["", "\\"])
@pytest.mark.parametrize("seed", range(3))
def test_cells_are_those_of_python(seed: int, escape: str) -> None:
    draw = random.Random(seed)
    rows = [["".join(draw.choices('ab ;"\\é', k=draw.randint(0, 6))) for _ in "ab"]
            for _ in range(500)]  # fmt: skip
    records = []
    for row in rows:
        out = io.StringIO()
        writer = csv.writer(
            out,
            delimiter=";",
            quoting=csv.QUOTE_ALL if escape else draw.choice([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
            doublequote=not escape,
            escapechar=escape or None,
            lineterminator=draw.choice(["", "\n", "\r\n"]),
        )
        writer.writerow(row)
        records.append(out.getvalue().encode())
    options = {"format": "csv", "delimiter": ";", "escape": escape, "null": "\\N"}
    decoded = decode(options, TEXTS, *records)
    assert not decoded.bad
    assert [list(row) for row in zip(*(c.texts() for c in decoded.columns), strict=True)] == rows


@pytest.mark.parametrize("null", ["", "NULL", "\\N"])
def test_nulls_are_those_of_copy(database: Database, null: str) -> None:
    lines = ["x,y", '"",z', ",z", '"NULL",NULL', '\\N,"\\N"', '" a",b ', 'a"b,c', '"a,""b""\nc",d']
    database.execute("CREATE TABLE t (n serial, a text, b text)")
    connection = database.connect()
    with connection.cursor() as cursor:
        # COPY takes a quote anywhere for the begin of a quoted part; we only at the begin.
        plain = [line for line in lines if 'a"b' not in line]
        copy = f"COPY t (a, b) FROM STDIN (FORMAT csv, NULL '{null}')"
        cursor.copy_expert(copy, io.StringIO("\n".join(plain) + "\n"))
    wanted = database.rows("SELECT a, b FROM t ORDER BY n")
    decoded = decode({"format": "csv", "null": null}, TEXTS, *(line.encode() for line in plain))
    assert list(zip(*(c.texts() for c in decoded.columns), strict=True)) == wanted


def test_header_paths_and_bad_records() -> None:
    declared = [
        {"name": "id", "type": "int4", "path": "$.number", "nullable": False},
        {"name": "at", "type": "timestamptz", "unit": "s"},
        {"name": "raw", "type": "bytea", "encoding": "base64"},
    ]
    options = {"format": "csv", "header": ["at", "other", "number", "raw"]}
    records = [b"0,x,7,YQ==\r\n", b",,8,", b"1,x,y,", b"1,2", b'"1,2,3,4', b"1,2,,", b"1,\xff,2,"]
    decoded = decode(options, declared, *records)
    assert [c.to_list() for c in decoded.columns] == [
        [7, 8],
        [-946684800000000, None],
        [b"\\x61", None],
    ]
    assert [(one.number, one.code) for one in decoded.bad] == [
        (2, "record.value"),
        (3, "record.malformed"),
        (4, "record.malformed"),
        (5, "record.null"),
        (6, "record.malformed"),
    ]
    assert decoded.bad[1].reason == "2 cells, not 4"


def test_a_header_is_split_as_records_are() -> None:
    assert split_record(b'id,"a ""b""",\r\n', Dialect()) == ["id", 'a "b"', ""]
    assert split_record(b'id,"a', Dialect()) is None


def test_text_records() -> None:
    declared = [{"name": "line", "type": "varchar(3)"}]
    decoded = decode({"format": "text"}, declared, b"abc", b"", b"abcd", b"\xc3", b"\xa9", b"a\0")
    assert decoded.columns[0].texts() == ["abc", ""]
    assert [one.number for one in decoded.bad] == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("options", "declared", "code"),
    [
        ({"delimiter": ",,"}, TEXTS, "format.option"),
        ({"delimiter": "é"}, TEXTS, "format.option"),
        ({"delimiter": '"'}, TEXTS, "format.option"),
        ({"quote": 1}, TEXTS, "format.option"),
        ({"header": ["a"]}, TEXTS, "format.option"),
        ({"header": ["a", "b", "b"]}, TEXTS, "format.option"),
        ({"separator": ";"}, TEXTS, "format.option"),
        ({}, [{"name": "a", "type": "int4[]"}], "format.type"),
        ({}, [{"name": "a", "type": "int4", "path": "$.a.b"}], "format.path"),
    ],
)
def test_refused_options(options: dict, declared: list[dict[str, Any]], code: str) -> None:
    with pytest.raises(SourceError) as refused:
        decode({"format": "csv", **options}, declared)
    assert refused.value.code == code
