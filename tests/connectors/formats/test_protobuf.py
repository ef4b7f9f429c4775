"""Protobuf records. Oracle: the values that the official library's messages were given, as
PostgreSQL prints them."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from connectors.formats.declared import declare_columns
from connectors.formats.open_format import open_format
from connectors.formats.protobuf_schema import _compile
from connectors.formats.registry import PROTOBUF, SchemaRegistry, wire_header
from dataflow.errors import SourceError, TemporaryError
from tests.connectors.formats.reading import read_text
from tests.harness.registry import Registry

SCHEMA = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Unused { int32 x = 1; }
message Order {
  enum Kind { NEW = 0; DONE = 1; }
  message Line { string product = 1; double price = 2; }
  int64 id = 1;
  optional int32 small = 2;
  uint64 big = 3;
  float single = 4;
  bool ok = 5;
  string note = 6;
  bytes raw = 7;
  Kind kind = 8;
  google.protobuf.Timestamp at = 9;
  google.protobuf.StringValue maybe = 10;
  Line first = 11;
  repeated Line lines = 12;
  repeated int32 numbers = 13;
  map<string, int64> counts = 14;
  sint32 minus = 15;
  string orderName = 16;
}
"""
EXPECTED = {
    ("id", "int8"): "9007199254740993",
    ("small", "int4"): None,
    ("big", "numeric(20,0)"): "18446744073709551615",
    ("big", "int8"): "record.value",
    ("single", "numeric"): "0.1",
    ("ok", "bool"): "t",
    ("note", "varchar(2)"): "é",
    ("raw", "bytea"): "\\x00ff",
    ("kind", "text"): "DONE",
    ("at", "timestamptz"): "2023-11-14 22:13:20.123457+00",
    ("at", "date"): "2023-11-14",
    ("maybe", "text"): None,
    ("first.product", "text"): "pen",
    ("first.price", "numeric(4,1)"): "1.5",
    ("first", "jsonb"): '{"price": 1.5, "product": "pen"}',
    ("lines", "jsonb"): '[{"price": 0, "product": "a"}, {"price": 2.5, "product": ""}]',
    ("numbers", "int4[]"): "{1,-2}",
    ("counts", "jsonb"): '{"a": 1, "b": 5000000000}',
    ("minus", "int2"): "-5",
    ("orderName", "text"): "",
    ("nothing", "text"): None,
    ("first.nothing", "text"): None,
    ("minus", "uuid"): "record.value",
}


def classes() -> Any:
    files = FileDescriptorSet.FromString(_compile(SCHEMA, {}))
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    found = pool.FindMessageTypeByName("shop.Order")
    return message_factory.GetMessageClass(found), files


@pytest.fixture(scope="module")
def order() -> tuple[bytes, str]:
    """(a record, its schema's descriptors in base64)."""
    make, files = classes()
    message = make(
        id=2**53 + 1, big=2**64 - 1, single=0.1, ok=True, note="é", raw=b"\0\xff", kind=1
    )
    message.at.seconds, message.at.nanos = 1_700_000_000, 123_456_500
    message.first.product, message.first.price = "pen", 1.5
    message.lines.add(product="a")
    message.lines.add(price=2.5)
    message.numbers.extend([1, -2])
    message.counts["b"], message.counts["a"], message.minus = 5_000_000_000, 1, -5
    return message.SerializeToString(), base64.b64encode(files.SerializeToString()).decode()


@pytest.mark.parametrize(("path", "type"), EXPECTED)
def test_values_of_every_type(order: tuple[bytes, str], path: str, type: str) -> None:
    options = {"format": "protobuf", "descriptors": order[1], "message": "shop.Order"}
    assert read_text(options, order[0], path, type) == EXPECTED[path, type]


DEFAULTS = """
syntax = "proto2";
message R {
  enum Kind { NEW = 0; DONE = 1; }
  message In { optional bytes raw = 1 [default = "\\377a"]; optional int32 n = 2; }
  optional int32 id = 1;
  optional bytes raw = 2 [default = "\\000\\377"];
  optional Kind kind = 3 [default = DONE];
  optional double no = 4 [default = nan];
  optional uint64 big = 5 [default = 18446744073709551615];
  optional In inner = 6;
  optional bool ok = 7 [default = true];
  optional string note = 8 [default = "\u00e9"];
  optional string none = 9;
}
"""


@pytest.mark.parametrize(
    ("path", "type", "expected"),
    [
        ("raw", "bytea", "\\x00ff"),
        ("kind", "text", "DONE"),
        ("no", "float8", "NaN"),
        ("big", "numeric", "18446744073709551615"),
        ("inner", "jsonb", None),
        ("ok", "bool", "t"),
        ("note", "text", "\u00e9"),
        ("none", "text", None),
    ],
)
def test_defaults_of_a_schema(path: str, type: str, expected: str | None) -> None:
    options = {"format": "protobuf", "schema": DEFAULTS, "message": "R"}
    assert read_text(options, b"\x08\x01", path, type) == expected
    # A message inside that is empty has its own.
    inner = b"\x32\x00"
    assert read_text(options, inner, "inner", "jsonb") == '{"n": null, "raw": "\\\\xff61"}'
    assert read_text(options, inner, "inner.raw", "bytea") == "\\xff61"


def test_records_of_a_registry(order: tuple[bytes, str]) -> None:
    registry = Registry()
    client = SchemaRegistry({"url": registry.url})
    id = client.register("orders-value", SCHEMA, PROTOBUF)
    header = wire_header(id)
    nested = header + bytes([4, 2, 0]) + b"\x0a\x03pen"
    records = [header + b"\x02\x02" + order[0], nested, header + b"\x02\x12" + order[0],
               header + b"\x02\x02\xff", b"\x01", wire_header(9) + b"\0",
               header + b"\x00\x08\x05"]  # fmt: skip
    columns = declare_columns(
        [{"name": n, "type": t} for n, t in (("id", "int8"), ("product", "text"), ("x", "int4"))]
    )
    reader = open_format({"format": "protobuf", "registry": {"url": registry.url}}, columns)
    decoded = reader.decode(records)
    assert decoded.records.tolist() == [0, 1, 6]
    assert [c.to_list() for c in decoded.columns] == [
        [2**53 + 1, None, None],
        [None, b"pen", None],
        [None, None, 5],
    ]
    assert [(one.number, one.code) for one in decoded.bad] == [
        (2, "record.schema"),
        (3, "record.malformed"),
        (4, "record.malformed"),
        (5, "record.schema"),
    ]
    registry.stop()
    assert len(reader.decode(records[:2])) == 2
    with pytest.raises(TemporaryError):
        reader.decode([wire_header(77) + b"\0"])


def test_schemas_that_do_not_do() -> None:
    columns = declare_columns([{"name": "id", "type": "int8"}])
    for options, code in (
        ({}, "format.option"),
        ({"schema": "syntax = 'proto3'; message A { nothing x = 1; }"}, "format.schema"),
        ({"schema": "syntax = 'proto3';"}, "format.schema"),
        ({"schema": SCHEMA, "message": "shop.None"}, "format.schema"),
        ({"descriptors": "*"}, "format.schema"),
    ):
        with pytest.raises(SourceError) as refused:
            open_format({"format": "protobuf", **options}, columns)
        assert refused.value.code == code and (code != "format.schema" or refused.value.hint)
