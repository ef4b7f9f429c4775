"""Oracle: the rows that were written, whatever the encoding; and faults put in on purpose."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.files.source import discover
from dataflow.errors import SourceError
from tests.connectors.files.source_mirror import SourceMirror, make_source

TEXTS = ["café", 'a "b", c', "line\nbreak", "Zürich"]
COLUMNS = [{"name": "id", "type": "int4"}, {"name": "ort é", "type": "text"}]


def source_of(path: str, on_error: str = "dead_letter", **more: Any) -> Any:
    relation = {"path": path, "columns": COLUMNS, "on_error": on_error, **more}
    return make_source({"settle_ms": 0, "poll_interval_ms": 10, "relations": {"t": relation}})


def text_of(format: str, texts: list[str]) -> str:
    if format == "csv":
        quoted = (f'{n},"{text.replace(chr(34), chr(34) * 2)}"' for n, text in enumerate(texts))
        return "\r\n".join(["id,ort é", *quoted, ""])
    plain = [text.replace('"', '\\"').replace("\n", "\\n") for text in texts]
    records = [f'{{"id": {n}, "ort é": "{text}"}}' for n, text in enumerate(plain)]
    if format == "jsonl":
        return "\n".join(records)
    return f"[{', '.join(records)}]"


ENCODINGS = {
    "utf-8": ("utf-8", b""),
    "UTF8": ("utf-8", b"\xef\xbb\xbf"),
    "utf-8-sig": ("utf-8", b"\xef\xbb\xbf"),
    "latin-1": ("latin-1", b""),
    "ISO-8859-15": ("iso8859-15", b""),
    "windows-1252": ("cp1252", b""),
    "utf-16": ("utf-16", b""),
    "UTF-16": ("utf-16-le", b""),
    "utf16": ("utf-16-be", b"\xfe\xff"),
    "utf-16be": ("utf-16-be", b""),
    "utf-16le": ("utf-16-le", b"\xff\xfe"),
    "utf-32": ("utf-32", b""),
}


@pytest.mark.parametrize("declared", list(ENCODINGS))
@pytest.mark.parametrize("format", ["csv", "jsonl", "json"])
def test_text_is_read_in_its_encoding(format: str, declared: str, tmp_path: Path) -> None:
    encoding, mark = ENCODINGS[declared]
    content = mark + text_of(format, TEXTS).encode(encoding)
    source = source_of(f"{tmp_path}/*", encoding=declared, format=format)
    kept, fed = SourceMirror(source), SourceMirror(source)
    fed.begin(source)
    for name, whole in ((f"a.{format}", content), (f"b.{format}.gz", gzip.compress(content))):
        (tmp_path / name).write_bytes(whole)
    source.check()
    kept.begin(source)
    told = sorted(kept.rows.items())
    assert [row[:2] for _, row in told] == [(str(n), text) for n, text in enumerate(TEXTS)] * 2
    fed.follow(source, lambda kept: len(kept.rows) == 2 * len(TEXTS))
    assert fed.rows == kept.rows and not fed.rejected
    found = discover({"encoding": declared, "relations": {"t": {"path": f"{tmp_path}/a.{format}"}}})
    assert [column["name"] for column in found["relations"]["t"]["columns"]] == ["id", "ort é"]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "shift_jis"])
def test_a_large_file_of_another_encoding(encoding: str, tmp_path: Path) -> None:
    """Blocks end within letters and rows."""
    rows = [f'{n},"{"x" * (n % 97)}"' for n in range(60_000)]
    (tmp_path / "a.csv").write_bytes("\n".join(["id,ort e", *rows]).encode(encoding))
    columns = [COLUMNS[0], {"name": "v", "type": "text", "path": "$.ort e"}]
    source = source_of(f"{tmp_path}/a.csv", encoding=encoding, columns=columns)
    kept = SourceMirror(source)
    kept.begin(source)
    assert len(kept.rows) == 60_000
    assert kept.rows["a.csv", 59_999 + 2][:2] == ("59999", "x" * (59_999 % 97))


# content, the encoding that is declared, a word of the reason.
UNREADABLE = {
    "latin-1.csv": ("id,ort é\n1,a\n".encode("latin-1"), "", "header is not UTF-8"),
    "utf-16.csv": ("id,ort é\n1,a\n".encode("utf-16"), "", "mark is that of utf-16"),
    "utf-16be.csv": ("\ufeffid,ort é\n1,a\n".encode("utf-16-be"), "", "mark is that of utf-16"),
    "utf-32.csv": ("id,ort é\n1,a\n".encode("utf-32"), "", "mark is that of utf-32"),
    "unmarked.csv": ("id,ort\n1,a\n".encode("utf-16-le"), "", "NUL"),
    "wide.csv": ("id,ort\n1,a\n".encode("utf-16-be"), "", "NUL"),
    "nul.csv": (b"id,ort \0\n1,a\n", "", "NUL"),
    "packed.csv": (gzip.compress("é,id\n1,a\n".encode("latin-1")), "", "header is not UTF-8"),
    "marked.csv": (b"\xef\xbb\xbfid\n1\n", "latin-1", "mark is that of utf-8"),
    "other.csv": (b"\xfe\xff\0i\0d", "utf-16-le", "mark is that of utf-16"),
    "undefined.csv": (b"id,ort \x81\n1,a\n", "windows-1252", "header is not cp1252"),
    "eight.csv": ("id,ort é\n1,a\n".encode(), "ascii", "header is not ascii"),
    "utf-16.json": ('[{"id": 1}]'.encode("utf-16"), "", "mark is that of utf-16"),
    "unmarked.json": ('[{"id": 1}]'.encode("utf-16-be"), "", ""),
    "latin-1.xml": ("<a><r><id>é</id></r></a>".encode("latin-1"), "", "well-formed"),
    "unknown.xml": (b"<?xml version='1.0' encoding='martian'?><a><r/></a>", "", "well-formed"),
    "wide.xml": (b"<?xml version='1.0' encoding='shift_jis'?><a><r/></a>", "", "well-formed"),
    "nul.xml": (b"<a><r><id>1\0</id></r></a>", "", "well-formed"),
}


@pytest.mark.parametrize("name", list(UNREADABLE))
def test_a_file_of_another_encoding_is_a_dead_letter(name: str, tmp_path: Path) -> None:
    content, encoding, word = UNREADABLE[name]
    format = name.rpartition(".")[2]
    more: dict[str, Any] = {"row_tag": "r"} if format == "xml" else {}
    more |= {"encoding": encoding} if encoding else {}
    source = source_of(f"{tmp_path}/*.{format}", **more)
    fed = SourceMirror(source)
    fed.begin(source)
    (tmp_path / name).write_bytes(content)
    # Some of its records may be told before it is known that the file is none.
    fed.follow(source, lambda kept: name in kept.rejected)
    whole = SourceMirror(source)
    whole.begin(source)
    for kept in (fed, whole):
        assert name in kept.rejected and not kept.rows
    reasons = []
    for call in (source.check, lambda: discover(_bare(tmp_path, format, more))):
        with pytest.raises(SourceError) as refused:
            call()
        assert refused.value.code == "source.bad_sample"
        reasons.append(refused.value.detail)
    assert word in reasons[0]
    failing = source_of(f"{tmp_path}/*.{format}", "fail", **more)
    with pytest.raises(SourceError) as refused:
        SourceMirror(failing).begin(failing)
    assert refused.value.code == "source.bad_record"


def _bare(folder: Path, format: str, more: dict[str, Any]) -> dict[str, Any]:
    return {"relations": {"t": {"path": f"{folder}/*.{format}", **more}}}


# Of each, the rows that are whole and the records that are not.
ROWS = {
    "a.csv": (b"id,ort\n1,a\n2,\xe9\n3,n\0l\n4,\xc3\xa9\n5,\xed\xa0\x80\n", "", [2, 5], [3, 4, 6]),
    "a.jsonl": (
        b'{"id":1}\n{"id":"\xe9"}\n{"id":2,"ort":"\\ud800"}\n{"id":3,"ort":"\\u0000"}\n'
        b'{"\xe9":1}\n{"id":4,"\\ud800":1}\n\xff\xfe\n\0\n{"id":5,"ort":"x\0y"}\n{"id":6}',
        "",
        [1, 6, 10],
        [2, 3, 4, 5, 7, 8, 9],
    ),
    "b.csv": (b"id,ort\n1,a\n2,\x81\n3,\xe9\n", "windows-1252", [2, 4], [3]),
    "c.csv": (
        "id,ort\n1,a\n2,x\n3,b\n".encode("utf-16-le").replace(b"x\0", b"\0\xd8"),
        "utf-16",
        [2, 4],
        [3],
    ),
    "d.csv": ("id,ort\n1,a\n2,b".encode("utf-16-le")[:-1], "utf-16", [2], [3]),
}


@pytest.mark.parametrize("name", list(ROWS))
def test_bytes_that_are_no_text_spoil_their_row_alone(name: str, tmp_path: Path) -> None:
    content, encoding, good, bad = ROWS[name]
    (tmp_path / name).write_bytes(content)
    columns = [COLUMNS[0], {"name": "ort", "type": "text"}]
    more = {"encoding": encoding} if encoding else {}
    source = source_of(f"{tmp_path}/{name}", columns=columns, **more)
    source.check()
    kept = SourceMirror(source)
    kept.begin(source)
    assert sorted(number for _, number in kept.rows) == good
    assert sorted(kept.rejected) == sorted(f"{name}:{number}" for number in bad)
    discover({"relations": {"t": {"path": f"{tmp_path}/{name}", **more}}})


def test_xml_is_read_as_declared_unless_overridden(tmp_path: Path) -> None:
    declared = "<?xml version='1.0' encoding='{}'?><a><r><id>1</id><v>é</v></r></a>"
    (tmp_path / "a.xml").write_bytes(declared.format("iso-8859-1").encode("latin-1"))
    (tmp_path / "b.xml").write_bytes(declared.format("utf-16").encode("utf-16"))
    columns = [COLUMNS[0], {"name": "v", "type": "text"}]
    source = source_of(f"{tmp_path}/*.xml", row_tag="r", columns=columns)
    kept = SourceMirror(source)
    kept.begin(source)
    assert {row[:2] for row in kept.rows.values()} == {("1", "é")} and len(kept.rows) == 2
    # A document that was given another encoding on its way still says the old one.
    (tmp_path / "b.xml").write_bytes(declared.format("utf-8").encode("latin-1"))
    (tmp_path / "a.xml").unlink()
    source = source_of(f"{tmp_path}/*.xml", row_tag="r", columns=columns, encoding="latin-1")
    kept = SourceMirror(source)
    kept.begin(source)
    assert [row[:2] for row in kept.rows.values()] == [("1", "é")]


BAD_OPTIONS = {
    "rot13": "csv",
    "utf-9": "csv",
    "idna": "csv",
    "unicode_escape": "jsonl",
    "a\0b": "csv",
    "latin-1": "parquet",
}


@pytest.mark.parametrize("encoding", list(BAD_OPTIONS))
def test_an_encoding_that_is_none_is_refused(encoding: str) -> None:
    with pytest.raises(SourceError) as refused:
        source_of(f"/data/*.{BAD_OPTIONS[encoding]}", encoding=encoding)
    assert refused.value.code == "source.bad_option" and '"encoding"' in refused.value.what


@pytest.mark.parametrize("on_error", ["fail", "skip", "dead_letter"])
def test_a_file_name_that_is_not_utf8(on_error: str, tmp_path: Path) -> None:
    """In the folder, and of a folder; the other files are read."""
    source = source_of(f"{tmp_path}/**/*.csv", on_error)
    fed = SourceMirror(source)
    fed.begin(source)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("id,ort é\n1,a\n")
    odd = [b"caf\xe9.csv", b"\\xe9.csv", b"\xe9.csv", b"d\xe9/b.csv"]
    os.mkdir(os.fsencode(tmp_path) + b"/d\xe9")
    for name in odd:
        with open(os.fsencode(tmp_path) + b"/" + name, "wb") as file:
            file.write("id,ort é\n2,b\n".encode())
    if on_error == "fail":
        for call in (source.check, lambda: SourceMirror(source).begin(source)):
            with pytest.raises(SourceError) as refused:
                call()
            assert refused.value.code in ("source.file_name", "source.bad_record")
        with pytest.raises(SourceError):
            fed.follow(source, lambda _: False)
        return
    source.check()
    wanted = {"./caf\\xe9.csv", "./\\xe9.csv", "./d\\xe9/b.csv"}
    wanted = wanted if on_error == "dead_letter" else set()
    fed.follow(source, lambda kept: len(kept.rows) == 2 and kept.rejected.keys() == wanted)
    whole = SourceMirror(source)
    whole.begin(source)
    for kept in (fed, whole):
        assert sorted(file for file, _ in kept.rows) == ["\\xe9.csv", "in/a.csv"]
        assert kept.rejected.keys() == wanted
    # Renamed, it is a file like any other.
    odd_name = os.fsencode(tmp_path) + b"/caf\xe9.csv"
    os.rename(odd_name, os.fsencode(tmp_path) + "/café.csv".encode())
    fed.follow(source, lambda kept: len(kept.rows) == 3)
    assert ("café.csv", 2) in fed.rows


def test_a_folder_that_names_a_value_which_is_not_utf8(tmp_path: Path) -> None:
    for folder in ("v=caf%E9", "v=x%00", "v=caf%C3%A9"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.csv").write_text("id\n1\n")
    columns = [COLUMNS[0], {"name": "v", "type": "text"}]
    source = source_of(f"{tmp_path}/*/a.csv", columns=columns)
    kept = SourceMirror(source)
    kept.begin(source)
    assert [row[:2] for row in kept.rows.values()] == [("1", "café")]
    assert sorted(kept.rejected) == ["v=caf%E9/a.csv", "v=x%00/a.csv"]
    discover({"relations": {"t": {"path": f"{tmp_path}/*/a.csv"}}})


def test_texts_in_parquet_that_are_not_utf8(tmp_path: Path) -> None:
    raw = pa.array([b"a", b"\xe9", b"c\0", "é".encode()], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 4, raw.buffers())
    nested = pa.StructArray.from_arrays([text], ["x"])
    table = pa.table({"id": [1, 2, 3, 4], "t": text, "n": nested, "y": text})
    pq.write_table(table, tmp_path / "a.parquet")
    of = {"t": "text", "n": "jsonb", "y": "bytea"}
    expected = {"t": {1, 4}, "n": {1, 4}, "y": {1, 2, 3, 4}}
    for name, type in of.items():
        columns = [COLUMNS[0], {"name": name, "type": type}]
        source = source_of(f"{tmp_path}/a.parquet", columns=columns)
        kept = SourceMirror(source)
        kept.begin(source)
        assert {number for _, number in kept.rows} == expected[name], name
    discover({"relations": {"t": {"path": f"{tmp_path}/a.parquet"}}})
