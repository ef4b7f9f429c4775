"""A graph of registered objects as bytes: a table of rows that refer to earlier rows.

Types, fields and enum members appear under stable names of the format, so a class may move or be
renamed. Each object is one row and decodes to one object, however many refer to it: a plan node
that occurs several times stays one node. Writing and reading are not recursive, so chains may be of
any depth. Invariant: reading runs no code chosen by the bytes. Damaged bytes and unknown names are
a StorageError.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import orjson
import xxhash

from storage.errors import StorageError

_MAGIC = b"TMog"
_VERSION = 1
_HEAD = struct.Struct("<4sIQ")  # magic, version, checksum
_LEAST_INT, _MAX_INT = -(1 << 63), (1 << 63) - 1
# Exceptions that damage can cause if the checksum does not detect it.
FAULTS = (
    *(KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError),
    *(ArithmeticError, zlib.error, struct.error, MemoryError, RecursionError),
)
_CONTAINERS: Mapping[str, type] = {
    "tuple": tuple,
    "list": list,
    "dict": dict,
    "set": set,
    "frozenset": frozenset,
}
_CONTAINER_NAMES = {kind: name for name, kind in _CONTAINERS.items()}


@dataclass(frozen=True)
class Registered:
    """A type of the format.

    fields: the stable name of each field, and its attribute, which is also the constructor
    parameter.
    """

    name: str
    type: type
    fields: Mapping[str, str]


@dataclass(eq=False)
class Record:
    """An object with only its names in the format, encoded as if it were of that type."""

    name: str
    fields: Mapping[str, Any] = field(default_factory=dict)


class Registry:
    """The types of a format. enums: by stable name; members are written by name."""

    def __init__(self, types: Iterable[Registered], enums: Mapping[str, type[Enum]]) -> None:
        self.types = {entry.name: entry for entry in types}
        self.enums = dict(enums)
        self._by_type = {entry.type: entry for entry in self.types.values()}
        self._enum_names = {kind: name for name, kind in self.enums.items()}

    def encode(self, root: Any) -> bytes:
        """Return the bytes of a graph without cycles. StorageError state.unknown_type."""
        table = _Writer(self)
        body = zlib.compress(orjson.dumps(table.written(root)))
        check = xxhash.xxh3_64_intdigest(body, seed=_VERSION)
        return _HEAD.pack(_MAGIC, _VERSION, check) + body

    def decode(self, stored: bytes) -> Any:
        """Return the graph that was encoded.

        StorageError state.corrupt, state.unknown_type, state.unknown_field.
        """
        try:
            return self._read(_body(stored))
        except FAULTS as error:
            raise damaged(f"a stored object: {type(error).__name__}: {error}"[:300]) from error

    def registered(self, value: Any) -> Registered | None:
        """Return the type that a value is written as; for an error, its nearest registered base
        class.
        """
        found = self._by_type.get(type(value))
        if found is None and isinstance(value, Exception):
            kinds = type(value).__mro__
            found = next((self._by_type[kind] for kind in kinds if kind in self._by_type), None)
        return found

    def enum_name(self, kind: type) -> str | None:
        """Return the stable name of an enum."""
        return self._enum_names.get(kind)

    def member(self, name: str, text: str) -> Enum:
        """Return a member of an enum by stable names. StorageError state.unknown_type."""
        kind = self.enums.get(name)
        found = None if kind is None else kind.__members__.get(text)
        if found is None:
            raise unknown_type(f"{name}.{text}")
        return found

    def _read(self, content: bytes) -> Any:
        document = orjson.loads(content)
        makers = [self._maker(name, fields) for name, fields in document["types"]]
        found: list[Any] = []

        def value_of(cell: Any) -> Any:
            if type(cell) is list:
                (row,) = cell
                if not 0 <= row < len(found):
                    raise IndexError(f"row {len(found)} refers to row {row}")
                return found[row]
            return self._tagged(cell) if type(cell) is dict else cell

        for number, *cells in document["rows"]:
            if number < 0:
                raise IndexError(f"type {number}")
            found.append(makers[number]([value_of(cell) for cell in cells]))
        return value_of(document["root"])

    def _maker(self, name: str, fields: Sequence[str] | None) -> Callable[[list[Any]], Any]:
        """Return a function that makes an object from the cells of its row."""
        if fields is None:
            kind = _CONTAINERS.get(name)
            if kind is None:
                raise unknown_type(name)
            return _dict_of if kind is dict else kind
        entry = self.types.get(name)
        if entry is None:
            raise unknown_type(name)
        unknown = [each for each in fields if each not in entry.fields]
        if unknown:
            raise unknown_field(name, unknown[0])
        attributes, make = [entry.fields[each] for each in fields], entry.type
        return lambda cells: make(**dict(zip(attributes, cells, strict=True)))

    def _tagged(self, cell: dict[str, str]) -> Any:
        ((tag, text),) = cell.items()
        read = _SCALARS.get(tag)
        return self.member(tag, text) if read is None else read(text)


class _Writer:
    """The rows of one graph, an object's parts before the object."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._types: dict[tuple[str, tuple[str, ...] | None], int] = {}
        self._rows: list[list[Any]] = []
        # Holding the objects prevents others from taking their identities.
        self._row_of: dict[int, tuple[int, Any]] = {}

    def written(self, root: Any) -> dict[str, Any]:
        """Return the document of a graph."""
        waiting, begun = [root], set()
        while waiting:
            value = waiting[-1]
            if self._cell(value) is not _UNWRITTEN:
                waiting.pop()
                continue
            name, fields, parts = self._parts(value)
            cells = [self._cell(part) for part in parts]
            if _UNWRITTEN in cells:
                if id(value) in begun:
                    raise ValueError(f'"{name}" is part of itself')
                begun.add(id(value))
                missing = [p for p, c in zip(parts, cells, strict=True) if c is _UNWRITTEN]
                waiting.extend(reversed(missing))
                continue
            waiting.pop()
            number = self._types.setdefault((name, fields), len(self._types))
            self._row_of[id(value)] = (len(self._rows), value)
            self._rows.append([number, *cells])
        types = [[name, None if fields is None else list(fields)] for name, fields in self._types]
        return {"types": types, "rows": self._rows, "root": self._cell(root)}

    def _cell(self, value: Any) -> Any:
        """Return a value's form within a row; _UNWRITTEN if it has no row yet."""
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is str:
            return value if _is_unicode(value) else _tag_text(value)
        if kind is int:
            fits = _LEAST_INT <= value <= _MAX_INT
            return value if fits else {"int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if kind in _TAGS:
            return _TAGS[kind](value)
        if isinstance(value, Enum):
            name = self._registry.enum_name(kind)
            if name is None:
                raise unknown_type(kind.__qualname__)
            return {name: value.name}
        row = self._row_of.get(id(value))
        return _UNWRITTEN if row is None else [row[0]]

    def _parts(self, value: Any) -> tuple[str, tuple[str, ...] | None, list[Any]]:
        """Return the name of an object's type, its field names and its values."""
        name = _CONTAINER_NAMES.get(type(value))
        if name is not None:
            return name, None, list(_elements(value))
        if isinstance(value, Record):
            names = self._registry.types[value.name].fields
            fields = {each: value.fields[each] for each in names if each in value.fields}
            return value.name, tuple(fields), list(fields.values())
        entry = self._registry.registered(value)
        if entry is None:
            raise unknown_type(type(value).__qualname__)
        parts = [getattr(value, attribute) for attribute in entry.fields.values()]
        return entry.name, tuple(entry.fields), parts


# Marks a missing reference; no cell equals it.
_UNWRITTEN = object()


def _body(stored: bytes) -> bytes:
    if len(stored) < _HEAD.size:
        raise damaged(f"a stored object has {len(stored)} bytes")
    magic, version, check = _HEAD.unpack_from(stored)
    if magic != _MAGIC:
        raise damaged(f"a stored object begins with {stored[:8]!r}")
    if version != _VERSION:
        raise unknown_type(f"object_graph {version}")
    body = memoryview(stored)[_HEAD.size :]
    if check != xxhash.xxh3_64_intdigest(body, seed=version):
        raise damaged(f"a stored object of {len(stored)} bytes fails its checksum")
    return zlib.decompress(body)


def _elements(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield each
    elif isinstance(value, set | frozenset):
        # In an order that is the same in every process.
        yield from sorted(value, key=repr)
    else:
        yield from value


def _dict_of(cells: list[Any]) -> dict[Any, Any]:
    return dict(zip(cells[::2], cells[1::2], strict=True))


def _is_unicode(text: str) -> bool:
    """Return True if JSON can hold the text: a lone surrogate is not a character."""
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


def _tag_text(text: str) -> dict[str, str]:
    return {"text": base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()}


_TAGS: Mapping[type, Callable[[Any], dict[str, str]]] = {
    bytes: lambda value: {"bytes": base64.b64encode(value).decode()},
    Decimal: lambda value: {"decimal": str(value)},
    datetime: lambda value: {"moment": value.isoformat()},
}
_SCALARS: Mapping[str, Callable[[str], Any]] = {
    "int": lambda text: int(text, 16),
    "float": float,
    "text": lambda text: base64.b64decode(text).decode("utf-8", "surrogatepass"),
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "decimal": Decimal,
    "moment": datetime.fromisoformat,
}
_HINT = (
    "run the version of Tidemark that wrote it; or move the state directory away and restart: "
    "every view is rebuilt, and its rows stay readable until then"
)


def damaged(what: str) -> StorageError:
    """Return the error for bytes that differ from what was written."""
    hint = "check the disk; then restore a checkpoint, or move the state directory away"
    return StorageError("state.corrupt", f"{what} (the state is damaged)", hint)


def unknown_type(name: str) -> StorageError:
    """Return the error for a type or enum member that the format lacks."""
    what = f'the state contains "{name}", which this version does not know'
    return StorageError("state.unknown_type", what, _HINT)


def unknown_field(name: str, unknown: str) -> StorageError:
    """Return the error for a field that a type of the format lacks."""
    what = f'the state contains field "{unknown}" of "{name}", which this version does not know'
    return StorageError("state.unknown_field", what, _HINT)
