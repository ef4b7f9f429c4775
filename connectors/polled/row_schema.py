"""What relations of polled sources share, as JSON Schemas (connectors/option_schema.py)."""

from __future__ import annotations

from connectors.option_schema import (
    DAY_MS,
    Schema,
    advanced,
    columns,
    inherited,
    key,
    number,
    on_error,
)

POLL_INTERVAL = number(
    "Poll interval", "Pause between two readings.", 10_000, unit="ms", minimum=1, maximum=DAY_MS
)
SHARED: dict[str, Schema] = {"poll_interval_ms": POLL_INTERVAL, "on_error": on_error("rows")}
ROWS: dict[str, Schema] = {
    "key": key("Columns by which rows are compared between two readings."),
    "columns": columns(),
    "poll_interval_ms": inherited(POLL_INTERVAL),
    "on_error": inherited(on_error("rows")),
}


def timeout_ms(what: str, default: int, most: int) -> Schema:
    """Return the longest time of a request, in milliseconds."""
    found = number("Timeout", f"Of {what}.", default, unit="ms", minimum=1, maximum=most)
    return advanced(found)


def max_rows() -> Schema:
    """Return the most rows of a relation."""
    described = "Most rows of a relation; more is an error."
    return advanced(number("Most rows", described, 1_000_000, unit="rows", minimum=1))


def max_bytes() -> Schema:
    """Return the most bytes of a reading."""
    described = "Most bytes of all answers to one reading; more is an error."
    return advanced(number("Most bytes", described, 256 << 20, unit="bytes", minimum=1))
