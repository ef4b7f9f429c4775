"""The same purchases in every format that files and topics have, each with one bad record."""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from connectors.feed_source import FeedSource
from connectors.formats.registry import SchemaRegistry, wire_header
from connectors.kafka.embedded import EmbeddedKafka
from tests.connectors.files.source_mirror import make_source
from tests.connectors.kafka.reading import source_of
from tests.harness.broker import Sent, new_topic, send
from tests.harness.registry import Registry

NAMES = ("id", "customer", "qty", "price", "note")
TYPES = ("int8", "int4", "int4", "numeric(9,2)", "text")
COLUMNS = [{"name": n, "type": t} for n, t in zip(NAMES, TYPES, strict=True)]
IN_KEY = {"in": "key", "path": "$"}
TOO_BIG = 1 << 40  # no int4
FILES = 2
FILE_FORMATS = ("csv", "json", "jsonl", "xml", "parquet")
# id, customer, qty, price as text, note
Row = tuple[int, int, int, str, str | None]


def draw(count: int) -> list[Row]:
    """Purchases: of unknown customers too, some alike but for the id, some of no quantity."""
    random = Random(5)
    notes = ["", "a,b", "grüße", "<&>", None]
    return [
        (n, random.randrange(12), random.randrange(6), f"{n % 9}.25", random.choice(notes))
        for n in range(count)
    ]


@dataclass
class Case:
    """A source with the one relation "bought"; the rows that it has, how many records are bad."""

    source: FeedSource
    rows: list[Row]
    bad: int = 1
    close: Callable[[], None] = field(default=lambda: None)


def named(row: Iterable[Any]) -> dict[str, Any]:
    """As an object, NULLs left out."""
    return {n: v for n, v in zip(NAMES, row, strict=True) if v is not None}


# --- files ------------------------------------------------------------------------------------


def file_case(format: str, how: str, folder: Path, rows: list[Row]) -> Case:
    """how: "plain", "gzip", or "folders" by customer."""
    rows = [(*row[:4], row[4] or None) if format == "csv" else row for row in rows]
    bad = (len(rows), 1, TOO_BIG, "1.00", "bad")
    shares: dict[str, list[Any]] = {}
    for n, row in enumerate([*rows, bad]):
        place = f"customer={row[1]}" if how == "folders" else "."
        shares.setdefault(f"{place}/{n % FILES}", []).append(row)
    for name, share in shares.items():
        path = folder / f"{name}.{format}"
        path.parent.mkdir(parents=True, exist_ok=True)
        content = file_of(format, share, is_packed=how == "gzip")
        if how == "gzip" and format != "parquet":
            path, content = path.with_suffix(f".{format}.gz"), gzip.compress(content)
        path.write_bytes(content)
    relation = {"path": f"{folder}/**/*", "format": format, "columns": COLUMNS}
    more = {"row_tag": "item"} if format == "xml" else {}
    options = {"settle_ms": 0, "on_error": "dead_letter", "relations": {"bought": relation}}
    return Case(make_source({**options, **more}, "shop"), rows)


def file_of(format: str, rows: list[Any], *, is_packed: bool) -> bytes:
    """A file of the rows, by libraries that the product reads none of these with."""
    objects = [named(row) for row in rows]
    if format == "json":
        return json.dumps(objects).encode()
    if format == "jsonl":
        return "\n".join(map(json.dumps, objects)).encode()
    if format == "csv":
        text = io.StringIO()
        csv.writer(text).writerows([NAMES, *rows])
        return text.getvalue().encode()
    if format == "xml":
        return xml_of(objects)
    out = io.BytesIO()
    kinds = (pa.int64(), pa.int64(), pa.int64(), pa.string(), pa.string())
    columns = list(zip(*rows, strict=True))
    table = pa.table({n: pa.array(columns[i], kinds[i]) for i, n in enumerate(NAMES)})
    pq.write_table(table, out, compression="gzip" if is_packed else "none", row_group_size=20)
    return out.getvalue()


def xml_of(objects: list[dict[str, Any]]) -> bytes:
    """One element a row."""
    from xml.sax.saxutils import escape

    items = ["".join(f"<{n}>{escape(str(v))}</{n}>" for n, v in one.items()) for one in objects]
    return f"<all>{''.join(f'<item>{item}</item>' for item in items)}</all>".encode()


# --- topics -----------------------------------------------------------------------------------


def topic_case(broker: EmbeddedKafka, name: str, rows: list[Row]) -> Case:
    """name: a format, or "upsert"."""
    records, options, rows, close = TOPICS[name](rows)
    topic = new_topic(broker, 2)
    send(broker, topic, records)
    bought = {"topic": topic, "columns": COLUMNS, "on_error": "dead_letter", **options}
    return Case(source_of(broker, {"bought": bought}), rows, close=close)


Made = tuple[list[Sent], Mapping[str, Any], list[Row], Callable[[], None]]


def bad_row() -> tuple[int, int, int, str, str]:
    """Its quantity is too big."""
    return (-1, 1, TOO_BIG, "1.00", "bad")


def spread(values: list[bytes]) -> list[Sent]:
    """Over two partitions, without keys."""
    return [(n % 2, None, value) for n, value in enumerate(values)]


def nothing() -> None:
    """Nothing is to be closed."""


def json_records(rows: list[Row]) -> Made:
    values = [json.dumps(named(row)).encode() for row in [*rows, bad_row()]]
    return spread(values), {"format": "json"}, rows, nothing


def csv_records(rows: list[Row]) -> Made:
    rows = [(*row[:4], row[4] or None) for row in rows]
    lines = []
    for row in [*rows, bad_row()]:
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(row)
        lines.append(line.getvalue().encode())
    return spread(lines), {"format": "csv"}, rows, nothing


def text_records(rows: list[Row]) -> Made:
    """The customer is the key, all else the value."""
    told: list[Row] = [(q, c, q, f"{q}.00", str(q)) for _, c, q, _, _ in rows]
    records: list[Sent] = [(c % 2, b"%d" % c, b"%d" % q) for _, c, q, _, _ in told]
    columns = [{**c, "in": "key"} if c["name"] == "customer" else c for c in COLUMNS]
    options = {"format": "text", "key_format": "text", "columns": columns}
    return [*records, (0, b"1", b"%d" % TOO_BIG)], options, told, nothing


def avro_records(rows: list[Row]) -> Made:
    """With the header of a registry."""
    kinds = ("long", "long", "long", "string", ["null", "string"])
    fields = [{"name": n, "type": t} for n, t in zip(NAMES, kinds, strict=True)]
    schema = {"type": "record", "name": "Bought", "fields": fields}
    registry = Registry()
    id = SchemaRegistry({"url": registry.url}).register("bought-value", json.dumps(schema))
    values = []
    for row in [*rows, bad_row()]:
        out = io.BytesIO()
        fastavro.schemaless_writer(
            out, fastavro.parse_schema(schema), dict(zip(NAMES, row, strict=True))
        )
        values.append(wire_header(id) + out.getvalue())
    options = {"format": {"format": "avro", "registry": {"url": registry.url}}}
    return spread(values), options, rows, registry.stop


def protobuf_records(rows: list[Row]) -> Made:
    rows = [(*row[:4], row[4] or "") for row in rows]
    file = descriptor_pb2.FileDescriptorProto(name="bought.proto", syntax="proto3")
    made = file.message_type.add(name="Bought")
    for number, (name, kind) in enumerate(zip(NAMES, (3, 3, 3, 9, 9), strict=True), start=1):
        made.field.add(name=name, number=number, type=kind, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    make = message_factory.GetMessageClass(pool.FindMessageTypeByName("Bought"))
    values = [make(**named(row)).SerializeToString() for row in [*rows, bad_row()]]
    files = descriptor_pb2.FileDescriptorSet(file=[file])
    descriptors = base64.b64encode(files.SerializeToString()).decode()
    options = {"format": {"format": "protobuf", "descriptors": descriptors}}
    return spread(values), options, rows, nothing


def debezium_records(rows: list[Row]) -> Made:
    """Every row is inserted; every third then changed, every fifth deleted."""
    records: list[Sent] = []
    kept: dict[int, Row] = {}

    def tell(op: str, row: Iterable[Any]) -> None:
        found = dict(zip(NAMES, row, strict=True))
        before, after = (found, None) if op == "d" else (None, found)
        event = {"op": op, "before": before, "after": after, "source": {}}
        records.append((found["id"] % 2, b"%d" % found["id"], json.dumps(event).encode()))

    for row in rows:
        tell("c", row)
        kept[row[0]] = row
    for row in rows[::3]:
        kept[row[0]] = (*row[:2], row[2] + 1, *row[3:])
        tell("u", kept[row[0]])
    for row in rows[::5]:
        tell("d", kept.pop(row[0]))
    tell("c", bad_row())
    options = {"format": "debezium-json", "mode": "upsert", "key": ["id"]}
    return records, options, list(kept.values()), nothing


def upsert_records(rows: list[Row]) -> Made:
    """By the customer: the last row of each stays, of the first few none."""
    records: list[Sent] = []
    kept: dict[int, Row] = {}
    for row in rows:
        kept[row[1]] = row
        records.append((row[1] % 2, b"%d" % row[1], json.dumps(named(row)).encode()))
    for customer in range(3):
        kept.pop(customer, None)
        records.append((customer % 2, b"%d" % customer, None))
    records.append((0, b"44", json.dumps(named(bad_row())).encode()))
    columns = [{**c, **IN_KEY} if c["name"] == "customer" else c for c in COLUMNS]
    upsert = {"mode": "upsert", "key": ["customer"], "key_format": "json", "columns": columns}
    return records, {"format": "json", **upsert}, list(kept.values()), nothing


TOPICS: dict[str, Callable[[list[Row]], Made]] = {
    "json": json_records,
    "csv": csv_records,
    "text": text_records,
    "avro": avro_records,
    "protobuf": protobuf_records,
    "debezium-json": debezium_records,
    "upsert": upsert_records,
}
