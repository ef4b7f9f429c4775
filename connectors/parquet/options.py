"""Options of a sink in Parquet files.

Invariant: unknown, missing or contradictory options are refused before anything is reached.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from connectors.lake.location import PAGE, Location, max_delay_s
from connectors.option_reader import OptionReader
from connectors.sink import SinkTable
from dataflow.types import TypeKind

MAX_DELAY_S = 10.0
# Values of these types are no names of folders.
_NO_FOLDERS = (TypeKind.BYTEA, TypeKind.FLOAT4, TypeKind.FLOAT8)


@dataclass(frozen=True)
class ParquetOptions:
    """partition_by: columns whose values are folders. max_file_bytes: about, of one file."""

    location: Location
    partition_by: tuple[str, ...]
    max_file_bytes: int
    max_delay_s: float

    @staticmethod
    def of(options: Mapping[str, Any], table: SinkTable) -> ParquetOptions:
        """Read the options. SinkError sink.bad_option, secret.plain."""
        reader = OptionReader(options, "sink", page=PAGE)
        location = Location.of(reader)
        reader.choice("initial", ("rows", "changes"), "rows")
        partition_by = reader.take("partition_by", list, [])
        names = [field.name for field in table.fields]
        for name in partition_by:
            # A sink that is only removed has no columns.
            if names and name not in names:
                what = "names no column of the view"
                raise reader.refused("partition_by", what, detail=str(name))
            if names and table.fields[names.index(name)].type.kind in _NO_FOLDERS:
                what = "names a column of bytes or floats"
                raise reader.refused("partition_by", what, detail=name)
        if len(set(map(str, partition_by))) < len(partition_by):
            raise reader.refused("partition_by", "names a column twice")
        max_file_mb = reader.take("max_file_mb", int, 128)
        if not 1 <= max_file_mb <= 4096:
            raise reader.refused("max_file_mb", "must be between 1 and 4096")
        made = ParquetOptions(
            location,
            tuple(map(str, partition_by)),
            max_file_mb << 20,
            max_delay_s(reader, MAX_DELAY_S),
        )
        reader.end()
        return made
