"""Oracle: rows and faults that were put into the files on purpose, by place."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.files.rejected import rejected_delta
from dataflow.errors import SourceError
from tests.connectors.files.source_mirror import SourceMirror, make_source

COLUMNS = [{"name": "id", "type": "int4"}, {"name": "v", "type": "varchar(5)"}]


def source_of(path: str, on_error: str = "dead_letter", **more: Any) -> Any:
    relation = {"path": path, "columns": COLUMNS, "on_error": on_error, **more}
    return make_source({"settle_ms": 0, "poll_interval_ms": 10, "relations": {"t": relation}})


def write_bad(folder: Path, format: str) -> None:
    """Two rows that are one, and between them one that is none."""
    if format == "csv":
        (folder / "a.csv").write_text('id,v\n1,"a\nb"\n\nx,2\n3,c\n')
    elif format == "jsonl":
        (folder / "a.jsonl").write_text('{"id":1,"v":"a\\nb"}\n\n{"id":"x"}\n{"id":3,"v":"c"}')
    elif format == "json":
        (folder / "a.json").write_text('[{"id":1,"v":"a\\nb"}, {"id":[]},{"id":3,"v":"c"}]')
    elif format == "xml":
        rows = "<r id='1'><v>a\nb</v></r><r><id>9999999999</id></r><r><id>3</id><v>c</v></r>"
        (folder / "a.xml").write_text(f"<all>{rows}</all>")
    else:
        table = pa.table({"id": pa.array([1, 2, 3]), "v": ["a\nb", "too long", "c"]})
        pq.write_table(table, folder / "a.parquet")


# Of the two rows and the one that is none.
NUMBERS = {
    "csv": (2, 6, 5),
    "jsonl": (1, 4, 3),
    "json": (1, 3, 2),
    "xml": (1, 3, 2),
    "parquet": (1, 3, 2),
}


@pytest.mark.parametrize("format", list(NUMBERS))
@pytest.mark.parametrize("on_error", ["fail", "skip", "dead_letter"])
def test_a_bad_record_among_others(format: str, on_error: str, tmp_path: Path) -> None:
    more = {"row_tag": "r"} if format == "xml" else {}
    source = source_of(f"{tmp_path}/*.{format}", on_error, **more)
    empty = SourceMirror(source)
    empty.begin(source)
    write_bad(tmp_path, format)
    first, last, bad = NUMBERS[format]
    name = f"a.{format}"
    wanted = {(name, first): ("1", "a\nb"), (name, last): ("3", "c")}

    def check(kept: SourceMirror) -> None:
        assert {key: row[:2] for key, row in kept.rows.items()} == wanted
        assert list(kept.rejected) == ([f"{name}:{bad}"] if on_error == "dead_letter" else [])

    whole = SourceMirror(source)
    if on_error == "fail":
        for failing in (lambda: whole.begin(source), lambda: empty.follow(source, lambda _: False)):
            with pytest.raises(SourceError) as refused:
                failing()
            assert refused.value.code == "source.bad_record"
            assert f"{name}:{bad}" in refused.value.what
            assert refused.value.relation == whole.relation.name
        return
    whole.begin(source)
    check(whole)
    empty.follow(source, lambda kept: len(kept.rows) == 2)
    check(empty)


BROKEN = {
    "cut.jsonl": gzip.compress(b'{"id":1}\n' * 1000)[:-20],
    "cut.csv": b'id,v\n1,a\n2,"b\n3,c\n',
    "twice.csv": b"id,id\n1,2\n",
    "cut.json": b'[{"id":1},{"id":2}',
    "comma.json": b'[{"id":1},]',
    "behind.json": b'[{"id":1}] {"id":2}',
    "cut.xml": b"<all><r><id>1</id></r><r>",
    "bomb.xml": b'<!DOCTYPE a [<!ENTITY b "c">]><all><r><id>1</id></r></all>',
    "none.parquet": b"PAR1 this is no Parquet PAR1",
    "empty.parquet": b"",
}


@pytest.mark.parametrize("name", list(BROKEN))
def test_a_file_that_is_broken_has_no_rows_and_is_rejected(name: str, tmp_path: Path) -> None:
    format = name.rpartition(".")[2]
    more = {"row_tag": "r"} if format == "xml" else {}
    source = source_of(f"{tmp_path}/*.{format}", **more)
    kept = SourceMirror(source)
    kept.begin(source)
    (tmp_path / name).write_bytes(BROKEN[name])
    kept.follow(source, lambda kept: name in kept.rejected)
    assert kept.rejected[name][0] == "record.file" and not kept.rows
    fresh = SourceMirror(source)
    fresh.begin(source)
    assert fresh.rejected.keys() == {name} and not fresh.rows
    # The other road from the feed's journal.
    kept.rejected.clear()
    kept.load(source)
    assert kept.rejected.keys() == {name} and not kept.rows
    with pytest.raises(SourceError) as refused:
        failing = source_of(f"{tmp_path}/*.{format}", "fail", **more)
        SourceMirror(failing).begin(failing)
    assert refused.value.code == "source.bad_record"
    # Repaired, it is told like any other file; an empty one has no rows and is whole.
    if format != "parquet":
        fine = {"jsonl": b'{"id":7}', "csv": b"id,v\n7,\n", "json": b'{"id":7}'}
        (tmp_path / name).write_bytes(fine.get(format, b"<a><r><id>7</id></r></a>"))
        kept.follow(source, lambda kept: len(kept.rows) == 1)


def test_a_file_that_breaks_takes_its_rows_along(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"id":1},{"id":2}]')
    source = source_of(f"{tmp_path}/*.json")
    kept = SourceMirror(source)
    kept.begin(source)
    assert len(kept.rows) == 2
    (tmp_path / "a.json").write_text('[{"id":1},{"id":2},{"id":3}')
    kept.follow(source, lambda kept: bool(kept.rejected))
    assert not kept.rows


def letters(kept: SourceMirror, source: Any, position: str, version: bytes) -> Any:
    name = kept.relation.name
    code, value = kept.rejected[position]
    row = (name.source, name.name, position, code, "why", version, value)
    return rejected_delta([row])


def version_of(kept: SourceMirror) -> bytes:
    (note,) = kept.notes.values()
    return json.loads(note)[1].encode()


def test_rejected_rows_are_tried_again(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,v\n1,a\n2,too long\n")
    strict = source_of(f"{tmp_path}/*.csv")
    kept = SourceMirror(strict)
    kept.begin(strict)
    assert list(kept.rejected) == ["a.csv:3"]
    old = letters(kept, strict, "a.csv:3", version_of(kept))
    again = strict.decode_again(kept.relation, old)
    assert not again.changes and not len(again.rejected)
    # The declaration was repaired, not the file.
    wide = [COLUMNS[0], {"name": "v", "type": "text"}]
    lenient = source_of(f"{tmp_path}/*.csv", columns=wide)
    again = lenient.decode_again(kept.relation, old)
    assert again.positions is None and again.rejected.weights.tolist() == [-1]
    kept.apply(again)
    assert kept.rows["a.csv", 3][:2] == ("2", "too long") and not kept.rejected
    # Of a version that is gone, nothing comes back.
    (tmp_path / "a.csv").write_text("id,v\n1,a\n2,fits\n5,x\n")
    again = lenient.decode_again(kept.relation, old)
    assert not again.changes and again.rejected.weights.tolist() == [-1]
