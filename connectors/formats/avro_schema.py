"""Avro schemas: paths into them, and the meaning of each leaf.

The decoder does not see logical types: it would make Python objects that hold fewer values (no year
300000). The integers and bytes themselves are converted by columns. It sees defaults in the form of
decoded values: a schema writes them as JSON, and bytes as texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastavro.schema import SchemaParseException, UnknownType, parse_schema

from connectors.formats import connect_types
from connectors.formats.avro_bounds import MOST_TYPES, AvroBounds
from connectors.formats.jsonb_text import Numeral
from connectors.formats.leaves import Leaf, decimal_text, plain_scalar
from dataflow.errors import SourceError
from dataflow.types import (
    BOOL,
    DATE,
    FLOAT4,
    FLOAT8,
    INT4,
    INT8,
    JSONB,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    sql_type,
)

BYTEA = sql_type("bytea", 17)
_PRIMITIVE = {
    "boolean": Leaf(BOOL),
    "int": Leaf(INT4),
    "long": Leaf(INT8),
    "float": Leaf(FLOAT4),
    "double": Leaf(FLOAT8),
    "bytes": Leaf(BYTEA),
    "string": Leaf(TEXT),
    "null": Leaf(TEXT),
    "enum": Leaf(TEXT),
    "fixed": Leaf(BYTEA),
}
_LOGICAL = {
    "date": Leaf(DATE, "d"),
    "time-millis": Leaf(TIME, "ms"),
    "time-micros": Leaf(TIME, "us"),
    "timestamp-millis": Leaf(TIMESTAMPTZ, "ms"),
    "timestamp-micros": Leaf(TIMESTAMPTZ, "us"),
    "timestamp-nanos": Leaf(TIMESTAMPTZ, "ns"),
    "local-timestamp-millis": Leaf(TIMESTAMP, "ms"),
    "local-timestamp-micros": Leaf(TIMESTAMP, "us"),
    "local-timestamp-nanos": Leaf(TIMESTAMP, "ns"),
}
_BAD_SCHEMA = (
    *(ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError),
    *(SchemaParseException, UnknownType),
)
# The key of a field's default as the schema writes it.
_DEFAULT = "tidemark.default"
_ON = {"date": "int", "time-millis": "int", "uuid": "string"}
# The Python type that the decoder returns for each Avro type; it selects the branch of a union.
_PYTHON: dict[str, type] = {
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "bytes": bytes,
    "fixed": bytes,
    "string": str,
    "enum": str,
    "record": dict,
    "map": dict,
    "array": list,
}


class AvroSchema:
    """One schema, with its named types."""

    def __init__(self, text: str, references: Mapping[str, str] | None = None) -> None:
        """Parse a schema. SourceError format.schema."""
        self.texts = (text, dict(references or {}))
        self._named: dict[str, Any] = {}
        self._decoded_values = 0
        try:
            for one in (references or {}).values():
                parse_schema(_checked_apart(json.loads(one)), named_schemas=self._named)
            self.root: Any = parse_schema(
                _checked_apart(json.loads(text)), named_schemas=self._named, _force=True
            )
            self._bare = {name: _bare(schema) for name, schema in self._named.items()}
            bare = _bare(_checked_apart(json.loads(text)))
            # Not forced: the types of a union are marked as parsed then, and not parsed again.
            self.decoder: Any = parse_schema(bare, named_schemas=self._bare)
            self.bounds = AvroBounds(self)
        except _BAD_SCHEMA as error:
            raise _refusal(error) from None

    def as_reader(self) -> AvroSchema:
        """Return this schema, of which the decoder takes what records lack. SourceError
        format.schema: a default is not of its type.
        """
        try:
            self._decode_defaults(self._bare.values())
        except _BAD_SCHEMA as error:
            raise _refusal(error) from None
        return self

    def find(self, path: Sequence[str]) -> Any | None:
        """Return the schema at a path; None if a name does not exist."""
        node: Any = self.root
        for key in path:
            inner = [one for one in self.branches(node) if self.name(one) in ("record", "map")]
            if len(inner) != 1:
                return None
            if self.name(inner[0]) == "map":
                node = inner[0]["values"]
                continue
            types = [one["type"] for one in inner[0]["fields"] if one["name"] == key]
            if not types:
                return None
            node = types[0]
        return node

    def branches(self, node: Any) -> list[Any]:
        """Return the non-null types of a value, with names resolved."""
        nodes = node if isinstance(node, list) else [node]
        found = [self.resolved(one) for one in nodes]
        return [one for one in found if self.name(one) != "null"]

    def name(self, node: Any) -> str:
        """Return record, map, long ... for a type that is not a union."""
        return node["type"] if isinstance(node, dict) else node

    def leaf(self, node: Any) -> Leaf:
        """Return what values of this type are."""
        branches = self.branches(node)
        if len(branches) == 1 and self.name(branches[0]) not in ("record", "map", "array"):
            return _scalar(branches[0])
        return Leaf(JSONB, plain=lambda value: self.plain(branches, value))

    def plain(self, branches: Sequence[Any], value: Any) -> Any:
        """Return a decoded value as JSON; ValueError if its branch is ambiguous."""
        if value is None:
            return None
        fitting = [one for one in branches if _fits(_PYTHON[self.name(one)], value)]
        if not fitting:
            raise ValueError("the union has no branch for this value")
        branch = self._record_branch(fitting, value) if isinstance(value, dict) else fitting[0]
        leaves = {_scalar(one) for one in fitting} if not isinstance(value, dict | list) else set()
        if len({(leaf.unit, leaf.scale) for leaf in leaves}) > 1:
            raise ValueError("the union's types are ambiguous")
        if isinstance(value, list):
            inner = self.branches(branch["items"])
            return [self.plain(inner, one) for one in value]
        if not isinstance(value, dict):
            return plain_scalar(_scalar(branch), value)
        if self.name(branch) == "map":
            inner = self.branches(branch["values"])
            return {key: self.plain(inner, one) for key, one in value.items()}
        if branch.get("connect.name") == connect_types.VARIABLE_DECIMAL:
            number = int.from_bytes(value["value"], "big", signed=True)
            return Numeral(decimal_text(number, value["scale"]))
        return {
            one["name"]: self.plain(self.branches(one["type"]), value[one["name"]])
            for one in branch["fields"]
        }

    def _record_branch(self, fitting: Sequence[Any], value: dict[str, Any]) -> Any:
        for one in fitting:
            if self.name(one) == "map" or {f["name"] for f in one["fields"]} == set(value):
                return one
        raise ValueError("the union has no branch for this value")

    def _decode_defaults(self, schemas: Iterable[Any]) -> None:
        """Set the decoded defaults in these record types. ValueError: one is not of its type."""
        for schema in schemas:
            for field in schema.get("fields", ()) if isinstance(schema, dict) else ():
                if _DEFAULT in field:
                    try:
                        field["default"] = self._decoded(field["type"], field[_DEFAULT])
                    except ValueError as error:
                        raise ValueError(f'default of "{field["name"]}": {error}') from None

    def _decoded(self, node: Any, default: Any) -> Any:
        """Return the JSON of a default as the decoder would return the value; ValueError."""
        # Defaults of fields within defaults: a few lines may stand for any number of values.
        self._decoded_values += 1
        if self._decoded_values > MOST_TYPES:
            raise RecursionError(f"its defaults have more than {MOST_TYPES:,} values")
        reasons = []
        for one in node if isinstance(node, list) else [node]:
            try:
                return self._decoded_as(self.resolved(one), default)
            except ValueError as error:
                reasons.append(str(error))
        raise ValueError(", ".join(reasons) or "a union of no types")

    def _decoded_as(self, node: Any, default: Any) -> Any:
        if isinstance(node, list):
            return self._decoded(node, default)
        name = self.name(node)
        if name == "null" and default is None:
            return None
        if name == "array" and isinstance(default, list):
            return [self._decoded(node["items"], one) for one in default]
        if name == "map" and isinstance(default, dict):
            return {key: self._decoded(node["values"], one) for key, one in default.items()}
        if name == "record" and isinstance(default, dict):
            return {one["name"]: self._decoded_field(one, default) for one in node["fields"]}
        kind = _PYTHON.get(name)
        if name in ("float", "double") and isinstance(default, int | float | str):
            # A text may be NaN or Infinity, which JSON does not have.
            return float(default)
        if kind is bytes and isinstance(default, str):
            return _bytes_of(default, node["size"] if name == "fixed" else None)
        if name == "enum" and default not in node["symbols"]:
            raise ValueError(f"{_shown(default)} is no symbol of the enum")
        if kind not in (int, bool, str) or not _fits(kind, default):
            raise ValueError(f"{_shown(default)} is not of type {name}")
        if kind is int and not -(2**63) <= default < 2**63:
            raise ValueError(f"{default} is out of the range of {name}")
        return default

    def _decoded_field(self, field: Mapping[str, Any], default: Mapping[str, Any]) -> Any:
        """Return a field of a record's default: what it gives, or the field's own default."""
        name = field["name"]
        if name not in default and _DEFAULT not in field:
            raise ValueError(f'the record lacks its field "{name}"')
        return self._decoded(field["type"], default[name] if name in default else field[_DEFAULT])

    def resolved(self, node: Any) -> Any:
        """Return the definition of a name, and the inner type of {"type": {...}}."""
        while True:
            if isinstance(node, str) and node in self._named:
                node = self._named[node]
            elif isinstance(node, dict) and isinstance(node["type"], dict | list):
                node = node["type"]
            elif isinstance(node, dict) and node["type"] in self._named:
                node = self._named[node["type"]]
            else:
                return node


def _fits(kind: type, value: Any) -> bool:
    """Return True if a decoded value is of the kind; a bool is not an integer here."""
    return isinstance(value, kind) and isinstance(value, bool) == (kind is bool)


def _scalar(node: Any) -> Leaf:
    if isinstance(node, str):
        return _PRIMITIVE[node]
    base, logical = node["type"], node.get("logicalType", "")
    named = connect_types.NAMED_LEAVES.get(node.get("connect.name", ""))
    if named is not None and (base in ("int", "long")) == bool(named.unit):
        return named
    if logical == "decimal" and base in ("bytes", "fixed"):
        return connect_types.decimal_leaf(int(node.get("scale", 0)))
    if logical == "uuid" and base == "string":
        return Leaf(connect_types.UUID)
    if logical in _LOGICAL and base == _ON.get(logical, "long"):
        return _LOGICAL[logical]
    return _PRIMITIVE[base]


def _bytes_of(default: str, size: int | None) -> bytes:
    """Return the bytes that a default writes as the characters of the same numbers; ValueError."""
    try:
        found = default.encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError(f"{_shown(default)} has characters above U+00FF, no bytes") from None
    if size is not None and len(found) != size:
        raise ValueError(f"{len(found)} bytes where fixed has {size}")
    return found


def _refusal(error: Exception) -> SourceError:
    return SourceError(
        "format.schema",
        "this is not an Avro schema",
        detail=f"{type(error).__name__}: {error}"[:300],
        hint="give the schema's JSON text, with all types that it names",
    )


def _shown(default: Any) -> str:
    return json.dumps(default)[:100]


def _bare(node: Any) -> Any:
    """Return the schema without logical types."""
    if isinstance(node, list):
        return [_bare(one) for one in node]
    if isinstance(node, dict):
        return {
            key: value if key in ("default", _DEFAULT) else _bare(value)
            for key, value in node.items()
            if key != "logicalType" and not key.startswith("__")
        }
    return node


def _checked_apart(node: Any) -> Any:
    """Return the schema with the defaults of its fields under another key.

    The parser checks some of them, refuses valid ones and accepts others as they are.
    """
    if isinstance(node, list):
        return [_checked_apart(one) for one in node]
    if not isinstance(node, dict):
        return node
    return {
        key: [_default_apart(one) for one in value]
        if key == "fields" and isinstance(value, list)
        else value
        if key == "default"
        else _checked_apart(value)
        for key, value in node.items()
    }


def _default_apart(field: Any) -> Any:
    found = _checked_apart(field)
    if isinstance(field, dict) and "default" in field:
        found[_DEFAULT] = found.pop("default")
    return found
