"""Avro records to columns: in the registry's wire format, or bare with a configured schema.

The record names the writer's schema. A declared schema (in the options, or a pinned version of a
subject) is the reader's, by Avro's rules of resolution. Without one, each record is read by its own
schema, and what it lacks is NULL.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import numpy as np
from fastavro import schemaless_reader
from fastavro.read import SchemaResolutionError

from connectors.formats.avro_schema import AvroSchema
from connectors.formats.declared import DeclaredColumn
from connectors.formats.decoded_parts import read_part, scattered, values_at
from connectors.formats.fields import Fields, malformed, no_schema
from connectors.formats.registry import AVRO, SchemaRegistry, split_header
from dataflow.errors import SourceError

OPTIONS = {"schema", "subject", "version"}
_UNREADABLE = (
    *(EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError, StopIteration),
    *(struct.error, MemoryError, SchemaResolutionError),
)


class AvroDecoder:
    """Decodes records to Python values by their schemas.

    reader: the configured or pinned schema, None until it is known. TemporaryError: the registry is
    unreachable.
    """

    def __init__(self, options: Mapping[str, Any], registry: SchemaRegistry | None) -> None:
        self._registry = registry
        self._options = options
        self._by_id: dict[int, AvroSchema] = {}
        text = options.get("schema")
        if registry is None and text is None:
            raise SourceError(
                "format.option",
                "format avro has neither a registry nor a schema",
                hint='"registry": {"url": ...} or "schema": "..."',
            )
        self.reader = None if text is None else AvroSchema(str(text)).as_reader()

    def decode(
        self, records: Sequence[bytes], fields: Fields
    ) -> list[tuple[AvroSchema, list[int], list[Any]]]:
        """Return (schema, numbers of the records, values) for each schema that occurs."""
        if self._registry is None:
            assert self.reader is not None
            numbers = list(range(len(records)))
            return [self._read(self.reader, None, numbers, records, fields)]
        if self.reader is None and "subject" in self._options:
            subject, version = self._options["subject"], self._options.get("version", "latest")
            found = self._registry.by_subject(str(subject), version)
            self.reader = AvroSchema(found.text, found.references).as_reader()
        by_id: dict[int, tuple[list[int], list[bytes]]] = {}
        for number, record in enumerate(records):
            split = split_header(record)
            if split is None:
                fields.refuse(number, malformed("no schema registry header"))
                continue
            numbers, bodies = by_id.setdefault(split[0], ([], []))
            numbers.append(number)
            bodies.append(split[1])
        parts = []
        for id, (numbers, bodies) in by_id.items():
            writer = self._writer(id)
            if isinstance(writer, str):
                for number in numbers:
                    fields.refuse(number, no_schema(writer))
                continue
            parts.append(self._read(writer, self.reader, numbers, bodies, fields))
        return parts

    def _writer(self, id: int) -> AvroSchema | str:
        """Return the schema of an id, or why there is none."""
        if id not in self._by_id:
            assert self._registry is not None
            found = self._registry.by_id(id)
            if found is None or found.type != AVRO:
                return f"the registry has no Avro schema {id}"
            if self.reader is not None and self.reader.texts == (found.text, found.references):
                # Records of the reader's own schema need no resolution.
                self._by_id[id] = self.reader
                return self.reader
            try:
                self._by_id[id] = AvroSchema(found.text, found.references)
            except SourceError as error:
                return f"schema {id} cannot be read: {error.detail}"
        return self._by_id[id]

    def _read(
        self,
        writer: AvroSchema,
        reader: AvroSchema | None,
        numbers: Sequence[int],
        bodies: Sequence[bytes],
        fields: Fields,
    ) -> tuple[AvroSchema, list[int], list[Any]]:
        target = None if reader is None or reader is writer else reader.decoder
        rows, values = [], []
        faults = dict(writer.bounds.faults(bodies))
        for position, (number, body) in enumerate(zip(numbers, bodies, strict=True)):
            if position in faults:
                fields.refuse(number, malformed(faults[position]))
                continue
            stream = BytesIO(body)
            try:
                value = schemaless_reader(stream, writer.decoder, target)
            except _UNREADABLE as error:
                fields.refuse(
                    number, malformed(f"does not match its Avro schema: {_shown_error(error)}")
                )
                continue
            if stream.tell() != len(body):
                fields.refuse(number, malformed("bytes after the Avro record"))
                continue
            rows.append(number)
            values.append(value)
        return (reader or writer), rows, values


class AvroReader:
    """Reads the declared paths of Avro records."""

    def __init__(
        self,
        columns: Sequence[DeclaredColumn],
        options: Mapping[str, Any],
        registry: SchemaRegistry | None,
    ) -> None:
        self._columns = columns
        self._decoder = AvroDecoder(options, registry)

    def read(self, records: Sequence[bytes]) -> Fields:
        """Return one value for each record in each column."""
        fields = Fields([])
        parts = self._decoder.decode(records, fields)
        for column in self._columns:
            pieces, positions = [], []
            for schema, rows, values in parts:
                node = schema.find(column.path)
                leaf = None if node is None else schema.leaf(node)
                found = values_at(values, column.path)
                pieces.append(read_part(column, leaf, rows, found, fields))
                positions.append(np.array(rows, np.int64))
            fields.columns.append(scattered(column, pieces, positions, len(records)))
        return fields


def _shown_error(error: BaseException) -> str:
    return f"{type(error).__name__} {error}".strip()[:120]
