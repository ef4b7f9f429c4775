"""Oracle: Python's own values: what is put into an answer is what its tables have, in the type that
docs/PYTHON.md names."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from datetime import UTC, date, datetime, time
from decimal import Decimal
from html.parser import HTMLParser
from typing import Any
from uuid import UUID

import pandas as pd
import pytest

import tidemark
from service.client.answers import Field
from service.client.epochs import Columns, Epoch, Marker
from service.client.rows import DiffPage, RowSet, row_type
from tidemark import Interval

# By PostgreSQL's type: values, and the type in pandas and in polars.
KINDS: dict[str, tuple[list[Any], str, str]] = {
    "boolean": ([True, False], "boolean", "Boolean"),
    "smallint": ([-(2**15), 7], "Int16", "Int16"),
    "integer": ([-(2**31), 7], "Int32", "Int32"),
    "bigint": ([-(2**63), 2**63 - 1], "Int64", "Int64"),
    "real": ([0.5, -math.inf], "Float32", "Float32"),
    "double precision": ([0.1, math.nan], "Float64", "Float64"),
    "numeric": ([Decimal("1.50"), Decimal("-10000000000000000.001")], "object", "Decimal(38, 3)"),
    "numeric(12,2)": ([Decimal("0.10"), Decimal("-9999999999.99")], "object", "Decimal(12, 2)"),
    "text": (["", "a\tü"], "string", "String"),
    "character varying(9)": (["x", "NULL"], "string", "String"),
    "date": ([date(1, 1, 1), date(9999, 12, 31)], "object", "Date"),
    "time without time zone": ([time(0), time(23, 59, 59, 999999)], "object", "Time"),
    "timestamp without time zone": (
        [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)],
        "datetime64[us]",
        "Datetime(time_unit='us', time_zone=None)",
    ),
    "timestamp with time zone": (
        [datetime(1, 1, 2, tzinfo=UTC), datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC)],
        "datetime64[us, UTC]",
        "Datetime(time_unit='us', time_zone='UTC')",
    ),
    "bytea": ([b"", b"\x00\xff"], "object", "Binary"),
    "integer[]": ([[1, None], []], "object", "List(Int32)"),
    "numeric(9,2)[]": (
        [[Decimal("1.25")], [None, Decimal("2.00")]],
        "object",
        "List(Decimal(9, 2))",
    ),
    "text[]": ([["a", None], ["b", "c"]], "object", "List(String)"),
}
# What polars has as text.
TEXTS: dict[str, tuple[list[Any], list[str]]] = {
    "uuid": ([UUID(int=5), UUID(int=7)], [str(UUID(int=5)), str(UUID(int=7))]),
    "jsonb": ([{"a": [1, None]}, []], ['{"a": [1, null]}', "[]"]),
    "interval": ([Interval(months=1), Interval(days=2)], ["1 mons 0 days 0 microseconds",
                 "0 mons 2 days 0 microseconds"]),
    "int4range": (["[1,3)", "empty"], ["[1,3)", "empty"]),
}  # fmt: skip


def answer_of(kinds: dict[str, list[Any]]) -> RowSet:
    """Rows with a column of each type, and a row of NULLs."""
    fields = [Field(name=f"c{n}", type=kind) for n, kind in enumerate(kinds)]
    make = row_type(tuple(f.name for f in fields))
    rows = zip(*([*values, None] for values in kinds.values()), strict=True)
    return RowSet(fields, [make(row) for row in rows])


def same(found: Any, wanted: Any) -> bool:
    return found == wanted or (found != found and wanted != wanted)


def same_type(found: Any, shown: str) -> bool:
    """Whether polars prints the type like this."""
    return repr(found).replace("precision=", "").replace("scale=", "") in (shown, f"{shown}()")


def test_pandas_has_typed_columns_with_the_same_values() -> None:
    kinds = {name: kind[0] for name, kind in KINDS.items()} | {n: k[0] for n, k in TEXTS.items()}
    frame = answer_of(kinds).to_pandas()
    dtypes = {name: kind[1] for name, kind in KINDS.items()} | dict.fromkeys(TEXTS, "object")
    for number, (name, values) in enumerate(kinds.items()):
        column = frame[f"c{number}"]
        assert str(column.dtype) == dtypes[name], name
        assert all(map(same, column.tolist()[:2], values)), name
        assert pd.isna(column.iloc[2]), name
    # NaN is a value, and NULL is none.
    floats = frame[f"c{list(kinds).index('double precision')}"]
    assert floats.isna().tolist() == [False, False, True]
    decimals = frame[f"c{list(kinds).index('numeric')}"]
    assert decimals.dropna().sum() == Decimal("1.50") + Decimal("-10000000000000000.001")


def test_polars_has_typed_columns_with_the_same_values() -> None:
    pytest.importorskip("polars")
    kinds = {name: kind[0] for name, kind in KINDS.items()} | {n: k[0] for n, k in TEXTS.items()}
    frame = answer_of(kinds).to_polars()
    for number, (name, values) in enumerate(kinds.items()):
        column = frame[f"c{number}"]
        shown = KINDS[name][2] if name in KINDS else "String"
        assert same_type(column.dtype, shown), name
        wanted = TEXTS[name][1] if name in TEXTS else values
        assert all(map(same, column.to_list(), [*wanted, None])), name


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("timestamp without time zone", "infinity"),
        ("timestamp with time zone", "0044-03-15 00:00:00+00 BC"),
        ("bigint", "x"),
    ],
)
def test_what_pandas_cannot_hold_is_refused(kind: str, value: Any) -> None:
    with pytest.raises(tidemark.TidemarkError) as caught:
        answer_of({kind: [value, None]}).to_pandas()
    assert (caught.value.code, "c0" in caught.value.hint) == ("rows.not_in_frame", True)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("date", "infinity"),
        ("numeric", Decimal("NaN")),
        ("numeric", Decimal("1000000000000000000000000000000.000000001")),
        ("numeric(4,2)", Decimal("1000.00")),
        ("integer[]", [[1, 2], [3, 4]]),
    ],
)
def test_what_polars_cannot_hold_is_refused(kind: str, value: Any) -> None:
    pytest.importorskip("polars")
    with pytest.raises(tidemark.TidemarkError) as caught:
        answer_of({kind: [value, None]}).to_polars()
    assert caught.value.code == "rows.not_in_frame"


def test_an_empty_answer_has_its_types() -> None:
    fields = [Field(name="a", type="bigint"), Field(name="b", type="timestamp with time zone")]
    frame = RowSet(fields, []).to_pandas()
    assert list(map(str, frame.dtypes)) == ["Int64", "datetime64[us, UTC]"]
    assert frame.shape == (0, 2)


def test_two_columns_may_have_one_name() -> None:
    fields = [Field(name="a", type="bigint"), Field(name="a", type="text")]
    answer = RowSet(fields, [row_type(("a", "a"))((1, "x"))])
    frame = answer.to_pandas()
    assert list(frame.columns) == ["a", "a"] and frame.iloc[0].tolist() == [1, "x"]
    pytest.importorskip("polars")
    with pytest.raises(tidemark.TidemarkError) as caught:
        answer.to_polars()
    assert caught.value.code == "rows.not_in_frame"


def test_changes_and_differences_have_their_weights() -> None:
    columns = Columns((Field(name="a", type="bigint"),), ("a",))
    page = json.dumps({"rows": [{"a": 1}, {"a": 2}], "weights": [-1, 1]})
    epoch = Epoch(Marker(7, {}, "r"), columns, [page], is_snapshot=False)
    answer = {
        "fields": [{"name": "a", "type": "bigint", "nullable": True}],
        "rows": [{"a": 1}, {"a": 2}],
        "weights": [-1, 1],
        "from": {},
        "to": {},
    }
    for one in (epoch, DiffPage.of(answer)):
        frame = one.to_pandas()
        assert frame["_weight"].tolist() == [-1, 1] and frame["a"].tolist() == [1, 2]
        assert one.to_arrow().column("_weight").to_pylist() == [-1, 1]
        assert "_weight" in one._repr_html_()
        assert len(one) == 2


class Cells(HTMLParser):
    """The texts of the cells, and the tags, of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_notebook_shows_a_small_table_and_runs_nothing() -> None:
    hostile = '<script>alert("x")</script>&amp;'
    others = (Field(name=f"c{n}", type="text") for n in range(99))
    fields = [Field(name=hostile, type=f'"{hostile}"'), *others]
    make = row_type(tuple(f.name for f in fields))
    answer = RowSet(fields, [make((hostile, None, "x" * 10**6, *range(97)))] * 1000)
    page = answer._repr_html_()
    found = Cells(page)
    assert found.tags == {"table", "thead", "tr", "th", "tbody", "td", "i", "p"}
    assert found.texts.count(hostile) == 21 and found.texts.count("NULL") == 20
    assert found.texts[-1] == "first 20 of 1,000 rows, 50 more columns"
    assert len(page) < 60_000
    assert str(answer).endswith("\n...") and str(answer).count("\n") == 20


@pytest.mark.parametrize("name", ["pyarrow", "pandas", "polars"])
def test_a_missing_package_is_named(name: str) -> None:
    method = "to_arrow" if name == "pyarrow" else f"to_{name}"
    script = f"""
import sys
sys.modules[{name!r}] = None
import tidemark
from service.client.rows import RowSet
try:
    RowSet([], []).{method}()
except tidemark.TidemarkError as error:
    print(error.code, error.what, "|", error.hint)
"""
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert told.stdout.startswith(f"package.missing {method}() needs {name}, ")
    assert "pip install" in told.stdout and ("arrow" if name == "pyarrow" else name) in told.stdout
