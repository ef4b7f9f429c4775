"""Columns of Avro's records, from the schemas of samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from connectors.formats.avro_reader import AvroDecoder
from connectors.formats.avro_schema import AvroSchema
from connectors.formats.fields import Fields
from connectors.formats.registry import SchemaRegistry

Path = tuple[str, ...]


def columns_of_avro(
    options: Mapping[str, Any],
    samples: Sequence[bytes],
    registry: SchemaRegistry | None,
    root: Path,
    *,
    depth: int,
) -> list[tuple[Path, str, bool]]:
    """Return (path, type, whether it may be NULL) of the leaves below a field of the records.

    root: the path of that field. depth: how long a path may be. SourceError of the schema.
    """
    decoder = AvroDecoder(options, registry)
    parts = decoder.decode(samples, Fields([]))
    if not parts and decoder.reader is None:
        return []
    # The newest schema among the samples.
    schema = decoder.reader or parts[-1][0]
    node = schema.find(root)
    return [] if node is None else list(_of_node(schema, node, (), depth))


def _of_node(
    schema: AvroSchema, node: Any, path: Path, depth: int
) -> Iterator[tuple[Path, str, bool]]:
    branches = schema.branches(node)
    is_nullable = isinstance(node, list) and len(branches) < len(node)
    is_record = len(branches) == 1 and schema.name(branches[0]) == "record"
    if is_record and len(path) < depth and schema.leaf(branches[0]).plain is not None:
        for one in branches[0]["fields"]:
            inner_path = (*path, one["name"])
            for inner, type, may_be_null in _of_node(schema, one["type"], inner_path, depth):
                yield inner, type, may_be_null or is_nullable
    else:
        yield path, schema.leaf(node).type.name, is_nullable
