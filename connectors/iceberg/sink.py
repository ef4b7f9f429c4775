"""Sinks in Iceberg tables, made from the user's options.

Invariant: `check` reaches the catalog and the files and finds every reason for which `make` and
`open` would be refused. The client library is an extra of the installation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from connectors.extras import require_package
from connectors.iceberg.options import IcebergOptions
from connectors.lake.changelog import require_free_names
from connectors.sink import SinkTable

if TYPE_CHECKING:
    from connectors.iceberg.iceberg_sink import IcebergSink


def make(options: Mapping[str, Any], table: SinkTable, identity: str, title: str) -> IcebergSink:
    """See SinkConnector. TidemarkError package.missing."""
    require_package("pyiceberg", 'sink type "iceberg"')
    chosen = IcebergOptions.of(options, table)
    from connectors.iceberg.iceberg_sink import IcebergSink

    return IcebergSink(chosen, table, identity)


def check(options: Mapping[str, Any], table: SinkTable, title: str) -> dict[str, Any]:
    """See SinkConnector; a new catalog gets its own tables. SinkError sink.column_name,
    sink.not_empty, sink.bad_metadata.
    """
    require_package("pyiceberg", 'sink type "iceberg"')
    chosen = IcebergOptions.of(options, table)
    from connectors.iceberg.iceberg_sink import client_errors, load, not_empty

    require_free_names(table)
    with client_errors():
        found = load(chosen)
    if found is not None:
        raise not_empty(chosen)
    chosen.location.check_writable()
    return {**options, "table": chosen.title, "max_delay_s": chosen.max_delay_s}
