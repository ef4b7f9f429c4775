"""Sinks in Parquet files, made from the user's options.

Invariant: `check` reaches the location and finds every reason for which `make` and `open` would be
refused. It leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from connectors.lake.changelog import require_free_names
from connectors.parquet.options import ParquetOptions
from connectors.parquet.parquet_sink import ParquetSink, require_empty
from connectors.sink import SinkTable


def make(options: Mapping[str, Any], table: SinkTable, identity: str, title: str) -> ParquetSink:
    """See SinkConnector."""
    return ParquetSink(ParquetOptions.of(options, table), table, identity)


def check(options: Mapping[str, Any], table: SinkTable, title: str) -> dict[str, Any]:
    """See SinkConnector. SinkError sink.column_name, sink.not_empty, sink.unsafe_storage."""
    chosen = ParquetOptions.of(options, table)
    require_free_names(table)
    chosen.location.check()
    require_empty(chosen)
    chosen.location.check_writable()
    return {**options, "max_delay_s": chosen.max_delay_s}
