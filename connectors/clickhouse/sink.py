"""Sinks in ClickHouse, made from the user's options.

Invariant: `check` reaches the server and finds every reason for which `make` and `open` would be
refused. It leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from connectors.clickhouse.sink_options import ClickHouseOptions
from connectors.lake.changelog import require_free_names
from connectors.sink import SinkTable
from dataflow.errors import TemporaryError

if TYPE_CHECKING:
    from connectors.clickhouse.clickhouse_sink import ClickHouseSink


def make(options: Mapping[str, Any], table: SinkTable, identity: str, title: str) -> ClickHouseSink:
    """See SinkConnector."""
    chosen = ClickHouseOptions.of(options, table)
    from connectors.clickhouse.clickhouse_sink import ClickHouseSink

    return ClickHouseSink(chosen, table, identity)


def check(options: Mapping[str, Any], table: SinkTable, title: str) -> dict[str, Any]:
    """See SinkConnector. SinkError sink.column_name, sink.not_empty."""
    chosen = ClickHouseOptions.of(options, table)
    from connectors.clickhouse.clickhouse_sink import (
        connect,
        existing,
        lasting,
        not_empty,
    )
    from connectors.clickhouse.tables import OWN_NAMES

    require_free_names(table, OWN_NAMES)
    try:
        client = connect(chosen)
        try:
            there = existing(client, chosen)
        finally:
            client.close()
    except TemporaryError as error:
        raise lasting(error) from None
    if there:
        raise not_empty(chosen, ", ".join(sorted(chosen.table + suffix for suffix in there)))
    facts = {"table": chosen.table, "mode": chosen.mode, "max_delay_s": chosen.max_delay_s}
    return {**options, **facts}
