"""JSON records to columns: the compiled scan, and the exact slow path for the rest.

A number keeps all its digits: it is read as text, so that nothing passes through a double.
Undeclared keys are skipped; of a repeated key the last value counts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from tidemark_native import formats
from tidemark_native.formats import (
    JSON_ARRAY,
    JSON_ESCAPED,
    JSON_FALSE,
    JSON_NULL,
    JSON_NUMBER,
    JSON_OBJECT,
    JSON_STRING,
    JSON_TRUE,
)

from connectors.formats.arrays import column_of_arrays
from connectors.formats.columns import Faults, column_of_texts, without
from connectors.formats.declared import DeclaredColumn
from connectors.formats.encoded import column_of_base64
from connectors.formats.fields import Fields, malformed, shown, utf8_records
from connectors.formats.jsonb_text import check_json
from connectors.formats.times import column_of_counts
from dataflow.delta import Column
from dataflow.types import TypeKind

_NAMES = ("nothing", "null", "a string", "a string", "a number", "false", "true")
_NAMES += ("an object", "an array")
_TEXTS = (JSON_STRING, JSON_ESCAPED)
_JSONS = (TypeKind.JSON, TypeKind.JSONB)
_NUMBERS = (
    *(TypeKind.INT2, TypeKind.INT4, TypeKind.INT8, TypeKind.FLOAT4, TypeKind.FLOAT8),
    *(TypeKind.FIXED, TypeKind.DECIMAL),
)
_DECODER = json.JSONDecoder()
_BLANKS = " \t\n\r"


class JsonReader:
    """Reads the declared paths of JSON records."""

    def __init__(self, columns: Sequence[DeclaredColumn]) -> None:
        self._columns = columns
        paths: dict[tuple[str, ...], int] = {(): 0}
        parents = [-1]
        # Breadth first, so that siblings are in their declared order and keys are found quickly.
        for depth in range(1, max((len(c.path) for c in columns), default=0) + 1):
            for column in columns:
                path = column.path[:depth]
                if len(path) == depth and path not in paths:
                    paths[path] = len(parents)
                    parents.append(paths[path[:-1]])
        keys = [path[-1].encode() if path else b"" for path in paths]
        self._paths = list(paths)
        self._nodes = np.array(parents, np.int64)
        self._key_ends = np.zeros(len(keys) + 1, np.int64)
        np.cumsum([len(key) for key in keys], out=self._key_ends[1:])
        self._keys = np.frombuffer(b"".join(keys) or b"\0", np.uint8)
        self._column_nodes = [paths[column.path] for column in columns]
        self._allowed = [_allowed(column) for column in columns]
        self._needs_object = any(column.path for column in columns)

    def read(self, records: Sequence[bytes]) -> Fields:
        """Return one value for each record in each column; a missing key is NULL, like null."""
        fields = Fields([])
        found = self._scan(records, fields)
        if self._needs_object:
            for row in np.flatnonzero(found.kinds[0] != JSON_OBJECT).tolist():
                kind = _NAMES[found.kinds[0, row]]
                fields.refuse(row, malformed(f"not a JSON object but {kind}"))
        for column, node, allowed in zip(
            self._columns, self._column_nodes, self._allowed, strict=True
        ):
            values, faults = _convert(column, found.at(node), allowed)
            fields.columns.append(values)
            fields.refuse_values(column.field.name, faults)
        return fields

    def _scan(self, records: Sequence[bytes], fields: Fields) -> _Found:
        records, joined = utf8_records(records, fields)
        offsets = np.zeros(len(records) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, records), np.int64, len(records)) + 1, out=offsets[1:])
        raw = np.frombuffer(joined, np.uint8)
        found = _Found(
            raw, *formats.scan_json(offsets, raw, self._nodes, self._key_ends, self._keys)
        )
        more: list[bytes] = []
        size = len(joined)
        for row in np.flatnonzero(found.marks).tolist():
            try:
                slow = self._slow(records[row])
            except ValueError as error:
                fields.refuse(row, malformed(str(error)))
                continue
            for node, (kind, text) in slow.items():
                found.kinds[node, row] = kind
                is_text = kind in _TEXTS
                found.starts[node, row] = size + is_text
                found.ends[node, row] = size + len(text) - is_text
                more.append(text)
                size += len(text)
        if more:
            found.raw = np.concatenate([raw, np.frombuffer(b"".join(more), np.uint8)])
        return found

    def _slow(self, record: bytes) -> dict[int, tuple[int, bytes]]:
        """Return node -> (kind, text) of a record that is valid JSON; ValueError if it is not."""
        text = record.decode()
        check_json(text)
        found: dict[int, tuple[int, bytes]] = {}
        texts = {path: text_of for path, text_of in _walk(text.strip(_BLANKS), self._paths)}
        for node, path in enumerate(self._paths):
            if path in texts:
                found[node] = (_kind(texts[path]), texts[path].encode())
        return found


class _Found:
    """The positions of the values in `raw`, by node and record."""

    def __init__(self, raw: np.ndarray, *arrays: np.ndarray) -> None:
        self.raw = raw
        self.starts, self.ends, self.kinds, self.marks = arrays

    def at(self, node: int) -> _Values:
        return _Values(self.raw, self.starts[node], self.ends[node], self.kinds[node])


class _Values:
    """The values of one node."""

    def __init__(
        self, raw: np.ndarray, starts: np.ndarray, ends: np.ndarray, kinds: np.ndarray
    ) -> None:
        self.raw, self.starts, self.ends, self.kinds = raw, starts, ends, kinds

    def texts(self, selected: np.ndarray) -> tuple[Column, Faults]:
        """Return the texts of values of these kinds, strings without their escapes; others NULL."""
        offsets, out = formats.gather_json(self.raw, self.starts, self.ends, self.kinds, selected)
        faults: Faults = {}
        escaped = (self.kinds == JSON_ESCAPED) & selected[self.kinds]
        if escaped.any():
            offsets, out, marks = formats.unescape_json(offsets, out, escaped)
            faults = dict.fromkeys(np.flatnonzero(marks).tolist(), "half of a surrogate pair")
        valid = selected[self.kinds]
        column = Column(offsets, None if valid.all() else valid, out)
        return Column(offsets, without(column.valid, faults, len(self.kinds)), out), faults

    def raw_texts(self) -> Column:
        """Return the JSON text of each value, strings with their quotes; null is NULL."""
        quotes = (self.kinds == JSON_STRING) | (self.kinds == JSON_ESCAPED)
        selected = np.arange(9) > JSON_NULL
        offsets, out = formats.gather_json(
            self.raw, self.starts - quotes, self.ends + quotes, self.kinds, selected
        )
        valid = selected[self.kinds]
        return Column(offsets, None if valid.all() else valid, out)

    def shown(self, row: int) -> str:
        """Return the value of a record, for a reason."""
        return shown(self.raw[self.starts[row] : self.ends[row]].tobytes())


def _convert(column: DeclaredColumn, values: _Values, allowed: np.ndarray) -> tuple[Column, Faults]:
    """Convert the values to the column's physical form; faults name the value."""
    type = column.field.type
    if type.kind is TypeKind.JSON:
        # The scan has checked it.
        answer, faults = values.raw_texts(), Faults()
    elif type.kind is TypeKind.JSONB:
        answer, faults = column_of_texts(type, values.raw_texts())
    elif column.element is not None:
        answer, faults = column_of_arrays(column, values.raw_texts())
    elif column.unit:
        texts, faults = values.texts(np.isin(np.arange(9), _TEXTS))
        answer, more = column_of_texts(type, texts)
        numbers, _ = values.texts(np.arange(9) == JSON_NUMBER)
        counted, less = column_of_counts(type, column.unit, numbers)
        faults |= more | less
        is_count = values.kinds == JSON_NUMBER
        mask = np.where(is_count, counted.mask(), answer.mask())
        answer = Column(np.where(is_count, counted.values, answer.values), mask)
    else:
        texts, faults = values.texts(allowed)
        if column.encoding == "base64":
            answer, more = column_of_base64(texts)
        else:
            answer, more = column_of_texts(type, texts)
        faults |= more
    faults = {row: f"{reason}: {values.shown(row)}" for row, reason in faults.items()}
    for row in np.flatnonzero(~allowed[values.kinds] & (values.kinds > JSON_NULL)).tolist():
        faults[row] = f"{_NAMES[values.kinds[row]]} where {type.name} is declared"
    return answer, faults


def _allowed(column: DeclaredColumn) -> np.ndarray:
    """Return bool[9]: the kinds of JSON values that the column accepts; null is always NULL."""
    kind = column.field.type.kind
    allowed = np.zeros(9, np.bool_)
    if kind in (*_JSONS, TypeKind.TEXT, TypeKind.BPCHAR):
        allowed[JSON_NULL + 1 :] = True
    elif column.element is not None:
        allowed[JSON_ARRAY] = True
    else:
        allowed[list(_TEXTS)] = True
        allowed[JSON_NUMBER] = kind in (*_NUMBERS, TypeKind.BOOL) or bool(column.unit)
        allowed[[JSON_TRUE, JSON_FALSE]] = kind is TypeKind.BOOL
    return allowed


def _kind(text: str) -> int:
    first = text[0]
    kinds = {
        '"': JSON_ESCAPED,
        "{": JSON_OBJECT,
        "[": JSON_ARRAY,
        "t": JSON_TRUE,
        "f": JSON_FALSE,
        "n": JSON_NULL,
    }
    return kinds.get(first, JSON_NUMBER)


def _walk(text: str, paths: Sequence[tuple[str, ...]]) -> list[tuple[tuple[str, ...], str]]:
    """Return (path, JSON text) of all paths that exist; the text must be valid JSON."""
    found: list[tuple[tuple[str, ...], str]] = [((), text)]
    members: dict[str, str] = {}
    at = _after_blanks(text, 1)
    while text[0] == "{" and text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        at = _after_blanks(text, _after_blanks(text, at) + 1)
        _, end = _DECODER.raw_decode(text, at)
        members[key] = text[at:end]
        at = _after_blanks(text, end)
        if text[at] == ",":
            at = _after_blanks(text, at + 1)
    for key in dict.fromkeys(path[0] for path in paths if path):
        if key in members:
            below = [path[1:] for path in paths if path and path[0] == key]
            found += [((key, *rest), inner) for rest, inner in _walk(members[key], below)]
    return found


def _after_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANKS:
        at += 1
    return at
