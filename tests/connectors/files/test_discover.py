"""Oracle: the types that the sample files were written with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectors.files.source import declare, discover
from dataflow.errors import SourceError
from tests.connectors.files.formats import COLUMNS, FORMATS, random_rows, write
from tests.connectors.files.source_mirror import SourceMirror, make_source


def discovered(path: str, **more: Any) -> dict[str, str]:
    relation = {"path": path, **more}
    found = discover({"relations": {"t": relation}})
    assert found["relations"]["t"].items() >= relation.items()
    return {column["name"]: column["type"] for column in found["relations"]["t"]["columns"]}


# What a text does not tell: how wide a number is meant to be.
WIDER = {"int2": "int8", "numeric(12,2)": "numeric", "float8": "numeric"}


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_proposed_fits(format: str, tmp_path: Path) -> None:
    (tmp_path / f"a.{format}").write_bytes(write(format, random_rows(200, 5)))
    more = {"row_tag": "item"} if format == "xml" else {}
    path = f"{tmp_path}/*.{format}"
    found = discovered(path, **more)
    wanted = dict(COLUMNS)
    if format == "parquet":
        wanted["big"] = "numeric(50,20)"
    else:
        wanted = {name: WIDER.get(type, type) for name, type in wanted.items()}
    if format in ("json", "jsonl"):
        # Numerics were written as strings there, and floats with exponents as numbers.
        wanted |= {"price": "text", "big": "text", "ratio": "float8"}
    assert found == wanted
    columns = [{"name": name, "type": type} for name, type in found.items()]
    relation = {"path": path, "columns": columns, **more}
    source = make_source({"settle_ms": 0, "relations": {"t": relation}})
    source.check()
    kept = SourceMirror(source)
    kept.begin(source)
    assert len(kept.rows) == 200


def test_folders_names_and_what_texts_say(tmp_path: Path) -> None:
    (tmp_path / "day=2024-05-01" / "part=007").mkdir(parents=True)
    (tmp_path / "day=2024-05-01" / "part=007" / "a.csv").write_text(
        "zip,part,flag,at\n01234,1,true,2024-01-01T00:00:00Z\n56789,2,,2024-01-01 00:00+01\n"
    )
    assert discovered(f"{tmp_path}/**/*.csv") == {
        "zip": "text",
        "part": "text",
        "flag": "bool",
        "at": "timestamptz",
        "day": "date",
    }
    (tmp_path / "b.csv").write_text("1;x\n")
    found = discovered(f"{tmp_path}/b.csv", header=False, delimiter=";")
    assert found == {"column1": "int8", "column2": "text"}


def test_only_what_lacks_columns_is_sampled(tmp_path: Path) -> None:
    columns = [{"name": "id", "type": "int8"}]
    options = {"relations": {"t": {"path": f"{tmp_path}/*.csv", "columns": columns}}}
    assert discover(options) == options
    (bare,) = [{"relations": {"t": {"path": f"{tmp_path}/*.csv"}}}]
    for refused in (lambda: discover(bare), lambda: declare(bare)):
        with pytest.raises(SourceError) as error:
            refused()
        assert error.value.code in ("source.bad_sample", "source.bad_option")
