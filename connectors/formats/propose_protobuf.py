"""Columns of Protobuf's messages, from their description."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor

from connectors.formats.protobuf_reader import ProtobufReader
from connectors.formats.protobuf_schema import is_wrapper, leaf_of
from connectors.formats.registry import SchemaRegistry

Path = tuple[str, ...]


def columns_of_protobuf(
    options: Mapping[str, Any],
    samples: Sequence[bytes],
    registry: SchemaRegistry | None,
    *,
    depth: int,
) -> list[tuple[Path, str, bool]]:
    """Return (path, type, whether it may be NULL) of the leaves of the messages.

    depth: how long a path may be. SourceError of the description.
    """
    message = ProtobufReader((), options, registry).find_described(samples)
    return [] if message is None else list(_of_fields(message, (), depth))


def _of_fields(message: Descriptor, path: Path, depth: int) -> Iterator[tuple[Path, str, bool]]:
    for field in message.fields:
        inner, inner_path = field.message_type, (*path, field.name)
        is_struct = inner is not None and not field.is_repeated and not is_wrapper(inner)
        if is_struct and inner and len(inner_path) < depth and leaf_of(field).plain is not None:
            for deeper, type, _ in _of_fields(inner, inner_path, depth):
                yield deeper, type, True
        else:
            may_be_null = not field.is_repeated and field.has_presence
            yield inner_path, leaf_of(field).type.name, may_be_null
