"""The option of a clock as a JSON Schema (connectors/option_schema.py)."""

from __future__ import annotations

from connectors.option_schema import group, number

_RESOLUTION = number(
    "Resolution",
    "Least time between two values.",
    1,
    unit="s",
    minimum=0.1,
    maximum=86_400,
    type="number",
)
SCHEMA = group(
    "Clock", "A relation of one row, now, whose time advances.", {"resolution_s": _RESOLUTION}
)
