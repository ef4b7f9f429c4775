"""Avro records and the schema registry. Oracle: the values that fastavro's writer was given, as
PostgreSQL prints them, and the registry's public REST interface."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from connectors.formats.avro_schema import AvroSchema
from connectors.formats.declared import declare_columns
from connectors.formats.open_format import open_format
from connectors.formats.registry import SchemaRegistry, wire_header
from dataflow.errors import SourceError, TemporaryError
from tests.connectors.formats.reading import read_text
from tests.harness.registry import Registry

ADDRESS = {
    "type": "record",
    "name": "Address",
    "namespace": "x.y",
    "fields": [{"name": "city", "type": ["null", "string"]}, {"name": "no", "type": "int"}],
}
WHOLE = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "small", "type": ["null", "int"]},
        {"name": "ok", "type": "boolean"},
        {"name": "single", "type": "float"},
        {"name": "double", "type": "double"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "raw", "type": "bytes"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "mac", "type": {"type": "fixed", "name": "Mac", "size": 2}},
        {"name": "money", "type": {"type": "bytes", "logicalType": "decimal", "precision": 30,
                                   "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "clock", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "wall", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "home", "type": ["null", ADDRESS]},
        {"name": "work", "type": "x.y.Address"},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "more", "type": {"type": "map", "values": "double"}},
        {"name": "any", "type": ["null", "string", "long", "double"]},
    ],
}  # fmt: skip
ROW = {
    "id": 2**53 + 1, "small": None, "ok": True, "single": 0.1, "double": 0.1, "note": "é\n",
    "raw": b"\0\xff", "kind": "B", "mac": b"ab", "money": Decimal("-12345678901234567890.50"),
    "day": 19723, "clock": 3_600_000_001, "at": 10**13, "wall": -1, "uid":
    "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "home": {"city": "Ulm", "no": 3},
    "work": {"city": None, "no": 4}, "tags": ["a b", None], "more": {"b": 1.5, "a": 2.0}, "any": 7,
}  # fmt: skip
EXPECTED = {
    ("id", "int8"): "9007199254740993",
    ("id", "numeric(20,1)"): "9007199254740993.0",
    ("id", "text"): "9007199254740993",
    ("small", "int2"): None,
    ("ok", "bool"): "t",
    ("single", "float4"): "0.1",
    ("single", "numeric"): "0.1",
    ("double", "float8"): "0.1",
    ("note", "varchar(2)"): "é\n",
    ("raw", "bytea"): "\\x00ff",
    ("kind", "text"): "B",
    ("mac", "bytea"): "\\x6162",
    ("money", "numeric"): "-12345678901234567890.50",
    ("money", "numeric(25,1)"): "-12345678901234567890.5",
    ("money", "numeric(5,1)"): "record.value",
    ("day", "date"): "2024-01-01",
    ("day", "int4"): "record.value",
    ("clock", "time"): "01:00:00.000001",
    ("at", "timestamptz"): "2286-11-20 17:46:40+00",
    ("at", "timestamp"): "2286-11-20 17:46:40",
    ("at", "date"): "2286-11-20",
    ("wall", "timestamp"): "1969-12-31 23:59:59.999999",
    ("wall", "text"): "1969-12-31 23:59:59.999999",
    ("uid", "uuid"): "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    ("home.city", "text"): "Ulm",
    ("home", "jsonb"): '{"no": 3, "city": "Ulm"}',
    ("work.no", "int8"): "4",
    ("work.street", "text"): None,
    ("tags", "text[]"): '{"a b",NULL}',
    ("tags", "jsonb"): '["a b", null]',
    ("more", "jsonb"): '{"a": 2, "b": 1.5}',
    ("more.b", "float8"): "1.5",
    ("any", "text"): "7",
    ("any", "jsonb"): "7",
    ("id", "bool"): "record.value",
    ("id", "timestamptz"): "record.value",
    ("double", "int4"): "record.value",
}


def body(schema: Any, row: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), row)
    return out.getvalue()


def column(path: str, type: str, **more: Any) -> dict[str, Any]:
    return {"name": "x", "type": type, "path": f"$.{path}", **more}


@pytest.fixture
def registry() -> Iterator[Registry]:
    made = Registry(user="reader", password="secret")
    yield made
    made.stop()


@pytest.fixture
def options(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("REGISTRY_PASSWORD", "secret")
    given = {"url": registry.url, "user": "reader", "password": "${env:REGISTRY_PASSWORD}"}
    return {"format": "avro", "registry": given}


@pytest.mark.parametrize(("path", "type"), EXPECTED)
def test_values_of_every_type(path: str, type: str) -> None:
    given = {"format": "avro", "schema": json.dumps(WHOLE)}
    assert read_text(given, body(WHOLE, ROW), path, type) == EXPECTED[path, type]


def test_schemas_evolve_in_mid_stream(registry: Registry, options: dict[str, Any]) -> None:
    old = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
    new = {**old, "fields": [{"name": "id", "type": "long"},
                             {"name": "note", "type": "string", "default": "none"}]}  # fmt: skip
    client = SchemaRegistry(options["registry"])
    ids = [client.register("t-value", json.dumps(schema)) for schema in (old, new)]
    records = [
        wire_header(ids[0]) + body(old, {"id": 1}),
        wire_header(ids[1]) + body(new, {"id": 2**40, "note": "x"}),
        b"\x01garbage",
        wire_header(99) + b"\0",
        wire_header(ids[1]) + b"\x02",
        wire_header(ids[0]) + body(old, {"id": 3}) + b"!",
        wire_header(ids[0]) + body(old, {"id": 4}),
    ]
    columns = declare_columns([column("id", "int8"), {"name": "note", "type": "text"}])
    decoded = open_format(options, columns).decode(records)
    assert decoded.records.tolist() == [0, 1, 6]
    assert [c.to_list() for c in decoded.columns] == [[1, 2**40, 4], [None, b"x", None]]
    assert [(one.number, one.code) for one in decoded.bad] == [
        (2, "record.malformed"),
        (3, "record.schema"),
        (4, "record.malformed"),
        (5, "record.malformed"),
    ]
    pinned = open_format({**options, "subject": "t-value", "version": 2}, columns)
    assert pinned.decode(records).columns[1].texts() == ["none", "x", "none"]


_INNER = {
    "type": "record",
    "name": "N",
    "fields": [
        {"name": "raw", "type": "bytes"},
        {"name": "code", "type": {"type": "fixed", "name": "C", "size": 2}, "default": "\u00fea"},
        {"name": "n", "type": ["null", "int"], "default": None},
    ],
}
_FULL = {"raw": b"\xff", "code": b"\xfea", "n": None}
_DECIMAL = {"logicalType": "decimal", "precision": 9, "scale": 2}
# Type, its default as the schema writes it, the same as a value, and the SQL type.
DEFAULTS: dict[str, tuple[Any, Any, Any, str]] = {
    "bytes": ("bytes", "\u00ff\u0001", b"\xff\x01", "bytea"),
    "fixed": ({"type": "fixed", "name": "F", "size": 2}, "\u00ffa", b"\xffa", "bytea"),
    "decimal": ({"type": "bytes", **_DECIMAL}, "\u0004\u00d2", b"\x04\xd2", "numeric"),
    "fixed decimal": (
        *({"type": "fixed", "name": "F", "size": 4, **_DECIMAL}, "\u00ff\u00ff\u00fb."),
        *(b"\xff\xff\xfb.", "numeric(9,2)"),
    ),
    "connect decimal": (
        {"type": "bytes", "connect.name": "org.apache.kafka.connect.data.Decimal",
         "connect.parameters": {"scale": "2"}, "connect.default": "\u0005", **_DECIMAL},
        *("\u0005", b"\x05", "numeric"),
    ),
    "union of bytes": (["bytes", "null"], "\u00ff", b"\xff", "bytea"),
    "union's second": (["null", "bytes"], "\u00ff", b"\xff", "bytea"),
    "union of null": (["null", {"type": "bytes", **_DECIMAL}], None, None, "numeric"),
    "union of a decimal": ([{"type": "bytes", **_DECIMAL}, "null"], "\u0005", b"\x05", "numeric"),
    "record": (_INNER, {"raw": "\u00ff"}, _FULL, "jsonb"),
    "union of a record": (["null", _INNER], {"raw": "\u00ff", "n": 7}, {**_FULL, "n": 7}, "jsonb"),
    "array": ({"type": "array", "items": "bytes"}, ["\u00ff", ""], [b"\xff", b""], "jsonb"),
    "array as one": ({"type": "array", "items": "bytes"}, ["\u00ff"], [b"\xff"], "bytea[]"),
    "empty array": ({"type": "array", "items": _INNER}, [], [], "jsonb"),
    "array of records": ({"type": "array", "items": _INNER}, [{"raw": "\u00ff"}], [_FULL], "jsonb"),
    "map": ({"type": "map", "values": "bytes"}, {"a": "\u00ff"}, {"a": b"\xff"}, "jsonb"),
    "map of records": (
        {"type": "map", "values": _INNER}, {"a": {"raw": "\u00ff"}}, {"a": _FULL}, "jsonb",
    ),
    "enum": ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B", "text"),
    "whole double": ("double", 1, 1.0, "float8"),
    "typed double": ({"type": "double", "connect.default": 0}, 0, 0.0, "float8"),
    "no number": ("float", "NaN", float("nan"), "float4"),
    "date": ({"type": "int", "logicalType": "date"}, 19_000, 19_000, "date"),
    "bool": ("boolean", False, False, "bool"),
}  # fmt: skip


@pytest.mark.parametrize("case", DEFAULTS)
def test_defaults_are_the_values_that_they_write(
    registry: Registry, options: dict[str, Any], case: str
) -> None:
    """A record that lacks the field reads as one that has the default as its value."""
    type, default, value, sql = DEFAULTS[case]
    old = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
    field = {"name": "x", "type": type, "default": default}
    new = {**old, "fields": [*old["fields"], field]}
    unchecked = {**old, "fields": [*old["fields"], {"name": "x", "type": type}]}
    client = SchemaRegistry(options["registry"])
    id = client.register("t-value", json.dumps(old))
    lacks = wire_header(id) + body(old, {"id": 1})
    whole = body(unchecked, {"id": 1, "x": value})
    given = {"format": "avro", "schema": json.dumps(new)}
    read = read_text({**given, "registry": options["registry"]}, lacks, "x", sql)
    assert read == read_text(given, whole, "x", sql)
    assert (read is None) == (value is None)
    assert read != "record.value"
    # Not through the registry's own check, which refuses a valid one.
    registry.schemas.append({"schema": json.dumps(new)})
    registry.subjects["t-value"].append(len(registry.schemas))
    assert read_text({**options, "subject": "t-value", "version": 2}, lacks, "x", sql) == read


@pytest.mark.parametrize(
    ("type", "default", "reason"),
    [
        ("bytes", "\u0100", "U+00FF"),
        ({"type": "fixed", "name": "F", "size": 2}, "\u00ff", "1 bytes"),
        ("int", 2**63, "range"),
        ("int", True, "not of type int"),
        ("double", "x", "could not convert"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B", "no symbol"),
        (_INNER, {}, '"raw"'),
        (["null", "int"], "x", "not of type int"),
        ({"type": "array", "items": "int"}, {}, "not of type array"),
    ],
)
def test_a_default_of_another_type_is_refused(type: Any, default: Any, reason: str) -> None:
    field = {"name": "x", "type": type, "default": default}
    schema = json.dumps({"type": "record", "name": "R", "fields": [field]})
    columns = declare_columns([{"name": "x", "type": "jsonb"}])
    with pytest.raises(SourceError, match=r"format\.schema") as refused:
        open_format({"format": "avro", "schema": schema}, columns)
    assert "x" in refused.value.detail and reason in refused.value.detail
    # Nobody takes the defaults of a writer's schema.
    assert AvroSchema(schema).find(("x",)) is not None


def test_a_schema_that_cannot_be_read_spoils_its_records_alone(
    registry: Registry, options: dict[str, Any]
) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
    id = SchemaRegistry(options["registry"]).register("t-value", json.dumps(schema))
    registry.schemas.append({"schema": '{"type": "nothing"}'})
    records = [wire_header(id + 1) + b"\0", wire_header(id) + body(schema, {"id": 5})]
    columns = declare_columns([column("id", "int8")])
    decoded = open_format(options, columns).decode(records)
    assert decoded.columns[0].to_list() == [5]
    assert [(one.number, one.code) for one in decoded.bad] == [(0, "record.schema")]
    # The same of a schema of another format.
    registry.schemas.append({"schema": "message", "schemaType": "PROTOBUF"})
    for format in ("avro", "protobuf"):
        reader = open_format({**options, "format": format}, columns)
        (bad,) = reader.decode([wire_header(id + 2) + b"\0"]).bad
        assert bad.code == "record.schema"


def test_ids_are_requested_once_and_a_registry_that_is_away_is_waited_for(
    registry: Registry, options: dict[str, Any]
) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
    id = SchemaRegistry(options["registry"]).register("t-value", json.dumps(schema))
    records = [wire_header(id) + body(schema, {"id": 5})]
    reader = open_format(options, declare_columns([column("id", "int8")]))
    registry.stop()
    with pytest.raises(TemporaryError) as away:
        reader.decode(records)
    assert away.value.code == "registry.unreachable"
    registry.start()
    for _ in range(3):
        assert reader.decode(records).columns[0].to_list() == [5]
    assert registry.requests.count(f"GET /schemas/ids/{id}") == 1
    registry.stop()
    assert reader.decode(records).columns[0].to_list() == [5]
    registry.start()


def test_what_a_registry_refuses(registry: Registry, options: dict[str, Any]) -> None:
    client = SchemaRegistry(options["registry"])
    number = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
    text = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "string"}]}
    assert client.register("a", json.dumps(number)) == client.register("b", json.dumps(number))
    for call, code in (
        (lambda: client.register("a", json.dumps(text)), "registry.refused"),
        (lambda: client.register("a", "{"), "registry.refused"),
        (lambda: client.by_subject("c"), "registry.not_found"),
        (lambda: client.by_subject("a", 2), "registry.not_found"),
        (lambda: SchemaRegistry({"url": registry.url}).by_id(1), "registry.login"),
        (lambda: SchemaRegistry({"url": "ftp://x"}), "format.option"),
        (lambda: SchemaRegistry({"url": registry.url, "password": "plain"}), "secret.plain"),
    ):
        with pytest.raises(SourceError) as refused:
            call()
        assert refused.value.code == code
    assert client.by_id(7) is None
    found = client.by_subject("a")
    assert (found.version, json.loads(found.text)) == (1, number)


def test_named_types_of_other_subjects(registry: Registry, options: dict[str, Any]) -> None:
    outer = {"type": "record", "name": "R", "fields": [{"name": "home", "type": "x.y.Address"}]}
    client = SchemaRegistry(options["registry"])
    client.register("address", json.dumps(ADDRESS))
    reference = {"name": "x.y.Address", "subject": "address", "version": 1}
    registry.schemas.append({"schema": json.dumps(outer), "references": [reference]})
    whole = {**outer, "fields": [{"name": "home", "type": ADDRESS}]}
    record = wire_header(len(registry.schemas)) + body(whole, {"home": {"city": "Ulm", "no": 1}})
    decoded = open_format(options, declare_columns([column("home.city", "text")])).decode([record])
    assert decoded.columns[0].texts() == ["Ulm"]


def test_options_that_do_not_do() -> None:
    columns = declare_columns([column("id", "int8")])
    for given, code in (
        ({"format": "avro"}, "format.option"),
        ({"format": "avro", "schema": "{"}, "format.schema"),
        ({"format": "avro", "schema": '{"type": "nothing"}'}, "format.schema"),
    ):
        with pytest.raises(SourceError) as refused:
            open_format(given, columns)
        assert refused.value.code == code
