"""`python -m bench.postgres_source [--rows N]`: rows of another PostgreSQL, beside the floor.

In one run, over the same changes: the rows a second of psycopg2's own logical replication, which
reads the stream and decodes nothing, and those of the feed of a source, which decodes it to
columns. The result is printed and written to bench/postgres_source.json, with the load of the
machine: above the number of its cores, only CPU times are reliable.
"""

from __future__ import annotations

import argparse
import select
import sys
import time
from pathlib import Path
from typing import Any

import psycopg2
from psycopg2.extras import LogicalReplicationConnection

from bench.feeds import read_rows
from bench.record import save_figures
from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.connectors.postgres_source.reading import source_of
from tests.harness.postgres import Database, new_database

RESULT = Path(__file__).parent / "postgres_source.json"
TABLE = (
    "CREATE TABLE sales (id bigint PRIMARY KEY, customer int NOT NULL, region text, "
    "amount numeric(12,2), score float8, note text, at timestamptz, paid bool)"
)
FILL = (
    "INSERT INTO sales SELECT n, n % 1000, 'r' || n % 50, n / 7.0, n / 3.0, "
    "'a note of some length for sale ' || n, now(), n % 2 = 0 FROM generate_series({0}, {1}) n"
)
BATCH = 1_000
ROUNDS = 3
INSERT = b"I"[0]


def fill(database: Database, first: int, count: int) -> None:
    """Insert so many rows, in transactions of BATCH rows."""
    connection = database.connect()
    with connection.cursor() as cursor:
        for start in range(first, first + count, BATCH):
            cursor.execute(FILL.format(start, min(start + BATCH, first + count) - 1))
    connection.close()


def floor(database: Database, slot: str, count: int) -> tuple[float, float]:
    """Return (seconds, CPU seconds) in which psycopg2 alone gives the messages as bytes."""
    connection = psycopg2.connect(database.dsn, connection_factory=LogicalReplicationConnection)
    cursor: Any = connection.cursor()
    names = {"proto_version": "2", "publication_names": "tidemark_default_from_erp"}
    started, cpu, read = time.perf_counter(), time.process_time(), 0
    cursor.start_replication(slot_name=slot, decode=False, options=names)
    while read < count:
        message = cursor.read_message()
        if message is None:
            select.select([connection], [], [], 0.1)
        else:
            read += message.payload[0] == INSERT
    taken = time.perf_counter() - started, time.process_time() - cpu
    connection.close()
    return taken


def rates(database: Database, count: int) -> dict[str, float]:
    """Return the rows and CPU microseconds a row of both, over the same changes: the best of
    ROUNDS, in turn.
    """
    database.execute(TABLE)
    source = source_of(database, "public.sales")
    start = source.start_position(source.relations()[0])
    database.execute("SELECT pg_create_logical_replication_slot('floor', 'pgoutput')")
    fill(database, 1, count)
    # Compiled code is loaded before it is measured.
    read_rows(source, start, BATCH)
    figures: dict[str, float] = {}
    rounds = [
        {"floor": floor(database, "floor", count), "feed": read_rows(source, start, count)}
        for _ in range(ROUNDS)
    ]
    for name in ("floor", "feed"):
        seconds, cpu = (min(one[name][i] for one in rounds) for i in (0, 1))
        figures[f"{name}_rows_a_second"] = round(count / seconds, 1)
        figures[f"{name}_cpu_us_a_row"] = round(cpu / count * 1e6, 2)
    return figures


def main(arguments: list[str]) -> int:
    """Measure, print, and write the file."""
    parser = argparse.ArgumentParser(prog="python -m bench.postgres_source", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    options = parser.parse_args(arguments)
    with EmbeddedPostgres() as server, new_database(server) as database:
        figures = {"rows": rates(database, options.rows)}
    sizes = {"rows": options.rows}
    save_figures(RESULT, sizes, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
