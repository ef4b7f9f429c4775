"""`python -m bench.stream_rows [--rows N]`: rows of streams and of ClickHouse, beside libraries.

In one run, for the same messages on loopback: the rows a second of the client library alone, which
parses each message and no more, and those of the feed that turns them into columns and notes. The
result is printed and written to bench/stream_rows.json, with the load of the machine: above the
number of its cores, only CPU times are reliable. CPU times include what sends the messages, in the
same process, for both alike.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import orjson
from websockets.sync.client import connect

from bench.feeds import read_rows
from bench.record import save_figures
from connectors.clickhouse import source as clickhouse
from connectors.feed_source import FeedSource
from connectors.stream import source as stream
from connectors.stream.inbox import INBOXES
from tests.connectors.polled_mirror import make_source
from tests.connectors.stream.servers import EventServer, WebSocketServer
from tests.harness.clickhouse import ClickHouse, found_program

RESULT = Path(__file__).parent / "stream_rows.json"
COLUMNS = [
    {"name": "id", "type": "bigint"},
    {"name": "symbol", "type": "text"},
    {"name": "price", "type": "numeric(12,2)"},
    {"name": "size", "type": "integer"},
]
TABLE = "CREATE TABLE trades (id UInt64, symbol String, price Decimal(12,2), size Int32)"
FILL = (
    "INSERT INTO trades SELECT number, concat('S', toString(number % 50)), "
    "toDecimal64(number % 9000, 2), number % 100 FROM numbers({})"
)

Taken = tuple[float, float]


def message(number: int) -> dict[str, Any]:
    """Return one row as it is sent."""
    return {"id": number, "symbol": f"S{number % 50}", "price": f"{number % 9000}.25", "size": 7}


def measured(read: Callable[[], None]) -> Taken:
    """Return (seconds, CPU seconds) that a call takes."""
    started, cpu = time.perf_counter(), time.process_time()
    read()
    return time.perf_counter() - started, time.process_time() - cpu


def feed(source: FeedSource, count: int, begin: Callable[[], None]) -> Taken:
    """Return what a feed takes for so many rows, which `begin` lets the server send."""
    start = source.start_position(source.relations()[0])
    taken = read_rows(source, start, count, begin)
    INBOXES.close()
    return taken


def websockets_rates(count: int) -> dict[str, Taken]:
    """Return what the library and the feed take for messages of a WebSocket."""
    texts = [orjson.dumps(message(number)).decode() for number in range(count)]
    with WebSocketServer().running() as server:

        def send() -> None:
            server.await_connected()
            for text in texts:
                server.send(text)

        def sending() -> None:
            threading.Thread(target=send, daemon=True).start()

        def library() -> None:
            with connect(server.url, proxy=None) as connection:
                sending()
                for _ in range(count):
                    orjson.loads(connection.recv())

        alone = measured(library)
        while server.connected:
            time.sleep(0.01)
        options = {"url": server.url, "relations": {"t": {"columns": COLUMNS}}}
        return {"library": alone, "feed": feed(make_source(stream, options), count, sending)}


def events_rates(count: int) -> dict[str, Taken]:
    """Return what httpx and the feed take for server-sent events."""
    with EventServer().running() as server:
        for number in range(count):
            server.send(message(number))

        def library() -> None:
            found = 0
            with httpx.stream("GET", server.url, trust_env=False, timeout=None) as answer:
                for line in answer.iter_lines():
                    if line.startswith("data: "):
                        orjson.loads(line[6:])
                        found += 1
                        if found == count:
                            return

        alone = measured(library)
        options = {"url": server.url, "relations": {"t": {"columns": COLUMNS}}}
        return {"library": alone, "feed": feed(make_source(stream, options), count, lambda: None)}


def clickhouse_rates(count: int) -> dict[str, Taken]:
    """Return what httpx and a cursor's feed take for the rows of a table."""
    with ClickHouse() as server:
        server.execute(f"{TABLE} ENGINE = MergeTree ORDER BY id")
        relation = {"table": "trades", "cursor": "id", "columns": COLUMNS}
        options: Mapping[str, Any] = {
            "url": server.url,
            "poll_interval_ms": 20,
            "relations": {"t": relation},
        }
        source = make_source(clickhouse, options)

        def library() -> None:
            sql = "SELECT * FROM trades FORMAT JSONEachRow"
            answer = httpx.post(server.url, content=sql.encode(), trust_env=False, timeout=600)
            assert sum(bool(orjson.loads(line)) for line in answer.content.splitlines()) == count

        def fill() -> None:
            server.execute(FILL.format(count))

        filled = feed(source, count, fill)
        return {"library": measured(library), "feed": filled}


def main(arguments: list[str]) -> int:
    """Measure, print, and write the file."""
    parser = argparse.ArgumentParser(prog="python -m bench.stream_rows", description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    options = parser.parse_args(arguments)
    parts: dict[str, Callable[[int], dict[str, Taken]]] = {
        "websocket": websockets_rates,
        "server_sent_events": events_rates,
    }
    if found_program() is not None:
        parts["clickhouse_cursor"] = clickhouse_rates
    # Compiled code is loaded before it is measured.
    websockets_rates(1000)
    figures = {}
    for part, rates in parts.items():
        figures[part] = {
            f"{name}_{what}": round(value, 1)
            for name, (seconds, cpu) in rates(options.rows).items()
            for what, value in (
                ("rows_a_second", options.rows / seconds),
                ("cpu_us_a_row", cpu / options.rows * 1e6),
            )
        }
    save_figures(RESULT, {"rows": options.rows}, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
