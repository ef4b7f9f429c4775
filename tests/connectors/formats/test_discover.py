"""Proposed columns. Oracle: the types that the samples were made of; a proposal, declared as it
is, reads every sample."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from connectors.formats.declared import declare_columns
from connectors.formats.discover import propose_columns
from connectors.formats.open_format import open_format
from connectors.formats.registry import PROTOBUF, SchemaRegistry, wire_header
from dataflow.errors import SourceError
from tests.harness.registry import Registry


def types(proposed: list[dict[str, Any]]) -> dict[str, str]:
    return {one["name"]: f"{one['type']} {one['path']}" for one in proposed}


def read_all(options: dict[str, Any], samples: list[bytes]) -> dict[str, str]:
    proposed = propose_columns(options, samples)
    decoded = open_format(options, declare_columns(proposed)).decode(samples)
    assert not decoded.bad and len(decoded) == len(samples)
    return types(proposed)


def test_json_objects() -> None:
    samples = [
        {"id": 1, "user": {"id": 7, "odd.key": "x"}, "price": 1.5, "at": "2024-01-05T10:00:00Z"},
        {"id": 2**40, "user": {"id": None}, "price": 2, "day": "2024-01-05", "zip": "01234"},
        {"id": 3, "wall": "2024-01-05 10:00:00", "ok": True, "any": 1, "size": 1e30, "list": [1]},
        {"uid": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "any": "x", "none": None, "shape": 1},
        {"user_id": "clash", "shape": {"x": 1}, "late": {"x": 1}, "empty": {}},
        {"late": None},
    ]
    assert read_all({"format": "json"}, [json.dumps(one).encode() for one in samples]) == {
        "id": "int8 $.id",
        "user_id": "int8 $.user.id",
        "user_odd.key": "text $.user['odd.key']",
        "price": "numeric $.price",
        "at": "timestamptz $.at",
        "day": "date $.day",
        "zip": "text $.zip",
        "wall": "timestamp $.wall",
        "ok": "bool $.ok",
        "any": "text $.any",
        "size": "float8 $.size",
        "list": "jsonb $.list",
        "uid": "uuid $.uid",
        "none": "text $.none",
        "shape": "jsonb $.shape",
        "user_id_2": "text $.user_id",
        "late_x": "int8 $.late.x",
        "empty": "jsonb $.empty",
    }


def test_envelopes() -> None:
    row = {"id": 1, "note": "x"}
    records = [{"op": "c", "after": row}, {"payload": {"op": "d", "before": row, "after": None}}]
    found = read_all({"format": "debezium-json"}, [json.dumps(one).encode() for one in records])
    assert found == {"id": "int8 $.id", "note": "text $.note"}


def test_csv() -> None:
    samples = [b"1,2024-01-01,007,x,t,", b'-2,2024-01-02,1,"a,b",f,\r\n']
    header = ["id", "day", "zip", "note", "ok", "none"]
    assert read_all({"format": "csv", "header": header}, samples) == {
        "id": "int8 $.id",
        "day": "date $.day",
        "zip": "text $.zip",
        "note": "text $.note",
        "ok": "bool $.ok",
        "none": "text $.none",
    }
    assert propose_columns({"format": "csv"}, samples)[0]["name"] == "column1"


def test_schemas_of_a_registry() -> None:
    registry = Registry()
    client = SchemaRegistry({"url": registry.url})
    address = {"type": "record", "name": "A", "fields": [{"name": "city", "type": "string"}]}
    at = {"type": "long", "logicalType": "timestamp-micros"}
    schema = {"type": "record", "name": "R", "fields": [
        {"name": "id", "type": "long"}, {"name": "home", "type": ["null", address]},
        {"name": "at", "type": at}, {"name": "tags", "type": {"type": "array", "items": "int"}},
    ]}  # fmt: skip
    id = client.register("a-value", json.dumps(schema))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, {"id": 1, "home": None, "at": 0, "tags": [1]})
    sample = wire_header(id) + out.getvalue()
    options = {"format": "avro", "registry": {"url": registry.url}}
    assert read_all(options, [sample]) == {
        "id": "bigint $.id",
        "home_city": "text $.home.city",
        "at": "timestamp with time zone $.at",
        "tags": "jsonb $.tags",
    }
    proposed = propose_columns(options, [sample])
    assert [one["nullable"] for one in proposed] == [False, True, False, False]
    text = "syntax='proto3'; message P { message I { bool b = 1; } uint64 n = 1; I i = 2; }"
    id = client.register("p-value", text, PROTOBUF)
    options = {"format": "protobuf", "registry": {"url": registry.url}}
    found = read_all(options, [wire_header(id) + b"\0\x08\x05"])
    assert found == {"n": "numeric $.n", "i_b": "boolean $.i.b"}
    registry.stop()


@pytest.mark.parametrize(
    ("format", "code"), [("json", "format.no_samples"), ("xml", "format.unknown")]
)
def test_nothing_to_learn_from(format: str, code: str) -> None:
    with pytest.raises(SourceError) as refused:
        propose_columns({"format": format}, [b"{", b"[1]"])
    assert refused.value.code == code
