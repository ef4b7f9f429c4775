"""`python -m tests.security.bombs NAME...`: reads small records and files that stand for much, in a
process of its own, and prints for each how much memory the process has needed so far.

Each is a function that returns what became of it: a number of rows, or the reason of a refusal.
"""

from __future__ import annotations

import base64
import gzip
import json
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from connectors import netguard
from connectors.files import source as files
from connectors.files.reading import FileReader
from connectors.files.shape import make_shape
from connectors.files.stream import UnreadableFile
from connectors.formats.declared import declare_columns
from connectors.formats.open_format import open_format
from dataflow.errors import TidemarkError
from tests.connectors.delta.table_source import source_of
from tests.connectors.feed_mirror import make_source
from tests.security import parquet_bombs as parquet

Result = int | str


def zigzag(number: int) -> bytes:
    """A long of Avro."""
    left, out = (number << 1 ^ number >> 63) & (1 << 64) - 1, bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


def decoded(
    options: dict[str, Any], record: bytes, type: str = "jsonb", path: str = "$.x"
) -> Result:
    """The rows of one record, or why it is none."""
    columns = declare_columns([{"name": "x", "type": type, "path": path}])
    found = open_format(options, columns).decode([record])
    return found.bad[0].reason if found.bad else len(found)


def avro(type: Any, record: bytes) -> Result:
    schema = {"type": "record", "name": "Top", "fields": [{"name": "x", "type": type}]}
    return decoded({"format": "avro", "schema": json.dumps(schema)}, record)


def doubled(levels: int) -> Any:
    """A record that has each level twice, without a byte: 2 ** levels records."""
    found: Any = {"type": "record", "name": "R0", "fields": []}
    for level in range(1, levels):
        fields = [{"name": "a", "type": found}, {"name": "b", "type": f"R{level - 1}"}]
        found = {"type": "record", "name": f"R{level}", "fields": fields}
    return found


def doubled_defaults(levels: int) -> str:
    """A schema whose default stands for 2 ** levels values."""
    found: Any = {"type": "record", "name": "R0", "fields": []}
    for level in range(1, levels):
        fields = [
            {"name": "a", "type": found, "default": {}},
            {"name": "b", "type": f"R{level - 1}", "default": {}},
        ]
        found = {"type": "record", "name": f"R{level}", "fields": fields}
    return json.dumps(found)


LIST = {
    "type": "record",
    "name": "L",
    "fields": [{"name": "next", "type": ["null", "L"]}],
}
WIDE = " ".join(f"optional int32 field_{n} = {n + 3};" for n in range(2000))
PROTO = f'syntax="proto2"; message M {{ repeated M x = 1; optional M y = 2; {WIDE} }}'


def protobuf(record: bytes, path: str = "$.x") -> Result:
    return decoded({"format": "protobuf", "schema": PROTO}, record, path=path)


def nested_protobuf(depth: int) -> bytes:
    found = b""
    for _ in range(depth):
        size, head = len(found), bytearray()
        while size > 0x7F:
            head.append(size & 0x7F | 0x80)
            size >>= 7
        found = b"\x12" + bytes([*head, size]) + found
    return found


def refusal(action: Callable[[], Any]) -> str:
    try:
        return str(action())
    except TidemarkError as error:
        return f"{error.code}: {error.detail}"


# Removed when the process ends.
_KEPT = tempfile.TemporaryDirectory(prefix="bombs")
FOLDER = Path(_KEPT.name)


def file(
    name: str, content: bytes, type: str = "jsonb", names: Sequence[str] = ("x",), **more: Any
) -> Result:
    """The rows of a file, read as a feed reads it, after a discovery that may refuse it."""
    path = FOLDER / name
    path.write_bytes(content)
    given: dict[str, Any] = {"path": str(path), **more}
    refusal(lambda: files.discover({"relations": {"r": given}}))
    columns = [{"name": name, "type": type} for name in names]
    options = {"relations": {"r": {**given, "columns": columns}}}
    (declared,) = files.read_options(options)
    relation = make_source(files, options).relations()[0]
    folder = declared.folder()
    reader = FileReader(make_shape(declared, relation), folder)
    count = 0
    try:
        for stat in folder.list_files():
            for rows in reader.read(stat):
                count += len(rows.numbers)
                if rows.bad:
                    return rows.bad[0].reason
    except UnreadableFile as error:
        return str(error)
    finally:
        path.unlink()
    return count


def xml(content: bytes) -> Result:
    return file("x.xml", content, row_tag="row")


def json_file(value: bytes) -> Result:
    return file("x.json", b'[{"x":' + value + b"}]")


def parquet_file(content: bytes, type: str = "text", names: Sequence[str] = ("x",)) -> Result:
    return file("x.parquet", content, type, names)


def many_columns(count: int, bytes: int) -> Result:
    """Columns of one long value each."""
    names = [f"c{n}" for n in range(count)]
    return parquet_file(parquet.many_dictionaries(count, bytes), "text", names)


def delta_file(content: bytes) -> Result:
    """The rows of a file of a Delta table, read as a part of it."""
    folder = FOLDER / "delta"
    (folder / "_delta_log").mkdir(parents=True)
    (folder / "x.parquet").write_bytes(content)
    schema = {"type": "struct", "fields": [
        {"name": "x", "type": "string", "nullable": True, "metadata": {}}]}  # fmt: skip
    entries: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": {"id": "m", "format": {"provider": "parquet", "options": {}},
                      "schemaString": json.dumps(schema), "partitionColumns": [],
                      "configuration": {}}},
        {"add": {"path": "x.parquet", "partitionValues": {}, "size": len(content),
                 "modificationTime": 1, "dataChange": True}},
    ]  # fmt: skip
    text = "\n".join(map(json.dumps, entries))
    (folder / "_delta_log" / f"{0:020}.json").write_text(text)
    source = source_of(folder, {"x": "text"}, append_only=True)
    relations = source.relations()
    end = source.current_end(relations)
    planner = source.open_ranges(relations, {"orders": {}}, {}, lambda: None, end)
    count = 0
    try:
        for one in planner.cut(1, 1_000_000):
            for changes in one.read():
                count += len(changes)
    except TidemarkError as error:
        return f"{error.code}: {error.detail}"
    finally:
        shutil.rmtree(folder)
    return count


MB = 1 << 20
INTS = {"type": "array", "items": "int"}
HEADER = b",".join(b"c%d" % n for n in range(16_000))
# The largest that are allowed, and as much as a part of a file is.
ALLOWED: Mapping[str, Callable[[], Result]] = {
    "avro": lambda: avro(INTS, zigzag(900_000) + b"\2" * 900_000 + b"\0"),
    "avro deep": lambda: avro(LIST, b"\2" * 100 + b"\0"),
    "protobuf": lambda: protobuf(b"\x0a\0" * 400),
    "json": lambda: json_file(b"[" + b"0," * 900_000 + b"0]"),
    "json text": lambda: json_file(b'"' + b"a,[{" * 4_000_000 + b'"'),
    "numbers": lambda: json_file(b"[" + b",".join([b"1e131071"] * 7) + b"]"),
    "csv": lambda: file("x.csv", b"x,%s\n1" % HEADER + b"," * 16_000, "text"),
    "csv numbers": lambda: file("x.csv", b"x\n" + b"1e131071\n" * 2000, "numeric"),
    "xml": lambda: xml(b"<r><row><x>" + b"<a b='1'/>" * 90_000 + b"</x></row></r>"),
    "xml deep": lambda: xml(b"<r><row>" + b"<x>" * 150 + b"</x>" * 150 + b"</row></r>"),
    "gzip": lambda: file("x.csv.gz", gzip.compress(b"x\n" + b"1\n" * 500_000), "int4"),
    # Each stands for gigabytes; what is allowed is read a few rows at a time.
    "parquet": lambda: parquet_file(parquet.repeated(b"x" * MB, 2000)),
    "parquet late": lambda: parquet_file(parquet.repeated_late(b"x" * MB, 2000)),
    "parquet v2": lambda: parquet_file(parquet.repeated_v2(b"x" * MB, 2000)),
    "parquet continued": lambda: parquet_file(parquet.continued(b"x" * MB, 2000, 2)),
    "parquet lists": lambda: parquet_file(parquet.listed_rows(20, 10, b"x" * MB), "jsonb"),
    "parquet fixed": lambda: parquet_file(parquet.fixed(MB, 2000), "bytea"),
    "parquet delta": lambda: delta_file(parquet.repeated(b"x" * MB, 2000)),
}  # fmt: skip
# Each with a part of the reason by which it is refused.
BOMBS: Mapping[str, tuple[Callable[[], Result], str]] = {
    "avro: values without bytes": (
        lambda: avro({"type": "array", "items": "null"}, zigzag(1 << 62) + b"\0"), "values"),
    "avro: a negative count": (
        lambda: avro({"type": "array", "items": "null"}, zigzag(-(1 << 62)) + b"\0\0"), "values"),
    "avro: the least count": (
        lambda: avro({"type": "array", "items": "null"}, zigzag(-(1 << 63)) + b"\0\0"), "length"),
    "avro: empty records": (
        lambda: avro({"type": "array", "items": {"type": "record", "name": "E", "fields": []}},
                     zigzag(1 << 40) + b"\0"), "values"),
    "avro: empty bytes": (
        lambda: avro({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}},
                     zigzag(1 << 40) + b"\0"), "values"),
    "avro: empty records in unions": (
        lambda: avro({"type": "map", "values": ["null", doubled(16)]},
                     zigzag(1 << 20) + b"\0\2" * (1 << 20) + b"\0"), "values"),
    "avro: doubled records": (lambda: avro(doubled(40), b""), "values"),
    "avro: a list of a million links": (lambda: avro(LIST, b"\2" * 1_000_000 + b"\0"), "deep"),
    "avro: a long text": (lambda: avro("string", zigzag(1 << 61) + b"abc"), "length"),
    "avro: a negative text": (lambda: avro("bytes", zigzag(-9) + b"abc"), "length"),
    "avro: a negative branch": (lambda: avro(["null", "int"], zigzag(-1) + b"\2"), "match"),
    "avro: a huge fixed type": (
        lambda: avro({"type": "fixed", "name": "F", "size": 1 << 39}, b"abc"), "length"),
    "avro: one name of a million letters": (
        lambda: avro({"type": "array", "items": {"type": "record", "name": "N", "fields": [
            {"name": "n" * 1_000_000, "type": "boolean"}]}},
            zigzag(400_000) + b"\1" * 400_000 + b"\0"), "letters"),
    "avro: doubled defaults": (
        lambda: refusal(lambda: open_format(
            {"format": "avro", "schema": doubled_defaults(30)},
            declare_columns([{"name": "x", "type": "jsonb"}]))), "defaults"),
    "avro: a fixed type of less than nothing": (
        lambda: refusal(lambda: avro({"type": "fixed", "name": "F", "size": -8}, b"abc")),
        "format.schema"),
    "protobuf: messages without bytes": (lambda: protobuf(b"\x0a\0" * 500_000), "values"),
    "protobuf: deep messages": (lambda: protobuf(nested_protobuf(20_000), "$.y"), "Depth"),
    "protobuf: a length": (lambda: protobuf(b"\x0a\xff\xff\xff\xff\x07abc"), "not a M"),
    "protobuf: groups": (lambda: protobuf(b"\xfb\x7f" * 100_000), "not a M"),
    "protobuf: no descriptors": (
        lambda: refusal(lambda: open_format(
            {"format": "protobuf",
             "descriptors": base64.b64encode(b"\x0a\xff\xff\xff\xff\x07").decode()},
            declare_columns([{"name": "x", "type": "jsonb"}]))), "format.schema"),
    "json: many values": (lambda: json_file(b"[" + b"0," * 9_000_000 + b"0]"), "values"),
    "json: many keys": (
        lambda: json_file(b"{" + b",".join(b'"%d":0' % n for n in range(1_200_000)) + b"}"),
        "values"),
    "json: deep": (lambda: json_file(b"[" * 9_000_000), "JSON"),
    "json: long numbers": (
        lambda: json_file(b"[" + b",".join([b"1e131071"] * 50_000) + b"]"), "digits"),
    "csv: many cells": (
        lambda: file("x.csv", b"x" + b"," * 20_000_000 + b"\n1", "text"), "cells"),
    "csv: a long line": (lambda: file("x.csv", b"x\n" + b"1" * 70_000_000, "text"), "longer"),
    "csv: a wide header of short lines": (
        lambda: file("x.csv", b"x,%s" % HEADER + b"\n1" * 20_000, "text"), "cells"),
    "xml: many elements": (
        lambda: xml(b"<r><row>" + b"<x/>" * 5_000_000 + b"</row></r>"), "longer"),
    "xml: many attributes": (
        lambda: xml(b"<r><row>" + b"<x y=''/>" * 2_000_000 + b"</row></r>"), "longer"),
    "xml: deep elements": (lambda: xml(b"<r><row>" + b"<x>" * 3_000_000), "deep"),
    "xml: deep elements outside of rows": (lambda: xml(b"<r>" * 3_000_000), "deep"),
    "xml: a long name": (lambda: xml(b"<r><row><" + b"x" * 30_000_000), "longer"),
    "xml: a long attribute": (
        lambda: xml(b"<r><row x='" + b"x" * 30_000_000 + b"'/></r>"), "longer"),
    "xml: a long comment": (lambda: xml(b"<r><!--" + b"x" * 30_000_000 + b"--></r>"), "longer"),
    "xml: entities": (
        lambda: xml(b'<!DOCTYPE r [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><r><row>&b;</row></r>'),
        "document type"),
    "parquet: a long page": (lambda: parquet_file(parquet.long_page(1900)), "page of more"),
    "parquet: a long dictionary": (
        lambda: parquet_file(parquet.long_dictionary(1900)), "page of more"),
    "parquet: many dictionaries": (
        lambda: many_columns(300, 20 * MB), "MB"),
    "parquet: many pages": (
        lambda: parquet_file(parquet.many_pages(9, 100), "text", [f"c{n}" for n in range(9)]),
        "at a time"),
    "parquet: a row of many long values": (lambda: many_columns(20, 8 * MB), "a row group"),
    "parquet: a long list": (
        lambda: parquet_file(parquet.listed((1 << 31) - 1), "jsonb"), "values"),
    "parquet: a long list, v2": (
        lambda: parquet_file(parquet.listed_v2((1 << 31) - 1), "jsonb"), "values"),
    "parquet: a list of many pages": (
        lambda: parquet_file(parquet.listed_in_pages(1 << 24, 64), "jsonb"), "MB"),
    "parquet: a list of long values": (
        lambda: parquet_file(parquet.listed(2000, b"x" * MB), "jsonb"), "MB"),
    "parquet: a long type": (lambda: parquet_file(parquet.fixed(1 << 30, 10), "bytea"), "MB"),
    "parquet: a dictionary of nothing": (
        lambda: parquet_file(parquet.false_dictionary((1 << 31) - 1)), "more values"),
    "parquet: a page that is short": (
        lambda: parquet_file(parquet.false_size((1 << 31) - 1)), "page of more"),
    "parquet: a negative page": (lambda: parquet_file(parquet.false_size(-9)), "negative"),
    "parquet: in a Delta table": (
        lambda: delta_file(parquet.long_page(1900)), "page of more"),
    "gzip: a long line": (
        lambda: file("x.csv.gz", gzip.compress(b"x\n" + b"1" * 300_000_000, 1), "text"), "longer"),
}  # fmt: skip


def main(names: list[str]) -> int:
    """Print a line of JSON for each: name, result, and the process's megabytes so far."""
    netguard.install(netguard.Guard(folders=(str(FOLDER),)))
    actions = {**ALLOWED, **{name: bomb for name, (bomb, _) in BOMBS.items()}}
    # What is imported and compiled once is no part of any of them.
    for ready in ("avro deep", "protobuf", "csv numbers", "xml deep", "numbers"):
        ALLOWED[ready]()
    for name in ["start", *names]:
        result = 0 if name == "start" else actions[name]()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        what = result if isinstance(result, int) else result[:200]
        print(json.dumps([name, what, peak]), flush=True)
    FOLDER.rmdir()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
