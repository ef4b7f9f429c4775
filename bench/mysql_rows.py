"""`python -m bench.mysql_rows [--rows N]`: rows of a MariaDB server, beside the library alone.

In one run: the rows a second of python-mysql-replication alone, which is the lower bound of a
program that uses it, and those of the feed that decodes the same log to columns. Then, through the
whole service, the time from the commit in MariaDB until a view's table has the row, at a fixed rate
of commits. The result is printed and written to bench/mysql_rows.json, with the load of the
machine: above the number of its cores, only CPU times are reliable.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.feeds import read_rows
from bench.measure import percentile
from bench.record import save_figures
from bench.server import session
from bench.service_run import ServiceRun
from connectors.mysql import source as mysql
from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.connectors.mysql.reading import made
from tests.harness.mariadb import MariaDb, MariaDbServer, missing

RESULT = Path(__file__).parent / "mysql_rows.json"
TABLE = (
    "CREATE TABLE sales (id bigint PRIMARY KEY, customer int NOT NULL, region varchar(12), "
    "amount decimal(12,2), score double, note varchar(60), at datetime(6), paid tinyint(1))"
)
ROW = "'r{0}', {0} / 7, {0} / 3, 'a note of some length for sale {0}', now(6), {0} % 2"
BATCH = 1_000
RATE = 100
QUERY = "SELECT id, region, amount FROM bench.sales"


def fill(mariadb: MariaDb, first: int, count: int) -> None:
    """Insert so many rows, in transactions of BATCH rows."""
    values = ROW.format("seq")
    for start in range(first, first + count, BATCH):
        stop = min(start + BATCH, first + count) - 1
        columns = f"seq, seq % 1000, {values}".replace("'rseq'", "concat('r', seq % 50)")
        mariadb.execute(f"INSERT INTO sales SELECT {columns} FROM seq_{start}_to_{stop}")


def library(mariadb: MariaDb, position: dict[str, Any], count: int) -> tuple[float, float]:
    """Return (seconds, CPU seconds) in which the library alone gives the rows as dictionaries."""
    from pymysqlreplication import BinLogStreamReader
    from pymysqlreplication.row_event import WriteRowsEvent

    stream = BinLogStreamReader(
        {"host": "127.0.0.1", "port": mariadb.server.port, "user": "root"},
        server_id=4711,
        log_file=position["file"],
        log_pos=position["offset"],
        resume_stream=True,
        only_events=[WriteRowsEvent],
        enable_logging=False,
    )
    started, cpu, read = time.perf_counter(), time.process_time(), 0
    for event in stream:
        read += len(event.rows)
        if read >= count:
            break
    taken = time.perf_counter() - started, time.process_time() - cpu
    stream.close()
    return taken


def rates(mariadb: MariaDb, count: int) -> dict[str, float]:
    """Return the rows and CPU microseconds a row of both, over the same log."""
    mariadb.execute(TABLE)
    source = made(mysql.discover(mariadb.options("sales")))
    start = source.start_position(source.relations()[0])
    fill(mariadb, 1, count)
    figures: dict[str, float] = {}
    # Compiled code is loaded before it is measured.
    read_rows(source, start, BATCH)
    both = {
        "library": library(mariadb, dict(start.position), count),
        "feed": read_rows(source, start, count),
    }
    for name, (seconds, cpu) in both.items():
        figures[f"{name}_rows_a_second"] = count / seconds
        figures[f"{name}_cpu_us_a_row"] = cpu / count * 1e6
    return figures


def lags(mariadb: MariaDb, seconds: float) -> dict[str, float]:
    """Return the time from a commit in MariaDB to its row in the view, at RATE commits a second."""
    mariadb.execute("TRUNCATE TABLE sales")
    options = mysql.discover(mariadb.options("sales"))
    with (
        EmbeddedPostgres() as postgres,
        TemporaryDirectory(prefix="tidemark-bench-") as folder,
        ServiceRun(postgres.dsn, Path(folder)) as service,
        session(postgres.dsn) as sql,
    ):
        service.declare("bench", "mysql", dict(options))
        service.create("seen", QUERY, "local")
        committed: dict[int, float] = {}
        found: list[float] = []
        is_done = threading.Event()

        def write() -> None:
            started = time.perf_counter()
            for number in range(int(seconds * RATE)):
                time.sleep(max(0.0, started + number / RATE - time.perf_counter()))
                fill(mariadb, number + 1, 1)
                committed[number + 1] = time.perf_counter()
            is_done.set()

        writer = threading.Thread(target=write)
        writer.start()
        shown = 0
        while not (is_done.is_set() and shown == int(seconds * RATE)):
            sql.execute("SELECT coalesce(max(id), 0) FROM seen")
            ((newest,),) = sql.fetchall()
            now = time.perf_counter()
            # A commit whose answer has not come yet is in the view at once.
            found += [now - committed.get(id, now) for id in range(shown + 1, newest + 1)]
            shown = newest
            time.sleep(0.001)
        writer.join()
    rest = sorted(max(0.0, lag) * 1000 for lag in found[len(found) // 10 :])
    return {"p50_ms": percentile(rest, 0.5), "p99_ms": percentile(rest, 0.99)}


def main(arguments: list[str]) -> int:
    """Measure, print, and write the file."""
    parser = argparse.ArgumentParser(prog="python -m bench.mysql_rows", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args(arguments)
    reason = missing()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 1
    with MariaDbServer() as server, server.database() as mariadb, contextlib.closing(mariadb):
        measured = {
            "rows": rates(mariadb, options.rows),
            "commit_to_table": lags(mariadb, options.seconds),
        }
    figures = {
        part: {name: round(value, 1) for name, value in found.items()}
        for part, found in measured.items()
    }
    sizes = {"rows": options.rows, "rate": RATE, "seconds": options.seconds}
    save_figures(RESULT, sizes, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
