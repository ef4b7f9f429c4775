"""Names of semantic types that Kafka Connect and Debezium assign to plain fields.

They are `name` in JSON schemas and `connect.name` in Avro schemas. Source: Debezium's manual, data
type mappings of its PostgreSQL and MySQL connectors.
"""

from __future__ import annotations

from connectors.formats.leaves import Leaf
from dataflow.types import DATE, JSONB, NUMERIC, TEXT, TIME, TIMESTAMP, TIMESTAMPTZ, sql_type

UUID = sql_type("uuid", 2950)
_DEBEZIUM, _CONNECT = "io.debezium.time.", "org.apache.kafka.connect.data."
DECIMAL = f"{_CONNECT}Decimal"
VARIABLE_DECIMAL = "io.debezium.data.VariableScaleDecimal"
NAMED_LEAVES = {
    f"{_DEBEZIUM}Date": Leaf(DATE, "d"),
    f"{_DEBEZIUM}Time": Leaf(TIME, "ms"),
    f"{_DEBEZIUM}MicroTime": Leaf(TIME, "us"),
    f"{_DEBEZIUM}NanoTime": Leaf(TIME, "ns"),
    f"{_DEBEZIUM}Timestamp": Leaf(TIMESTAMP, "ms"),
    f"{_DEBEZIUM}MicroTimestamp": Leaf(TIMESTAMP, "us"),
    f"{_DEBEZIUM}NanoTimestamp": Leaf(TIMESTAMP, "ns"),
    f"{_DEBEZIUM}ZonedTimestamp": Leaf(TIMESTAMPTZ),
    f"{_DEBEZIUM}ZonedTime": Leaf(TEXT),
    f"{_CONNECT}Date": Leaf(DATE, "d"),
    f"{_CONNECT}Time": Leaf(TIME, "ms"),
    f"{_CONNECT}Timestamp": Leaf(TIMESTAMP, "ms"),
    "io.debezium.data.Json": Leaf(JSONB),
    "io.debezium.data.Uuid": Leaf(UUID),
    "io.debezium.data.Enum": Leaf(TEXT),
}


def decimal_leaf(scale: int) -> Leaf:
    """Return the leaf of bytes that are a decimal with this scale."""
    return Leaf(NUMERIC, scale=scale)
