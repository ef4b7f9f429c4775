"""Oracle: the paths, file times and Arrow values that the test itself made."""

from __future__ import annotations

import datetime as dt
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.files.source import declare
from dataflow.errors import SourceError
from tests.connectors.files.source_mirror import SourceMirror, make_source

DAY = [{"name": "id", "type": "int8"}, {"name": "year", "type": "int4"}]


def source_of(path: str, columns: Any, **more: Any) -> Any:
    relation = {"path": path, "columns": columns, "on_error": "dead_letter", **more}
    return make_source({"settle_ms": 0, "poll_interval_ms": 10, "relations": {"t": relation}})


def whole(source: Any) -> SourceMirror:
    kept = SourceMirror(source)
    kept.begin(source)
    return kept


def test_folders_are_columns(tmp_path: Path) -> None:
    for folder, text in {
        "year=2024/month=05": '{"id":1,"year":1999}',
        "year=__HIVE_DEFAULT_PARTITION__/month=a%2Fb": '{"id":2}',
        "year=soon/month=1": '{"id":3}',
        "plain": '{"id":4,"year":2020}',
    }.items():
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.jsonl").write_text(text)
    columns = [*DAY, {"name": "month", "type": "text"}]
    kept = whole(source_of(f"{tmp_path}/**/*.jsonl", columns))
    assert sorted(row[:3] for row in kept.rows.values()) == [
        ("1", "2024", "05"),
        ("2", None, "a/b"),
        ("4", "2020", None),
    ]
    assert list(kept.rejected) == ["year=soon/month=1/a.jsonl"]


def test_identity_is_always_there_and_time_when_requested(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"id":1}\n\n{"id":2}\n')
    moment = dt.datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=dt.UTC)
    os.utime(path, ns=(0, int(moment.timestamp()) * 10**9 + 123_456_789))
    options = {"relations": {"t": {"path": str(path), "columns": [DAY[0]]}}}
    (plain,) = declare(options)
    assert plain.columns == (("id", "bigint"), ("_file", "text"), ("_row", "int8"))
    assert plain.key == ("_file", "_row") and not plain.is_append
    columns = [
        {"name": "_row", "type": "bigint"},
        DAY[0],
        {"name": "_modified", "type": "timestamptz"},
    ]
    kept = whole(source_of(f"{tmp_path}/a.jsonl", columns))
    at = "2024-05-06 07:08:09.123456+00"
    assert [f.name for f in kept.relation.fields] == ["_row", "id", "_modified", "_file"]
    assert list(kept.rows.values()) == [("1", "1", at, "a.jsonl"), ("3", "2", at, "a.jsonl")]


def test_columns_that_some_files_lack_are_null(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    (tmp_path / "b.csv").write_text("year,more,id\n7,x,2\n")
    kept = whole(source_of(f"{tmp_path}/*.csv", DAY))
    assert sorted(row[:2] for row in kept.rows.values()) == [("1", None), ("2", "7")]
    strict = [DAY[0], {**DAY[1], "nullable": False}]
    kept = whole(source_of(f"{tmp_path}/*.csv", strict))
    assert list(kept.rejected) == ["a.csv"] and len(kept.rows) == 1
    # In the newest file they must be there, or the name is wrong.
    os.utime(tmp_path / "a.csv")
    (tmp_path / "c.csv").write_text("id,yaer\n1,2\n")
    os.utime(tmp_path / "c.csv", (4e9, 4e9))
    with pytest.raises(SourceError) as refused:
        source_of(f"{tmp_path}/*.csv", DAY).check()
    assert refused.value.code == "source.bad_sample" and "year" in refused.value.detail


def test_csv_without_header_and_in_other_letters(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbf1;'a;\\'b'\r\n2;NIL\r\n")
    letters = {"delimiter": ";", "quote": "'", "escape": "\\", "null": "NIL", "header": False}
    columns = [DAY[0], {"name": "v", "type": "text"}]
    kept = whole(source_of(f"{tmp_path}/*.csv", columns, **letters))
    assert [row[:2] for row in kept.rows.values()] == [("1", "a;'b"), ("2", None)]


def test_parts_of_documents(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text(
        "<all><n:r xmlns:n='u' k='1'><p cur='EUR'>12.50</p>"
        "<t><u>x</u><u>y</u></t><e/>own</n:r></all>"
    )
    columns = [
        {"name": "k", "type": "int4"},
        {"name": "price", "type": "numeric(6,2)", "path": "$.p"},
        {"name": "currency", "type": "text", "path": "$.p.cur"},
        {"name": "tags", "type": "text[]", "path": "$.t.u"},
        {"name": "t", "type": "jsonb"},
        {"name": "e", "type": "int8"},
        {"name": "text", "type": "text", "path": "$._value"},
    ]
    kept = whole(source_of(f"{tmp_path}/*.xml", columns, row_tag="n:r"))
    assert [row[:7] for row in kept.rows.values()] == [
        ("1", "12.50", "EUR", "{x,y}", '{"u": ["x", "y"]}', None, "own")
    ]


ARROW: list[tuple[Any, str, list[str | None]]] = [
    (pa.array([1, None, -5], pa.int8()), "int8", ["1", None, "-5"]),
    (pa.array([2**64 - 1, 7], pa.uint64()), "numeric", ["18446744073709551615", "7"]),
    (pa.array(["12", " 7 "]), "int4", ["12", "7"]),
    (pa.array(["x", None, "y"]).dictionary_encode(), "text", ["x", None, "y"]),
    (pa.array([1, 2]), "text", ["1", "2"]),
    (pa.array([0.1, None], pa.float32()), "float4", ["0.1", None]),
    (pa.array([1.5, 2.0]), "numeric(5,1)", ["1.5", "2.0"]),
    (pa.array([Decimal("1.005"), None]), "numeric(9,2)", ["1.01", None]),
    (pa.array([Decimal("-1.5"), None], pa.decimal128(9, 1)), "numeric(9,3)", ["-1.500", None]),
    (pa.array([dt.date(1969, 12, 31)]), "timestamp", ["1969-12-31 00:00:00"]),
    (pa.array([dt.time(1, 2, 3)], pa.time32("s")), "time", ["01:02:03"]),
    (pa.array([1_500, 500, -1], pa.timestamp("ns", "UTC")), "timestamptz", [
        "1970-01-01 00:00:00.000002+00", "1970-01-01 00:00:00+00", "1970-01-01 00:00:00+00"]),
    (pa.array([b"\x00\xff", None]), "bytea", ["\\x00ff", None]),
    (pa.array([[1, None], None, []]), "int4[]", ["{1,NULL}", None, "{}"]),
    (pa.array([{"a": 1, "b": None}, None]), "jsonb", ['{"a": 1, "b": null}', None]),
    (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), "jsonb", ['{"k": 1}']),
    (pa.nulls(2), "int4", [None, None]),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(ARROW)))
def test_arrow_values(number: int, tmp_path: Path) -> None:
    array, type, wanted = ARROW[number]
    pq.write_table(pa.table({"c": array}), tmp_path / "a.parquet")
    kept = whole(source_of(f"{tmp_path}/*.parquet", [{"name": "c", "type": type}]))
    assert [row[0] for row in kept.rows.values()] == wanted
    assert not kept.rejected


MISFITS = [
    (pa.array([1, 70_000]), "int2"),
    (pa.array([1, 2**63], pa.uint64()), "int8"),
    (pa.array([1.0, 1e300]), "float4"),
    (pa.array([Decimal("1"), Decimal("1000")]), "numeric(3,0)"),
    (pa.array([0, 10**15], pa.timestamp("s")), "timestamp"),
    (pa.array(["fine", "nul\0"]), "text"),
    (pa.array([b"fine", b"\xff"]), "text"),
    (pa.array([[1], [2**40]]), "int4[]"),
]


@pytest.mark.parametrize("number", range(len(MISFITS)))
def test_arrow_values_that_do_not_fit(number: int, tmp_path: Path) -> None:
    array, type = MISFITS[number]
    pq.write_table(pa.table({"c": array}), tmp_path / "a.parquet")
    kept = whole(source_of(f"{tmp_path}/*.parquet", [{"name": "c", "type": type}]))
    assert list(kept.rows) == [("a.parquet", 1)]
    assert list(kept.rejected) == ["a.parquet:2"]


def test_units_of_numbers(tmp_path: Path) -> None:
    pq.write_table(pa.table({"c": [1_500, None]}), tmp_path / "a.parquet")
    columns = [{"name": "c", "type": "timestamptz", "unit": "ms"}]
    kept = whole(source_of(f"{tmp_path}/*.parquet", columns))
    assert [row[0] for row in kept.rows.values()] == ["1970-01-01 00:00:01.5+00", None]


def test_fields_of_structures(tmp_path: Path) -> None:
    table = pa.table({"a": [{"b": {"c": 1}}, None, {"b": None}], "x.y": [1, 2, 3]})
    pq.write_table(table, tmp_path / "a.parquet")
    columns = [
        {"name": "c", "type": "int8", "path": "$.a.b.c"},
        {"name": "d", "type": "int8", "path": "$.a.b.d"},
        {"name": "x", "type": "int8", "path": "$['x.y']"},
    ]
    kept = whole(source_of(f"{tmp_path}/*.parquet", columns))
    assert [row[:3] for row in kept.rows.values()] == [
        ("1", None, "1"),
        (None, None, "2"),
        (None, None, "3"),
    ]
