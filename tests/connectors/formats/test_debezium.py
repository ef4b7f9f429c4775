"""Debezium's envelopes. Oracle: the encodings that Debezium's manual gives for each type and mode,
and for the order a list of the events as they happened."""

from __future__ import annotations

import base64
import io
import json
import random
from typing import Any

import fastavro
import numpy as np
import pytest

from connectors.formats.debezium import PLACEHOLDER, DebeziumDecoded
from connectors.formats.debezium_order import DedupState
from connectors.formats.declared import declare_columns
from connectors.formats.open_format import open_format
from dataflow.errors import SourceError
from dataflow.values import to_text

COLUMNS = [
    {"name": "id", "type": "int8", "nullable": False},
    {"name": "amount", "type": "numeric(12,2)"},
    {"name": "note", "type": "text"},
    {"name": "doc", "type": "jsonb"},
    {"name": "raw", "type": "bytea"},
    {"name": "day", "type": "date"},
    {"name": "at", "type": "timestamp", "unit": "us"},
    {"name": "zoned", "type": "timestamptz"},
    {"name": "ok", "type": "bool"},
    {"name": "tags", "type": "text[]"},
]
ROW: dict[str, Any] = {
    "id": 7,
    "amount": "12.5",
    "note": "x",
    "doc": '{"b": 1.50, "a": [1]}',
    "raw": "3q0=",
    "day": 19723,
    "at": 1_700_000_000_123_456,
    "zoned": "2023-11-14T22:13:20.5Z",
    "ok": 1,
    "tags": ["a", None],
    "other": {"x": 1},
}
TEXTS = [
    "7", "12.50", "x", '{"a": [1], "b": 1.50}', "\\xdead", "2024-01-01",
    "2023-11-14 22:13:20.123456", "2023-11-14 22:13:20.5+00", "t", "{a,NULL}",
]  # fmt: skip
SOURCE = {"lsn": 120, "sequence": '["100","120"]', "table": "t"}


def envelope(op: str, after: Any = None, before: Any = None, **more: Any) -> bytes:
    whole = {"before": before, "after": after, "source": SOURCE, "op": op, "ts_ms": 1, **more}
    return json.dumps(whole).encode()


def decode(*records: bytes | None, columns: Any = COLUMNS, **options: Any) -> DebeziumDecoded:
    given = {"format": "debezium-json", **options}
    decoded = open_format(given, declare_columns(columns)).decode(records)
    assert isinstance(decoded, DebeziumDecoded)
    return decoded


def texts_of(decoded: DebeziumDecoded, columns: Any = COLUMNS) -> list[list[str | None]]:
    pairs = zip(declare_columns(columns), decoded.columns, strict=True)
    texts = [to_text(column.field.type, values).texts() for column, values in pairs]
    return [list(row) for row in zip(*texts, strict=True)]


def test_every_op_says_what_it_does() -> None:
    records = [
        envelope("r", ROW),
        envelope("c", {**ROW, "id": 8}),
        envelope("u", {**ROW, "id": 9}, {**ROW, "id": 9}),
        envelope("d", None, {"id": 9, "amount": None}),
        None,
        envelope("t"),
        envelope("m", message={"prefix": "x"}),
        b'{"ts_ms": 5}',
        envelope("x", ROW),
        envelope("c"),
        envelope("c", {**ROW, "id": None}),
        b'{"a": 1}',
        b"{",
        envelope("c", {**ROW, "amount": "x"}),
    ]
    decoded = decode(*records)
    assert decoded.records.tolist() == [0, 1, 2, 3]
    assert decoded.removes is not None
    assert decoded.removes.tolist() == [False, False, False, True]
    assert texts_of(decoded)[0] == TEXTS
    assert [row[0] for row in texts_of(decoded)] == ["7", "8", "9", "9"]
    assert decoded.truncations == [5]
    assert [(one.number, one.code) for one in decoded.bad] == [
        (8, "record.malformed"),
        (9, "record.malformed"),
        (10, "record.null"),
        (11, "record.malformed"),
        (12, "record.malformed"),
        (13, "record.value"),
    ]


def wrapped(fields: list[dict[str, Any]], row: dict[str, Any]) -> bytes:
    after = {"type": "struct", "field": "after", "fields": fields}
    return json.dumps(
        {"schema": {"type": "struct", "fields": [after]}, "payload": json.loads(envelope("c", row))}
    ).encode()


def test_schemas_beside_the_payload_say_what_numbers_mean() -> None:
    times = "io.debezium.time."
    decimal = {"name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "3"}}
    fields = [
        {"field": "id", "type": "int64"},
        {"field": "amount", "type": "bytes", **decimal},
        {"field": "day", "type": "int32", "name": f"{times}Date"},
        {"field": "at", "type": "int64", "name": f"{times}Timestamp"},
        {"field": "zoned", "type": "string", "name": f"{times}ZonedTimestamp"},
    ]
    unscaled = base64.b64encode((-12_345).to_bytes(2, "big", signed=True)).decode()
    row = {**ROW, "amount": unscaled, "at": 1_700_000_000_123}
    nanos = [*fields[:3], {"field": "at", "type": "int64", "name": f"{times}NanoTimestamp"}]
    other = wrapped(nanos, {**row, "at": 1_700_000_000_000_001_500})
    decoded = decode(wrapped(fields, row), other, envelope("c", ROW))
    rows = texts_of(decoded)
    assert not decoded.bad
    assert [row[1] for row in rows] == ["-12.35", "-12.35", "12.50"]
    assert [row[6] for row in rows] == [
        "2023-11-14 22:13:20.123",
        "2023-11-14 22:13:20.000002",
        "2023-11-14 22:13:20.123456",
    ]


@pytest.mark.parametrize(
    ("mode", "value", "expected"),
    [
        ("string", '"123456789012345678901234567890.5"', "123456789012345678901234567890.50"),
        ("string", '"NaN"', "NaN"),
        ("double", "0.1", "0.10"),
        ("precise", '"AfQ="', "5.00"),
        ("precise", '"/w=="', "-0.01"),
        ("precise", '"*"', None),
        ("string", '{"scale": 3, "value": "AfQ="}', "0.50"),
        ("string", '{"scale": 3}', None),
    ],
)
def test_decimals_in_every_mode(mode: str, value: str, expected: str | None) -> None:
    columns = [{"name": "a", "type": "numeric(40,2)"}]
    record = envelope("c", {"a": 0}).replace(b'{"a": 0}', b'{"a": %s}' % value.encode())
    decoded = decode(record, columns=columns, decimals=mode)
    assert texts_of(decoded, columns) == ([] if expected is None else [[expected]])
    assert [one.code for one in decoded.bad] == (["record.value"] if expected is None else [])


def test_values_that_the_database_did_not_send_are_reported_as_unchanged() -> None:
    encoded = base64.b64encode(PLACEHOLDER.encode()).decode()
    row = {**ROW, "note": PLACEHOLDER, "raw": encoded, "tags": [PLACEHOLDER], "doc": PLACEHOLDER}
    harmless = {**ROW, "note": f"no {PLACEHOLDER}"}
    decoded = decode(envelope("c", ROW), envelope("u", row), envelope("u", harmless))
    assert not decoded.bad and decoded.unchanged is not None
    assert {at: mask.tolist() for at, mask in decoded.unchanged.items()} == {
        at: [False, True, False] for at in (2, 3, 4, 9)
    }
    rows = texts_of(decoded)
    assert [rows[1][at] for at in (1, 2, 3, 4, 9)] == ["12.50", None, None, None, None]
    assert rows[2][2] == f"no {PLACEHOLDER}"
    other = decode(envelope("u", {**ROW, "note": "gone"}), placeholder="gone")
    assert other.unchanged is not None and list(other.unchanged) == [2]


def test_bytes_in_hexadecimal() -> None:
    columns = [{"name": "raw", "type": "bytea"}]
    decoded = decode(envelope("c", {"raw": "00ff"}), columns=columns, binary="hex")
    assert texts_of(decoded, columns) == [["\\x00ff"]]


AVRO = {
    "type": "record", "name": "Envelope", "namespace": "s.t", "fields": [
        {"name": "before", "type": ["null", {"type": "record", "name": "Value", "fields": [
            {"name": "id", "type": "long"},
            {"name": "amount", "type": ["null", {"type": "bytes", "scale": 2, "precision": 12,
             "connect.name": "org.apache.kafka.connect.data.Decimal", "logicalType": "decimal"}]},
            {"name": "note", "type": ["null", "string"]},
            {"name": "day", "type": {"type": "int", "connect.name": "io.debezium.time.Date"}},
            {"name": "at", "type": {"type": "long",
             "connect.name": "io.debezium.time.MicroTimestamp"}},
            {"name": "doc", "type": {"type": "string", "connect.name": "io.debezium.data.Json"}},
            {"name": "open", "type": {"type": "record", "name": "VariableScaleDecimal",
             "namespace": "io.debezium.data", "fields": [
                 {"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
             "connect.name": "io.debezium.data.VariableScaleDecimal"}},
        ]}]},
        {"name": "after", "type": ["null", "Value"]},
        {"name": "source", "type": {"type": "record", "name": "Source", "fields": [
            {"name": "file", "type": "string"}, {"name": "pos", "type": "long"},
            {"name": "row", "type": "int"}]}},
        {"name": "op", "type": "string"},
        {"name": "transaction", "type": ["null", {"type": "record", "name": "block", "fields": [
            {"name": "id", "type": "string"}, {"name": "total_order", "type": "long"}]}]},
    ],
}  # fmt: skip


def test_envelopes_in_avro() -> None:
    from decimal import Decimal

    columns = [{"name": n, "type": t} for n, t in (
        ("id", "int8"), ("amount", "numeric(12,2)"), ("note", "text"), ("day", "date"),
        ("at", "timestamp"), ("doc", "jsonb"), ("open", "numeric"))]  # fmt: skip
    row = {"id": 1, "amount": Decimal("-1.50"), "note": "x", "day": 0, "at": 1, "doc": '{"b":1}',
           "open": {"scale": 4, "value": b"\x01\xf4"}}  # fmt: skip
    source = {"file": "mysql-bin.000003", "pos": 10, "row": 1}
    events = [
        ("c", None, row, {"id": "a", "total_order": 2}),
        ("u", None, {**row, "note": PLACEHOLDER}, None),
        ("d", {**row, "id": 5}, None, None),
        ("d", None, None, None),
    ]
    records: list[bytes | None] = []
    schema = fastavro.parse_schema(json.loads(json.dumps(AVRO)))
    for op, before, after, transaction in events:
        out = io.BytesIO()
        value = {"before": before, "after": after, "source": source, "op": op,
                 "transaction": transaction}  # fmt: skip
        fastavro.schemaless_writer(out, schema, value)
        records.append(out.getvalue())
    options = {"format": "debezium-avro", "schema": json.dumps(AVRO)}
    decoded = open_format(options, declare_columns(columns)).decode([*records, None])
    assert isinstance(decoded, DebeziumDecoded)
    rows = texts_of(decoded, columns)
    assert rows[0] == ["1", "-1.50", "x", "1970-01-01", "1970-01-01 00:00:00.000001", '{"b": 1}',
                       "0.0500"]  # fmt: skip
    assert (rows[1][2], rows[2][0]) == (None, "5")
    assert decoded.unchanged is not None and decoded.unchanged[2].tolist() == [False, True, False]
    assert decoded.removes is not None and decoded.removes.tolist() == [False, False, True]
    assert decoded.orders.tolist() == [[3, 10, 1, 0]] * 3
    assert decoded.transactions == [("a", 2), None, None]
    assert [(one.number, one.code) for one in decoded.bad] == [(3, "record.malformed")]


def test_events_that_are_repeated_after_a_restart_are_dropped_once_seen() -> None:
    draw = random.Random(3)
    events = sorted({(draw.randrange(5), draw.randrange(9), draw.randrange(3), 0)
                     for _ in range(60)})  # fmt: skip
    seen, told = DedupState(), []
    at = 0
    while at < len(events):
        stop = min(at + draw.randrange(1, 9), len(events))
        start = max(0, at - draw.randrange(9))
        batch = events[start:stop]
        keep = seen.fresh(0, np.array(batch))
        told += [event for event, ok in zip(batch, keep, strict=True) if ok]
        seen, at = DedupState(json.loads(json.dumps(seen.state()))), stop
    assert told == events


def test_indistinguishable_events_are_not_dropped() -> None:
    seen = DedupState()
    assert seen.fresh(0, np.array([[5, 9, -1, 0], [5, 9, -1, 0]])).all()
    assert seen.fresh(0, np.array([[-1, 0, 0, 0], [5, 9, -1, 0]])).all()
    assert seen.fresh(1, np.array([[5, 8, -1, 0]])).all()
    assert not seen.fresh(0, np.array([[5, 8, -1, 0]])).any()


def test_options_that_do_not_do() -> None:
    for columns, options in (
        ([{"name": "a", "type": "numeric"}], {"decimals": "exact"}),
        ([{"name": "a", "type": "int4", "in": "key"}], {}),
        ([{"name": "a", "type": "int4"}], {"mode": 1}),
    ):
        with pytest.raises(SourceError):
            decode(columns=columns, **options)
    with pytest.raises(SourceError):
        decode(envelope("c", {"a": "AQ=="}), columns=[{"name": "a", "type": "numeric"}],
               decimals="precise")  # fmt: skip
