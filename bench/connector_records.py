"""Sections of the page for sources and sinks, each beside its client library alone.

A record is there once its benchmark has run: bench/mysql_rows.py, postgres_source.py,
stream_rows.py and sinks.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.cells import table

HOME = Path(__file__).parent
# Of sources: the record, the part of its figures, and what stands in the table.
SOURCES = (
    ("mysql_rows", "rows", "MariaDB, beside python-mysql-replication"),
    ("postgres_source", "rows", "PostgreSQL, beside psycopg2's replication"),
    ("stream_rows", "websocket", "WebSocket, beside websockets"),
    ("stream_rows", "server_sent_events", "server-sent events, beside httpx"),
    ("stream_rows", "clickhouse_cursor", "ClickHouse above a cursor, beside httpx"),
)
SINKS = {
    "postgres": "PostgreSQL, beside psycopg2's COPY",
    "mysql": "MariaDB, beside PyMySQL's executemany",
    "clickhouse": "ClickHouse, beside clickhouse-connect",
    "parquet": "Parquet, beside pyarrow",
    "delta": "Delta Lake, beside deltalake's append",
    "iceberg": "Iceberg, beside pyiceberg's append",
    "webhook": "webhooks, beside httpx",
}
TITLES = ("", "rows/s", "library alone", "ratio", "CPU µs a row", "library's", "load")


def sources() -> list[str]:
    """Return the section on sources; none before the first run."""
    rows = []
    for name, part, title in SOURCES:
        found = _record(name)
        if part in found.get("figures", {}):
            own = found["figures"][part]
            base = "library" if "library_rows_a_second" in own else "floor"
            both = [
                {what: own[f"{who}_{what}"] for what in ("rows_a_second", "cpu_us_a_row")}
                for who in ("feed", base)
            ]
            rows.append(_row(title, *both, found))
    text = (
        "What a feed turns into columns of changes, and what the client library alone gives as "
        "its own objects, from one server in one run, by `python -m bench.mysql_rows`, "
        "`bench.postgres_source` and `bench.stream_rows`."
    )
    return ["", "## Sources", "", text, "", *table(TITLES, rows)] if rows else []


def sinks() -> list[str]:
    """Return the section on sinks; none before the first run."""
    found = _record("sinks")
    if not found:
        return []
    sizes = found["sizes"]
    rows = [
        _row(title, found["figures"][name]["sink"], found["figures"][name]["library"], found)
        for name, title in SINKS.items()
    ]
    text = (
        f"{sizes['epochs']} epochs of {sizes['rows']:,} new rows, each written with its progress "
        "and excluding a second writer; the library writes the same rows in as many transactions, "
        f"files or requests without either. By `python -m bench.sinks`, revision "
        f"{found['revision']}."
    )
    return ["", "## Sinks", "", text, "", *table(TITLES, rows)]


def _row(title: str, own: dict[str, float], base: dict[str, float], found: Any) -> list[str]:
    rate, other = own["rows_a_second"], base["rows_a_second"]
    cpu, spent = own["cpu_us_a_row"], base["cpu_us_a_row"]
    figures = f"{rate:,.0f}", f"{other:,.0f}", f"{rate / other:.2f}", f"{cpu:.1f}", f"{spent:.1f}"
    return [title, *figures, str(found.get("load", ""))]


def _record(name: str) -> dict[str, Any]:
    path = HOME / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}
