"""Types of additional sinks, and the connector that implements each.

A connector is imported when a sink of its type is first used, so unused ones cost nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import cast

from connectors.extras import extra_required
from connectors.outside.guarded import guarded
from connectors.view_sink import SinkConnector
from dataflow.errors import SinkError

MODULES: Mapping[str, str] = {
    "kafka": "connectors.kafka.sink",
    "clickhouse": "connectors.clickhouse.sink",
    "delta": "connectors.delta.sink",
    "iceberg": "connectors.iceberg.sink",
    "parquet": "connectors.parquet.sink",
    "postgres": "connectors.postgres.additional.sink",
    "mysql": "connectors.mysql.sink",
    "webhook": "connectors.http.sink",
}
# Extras that have more than the package which is imported first.
_EXTRAS = {"clickhouse": "clickhouse", "delta": "lake", "iceberg": "lake"}


def sink_connector(type_name: str) -> SinkConnector:
    """Return the connector of a type of sinks. SinkError sink.unknown_type; TidemarkError
    package.missing.
    """
    if type_name not in MODULES:
        raise SinkError(
            "sink.unknown_type",
            f'sink type "{type_name}" does not exist',
            hint=f"use one of: {', '.join(MODULES)}",
        )
    with extra_required(f'sink type "{type_name}"', _EXTRAS.get(type_name, "")):
        module = cast(SinkConnector, importlib.import_module(MODULES[type_name]))
    return guarded("sink", type_name, module)
