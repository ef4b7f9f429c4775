"""Oracle: the readers of options themselves: a schema names what a reader knows, and no more; a
default of the schema changes nothing where it is given."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import pytest

from connectors import netguard
from connectors.clickhouse import options as clickhouse
from connectors.clickhouse.sink_options import ClickHouseOptions
from connectors.clock import source as clock
from connectors.dbapi import options as dbapi
from connectors.delta.options import DeltaOptions
from connectors.files import options as files
from connectors.formats import csv_reader, debezium_avro, debezium_json, registry
from connectors.formats.avro_reader import OPTIONS as AVRO
from connectors.formats.protobuf_reader import OPTIONS as PROTOBUF
from connectors.http import options as http
from connectors.http.webhook_options import WebhookOptions
from connectors.iceberg.options import IcebergOptions
from connectors.kafka import options as kafka
from connectors.kafka import topic_options
from connectors.mongodb import options as mongodb
from connectors.mysql import options as mysql
from connectors.mysql import sink_options as mysql_sink
from connectors.parquet.options import ParquetOptions
from connectors.postgres.additional.options import TableOptions
from connectors.postgres.remote import options as postgres
from connectors.python import options as python
from connectors.sink import SinkTable
from connectors.stream import options as stream
from dataflow import types
from dataflow.errors import TidemarkError
from dataflow.schema import Field
from service.api.option_schemas import sink_schema, source_schema
from service.factory.sink_types import MODULES
from service.ingest.declared_sources import TYPES

Json = dict[str, Any]
Read = Callable[[Json], Any]

TABLE = SinkTable("public", "revenue", (Field("region", types.TEXT, False),), (0,))
COLUMNS = [{"name": "id", "type": "int4"}]
ROWS = {"key": ["id"], "columns": COLUMNS}
LOGIN = {"host": "h", "user": "u"}
REFERENCE = "${env:TIDEMARK_TEST}"
KAFKA = {
    "bootstrap_servers": "h:9092",
    "tls": {},
    "sasl": {"username": "u", "password": REFERENCE},
    "client": {"client.id": "x"},
}
TOPIC = {"format": {"format": "json"}, "columns": COLUMNS, "key_format": {"format": "text"}}
PAGED = {"type": "cursor", "parameter": "p", "from": "$.next"}
TABLES = {"tables": {"r": {"table": "s.t", "columns": COLUMNS, "key": ["id"]}}}
PATH = {"path": "/lake/revenue"}
# Of each type: what reads its options, and options that have every group. Where a group knows
# other options with other values, there are several.
SOURCES: dict[str, tuple[Read, list[Json]]] = {
    "files": (files.read_options, [{"relations": {"r": {"path": "/a/*.csv", "columns": COLUMNS}}}]),
    "kafka": (kafka.read_options, [{**KAFKA, "topics": {"r": TOPIC}}]),
    "http": (
        http.read_options,
        [
            {"url": "http://h", "relations": {"r": {**ROWS, "pagination": pages}}}
            for pages in (PAGED, {"type": "page"})
        ],
    ),
    "stream": (stream.read_options, [{"url": "ws://h", "relations": {"r": {"columns": COLUMNS}}}]),
    "dbapi": (
        dbapi.read_options,
        [{"module": "sqlite3", "relations": {"r": {"query": "SELECT 1", **ROWS}}}],
    ),
    "python": (python.read_options, [{"relations": {"r": {"function": "sqlite3:f", **ROWS}}}]),
    "mongodb": (
        mongodb.read_options,
        [{"servers": ["h"], "database": "d", "relations": {"r": ROWS}}],
    ),
    "mysql": (mysql.read_options, [{**LOGIN, "tls": {}, **TABLES}]),
    "postgres": (postgres.read_options, [{**LOGIN, "database": "d", "tls": {}, **TABLES}]),
    "clickhouse": (clickhouse.read_options, [{"url": "http://h", "relations": {"r": ROWS}}]),
    "clock": (clock.declare, [{}]),
}
REGISTRY = {"format": "avro", "registry": {"url": "http://h"}}
SINKS: dict[str, tuple[Read, list[Json]]] = {
    "kafka": (
        lambda given: topic_options.TopicOptions.of(given, TABLE),
        [{**KAFKA, **REGISTRY}],
    ),
    "clickhouse": (lambda given: ClickHouseOptions.of(given, TABLE), [{"url": "http://h"}]),
    "parquet": (lambda given: ParquetOptions.of(given, TABLE), [PATH]),
    "delta": (lambda given: DeltaOptions.of(given, TABLE), [PATH]),
    "iceberg": (
        lambda given: IcebergOptions.of(given, TABLE),
        [{**PATH, "catalog": "sqlite:////c.db"}],
    ),
    "postgres": (
        lambda given: TableOptions.of(given, TABLE),
        [{**LOGIN, "database": "d", "tls": {}}],
    ),
    "mysql": (
        lambda given: mysql_sink.TableOptions.of(given, TABLE),
        [{**LOGIN, "database": "d", "tls": {}}],
    ),
    "webhook": (WebhookOptions.of, [{"url": "http://h", "secret": [REFERENCE]}]),
}
ALL = [
    *((f"source {name}", source_schema, name, SOURCES) for name in TYPES),
    *((f"sink {name}", sink_schema, name, SINKS) for name in MODULES),
]
CASES = pytest.mark.parametrize(
    ("schema_of", "name", "readers"), [case[1:] for case in ALL], ids=[case[0] for case in ALL]
)
# What the formats of records read, and the registry of their schemas.
FORMAT = csv_reader.OPTIONS | AVRO | PROTOBUF | debezium_json.OPTIONS | debezium_avro.OPTIONS
OTHERWISE = {"format": FORMAT | {"format", "registry"}, "registry": registry.OPTIONS}
OTHERWISE["key_format"] = OTHERWISE["format"]
# What a connector reads of a database's options and does not list: a bucket of Iceberg.
LEFT_OUT = {"iceberg": {"ca_file", "virtual_host"}, "delta": {"ca_file"}}


@pytest.fixture(autouse=True)
def module_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netguard, "check_module", lambda name: None)


def options_of(schema: Json, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Json]]:
    """Yield (path, schema) of each option, within groups, lists and named objects too."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from options_of(inner, (*path, name))
    for word in ("items", "additionalProperties"):
        if isinstance(schema.get(word), dict):
            yield from options_of(schema[word], (*path, "*"))


@CASES
def test_every_option_has_a_label_and_a_description(
    schema_of: Callable[[str], Json], name: str, readers: Json
) -> None:
    schema = schema_of(name)
    faults = []
    for path, option in options_of(schema):
        if path[-1:] == ("*",) and "properties" not in option:
            continue
        title, described = option.get("title", ""), option.get("description", "")
        if not re.fullmatch(r"[A-Z].{1,60}", title) or not re.fullmatch(r".{3,200}\.", described):
            faults.append(f"{'.'.join(path)}: {title!r}, {described!r}")
        if set(option.get("required", ())) - option.get("properties", {}).keys():
            faults.append(f"{'.'.join(path)}: requires what it does not have")
        is_number = option.get("type") in ("number", "integer")
        if is_number and re.search("_(ms|s|bytes|mb)$", path[-1]) and not option.get("x-unit"):
            faults.append(f"{'.'.join(path)}: has no unit")
        is_secret = re.search("password|secret|token|session|access_key", path[-1] if path else "")
        if is_secret and not option.get("items", option).get("x-secret"):
            faults.append(f"{'.'.join(path)}: is not marked as a secret")
    assert not faults, "\n".join(faults)
    assert ("x-promise" in schema) == (readers is SINKS)


@CASES
def test_a_schema_names_what_the_reader_knows(
    schema_of: Callable[[str], Json], name: str, readers: Json
) -> None:
    schema, (read, samples) = schema_of(name), readers[name]
    for path, option in options_of(schema):
        own = set(option.get("properties", ()))
        if not own or option["title"] == "Column":
            continue
        last = path[-1] if path else ""
        if last in OTHERWISE:
            assert own == OTHERWISE[last], path
            continue
        known: set[str] = set()
        for sample in samples:
            known |= known_names(read, sample, path)
        if name == "files" and readers is SOURCES and not path:
            known.add("relations")
        assert own == known - LEFT_OUT.get(name if readers is SINKS else "", set()), path


@CASES
def test_a_default_is_what_the_reader_takes(
    schema_of: Callable[[str], Json], name: str, readers: Json
) -> None:
    read, samples = readers[name]
    for sample in samples:
        full = with_defaults(schema_of(name), sample)
        assert full != sample
        assert read(full) == read(sample), full


def known_names(read: Read, sample: Json, path: tuple[str, ...]) -> set[str]:
    """The names that the reader lists when it meets one that it does not know."""
    options = deepcopy(sample)
    for step in path:
        [options] = list(options.values()) if step == "*" else [options[step]]
    options["nosuch"] = 1
    whole = _with(sample, path, options)
    with pytest.raises(TidemarkError) as raised:
        read(whole)
    assert "nosuch" in raised.value.what or raised.value.option == "nosuch", raised.value
    listed = re.fullmatch(
        r'(?:known here: |known: |its only option is ")(.*?)"?', raised.value.hint
    )
    assert listed is not None, raised.value.hint
    return set(listed[1].split(", ")) - {"nosuch"}


def _with(value: Json, path: tuple[str, ...], inner: Json) -> Json:
    if not path:
        return inner
    found = {}
    for name, one in value.items():
        is_there = path[0] in ("*", name)
        found[name] = _with(one, path[1:], inner) if is_there else one
    return found


def with_defaults(schema: Mapping[str, Any], value: Json) -> Json:
    """The value with the defaults of its groups; those of a registry are the client's."""
    found = dict(value)
    for name, option in schema.get("properties", {}).items():
        if isinstance(found.get(name), dict):
            found[name] = found[name] if name == "registry" else with_defaults(option, found[name])
        elif "default" in option and name not in found:
            found[name] = option["default"]
    item = schema.get("additionalProperties")
    if isinstance(item, dict):
        for name, one in value.items():
            found[name] = with_defaults(item, one) if isinstance(one, dict) else one
    return found
