"""A Delta table written action by action, for what the client cannot write.

As Delta's PROTOCOL.md has it: column mapping, deletion vectors, widened types, old timestamps.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_MAGIC, _COOKIE = 1681511377, 12346


class WrittenTable:
    """A table in a folder; each `commit` is a version."""

    def __init__(self, path: Path, features: Sequence[str] = ()) -> None:
        self.path = path
        self.version = -1
        self._files = 0
        (path / "_delta_log").mkdir(parents=True)
        self.protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": list(features),
            "writerFeatures": [*features, "changeDataFeed"],
        }

    def commit(self, *actions: Mapping[str, Any]) -> None:
        """Write the next version."""
        self.version += 1
        first = [{"protocol": self.protocol}] if self.version == 0 else []
        lines = [{"commitInfo": {"operation": "WRITE", "timestamp": 1}}, *first, *actions]
        log = self.path / "_delta_log" / f"{self.version:020}.json"
        log.write_text("\n".join(map(json.dumps, lines)))

    def add(self, rows: pa.Table, partition: Mapping[str, str | None] = {}) -> dict[str, Any]:
        """Write a file; return its action."""
        self._files += 1
        path = self.path / f"part {self._files}.parquet"
        pq.write_table(rows, path, row_group_size=3)
        action = {"path": path.name.replace(" ", "%20"), "partitionValues": dict(partition)}
        action |= {"size": path.stat().st_size, "modificationTime": 1, "dataChange": True}
        return {"add": {**action, "stats": json.dumps({"numRecords": len(rows)})}}

    def cdc(self, rows: pa.Table) -> dict[str, Any]:
        """Write a file of changes; return its action."""
        own = self.add(rows)["add"]
        return {"cdc": {k: own[k] for k in ("path", "partitionValues", "size")}}


def metadata(
    fields: Sequence[Mapping[str, Any]], partition_by: Sequence[str] = (), **settings: str
) -> dict[str, Any]:
    """The action that sets columns."""
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return {
        "metaData": {
            "id": "00000000-0000-0000-0000-000000000001",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": list(partition_by),
            "configuration": {"delta.enableChangeDataFeed": "true", **named},
            "createdTime": 1,
        }
    }


def column(name: str, type: Any, physical: str = "", number: int = 1) -> dict[str, Any]:
    """A column of the table; physical: its name in files."""
    mapped = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical}
    return {"name": name, "type": type, "nullable": True, "metadata": mapped if physical else {}}


def remove(added: Mapping[str, Any]) -> dict[str, Any]:
    """The action that removes a file."""
    names = ("path", "partitionValues", "size", "deletionVector")
    own = {name: added["add"][name] for name in names if name in added["add"]}
    return {"remove": {**own, "deletionTimestamp": 1, "dataChange": True,
                       "extendedFileMetadata": True}}  # fmt: skip


def without(added: Mapping[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    """The action of the same file with some rows deleted, by their numbers below 65,536."""
    bits = struct.pack("<IIHHI", _COOKIE, 1, 0, len(rows) - 1, 16)
    bits += struct.pack(f"<{len(rows)}H", *sorted(rows))
    content = struct.pack("<IQI", _MAGIC, 1, 0) + bits
    vector = {"storageType": "i", "pathOrInlineDv": _z85(content), "sizeInBytes": len(content)}
    return {"add": {**added["add"], "deletionVector": {**vector, "cardinality": len(rows)}}}


def _z85(content: bytes) -> str:
    content += b"\0" * (-len(content) % 4)
    found = ""
    for at in range(0, len(content), 4):
        number, digits = int.from_bytes(content[at : at + 4], "big"), ""
        for _ in range(5):
            number, digit = divmod(number, 85)
            digits = _Z85[digit] + digits
        found += digits
    return found
