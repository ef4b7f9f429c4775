"""Debezium's envelopes in JSON, with or without a `schema` beside the `payload`.

The rows inside are JSON records and use the same reader. If there is a schema, its names say what
numbers and texts mean (times, decimals); otherwise the declared units do.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import orjson

from connectors.formats.columns import Faults, column_of_texts, without
from connectors.formats.connect_types import DECIMAL, NAMED_LEAVES
from connectors.formats.debezium import PLACEHOLDER, Envelopes, Rows, order_of, transaction_of
from connectors.formats.debezium_order import UNKNOWN
from connectors.formats.declared import DeclaredColumn, declare_columns
from connectors.formats.encoded import read_base64
from connectors.formats.fields import Fields, malformed
from connectors.formats.json_reader import JsonReader
from connectors.formats.jsonb_text import load_json
from connectors.formats.leaves import decimal_text, dump
from dataflow.delta import KIND_BYTES, Column
from dataflow.errors import SourceError
from dataflow.types import TEXT, TypeKind

OPTIONS = {"placeholder", "decimals", "binary"}
_ENVELOPE = (
    *("op", "after", "before", "source", "transaction", "payload", "schema"),
    "ts_ms",
)
_TIMES = (TypeKind.DATE, TypeKind.TIME, TypeKind.TIMESTAMP, TypeKind.TIMESTAMPTZ)
_NUMERICS = (TypeKind.FIXED, TypeKind.DECIMAL)
_JSONS = (TypeKind.JSON, TypeKind.JSONB)
_LARGEST = 5_000


class DebeziumJson:
    """Reads envelopes of JSON."""

    def __init__(self, columns: Sequence[DeclaredColumn], options: Mapping[str, Any]) -> None:
        decimals, binary = options.get("decimals", "string"), options.get("binary", "base64")
        if decimals not in ("string", "double", "precise") or binary not in ("base64", "hex"):
            raise SourceError(
                "format.option",
                "option decimals or binary of debezium-json has an unknown value",
                hint='decimals: "string", "double" or "precise"; binary: "base64" or "hex"',
            )
        self._columns = columns
        self._is_precise, self._is_hex = decimals == "precise", binary == "hex"
        self._placeholder = str(options.get("placeholder", PLACEHOLDER))
        self._marks = _marks_of(self._placeholder)
        self._envelope = JsonReader(
            declare_columns([{"name": name, "type": "json"} for name in _ENVELOPE])
        )
        self._readers: dict[bytes, _RowReader] = {}
        self._rows: dict[str, list[bytes | None]] = {}
        self._schemas: list[bytes | None] = []

    def read_envelopes(self, records: Sequence[bytes]) -> Envelopes:
        """See EnvelopeReader."""
        fields = self._envelope.read(records)
        found = {name: c.to_list() for name, c in zip(_ENVELOPE, fields.columns, strict=True)}
        wrapped = [number for number, one in enumerate(found["payload"]) if one is not None]
        if wrapped:
            inner = self._envelope.read([found["payload"][number] for number in wrapped])
            for name, column in zip(_ENVELOPE, inner.columns, strict=True):
                if name not in ("payload", "schema"):
                    for number, value in zip(wrapped, column.to_list(), strict=True):
                        found[name][number] = value
            for at, fault in inner.bad.items():
                fields.refuse(wrapped[at], fault)
        self._rows = {"after": found["after"], "before": found["before"]}
        self._schemas = found["schema"]
        n = len(records)
        ops = [""] * n
        transactions: list[tuple[str, int] | None] = [None] * n
        orders = np.full((n, 4), UNKNOWN, np.int64)
        for number in range(n):
            if number not in fields.bad:
                self._envelope_at(number, found, ops, transactions, orders, fields)
        return Envelopes(ops, orders, transactions, Fields([], fields.bad))

    def _envelope_at(self, number: int, found: Any, *out: Any) -> None:
        ops, transactions, orders, fields = out
        op = found["op"][number]
        if op is None:
            if found["ts_ms"][number] is None or found["after"][number] is not None:
                fields.refuse(number, malformed("not a Debezium envelope: no op"))
            return
        ops[number] = op[1:-1].decode() if op.startswith(b'"') else op.decode()
        ordinal = UNKNOWN
        if found["transaction"][number] is not None:
            transaction = transaction_of(_small(found["transaction"][number]))
            transactions[number] = transaction
            ordinal = transaction[1] if transaction else UNKNOWN
        if ops[number] != "r" and found["source"][number] is not None:
            source = _small(found["source"][number])
            if isinstance(source, dict):
                orders[number] = order_of(source, ordinal)

    def read_rows(self, numbers: Sequence[int], removes: np.ndarray, fields: Fields) -> Rows:
        """See EnvelopeReader."""
        rows: list[bytes] = []
        unchanged: dict[int, np.ndarray] = {}
        groups: dict[bytes, list[int]] = {}
        for at, number in enumerate(numbers):
            row = self._rows["before" if removes[at] else "after"][number]
            if row is None:
                row = b"{}"
                fields.refuse(number, malformed("an envelope without its row"))
            if any(mark in row for mark in self._marks):
                row = self._without_placeholders(row, at, len(numbers), unchanged)
            rows.append(row)
            groups.setdefault(self._schemas[number] or b"", []).append(at)
        pieces, index = [], np.zeros(len(rows), np.int64)
        done = 0
        for schema, members in groups.items():
            if schema not in self._readers:
                if len(self._readers) >= _LARGEST:
                    self._readers.clear()
                self._readers[schema] = _RowReader(
                    self._columns, schema, self._is_precise, self._is_hex
                )
            read = self._readers[schema].read([rows[at] for at in members])
            for at, fault in read.bad.items():
                fields.refuse(numbers[members[at]], fault)
            pieces.append(read.columns)
            index[members] = np.arange(done, done + len(members))
            done += len(members)
        if not pieces:
            empty = [Column.empty(column.field.type.physical) for column in self._columns]
            return Rows(empty, {})
        columns = [Column.concat(parts).take(index) for parts in zip(*pieces, strict=True)]
        return Rows(columns, unchanged)

    def _without_placeholders(
        self, row: bytes, at: int, n: int, unchanged: dict[int, np.ndarray]
    ) -> bytes:
        """Return the row with null for values that the database did not send, and mark them."""
        values = load_json(row.decode())
        given = self._placeholder
        encoded = base64.b64encode(given.encode()).decode()
        hexed = given.encode().hex()
        for position, column in enumerate(self._columns):
            node = values
            for key in column.path[:-1]:
                node = node.get(key) if isinstance(node, dict) else None
            if not isinstance(node, dict) or not column.path:
                continue
            value = node.get(column.path[-1])
            if value in (given, encoded, hexed, [given], {given: given}, json.dumps(given)):
                node[column.path[-1]] = None
                unchanged.setdefault(position, np.zeros(n, np.bool_))[at] = True
        # Half of a surrogate pair is reported when the row is read.
        return dump(values).encode(errors="surrogatepass")


class _RowReader:
    """Reads rows of one schema; columns with a semantic type go through their texts."""

    def __init__(
        self, columns: Sequence[DeclaredColumn], schema: bytes, is_precise: bool, is_hex: bool
    ) -> None:
        known = _row_fields(json.loads(schema)) if schema else {}
        self._columns = columns
        self._scales: dict[int, int | None] = {}
        self._texts: set[int] = set()
        self._hexed: set[int] = set()
        adjusted = []
        for at, column in enumerate(columns):
            kind, declared = (
                column.field.type.kind,
                known.get(column.path[0] if column.path else ""),
            )
            named = NAMED_LEAVES.get(declared.get("name") or "") if declared else None
            if kind in _TIMES:
                unit = named.unit if named else column.unit
                if not unit and kind is TypeKind.DATE:
                    unit = "d"
                column = replace(column, unit=unit)
            elif kind is TypeKind.BYTEA:
                column = replace(column, encoding="hex" if is_hex else "base64")
                if is_hex:
                    self._hexed.add(at)
            elif kind in _NUMERICS and (
                declared.get("name") == DECIMAL if declared else is_precise
            ):
                scale = (declared or {}).get("parameters", {}).get("scale")
                self._scales[at] = int(scale) if scale is not None else _scale_of(column)
            if kind in (*_JSONS, *_NUMERICS) or at in self._hexed:
                self._texts.add(at)
                field = replace(column.field, type=TEXT)
                column = replace(column, field=field, encoding="hex")
            adjusted.append(column)
        self._reader = JsonReader(adjusted)

    def read(self, rows: Sequence[bytes]) -> Fields:
        fields = self._reader.read(rows)
        for at in sorted(self._texts):
            declared, texts = self._columns[at], fields.columns[at]
            faults: Faults = {}
            if declared.field.type.kind in _NUMERICS:
                texts, faults = _numeric_texts(texts, self._scales.get(at), at in self._scales)
            elif at in self._hexed:
                whole = [None if one is None else b"\\x" + one for one in texts.to_list()]
                texts = Column.of(KIND_BYTES, whole)
            fields.columns[at], more = column_of_texts(declared.field.type, texts)
            fields.refuse_values(declared.field.name, more | faults)
        return fields


def _numeric_texts(texts: Column, scale: int | None, is_encoded: bool) -> tuple[Column, Faults]:
    """Convert Debezium's decimals: base64 of the unscaled value, {scale, value}, or texts."""
    if not is_encoded and b"{" not in (texts.data.tobytes() if texts.data is not None else b""):
        return texts, {}
    faults: Faults = {}
    found: list[bytes | str | None] = []
    for row, text in enumerate(texts.to_list()):
        found.append(text)
        try:
            if text is not None and text.startswith(b"{"):
                both = json.loads(text)
                found[row] = _unscaled(both["value"].encode(), int(both["scale"]))
            elif text is not None and is_encoded:
                found[row] = _unscaled(text, scale or 0)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            faults[row] = f"not a Debezium decimal: {error}"
            found[row] = None
    column = Column.of(KIND_BYTES, found)
    return Column(column.values, without(column.valid, {}, len(texts)), column.data), faults


def _unscaled(text: bytes, scale: int) -> str:
    return decimal_text(int.from_bytes(read_base64(text), "big", signed=True), scale)


def _scale_of(column: DeclaredColumn) -> int:
    """Return the declared scale of numeric(p,s), for envelopes without a schema."""
    type = column.field.type
    if type.typmod < 0:
        raise SourceError(
            "format.type",
            f'column "{column.field.name}" is numeric without the scale that it needs',
            hint="declare numeric(p,s), or let Debezium write decimals as strings",
        )
    scale = (type.typmod - 4) & 0x7FF
    return scale - 2048 if scale >= 1024 else scale


def _row_fields(schema: Any) -> dict[str, dict[str, Any]]:
    """Return the fields of the row by name, from the schema of an envelope."""
    for one in schema.get("fields") or () if isinstance(schema, dict) else ():
        if one.get("field") in ("after", "before"):
            return {inner["field"]: inner for inner in one.get("fields") or ()}
    return {}


def _small(text: bytes) -> Any:
    """Parse a block of the envelope; falls back where the fast parser rejects valid JSON texts."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)


def _marks_of(placeholder: str) -> tuple[bytes, ...]:
    raw = placeholder.encode()
    return raw, base64.b64encode(raw), raw.hex().encode()
