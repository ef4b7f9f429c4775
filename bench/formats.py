"""Records a second of each record format, from bytes to columns, by CPU time on one core.

All formats have the same nine fields of the same rows: integers, a decimal, a float, a boolean, two
texts, a time and a date. For JSON, two readers that do less are measured too: orjson to
dictionaries, and pyarrow's columnar reader, which leaves decimals and times as text.
"""

from __future__ import annotations

import base64
import io
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import fastavro
import orjson
import pyarrow as pa
import pyarrow.json
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from connectors.formats.declared import declare_columns
from connectors.formats.open_format import open_format

FORMATS = "formats"
BATCHES = (1, 100, 10_000)
_SECONDS = 1.0
_TYPES = {
    "id": ("int8", "long"),
    "customer": ("int4", "int"),
    "amount": ("numeric(12,2)", {"type": "bytes", "logicalType": "decimal", "precision": 12,
                                 "scale": 2}),
    "price": ("float8", "double"),
    "ok": ("bool", "boolean"),
    "kind": ("varchar(10)", "string"),
    "note": ("text", "string"),
    "at": ("timestamptz", {"type": "long", "logicalType": "timestamp-micros"}),
    "day": ("date", {"type": "int", "logicalType": "date"}),
}  # fmt: skip
_CENTS, _START_US, _DAY_US = 100, 1_700_000_000_000_000, 86_400_000_000


@dataclass(frozen=True)
class Rate:
    """The cost of decoding: CPU microseconds a record, by batch size."""

    record_bytes: float
    cpu_us: dict[str, float]


def run(count: int, seconds: float = _SECONDS) -> dict[str, Rate]:
    """Measure every format with this many records; compare the answers of all formats."""
    rows = make_rows(count)
    columns = declare_columns([{"name": name, "type": type} for name, (type, _) in _TYPES.items()])
    found, expected = {}, None
    for name, (options, records) in encodings(rows).items():
        decode = open_format(options, columns).decode
        decoded = decode(records)
        answer = [column.to_list() for column in decoded.columns]
        assert not decoded.bad and answer == (expected or answer), name
        expected = answer
        found[name] = _measure(decode, records, seconds)
    texts = encodings(rows)["json"][1]
    found["orjson to dictionaries"] = _measure(
        lambda r: [orjson.loads(x) for x in r], texts, seconds
    )
    found["pyarrow to columns, fewer types"] = _measure(_arrow, texts, seconds)
    return found


def make_rows(count: int) -> list[dict[str, Any]]:
    """Return rows as plain values: cents, and microseconds since 1970."""
    draw = random.Random(7)
    return [
        {
            "id": 10**9 + at,
            "customer": draw.randrange(10**6),
            "amount": draw.randrange(10**7),
            "price": draw.randrange(10**6) / 1000,
            "ok": draw.random() < 0.5,
            "kind": draw.choice(["click", "view", "purchase"]),
            "note": f"note number {draw.randrange(10**9)} of them",
            "at": _START_US + draw.randrange(10**13),
            "day": 19_000 + draw.randrange(1000),
        }
        for at in range(count)
    ]


def encodings(rows: list[dict[str, Any]]) -> dict[str, tuple[dict[str, Any], list[bytes]]]:
    """Return format -> (its options, the rows as its records)."""
    texts = [_texts(row) for row in rows]
    avro = {"type": "record", "name": "R",
            "fields": [{"name": n, "type": t} for n, (_, t) in _TYPES.items()]}  # fmt: skip
    source = {"lsn": 1, "sequence": '["1","2"]'}
    envelopes = [{"before": None, "after": row, "source": source, "op": "c"} for row in texts]
    descriptors, messages = _protobuf(texts)
    return {
        "json": ({"format": "json"}, [json.dumps(row).encode() for row in texts]),
        "csv": ({"format": "csv"}, [_csv(row) for row in texts]),
        "avro": ({"format": "avro", "schema": json.dumps(avro)}, _avro(avro, rows)),
        "protobuf": ({"format": "protobuf", "descriptors": descriptors}, messages),
        "debezium-json": (
            {"format": "debezium-json"},
            [json.dumps(envelope).encode() for envelope in envelopes],
        ),
    }


def _texts(row: dict[str, Any]) -> dict[str, Any]:
    """Return times and decimals as JSON producers write them."""
    us = row["at"]
    seconds = time.gmtime(us // 1_000_000)
    at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', seconds)}.{us % 1_000_000:06d}Z"
    day = time.strftime("%Y-%m-%d", time.gmtime(row["day"] * 86_400))
    amount = f"{row['amount'] // _CENTS}.{row['amount'] % _CENTS:02d}"
    return {**row, "amount": amount, "at": at, "day": day}


def _csv(row: dict[str, Any]) -> bytes:
    cells = ("t" if value is True else "f" if value is False else value for value in row.values())
    return ",".join(map(str, cells)).encode()


def _avro(schema: dict[str, Any], rows: list[dict[str, Any]]) -> list[bytes]:
    bare = {**schema, "fields": [{"name": f["name"], "type": f["type"]["type"]
            if isinstance(f["type"], dict) else f["type"]} for f in schema["fields"]]}  # fmt: skip
    parsed, records = fastavro.parse_schema(bare), []
    for row in rows:
        out = io.BytesIO()
        amount = row["amount"].to_bytes(8, "big", signed=True)
        fastavro.schemaless_writer(out, parsed, {**row, "amount": amount})
        records.append(out.getvalue())
    return records


def _protobuf(texts: list[dict[str, Any]]) -> tuple[str, list[bytes]]:
    kinds = {"int8": 3, "int4": 5, "float8": 1, "bool": 8}
    file = descriptor_pb2.FileDescriptorProto(name="r.proto", syntax="proto3")
    made = file.message_type.add(name="R")
    for number, (name, (type, _)) in enumerate(_TYPES.items(), start=1):
        made.field.add(name=name, number=number, type=kinds.get(type, 9), label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    make = message_factory.GetMessageClass(pool.FindMessageTypeByName("R"))
    files = descriptor_pb2.FileDescriptorSet(file=[file])
    encoded = base64.b64encode(files.SerializeToString()).decode()
    return encoded, [make(**row).SerializeToString() for row in texts]


def _arrow(records: list[bytes]) -> Any:
    types = {"id": pa.int64(), "customer": pa.int32(), "price": pa.float64(), "ok": pa.bool_()}
    schema = pa.schema([(name, types.get(name, pa.string())) for name in _TYPES])
    options = pyarrow.json.ParseOptions(schema, unexpected_field_behavior="ignore")
    reading = pyarrow.json.ReadOptions(use_threads=False, block_size=1 << 24)
    return pyarrow.json.read_json(io.BytesIO(b"\n".join(records)), reading, options)


def _measure(decode: Callable[[list[bytes]], Any], records: list[bytes], seconds: float) -> Rate:
    """Decode batches of each size in turn until the time is up."""
    found = {}
    for size in BATCHES:
        size = min(size, len(records))
        done, started, wall = 0, time.process_time(), time.monotonic()
        while time.monotonic() - wall < seconds:
            start = done % (len(records) - size + 1)
            decode(records[start : start + size])
            done += size
        found[str(size)] = (time.process_time() - started) * 1e6 / done
    return Rate(sum(map(len, records)) / len(records), found)
