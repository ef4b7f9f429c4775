"""Formats by name: turn the options of a source into a RecordFormat.

Wrong options are reported here, before any record is read. A registry is reached only when records
are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from connectors.extras import extra_required
from connectors.formats import csv_reader, debezium_json
from connectors.formats.csv_reader import CsvReader
from connectors.formats.debezium import DebeziumFormat, EnvelopeReader
from connectors.formats.debezium_json import DebeziumJson
from connectors.formats.declared import KEY, VALUE, DeclaredColumn
from connectors.formats.fields import Reader
from connectors.formats.json_reader import JsonReader
from connectors.formats.record_format import RecordFormat
from connectors.formats.registry import SchemaRegistry
from connectors.formats.row_format import RowFormat
from connectors.formats.text_reader import TextReader
from dataflow.errors import SourceError

Options = Mapping[str, Any]
MakeReader = Callable[[Sequence[DeclaredColumn], Options, SchemaRegistry | None], Reader]

MakeEnvelopes = Callable[[Sequence[DeclaredColumn], Options, SchemaRegistry | None], EnvelopeReader]

# What makes a reader, and the options that it knows.
ReaderFormat = tuple[MakeReader, set[str]]
EnvelopeFormat = tuple[MakeEnvelopes, set[str]]


def _avro() -> ReaderFormat:
    with extra_required("record format avro"):
        from connectors.formats import avro_reader
    return avro_reader.AvroReader, avro_reader.OPTIONS


def _protobuf() -> ReaderFormat:
    with extra_required("record format protobuf"):
        from connectors.formats import protobuf_reader
    return protobuf_reader.ProtobufReader, protobuf_reader.OPTIONS


def _debezium_avro() -> EnvelopeFormat:
    with extra_required("record format debezium-avro"):
        from connectors.formats import debezium_avro
    return debezium_avro.DebeziumAvro, debezium_avro.OPTIONS


_READERS: dict[str, Callable[[], ReaderFormat]] = {
    "json": lambda: (lambda columns, options, registry: JsonReader(columns), set()),
    "text": lambda: (lambda columns, options, registry: TextReader(columns), set()),
    "csv": lambda: (
        lambda columns, options, registry: CsvReader(columns, options),
        csv_reader.OPTIONS,
    ),
    "avro": _avro,
    "protobuf": _protobuf,
}
_ENVELOPES: dict[str, Callable[[], EnvelopeFormat]] = {
    "debezium-json": lambda: (
        lambda columns, options, registry: DebeziumJson(columns, options),
        debezium_json.OPTIONS,
    ),
    "debezium-avro": _debezium_avro,
}


def open_format(
    options: Options, columns: Sequence[DeclaredColumn], registry: SchemaRegistry | None = None
) -> RecordFormat:
    """Return the format of {"format": name, "key": {"format": name}, "registry": {...}, ...}.

    registry: an open one, instead of that of the options. SourceError format.unknown,
    format.option, format.column and the format's own refusals; TidemarkError package.missing.
    """
    if registry is None and options.get("registry") is not None:
        registry = SchemaRegistry(options["registry"])
    name = str(options.get("format", ""))
    if name in _ENVELOPES:
        make, allowed = _ENVELOPES[name]()
        _refuse_unknown(name, options, allowed | {"registry", "key"})
        return DebeziumFormat(columns, make(columns, options, registry))
    in_value = [column for column in columns if column.origin == VALUE]
    in_key = [column for column in columns if column.origin == KEY]
    rest = {name: value for name, value in options.items() if name not in ("key", "registry")}
    value_reader = open_reader(rest, in_value, registry)
    key_options = options.get("key")
    if key_options is None and in_key:
        raise SourceError(
            "format.option",
            f'column "{in_key[0].field.name}" is declared in the key, but no key format is set',
            hint='set "key": {"format": "text"} for a key that is one bare value, or "json"',
        )
    key_reader = open_reader(key_options, in_key, registry) if in_key and key_options else None
    return RowFormat(columns, value_reader, key_reader)


def open_reader(
    options: Options, columns: Sequence[DeclaredColumn], registry: SchemaRegistry | None
) -> Reader:
    """Return the reader of one part of the records."""
    name = str(options.get("format", ""))
    if name not in _READERS:
        raise SourceError(
            "format.unknown",
            f'record format "{name}" does not exist',
            hint=f"one of {', '.join(sorted({**_READERS, **_ENVELOPES}))}",
        )
    make, allowed = _READERS[name]()
    _refuse_unknown(name, options, allowed)
    return make(columns, options, registry)


def _refuse_unknown(name: str, options: Options, allowed: set[str]) -> None:
    unknown = sorted(set(options) - allowed - {"format"})
    if unknown:
        raise SourceError(
            "format.option",
            f'format "{name}" has no option "{unknown[0]}"',
            hint=f"known: {', '.join(sorted(allowed)) or 'none'}",
        )
