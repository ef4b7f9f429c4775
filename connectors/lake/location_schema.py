"""Where a lake's files lie, as a JSON Schema (connectors/option_schema.py)."""

from __future__ import annotations

from connectors.option_schema import text

LOCATION = text(
    "Path",
    "A folder that the operator allows, or a prefix in a bucket; empty at first.",
    examples=["/lake/revenue", "s3://bucket/revenue"],
)
