"""Encode a view's deltas as keys and values of its topic, whole batches at a time.

Mode `changes`: a record for each changed row, with its signed weight, retractions first. Mode
`upsert`: a record for each key, with the row after the epoch, or the rows before and after it; a
removed key ends in a tombstone. Invariant: all records of a key go to one partition, in the order
of epochs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from tidemark_native import formats

from connectors.formats import encode_rows as form
from connectors.formats.encode_rows import Piece
from connectors.sink import SinkTable
from dataflow.delta import Column, Delta, group_rows, row_hashes
from dataflow.schema import Field
from dataflow.types import INT8, TEXT

# Rows that are encoded at a time.
BATCH_ROWS = 8_192
INSERT, UPDATE, DELETE, TOMBSTONE = range(4)
OPERATIONS = ("insert", "update", "delete", "tombstone")

Mode = Literal["changes", "upsert"]
Values = Literal["after", "before_after"]


@dataclass(frozen=True)
class RecordBatch:
    """n records: keys, values (None: a tombstone), index into OPERATIONS, murmur2 of the key."""

    keys: Column
    values: Column
    operations: np.ndarray
    hashes: np.ndarray

    def __len__(self) -> int:
        return len(self.operations)


class RowForm(Protocol):
    """One format with the fields of one view; every piece has a value for each row."""

    def key(self, columns: Sequence[Column]) -> Column:
        """Keys."""
        ...

    def row(self, columns: Sequence[Column], n: int) -> Column:
        """Encode rows on their own: the value of mode `upsert`."""
        ...

    def part(self, columns: Sequence[Column], n: int) -> Column:
        """Encode rows as part of another value."""
        ...

    def change(self, operations: Column, weights: Column, rows: Column, tail: bytes) -> Column:
        """Encode values of mode `changes`."""
        ...

    def envelope(self, operations: Column, before: Column, after: Column, tail: bytes) -> Column:
        """Encode values with the rows before and after; these come from `part` or `nothing`."""
        ...

    def nothing(self) -> bytes:
        """Return the encoding of "no row"."""
        ...

    def operation(self, number: int) -> bytes:
        """Return the name of an operation within a value."""
        ...

    def tail(self, epoch: int, positions: Mapping[str, Any]) -> bytes:
        """Return epoch and position: the end of each value of an epoch."""
        ...


class TopicRecords:
    """The records of one view. mode, values: see the module. Keys of a multiset view are row
    hashes.
    """

    def __init__(
        self, table: SinkTable, form: RowForm, mode: Mode = "changes", values: Values = "after"
    ) -> None:
        self._table = table
        self._form = form
        self._mode = mode
        self._values = values

    def batches(
        self, delta: Delta, epoch: int, positions: Mapping[str, Any]
    ) -> Iterator[RecordBatch]:
        """Yield the records of a consolidated delta, in batches of bounded size."""
        tail = self._form.tail(epoch, positions)
        if self._mode == "changes":
            order = np.argsort(delta.weights > 0, kind="stable")
            for start in range(0, len(delta), BATCH_ROWS):
                yield self._changes(delta.take(order[start : start + BATCH_ROWS]), tail)
            return
        old, new = self._pairs(delta)
        for start in range(0, len(old), BATCH_ROWS):
            pick = slice(start, start + BATCH_ROWS)
            yield self._upserts(delta, old[pick], new[pick], tail)

    def _changes(self, delta: Delta, tail: bytes) -> RecordBatch:
        operations = np.where(delta.weights > 0, INSERT, DELETE)
        rows = self._form.part(delta.columns, len(delta))
        weights = Column(delta.weights)
        values = self._form.change(self._names(operations), weights, rows, tail)
        return _batch(self._keys(delta), values, operations)

    def _pairs(self, delta: Delta) -> tuple[np.ndarray, np.ndarray]:
        """Return for each key the positions of the old and the new row, -1 if there is none."""
        keys = [delta.columns[i] for i in self._table.key]
        group, first = group_rows(keys, len(delta))
        old, new = np.full(len(first), -1), np.full(len(first), -1)
        rows, is_new = np.arange(len(delta)), delta.weights > 0
        old[group[~is_new]] = rows[~is_new]
        new[group[is_new]] = rows[is_new]
        return old, new

    def _upserts(self, delta: Delta, old: np.ndarray, new: np.ndarray, tail: bytes) -> RecordBatch:
        operations = np.where(old < 0, INSERT, np.where(new < 0, DELETE, UPDATE))
        newest = delta.take(np.where(new < 0, old, new))
        keys = self._keys(newest)
        is_gone = operations == DELETE
        if self._values == "after":
            values = self._form.row(newest.columns, len(newest))
            operations = np.where(is_gone, TOMBSTONE, operations)
            return _batch(keys, _without(values, is_gone), operations)
        before, after = self._part_or_nothing(delta, old), self._part_or_nothing(delta, new)
        values = self._form.envelope(self._names(operations), before, after, tail)
        # A tombstone after each removal, for the compaction of the topic.
        order = np.sort(np.concatenate([np.arange(len(old)), np.flatnonzero(is_gone)]))
        is_second = np.concatenate([[False], order[1:] == order[:-1]])
        operations = np.where(is_second, TOMBSTONE, operations[order])
        return _batch(keys.take(order), _without(values.take(order), is_second), operations)

    def _part_or_nothing(self, delta: Delta, index: np.ndarray) -> Column:
        found = delta.take(index[index >= 0])
        parts = self._form.part(found.columns, len(found))
        positions = np.where(index >= 0, np.cumsum(index >= 0) - 1, len(found))
        return Column.concat([parts, Column.of("s", [self._form.nothing()])]).take(positions)

    def _names(self, operations: np.ndarray) -> Column:
        names = [self._form.operation(k) for k in range(len(OPERATIONS))]
        return form.one_of(names, operations)

    def _keys(self, delta: Delta) -> Column:
        if self._table.key:
            return self._form.key([delta.columns[i] for i in self._table.key])
        return self._form.key([row_texts(delta)])


def key_fields(table: SinkTable) -> tuple[Field, ...]:
    """Return the fields of a record's key: the view's own, or the hash of a multiset view's row."""
    if table.key:
        return tuple(table.fields[i] for i in table.key)
    return (Field("hash", TEXT, False),)


def row_texts(delta: Delta) -> Column:
    """Return 32 hex digits for each row."""
    raw = np.empty((len(delta), 2), ">u8")
    raw[:, 0], raw[:, 1] = row_hashes(delta.columns, len(delta))
    texts = np.frombuffer(raw.tobytes().hex().encode(), np.uint8)
    return Column(np.arange(len(delta) + 1, dtype=np.int64) * 32, None, texts)


class JsonForm:
    """JSON: rows are objects by column name."""

    def __init__(self, table: SinkTable) -> None:
        self._fields = table.fields
        self._key_fields = key_fields(table)

    def key(self, columns: Sequence[Column]) -> Column:
        """Keys."""
        return form.joined(form.json_row(self._key_fields, columns), len(columns[0]))

    def row(self, columns: Sequence[Column], n: int) -> Column:
        return form.joined(form.json_row(self._fields, columns), n)

    part = row

    def change(self, operations: Column, weights: Column, rows: Column, tail: bytes) -> Column:
        shown = form.json_column(Field("weight", INT8, False), weights)
        pieces: list[Piece] = [b'{"op":', operations, b',"weight":', shown, b',"row":', rows, tail]
        return form.joined(pieces, len(weights))

    def envelope(self, operations: Column, before: Column, after: Column, tail: bytes) -> Column:
        pieces = [b'{"op":', operations, b',"before":', before, b',"after":', after, tail]
        return form.joined(pieces, len(before))

    def nothing(self) -> bytes:
        return b"null"

    def operation(self, number: int) -> bytes:
        return f'"{OPERATIONS[number]}"'.encode()

    def tail(self, epoch: int, positions: Mapping[str, Any]) -> bytes:
        return f',"epoch":{epoch},"position":{json.dumps(positions)}}}'.encode()


class AvroForm:
    """Avro in the registry's wire format: a zero byte, the schema's id, the value.

    values: what the topic's values are, see `value_schema`. key_id, value_id: of the schemas.
    """

    def __init__(self, table: SinkTable, key_id: int, value_id: int) -> None:
        self._fields = table.fields
        self._key_fields = key_fields(table)
        self._key_prefix = _wire_prefix(key_id)
        self._prefix = _wire_prefix(value_id)

    def key(self, columns: Sequence[Column]) -> Column:
        """Keys."""
        pieces = [self._key_prefix, *form.avro_row(self._key_fields, columns)]
        return form.joined(pieces, len(columns[0]))

    def row(self, columns: Sequence[Column], n: int) -> Column:
        return form.joined([self._prefix, *form.avro_row(self._fields, columns)], n)

    def part(self, columns: Sequence[Column], n: int) -> Column:
        """Encode rows within a change, or as a branch of an envelope's union."""
        return form.joined(form.avro_row(self._fields, columns), n)

    def change(self, operations: Column, weights: Column, rows: Column, tail: bytes) -> Column:
        shown = form.avro_column(Field("weight", INT8, False), weights)
        return form.joined([self._prefix, operations, shown, rows, tail], len(weights))

    def envelope(self, operations: Column, before: Column, after: Column, tail: bytes) -> Column:
        return form.joined([self._prefix, operations, before, after, tail], len(before))

    def nothing(self) -> bytes:
        return form.long_text(0)

    def operation(self, number: int) -> bytes:
        return form.string_text(OPERATIONS[number])

    def tail(self, epoch: int, positions: Mapping[str, Any]) -> bytes:
        return form.long_text(epoch) + form.string_text(json.dumps(positions))


class AvroEnvelopeForm(AvroForm):
    """Avro values as envelopes: a row is a branch of a union with null."""

    def part(self, columns: Sequence[Column], n: int) -> Column:
        """Encode rows as the second branch of [null, Row]."""
        return form.joined([form.long_text(1), *form.avro_row(self._fields, columns)], n)


def key_schema(table: SinkTable) -> dict[str, Any]:
    """Return the Avro schema of a record's key."""
    return form.avro_record("Key", key_fields(table))


def value_schema(table: SinkTable, mode: Mode, values: Values) -> dict[str, Any]:
    """Return the Avro schema of a record's value."""
    row = form.avro_record("Row", table.fields)
    if mode == "upsert" and values == "after":
        return row
    fields: list[dict[str, Any]] = [{"name": "op", "type": "string"}]
    if mode == "changes":
        fields += [{"name": "weight", "type": "long"}, {"name": "row", "type": row}]
    else:
        fields += [
            {"name": "before", "type": ["null", row]},
            {"name": "after", "type": ["null", "Row"]},
        ]
    fields += [{"name": "epoch", "type": "long"}, {"name": "position", "type": "string"}]
    name = "Change" if mode == "changes" else "Envelope"
    return {"type": "record", "name": name, "namespace": "tidemark", "fields": fields}


def _wire_prefix(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big")


def _batch(keys: Column, values: Column, operations: np.ndarray) -> RecordBatch:
    return RecordBatch(keys, values, operations, formats.murmur2(keys.values, keys.data))


def _without(values: Column, is_gone: np.ndarray) -> Column:
    return Column(values.values, ~is_gone, values.data) if is_gone.any() else values
