"""Sinks in Delta Lake tables, made from the user's options.

Invariant: `check` reaches the location and finds every reason for which `make` and `open` would be
refused. It leaves nothing behind. The client library is an extra of the installation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from connectors.delta.options import DeltaOptions
from connectors.extras import require_package
from connectors.lake.changelog import require_free_names
from connectors.sink import SinkTable

if TYPE_CHECKING:
    from connectors.delta.delta_sink import DeltaSink


def make(options: Mapping[str, Any], table: SinkTable, identity: str, title: str) -> DeltaSink:
    """See SinkConnector. TidemarkError package.missing."""
    require_package("deltalake", 'sink type "delta"')
    chosen = DeltaOptions.of(options, table)
    from connectors.delta.delta_sink import DeltaSink

    return DeltaSink(chosen, table, identity)


def check(options: Mapping[str, Any], table: SinkTable, title: str) -> dict[str, Any]:
    """See SinkConnector. SinkError sink.column_name, sink.not_empty, sink.unsafe_storage."""
    require_package("deltalake", 'sink type "delta"')
    chosen = DeltaOptions.of(options, table)
    from connectors.delta.delta_sink import KEY_COLUMN, not_empty

    require_free_names(table, [KEY_COLUMN])
    storage = chosen.location.storage()
    if storage.names(""):
        raise not_empty(chosen.location.path)
    chosen.location.check_writable()
    return {**options, "mode": chosen.mode, "max_delay_s": chosen.max_delay_s}
