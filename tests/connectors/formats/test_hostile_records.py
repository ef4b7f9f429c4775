"""Oracle: the contract of record formats: a record that is no row is told as bad, whatever is in
it, and the good one beside it stays; a schema or sample is refused with a code."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from connectors.formats.declared import declare_columns
from connectors.formats.discover import propose_columns
from connectors.formats.open_format import open_format
from dataflow.errors import SourceError

FIELDS = "string s=1; repeated string r=2; map<string,string> m=3; M inner=4; bytes b=5;"
PROTO3 = f'syntax="proto3"; message M {{ {FIELDS} }}'
PROTO2 = PROTO3.replace("proto3", "proto2").replace(" M inner", " optional M inner")
PROTO2 = PROTO2.replace("{ string", "{ optional string").replace(" bytes b", " optional bytes b")
AVRO = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "s", "type": "string"},
        {"name": "r", "type": {"type": "array", "items": "string"}},
        {"name": "m", "type": {"type": "map", "values": "string"}},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["a", "b"]}},
        {"name": "b", "type": "bytes"},
    ],
}
TEXT, JSONB = {"name": "s", "type": "text"}, {"name": "m", "type": "jsonb"}
COLUMNS = [
    TEXT,
    JSONB,
    {"name": "inner", "type": "jsonb"},
    {"name": "b", "type": "bytea"},
    {"name": "a", "type": "text[]", "path": "$.r"},
]
DEBEZIUM = b'{"op":"c","after":{"s":"good"}}'
# Options, columns and a record that is a row: {"s": "good"} or the like.
FORMATS: list[tuple[dict[str, Any], list[dict[str, Any]], bytes]] = [
    ({"format": "protobuf", "schema": PROTO2}, COLUMNS, b"\x0a\x04good"),
    ({"format": "protobuf", "schema": PROTO3}, COLUMNS, b"\x0a\x04good"),
    ({"format": "avro", "schema": json.dumps(AVRO)}, COLUMNS, b"\x08good\0\0\0\0"),
    ({"format": "json"}, COLUMNS, b'{"s":"good"}'),
    ({"format": "text"}, [TEXT], b"good"),
    ({"format": "csv"}, [TEXT, JSONB], b"good,"),
    ({"format": "debezium-json"}, COLUMNS, DEBEZIUM),
    ({"format": "json", "key": {"format": "text"}}, [{**TEXT, "in": "key"}, JSONB], b"{}"),
]
HOSTILE = [
    *(b"", b"\0", b"\xff\xfe{\0}\0", b"[]", b"null", b'"x"', b"\xe9", b"a,\xe9", b"\xed\xa0\x80"),
    *(b"\x0a\x01\xe9", b"\x12\x01\xe9", b"\x1a\x06\x0a\x01\xe9\x12\x01v", b"\x22\x03\x0a\x01\xff"),
    *(b"\x02\xe9\0\0\0\0", b"\x02a\x02\x02\xe9\0\0\0\0", b"\x02a\0\x02\x02\xe9\x02v\0\0\0"),
    *(b'{"s":"\xe9"}', b'{"\xe9":1}', b'{"s":"\\udc00"}', b'{"s":"a\\u0000b"}', b'{"s":"a\0"}'),
    *(b'{"m":{"a":"\\ud800"}}', b'{"r":["\\ud800"]}', b'{"\\ud800":1}', b"[" * 3000),
    b'{"m":' * 3000 + b"1" + b"}" * 3000,
    *(b'{"op":"\\ud800","after":{}}', b'{"op":7,"after":{}}', b'{"op":"\xe9","after":{}}'),
    b'{"op":"c","after":{"s":"\\ud800","r":["\\ud800"],"m":{"\\u0000":1}}}',
    b'{"op":"c","after":[1],"source":{"lsn":"x"},"transaction":7}',
    b'{"op":"c","after":{"s":"a"},"source":"q","transaction":{"id":"\\ud800","total_order":1}}',
    b'{"op":"c","after":{"s":"__debezium_unavailable_value","\\ud800":1}}',
    b'{"op":"c","after":{"s":"\xe9__debezium_unavailable_value"}}',
]
HOSTILE += [
    b'{"schema":%s,"payload":%s}' % (schema, DEBEZIUM)
    for schema in (b"[]", b'{"fields":7}', b'{"fields":[1]}', b'{"fields":[{"field":"after"}]}')
]
HOSTILE += [b'{"schema":{"fields":[{"field":"after","fields":[{}]}]},"payload":%s}' % DEBEZIUM]


def changed(record: bytes, seed: int) -> bytes:
    """The record with some bytes that are rarely right."""
    found, out = random.Random(seed), bytearray(record)
    for _ in range(min(found.randrange(3), len(out))):
        out[found.randrange(len(out))] = found.choice([0, 0xE9, 0xFF, 0x80, 0xED, 34, 92])
    return bytes(out)


@pytest.mark.parametrize("at", range(len(FORMATS)), ids=[f[0]["format"] for f in FORMATS])
def test_no_record_takes_another_along(at: int) -> None:
    options, columns, good = FORMATS[at]
    format = open_format(options, declare_columns(columns))
    records = [changed(record, seed) for seed in range(8) for record in HOSTILE]
    for record in [*HOSTILE, *records]:
        decoded = format.decode([good, record, good], [b"k", record, b"k"])
        assert {0, 2} <= set(decoded.records.tolist()), record
        for bad in decoded.bad:
            assert bad.number == 1 and bad.code.startswith("record.")
            bad.reason.encode()
    alone = format.decode([good, good], [b"k", b"k"])
    assert len(alone) == 2 and not alone.bad
    # All at once: bad ones among good ones keep their numbers.
    mixed = [one for record in HOSTILE for one in (record, good)]
    decoded = format.decode(mixed, mixed if "key" in options else None)
    assert set(range(1, len(mixed), 2)) <= set(decoded.records.tolist())
    told = [bad.number for bad in decoded.bad]
    assert told == sorted(told) and all(number % 2 == 0 for number in told)


@pytest.mark.parametrize("at", range(len(FORMATS)), ids=[f[0]["format"] for f in FORMATS])
def test_any_samples_propose_columns(at: int) -> None:
    options, _, good = FORMATS[at]
    options = {name: value for name, value in options.items() if name != "key"}
    for record in HOSTILE:
        try:
            found = propose_columns(options, [record, good])
        except SourceError as refused:
            assert refused.code.startswith("format.")
            continue
        json.dumps(found, ensure_ascii=False).encode()
        declare_columns(found)


SCHEMAS: list[dict[str, Any]] = [
    *({"format": "avro", "schema": text} for text in (
        '"\\ud800"', "[1]", "{}", "7", "null", "[" * 2000, "\0", '{"type":"record"}',
        '{"type":"enum","name":"e","symbols":7}',
        '{"type":"record","name":"a","fields":7}', '{"type":"record","name":"a","fields":[7]}',
        '{"type":"array"}', '{"type":{"type":{}}}')),
    *({"format": "protobuf", "schema": text} for text in ("\0", "\ud800", "message é {}", "x")),
    *({"format": "protobuf", "schema": PROTO3, "message": name} for name in ("\ud800", "é", "")),
    *({"format": "protobuf", "descriptors": raw} for raw in ("é", "AAAA", "", "\ud800", "CgA=")),
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(SCHEMAS)))
def test_a_schema_that_is_none_is_refused(at: int) -> None:
    with pytest.raises(SourceError) as refused:
        open_format(SCHEMAS[at], declare_columns([TEXT]))
    assert refused.value.code.startswith("format.")
