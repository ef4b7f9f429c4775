"""Protobuf records to columns: in the registry's wire format, or bare with a configured schema.

Unknown fields are skipped and missing ones have their defaults, by Protobuf's rules, so that
schemas may evolve. A missing field with presence is NULL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from connectors.formats.avro_bounds import MOST_VALUES
from connectors.formats.declared import DeclaredColumn
from connectors.formats.decoded_parts import read_part, scattered
from connectors.formats.fields import Fields, malformed, no_schema
from connectors.formats.protobuf_bounds import ProtobufBounds
from connectors.formats.protobuf_schema import (
    ProtobufSchema,
    find_fields,
    leaf_of,
    parser_of,
    value_of,
)
from connectors.formats.registry import PROTOBUF, SchemaRegistry, split_header
from dataflow.errors import SourceError

OPTIONS = {"schema", "descriptors", "message"}
_Kind = tuple[int, tuple[int, ...]]


class ProtobufReader:
    """Reads the declared paths of Protobuf records."""

    def __init__(
        self,
        columns: Sequence[DeclaredColumn],
        options: Mapping[str, Any],
        registry: SchemaRegistry | None,
    ) -> None:
        self._columns = columns
        self._registry = registry
        self._messages: dict[_Kind, Descriptor] = {}
        self._bounds: dict[int, tuple[Descriptor, ProtobufBounds]] = {}
        self._fixed: Descriptor | None = None
        text, encoded = options.get("schema"), options.get("descriptors")
        if (text or encoded) is None and registry is None:
            raise SourceError(
                "format.option",
                "format protobuf has neither a registry nor a schema",
                hint='"registry": {"url": ...}, or "schema" or "descriptors" with "message"',
            )
        if text is not None or encoded is not None:
            of_text = ProtobufSchema.of_text
            schema = of_text(text) if text else ProtobufSchema.of_descriptors(str(encoded))
            name = options.get("message")
            found = schema.first([0]) if name is None else schema.named(str(name))
            if found is None:
                raise SourceError("format.schema", "the Protobuf schema has no message",
                                  hint="define one, and name it")  # fmt: skip
            self._fixed = found

    def read(self, records: Sequence[bytes]) -> Fields:
        """Return one value for each record in each column. TemporaryError: the registry is
        unreachable.
        """
        fields = Fields([])
        parts = []
        for message, numbers, bodies in self._split(records, fields):
            parse = parser_of(message)
            rows, values = [], []
            refused = self._bounds_of(message).too_large(bodies)
            for position, (number, body) in enumerate(zip(numbers, bodies, strict=True)):
                if position in refused:
                    fields.refuse(number, malformed(f"more than {MOST_VALUES:,} values"))
                    continue
                try:
                    values.append(parse(body))
                except DecodeError as error:
                    fields.refuse(number, malformed(f"not a {message.full_name}: {error}"[:200]))
                    continue
                rows.append(number)
            parts.append((message, rows, values))
        for column in self._columns:
            pieces, positions = [], []
            for message, rows, values in parts:
                path = find_fields(message, column.path)
                found, leaf = [None] * len(values), None
                if path:
                    leaf, found = leaf_of(path[-1]), list(values)
                    for field in path:
                        found = [None if one is None else value_of(field, one) for one in found]
                pieces.append(read_part(column, leaf, rows, found, fields))
                positions.append(np.array(rows, np.int64))
            fields.columns.append(scattered(column, pieces, positions, len(records)))
        return fields

    def _bounds_of(self, message: Descriptor) -> ProtobufBounds:
        # Held with its bounds, so that no other message gets its id.
        if id(message) not in self._bounds:
            self._bounds[id(message)] = message, ProtobufBounds(message)
        return self._bounds[id(message)][1]

    def find_described(self, records: Sequence[bytes]) -> Descriptor | None:
        """Return the message of the last of these records, or the configured one."""
        if self._fixed is not None:
            return self._fixed
        parts = self._split(records, Fields([]))
        return parts[-1][0] if parts else None

    def _split(
        self, records: Sequence[bytes], fields: Fields
    ) -> list[tuple[Descriptor, list[int], list[bytes]]]:
        """Return (message, numbers of the records, their bodies) for each message that occurs."""
        if self._registry is None:
            assert self._fixed is not None
            return [(self._fixed, list(range(len(records))), list(records))]
        found: dict[_Kind, tuple[list[int], list[bytes]]] = {}
        for number, record in enumerate(records):
            split = split_header(record)
            indexed = None if split is None else _read_indexes(split[1])
            if split is None or indexed is None:
                fields.refuse(number, malformed("no schema registry header"))
                continue
            numbers, bodies = found.setdefault((split[0], indexed[0]), ([], []))
            numbers.append(number)
            bodies.append(indexed[1])
        parts = []
        for kind, (numbers, bodies) in found.items():
            message = self._fixed or self._described(kind)
            if isinstance(message, str):
                for number in numbers:
                    fields.refuse(number, no_schema(message))
                continue
            parts.append((message, numbers, bodies))
        return parts

    def _described(self, kind: _Kind) -> Descriptor | str:
        """Return the message of a schema's id and indexes, or why there is none."""
        if kind not in self._messages:
            assert self._registry is not None
            found, missing = self._registry.by_id(kind[0]), f"message {list(kind[1])}"
            missing = f"the registry has no {missing} of a Protobuf schema {kind[0]}"
            if found is None or found.type != PROTOBUF:
                return missing
            try:
                message = ProtobufSchema.of_text(found.text, found.references).first(kind[1])
            except SourceError as error:
                return f"schema {kind[0]} cannot be read: {error.detail}"
            if message is None:
                return missing
            self._messages[kind] = message
        return self._messages[kind]


def _read_indexes(body: bytes) -> tuple[tuple[int, ...], bytes] | None:
    """Return (the message's indexes, the rest): zigzag varints, their count first; 0 is [0].

    >>> _read_indexes(bytes([0, 9])), _read_indexes(bytes([4, 2, 0, 9]))
    (((0,), b'\\t'), ((1, 0), b'\\t'))
    """
    counted = _varint(body, 0)
    if counted is None or not 0 <= counted[0] <= 64:
        return None
    count, at = counted
    if count == 0:
        return (0,), body[at:]
    indexes = []
    for _ in range(count):
        one = _varint(body, at)
        if one is None or one[0] < 0:
            return None
        indexes.append(one[0])
        at = one[1]
    return tuple(indexes), body[at:]


def _varint(body: bytes, at: int) -> tuple[int, int] | None:
    """Return (zigzag value, position after it)."""
    value = shift = 0
    while at < len(body) and shift < 63:
        value |= (body[at] & 0x7F) << shift
        at += 1
        if body[at - 1] < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    return None
