"""`python -m bench.sinks [TYPE ...]`: deltas written by each sink, beside its client library alone.

A sink gets EPOCHS epochs of ROWS new rows of a keyed view, each in a write of its own. The library
alone writes the same rows in as many transactions, files or requests, in the form that its own
documentation shows; it keeps no progress and excludes no second writer. Both in one run, in this
process, against servers of this machine. The result is printed and written to bench/sinks.json with
the load of the machine: above the number of its cores, only CPU times are reliable.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import numpy as np
import pyarrow as pa

from bench.record import save_figures
from connectors import netguard
from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.sink import SinkTable
from connectors.view_sink import ViewEpoch
from dataflow.delta import Column, Delta
from dataflow.schema import Field
from dataflow.types import FLOAT8, INT8, TEXT
from service.factory.sink_types import sink_connector
from tests.harness.clickhouse_engine import ClickHouse
from tests.harness.mariadb import MariaDbServer
from tests.harness.webhook_receiver import SECRET, Receiver

RESULT = Path(__file__).parent / "sinks.json"
EPOCHS, ROWS = 20, 10_000
POSITION = {"source": "0/1A"}
FIELDS = (
    Field("id", INT8, False),
    Field("region", TEXT),
    Field("amount", INT8),
    Field("score", FLOAT8),
)
# Writes one epoch, of the rows from a number on.
Write = Callable[[int], None]


def columns(first: int) -> tuple[np.ndarray, list[str], np.ndarray, np.ndarray]:
    """Return the columns of an epoch's rows, numbered from `first`."""
    ids = np.arange(first, first + ROWS, dtype=np.int64)
    return ids, [f"region {n % 50}" for n in range(ROWS)], ids * 7, ids / 3


def arrow(first: int) -> pa.Table:
    """Return the rows of an epoch as Arrow."""
    names = [field.name for field in FIELDS]
    return pa.table(dict(zip(names, columns(first), strict=True)))


def tuples(first: int) -> list[tuple[Any, ...]]:
    """Return the rows of an epoch as Python values."""
    ids, regions, amounts, scores = columns(first)
    return list(zip(ids.tolist(), regions, amounts.tolist(), scores.tolist(), strict=True))


def epoch(number: int) -> ViewEpoch:
    """Return an epoch that adds ROWS rows; the first one, 1, adds none."""
    if number == 1:
        return ViewEpoch(1, POSITION, [], 0, True)
    ids, regions, amounts, scores = columns(number * ROWS)
    delta = Delta(
        [Column(ids), Column.of("s", regions), Column(amounts), Column(scores)],
        np.ones(ROWS, np.int64),
    )
    return ViewEpoch(number, POSITION, [delta], ROWS, False)


def timed(write: Write, firsts: list[int]) -> dict[str, float]:
    """Return rows a second, and CPU microseconds of this process a row, of so many writes."""
    started, cpu = time.perf_counter(), time.process_time()
    for first in firsts:
        write(first)
    seconds, spent = time.perf_counter() - started, time.process_time() - cpu
    rows = len(firsts) * ROWS
    return {"rows_a_second": rows / seconds, "cpu_us_a_row": spent / rows * 1e6}


def sink_figures(type_name: str, options: dict[str, Any]) -> dict[str, float]:
    """Return the figures of a sink with its options."""
    table = SinkTable("public", "measured", FIELDS, (0,))
    with closing(sink_connector(type_name).make(options, table, "measured", "t")) as sink:
        sink.open(None)
        sink.write([epoch(1)])
        made = {number: epoch(number) for number in range(2, EPOCHS + 4)}
        # The first ones compile and connect.
        for number in (2, 3):
            sink.write([made[number]])
        return timed(lambda number: sink.write([made[number]]), list(range(4, EPOCHS + 4)))


class Plain(BaseHTTPRequestHandler):
    """Takes everything."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Read the body, and answer."""
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def of_postgres(folder: Path) -> Iterator[tuple[dict[str, Any], Write]]:
    """Yield the options of a sink in PostgreSQL, and psycopg2's COPY."""
    import psycopg2
    from psycopg2.extensions import parse_dsn

    with EmbeddedPostgres() as server:
        facts = parse_dsn(server.dsn)
        options = {"host": facts["host"], "port": int(facts["port"]), "user": facts["user"]}
        with closing(psycopg2.connect(server.dsn)) as session, session.cursor() as cursor:
            cursor.execute(
                "CREATE TABLE plain (id int8 PRIMARY KEY, region text, amount int8, score float8)"
            )
            session.commit()

            def write(first: int) -> None:
                lines = "".join("\t".join(map(str, row)) + "\n" for row in tuples(first))
                cursor.copy_expert("COPY plain FROM STDIN", io.StringIO(lines))
                session.commit()

            yield {**options, "database": facts["dbname"]}, write


@contextmanager
def of_mysql(folder: Path) -> Iterator[tuple[dict[str, Any], Write]]:
    """Yield the options of a sink in MariaDB, and PyMySQL's executemany."""
    with MariaDbServer() as server, server.database() as made, closing(made):
        made.execute(
            "CREATE TABLE plain (id bigint PRIMARY KEY, region varchar(20), amount bigint,"
            " score double)"
        )
        import pymysql

        login = {"host": "127.0.0.1", "port": server.port, "user": "root"}
        with closing(pymysql.connect(database=made.name, **login)) as session:

            def write(first: int) -> None:
                with session.cursor() as cursor:
                    cursor.executemany("INSERT INTO plain VALUES (%s,%s,%s,%s)", tuples(first))
                session.commit()

            yield {**login, "database": made.name}, write


@contextmanager
def of_webhook(folder: Path) -> Iterator[tuple[dict[str, Any], Write]]:
    """Yield the options of a sink at a receiver, and httpx with bodies of 1,000 rows as JSON.

    The receiver checks each message; that of httpx, which signs none, only reads it. Both take
    their CPU in this process.
    """
    import httpx

    os.environ["SECRET_WEBHOOK"] = SECRET
    receiver, plain = Receiver(), ThreadingHTTPServer(("127.0.0.1", 0), Plain)
    Thread(target=plain.serve_forever, daemon=True).start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{plain.server_port}") as client:
            names = [field.name for field in FIELDS]

            def write(first: int) -> None:
                rows = [dict(zip(names, row, strict=True)) for row in tuples(first)]
                for start in range(0, ROWS, 1000):
                    client.post("/", json=rows[start : start + 1000])

            url = f"http://127.0.0.1:{receiver.port}/hooks"
            yield {"url": url, "secret": "${env:SECRET_WEBHOOK}"}, write
    finally:
        plain.shutdown()
        receiver.stop()


@contextmanager
def of_parquet(folder: Path) -> Iterator[tuple[dict[str, Any], Write]]:
    """Yield the options of a sink in a folder, and pyarrow's write_table."""
    import pyarrow.parquet as pq

    (folder / "plain").mkdir()
    yield (
        {"path": str(folder / "ours"), "max_delay_s": 0},
        lambda first: pq.write_table(arrow(first), folder / "plain" / f"{first}.parquet"),
    )


@contextmanager
def of_delta(folder: Path) -> Iterator[tuple[dict[str, Any], Write]]:
    """Yield the options of a sink that appends changes, and deltalake's append."""
    from deltalake import write_deltalake

    place = str(folder / "plain-delta")
    yield (
        {"path": str(folder / "ours-delta"), "mode": "changes", "max_delay_s": 0},
        lambda first: write_deltalake(place, arrow(first), mode="append"),
    )


@contextmanager
def of_iceberg(folder: Path) -> Iterator[tuple[dict[str, Any], Write]]:
    """Yield the options of a sink in a SQL catalog, and pyiceberg's append."""
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("c", uri=f"sqlite:///{folder}/plain.db", warehouse=f"file://{folder}/w")
    catalog.create_namespace("plain")
    made = catalog.create_table("plain.t", arrow(0).schema)
    options = {"path": str(folder / "ours-iceberg"), "catalog": f"sqlite:///{folder}/ours.db"}
    yield (
        {**options, "table": "shop.measured", "max_delay_s": 0},
        lambda first: made.append(arrow(first)),
    )


@contextmanager
def of_clickhouse(folder: Path) -> Iterator[tuple[dict[str, Any], Write]]:
    """Yield the options of a sink in ClickHouse's engine, and clickhouse-connect's insert."""
    import clickhouse_connect

    server = ClickHouse(folder / "clickhouse")
    server.start()
    try:
        server.query(
            "CREATE TABLE plain (id Int64, region String, amount Int64, score Float64)"
            " ENGINE = MergeTree ORDER BY id"
        )
        client = clickhouse_connect.get_client(host="127.0.0.1", port=server.port)
        yield {"url": server.url}, lambda first: client.insert_arrow("plain", arrow(first))
    finally:
        server.kill()


KINDS: dict[str, Callable[[Path], Any]] = {
    "postgres": of_postgres,
    "mysql": of_mysql,
    "clickhouse": of_clickhouse,
    "parquet": of_parquet,
    "delta": of_delta,
    "iceberg": of_iceberg,
    "webhook": of_webhook,
}


def main(arguments: list[str]) -> int:
    """Measure, print, and write the file."""
    parser = argparse.ArgumentParser(prog="python -m bench.sinks", description=__doc__)
    parser.add_argument("types", nargs="*", choices=[*KINDS, []], help="of sinks; all without any")
    chosen = parser.parse_args(arguments).types or list(KINDS)
    netguard.install(netguard.Guard(folders=("/",), writable=("/",)))
    figures: dict[str, Any] = {}
    for name in chosen:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="tidemark-bench-")))
            options, write = stack.enter_context(KINDS[name](folder))
            write(0)
            library = timed(write, [n * ROWS for n in range(1, EPOCHS + 1)])
            found = {"sink": sink_figures(name, options), "library": library}
        figures[name] = {
            who: {what: round(value, 2) for what, value in one.items()}
            for who, one in found.items()
        }
        print(name, figures[name], file=sys.stderr)
    sizes = {"epochs": EPOCHS, "rows": ROWS}
    if set(figures) == set(KINDS):
        save_figures(RESULT, sizes, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
