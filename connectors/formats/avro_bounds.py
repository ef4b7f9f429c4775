"""How large a decoded Avro record may become, checked before it is decoded.

Invariant: the nodes that count_values walks are the types of the schema by which records were
written, each once, however often it is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from tidemark_native import formats

# Values of one record, and how deep they may be within each other.
MOST_VALUES = 1_000_000
MOST_DEPTH = 128
# What a schema may describe.
MOST_TYPES = 100_000
_SIZES = {"boolean": 1, "float": 4, "double": 8}
_MOST_SIZE = 1 << 40
_LONGS = ("int", "long", "enum")
_REASONS = {
    formats.AVRO_BROKEN: "it does not match its Avro schema: it ends early, or a length is wrong",
    formats.AVRO_TOO_MANY: f"it has more than {MOST_VALUES:,} values",
    formats.AVRO_TOO_DEEP: f"its values are nested more than {MOST_DEPTH} deep",
}


class Types(Protocol):
    """The types of a schema."""

    root: Any

    def resolved(self, node: Any) -> Any:
        """Return the definition of a type that may be a name."""
        ...

    def name(self, node: Any) -> str:
        """Return record, map, long ... for a type that is not a union."""
        ...


class AvroBounds:
    """Checks records of one schema. ValueError: the schema describes too many types."""

    def __init__(self, schema: Types) -> None:
        self._schema = schema
        self._numbers: dict[int, int] = {}
        self._pending: list[tuple[int, Any]] = []
        self._rows: list[tuple[int, int, int]] = []
        self._children: list[int] = []
        self._number(schema.root)
        while self._pending:
            number, node = self._pending.pop()
            self._rows[number] = self._described(node)
        self._nodes = np.array(self._rows, np.int64).reshape(-1, 3)
        self._child_numbers = np.array(self._children or [0], np.int64)

    def faults(self, records: Sequence[bytes]) -> Iterator[tuple[int, str]]:
        """Yield the position of each record that must not be decoded, and why."""
        offsets = np.zeros(len(records) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, records), np.int64, len(records)), out=offsets[1:])
        raw = np.frombuffer(b"".join(records) or b"\0", np.uint8)
        found = formats.count_values(
            offsets, raw, self._nodes, self._child_numbers, MOST_VALUES, MOST_DEPTH
        )
        for position in np.flatnonzero(found < 0).tolist():
            yield position, _REASONS[int(found[position])]

    def _number(self, node: Any) -> int:
        """Return the number of a type, which is described later if it is new."""
        resolved = node if isinstance(node, list) else self._schema.resolved(node)
        # The definitions live as long as the schema, so their ids are theirs; texts are few.
        key = hash(resolved) if isinstance(resolved, str) else id(resolved)
        if key not in self._numbers:
            self._numbers[key] = len(self._rows)
            self._pending.append((len(self._rows), resolved))
            self._rows.append((formats.AVRO_NULL, 0, 0))
            if len(self._rows) > MOST_TYPES:
                raise ValueError(f"it describes more than {MOST_TYPES:,} types")
        return self._numbers[key]

    def _described(self, node: Any) -> tuple[int, int, int]:
        if isinstance(node, list):
            return self._with_children(formats.AVRO_UNION, node)
        name = self._schema.name(node)
        if name in ("record", "error"):
            return self._with_children(formats.AVRO_RECORD, [one["type"] for one in node["fields"]])
        if name == "array":
            return self._with_children(formats.AVRO_ARRAY, [node["items"]])
        if name == "map":
            return self._with_children(formats.AVRO_MAP, [node["values"]])
        if name in _LONGS:
            return formats.AVRO_LONG, 0, 0
        if name == "null":
            return formats.AVRO_NULL, 0, 0
        if name in _SIZES or name == "fixed":
            return formats.AVRO_FIXED, 0, _SIZES[name] if name in _SIZES else _size_of(node)
        return formats.AVRO_BYTES, 0, 0

    def _with_children(self, kind: int, nodes: Sequence[Any]) -> tuple[int, int, int]:
        numbers = [self._number(node) for node in nodes]
        first = len(self._children)
        self._children += numbers
        return kind, first, len(numbers)


def _size_of(node: Any) -> int:
    size = int(node["size"])
    if not 0 <= size <= _MOST_SIZE:
        raise ValueError(f"it has a fixed type of {size} bytes")
    return size
