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
from connectors.lake.location import unreached
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
    sink.not_empty.
    """
    require_package("pyiceberg", 'sink type "iceberg"')
    chosen = IcebergOptions.of(options, table)
    from sqlalchemy.exc import SQLAlchemyError

    from connectors.iceberg.iceberg_sink import load, not_empty

    require_free_names(table)
    try:
        found = load(chosen)
    except (OSError, SQLAlchemyError) as error:
        raise unreached(str(error).partition("\n")[0]) from None
    if found is not None:
        raise not_empty(chosen)
    chosen.location.check_writable()
    return {**options, "table": chosen.title, "max_delay_s": chosen.max_delay_s}
