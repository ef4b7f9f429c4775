"""Protobuf schemas: compiled from text or read as descriptors, and the types of their fields.

protoc compiles texts in a child process, so that a bad one does no harm. Each schema has its own
pool: two schemas may use one name for different messages.
"""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError

from connectors.formats.avro_bounds import MOST_VALUES
from connectors.formats.avro_schema import BYTEA
from connectors.formats.leaves import Leaf, plain_scalar
from dataflow.errors import SourceError
from dataflow.types import BOOL, FLOAT4, FLOAT8, INT4, INT8, JSONB, NUMERIC, TEXT, TIMESTAMPTZ

COMPILE_TIMEOUT_S = 60
_ROOT = "schema.proto"
_WELL_KNOWN = "google.protobuf."
_KINDS = {
    FieldDescriptor.CPPTYPE_INT32: Leaf(INT4),
    FieldDescriptor.CPPTYPE_INT64: Leaf(INT8),
    FieldDescriptor.CPPTYPE_UINT32: Leaf(INT8),
    FieldDescriptor.CPPTYPE_UINT64: Leaf(NUMERIC),
    FieldDescriptor.CPPTYPE_DOUBLE: Leaf(FLOAT8),
    FieldDescriptor.CPPTYPE_FLOAT: Leaf(FLOAT4),
    FieldDescriptor.CPPTYPE_BOOL: Leaf(BOOL),
    FieldDescriptor.CPPTYPE_ENUM: Leaf(TEXT),
    FieldDescriptor.CPPTYPE_STRING: Leaf(TEXT),
}


class ProtobufSchema:
    """The files of one schema."""

    def __init__(self, files: FileDescriptorSet) -> None:
        """Add the files. SourceError format.schema: files are missing or contradictory."""
        self._pool = descriptor_pool.DescriptorPool()
        try:
            for file in files.file:
                self._pool.Add(file)
            self._main = self._pool.FindFileByName(files.file[-1].name)
        except (TypeError, ValueError, KeyError, IndexError) as error:
            raise _refusal(str(error)) from None

    @staticmethod
    def of_text(text: str, references: Mapping[str, str] | None = None) -> ProtobufSchema:
        """Compile the text of a .proto file; references: its imports, by name."""
        files = FileDescriptorSet()
        try:
            files.ParseFromString(_compile(text, references or {}))
        except (ValueError, OSError, DecodeError) as error:
            # A name or text that no file can have, with NULs or halves of surrogate pairs.
            raise _refusal(str(error)) from None
        return ProtobufSchema(files)

    @staticmethod
    def of_descriptors(encoded: str) -> ProtobufSchema:
        """Read a FileDescriptorSet in base64 (protoc --include_imports --descriptor_set_out)."""
        files = FileDescriptorSet()
        try:
            files.ParseFromString(base64.b64decode(encoded, validate=True))
        except (DecodeError, ValueError) as error:
            raise _refusal(f"not a descriptor set in base64: {error}") from None
        return ProtobufSchema(files)

    def first(self, indexes: Sequence[int]) -> Descriptor | None:
        """Return the message at these indexes: one of the main file, one inside it, ..."""
        found: Descriptor | None = None
        for index in indexes:
            top = self._main.message_types_by_name
            ordered = list(top.values()) if found is None else list(found.nested_types)
            if not 0 <= index < len(ordered):
                return None
            found = ordered[index]
        return found

    def named(self, name: str) -> Descriptor:
        """Return the message of a full name. SourceError format.schema."""
        try:
            return self._pool.FindMessageTypeByName(name)
        except (KeyError, TypeError):
            raise _refusal(f'message "{name}" does not exist') from None


def parser_of(message: Descriptor) -> Callable[[bytes], Any]:
    """Return the parser of bytes to a message; it raises DecodeError."""
    return message_factory.GetMessageClass(message).FromString


def find_fields(message: Descriptor, path: Sequence[str]) -> list[FieldDescriptor] | None:
    """Return the fields on a path by proto or JSON names; None if a name does not exist."""
    found: list[FieldDescriptor] = []
    node: Descriptor | None = message
    for key in path:
        if node is None:
            return None
        field = node.fields_by_name.get(key) or node.fields_by_camelcase_name.get(key)
        if field is None or (found and found[-1].is_repeated):
            return None
        found.append(field)
        node = field.message_type
    return found


def leaf_of(field: FieldDescriptor) -> Leaf:
    """Return the leaf of a field's values, as `value_of` returns them."""
    if field.is_repeated:
        return Leaf(JSONB, plain=lambda value: _Plain().repeated(field, value))
    message = field.message_type
    if message is not None:
        if message.full_name == f"{_WELL_KNOWN}Timestamp":
            return Leaf(TIMESTAMPTZ, "us")
        if is_wrapper(message):
            return leaf_of(message.fields_by_name["value"])
        return Leaf(JSONB, plain=lambda value: _Plain().struct(message, value))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return Leaf(BYTEA)
    return _KINDS[field.cpp_type]


def value_of(field: FieldDescriptor, message: Any) -> Any:
    """Return the field's value in a message: None if it is missing."""
    if _is_missing(field, message):
        return None
    value = getattr(message, field.name)
    return value if field.is_repeated else _single(field, value)


def _is_missing(field: FieldDescriptor, message: Any) -> bool:
    """Return True if a field has presence, is not set and has no default in the schema."""
    if field.is_repeated or not field.has_presence or field.has_default_value:
        return False
    return not message.HasField(field.name)


def is_wrapper(message: Descriptor) -> bool:
    """Return True for a scalar that may be missing (google.protobuf.StringValue ...)."""
    return message.full_name.startswith(_WELL_KNOWN) and message.name.endswith("Value") and (
        list(message.fields_by_name) == ["value"]
    )  # fmt: skip


def _single(field: FieldDescriptor, value: Any) -> Any:
    """Return a non-list value in the form of its leaf."""
    message = field.message_type
    if message is not None:
        if message.full_name == f"{_WELL_KNOWN}Timestamp":
            return value.seconds * 1_000_000 + (value.nanos + 500) // 1_000
        return (
            _single(message.fields_by_name["value"], value.value) if is_wrapper(message) else value
        )
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return str(value) if named is None else named.name
    return str(value) if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64 else value


class _Plain:
    """Converts one value to JSON. ValueError: it would have more than MOST_VALUES values.

    A message of two bytes has all fields of its type, which may be thousands.
    """

    def __init__(self) -> None:
        self._left = MOST_VALUES

    def repeated(self, field: FieldDescriptor, values: Any) -> Any:
        """Return a list, or an object of a map."""
        self._count(len(values))
        message = field.message_type
        if message is None or not message.GetOptions().map_entry:
            return [self._value(field, value) for value in values]
        inner = message.fields_by_name["value"]
        keys = message.fields_by_name["key"]
        return {
            ("true" if key else "false") if keys.cpp_type == keys.CPPTYPE_BOOL else str(key):
            self._value(inner, values[key])
            for key in values
        }  # fmt: skip

    def struct(self, message: Descriptor, value: Any) -> dict[str, Any]:
        """Return all fields by their proto names; null if one is missing."""
        found = {}
        self._count(len(message.fields))
        for field in message.fields:
            if field.is_repeated:
                found[field.name] = self.repeated(field, getattr(value, field.name))
            elif _is_missing(field, value):
                found[field.name] = None
            else:
                found[field.name] = self._value(field, getattr(value, field.name))
        return found

    def _value(self, field: FieldDescriptor, value: Any) -> Any:
        message, single = field.message_type, _single(field, value)
        is_time = message is not None and message.full_name == f"{_WELL_KNOWN}Timestamp"
        if message is not None and not is_wrapper(message) and not is_time:
            return self.struct(message, single)
        inner = message.fields_by_name["value"] if message and is_wrapper(message) else field
        leaf = _KINDS.get(inner.cpp_type, Leaf(TIMESTAMPTZ, "us"))
        leaf = Leaf(BYTEA) if inner.type == FieldDescriptor.TYPE_BYTES else leaf
        return plain_scalar(leaf, single)

    def _count(self, more: int) -> None:
        self._left -= more
        if self._left < 0:
            raise ValueError(f"it has more than {MOST_VALUES:,} values")


def _compile(text: str, references: Mapping[str, str]) -> bytes:
    with TemporaryDirectory() as folder:
        for name, content in {**references, _ROOT: text}.items():
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise _refusal(f'a reference has the name "{name}"')
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        out = Path(folder, "out.bin")
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", "--include_imports"]
        answer = subprocess.run(
            [*command, f"--descriptor_set_out={out}", _ROOT],
            cwd=folder,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=COMPILE_TIMEOUT_S,
            check=False,
        )
        if answer.returncode != 0:
            raise _refusal(answer.stderr.strip()[:500])
        return out.read_bytes()


def _refusal(detail: str) -> SourceError:
    return SourceError(
        "format.schema",
        "this is not a Protobuf schema",
        detail=detail,
        hint="set the .proto text, or a descriptor set with all imports, and the message's name",
    )
