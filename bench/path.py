"""From source to sink through the real service, and PostgreSQL's own features, on one server.

Backfill with both engines, sustained changes while the source is written at full speed, and the
time from commit to visible at steady rates. At the end the view must equal its query.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench import server
from bench.measure import Figure, percentile
from bench.rows import Generated
from bench.server import QUERY
from bench.service_run import PROGRESS, ServiceRun, await_position
from connectors.postgres.embedded.server import EmbeddedPostgres

PATH = "path"
VIEW = "by_region"
BATCH = 1000
POLL_S = 0.0005
# Position in WAL before the commit record: the commit is visible once the sink is beyond it.
_POSITION = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint"
_INSERT = "INSERT INTO orders VALUES (%s, %s, 'paid', %s)"


@dataclass(frozen=True)
class PathSizes:
    """customers, orders: initial rows. rates: changes a second, each for `seconds`. engines: of the
    backfill.
    """

    customers: int
    orders: int
    rates: tuple[int, ...] = (1, 100, 1000)
    seconds: float = 10.0
    engines: tuple[str, ...] = ("spark", "local")


@dataclass(frozen=True)
class Peers:
    """PostgreSQL alone, with a row trigger, and with a materialized view."""

    alone_changes_s: float
    trigger_changes_s: float
    trigger_ms: tuple[float, float]
    create_s: float
    refresh_s: float


def run(rows: Generated, sizes: PathSizes) -> list[Figure]:
    """Measure all figures."""
    figures: list[Figure] = []
    with (
        EmbeddedPostgres() as postgres,
        TemporaryDirectory(prefix="tidemark-bench-") as folder,
        server.session(postgres.dsn) as cursor,
    ):
        changes = server.fill(cursor, rows)
        peers, used = _measure_peers(cursor, changes)
        with ServiceRun(postgres.dsn, Path(folder)) as service:
            figures += _snapshots(service, sizes, peers)
            figures += _sustained(cursor, service, (used, changes), peers)
            for rate in sizes.rates:
                figures += _latency(postgres.dsn, rate, sizes, peers)
            check_view(cursor)
            rss = service.pipeline_rss_mb()
    figures.append(Figure("memory", "pipeline, peak RSS", rss, "MB"))
    return figures


def _measure_peers(cursor: Any, changes: int) -> tuple[Peers, int]:
    """Return the peers' figures, and how many changes they used."""
    part = max(changes // 10, 1)
    create_s, refresh_s = server.refresh_seconds(cursor, 3)
    alone = sum(server.apply_all(cursor, 0, part, BATCH))
    server.add_trigger(cursor)
    with_trigger = sum(server.apply_all(cursor, part, 2 * part, BATCH))
    singles = max(min(500, part), 1)
    one_by_one = server.apply_all(cursor, 2 * part, 2 * part + singles, 1)
    server.drop_trigger(cursor)
    peers = Peers(
        part / alone,
        part / with_trigger,
        (percentile(one_by_one, 0.5) * 1e3, percentile(one_by_one, 0.99) * 1e3),
        create_s,
        refresh_s,
    )
    return peers, 2 * part + singles


def _snapshots(service: ServiceRun, sizes: PathSizes, peers: Peers) -> list[Figure]:
    """Measure rows a second from POST to live by each engine, cold and warm; keep the last view."""
    rows = sizes.customers + sizes.orders
    peer = ("CREATE MATERIALIZED VIEW", rows / peers.create_s)
    figures = []
    for engine in sizes.engines:
        for state in ("first view", "next view"):
            if figures:
                service.drop(VIEW)
            elapsed = service.create(VIEW, QUERY, engine)
            what = f"POST to live, {engine} backfill, {state}"
            figures.append(Figure("snapshot", what, rows / elapsed, "rows/s", *peer))
    return figures


def _sustained(
    cursor: Any, service: ServiceRun, span: tuple[int, int], peers: Peers
) -> list[Figure]:
    """Write to the source at full speed until the last change is visible."""
    low, high = span
    cpu_before = service.pipeline_cpu_s()
    started = time.perf_counter()
    server.apply_all(cursor, low, high - 1, BATCH)
    written = time.perf_counter()
    # The last change alone, so that its position before the commit is known.
    cursor.execute("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint")
    position = cursor.fetchone()[0]
    server.apply_all(cursor, high - 1, high, BATCH)
    visible = await_position(cursor, position, 600)
    cores = (service.pipeline_cpu_s() - cpu_before) / (visible - started)
    count = high - low
    sustained, source = count / (visible - started), count / (written - started)
    unit = "changes/s"
    return [
        Figure(
            "path", "source, service running", source, unit, "source alone", peers.alone_changes_s
        ),
        Figure("path", "sustained to visible", sustained, unit, "source, service running", source),
        Figure(
            "path", "sustained to visible", sustained, unit, "row trigger", peers.trigger_changes_s
        ),
        Figure("path", "lag when writing ended", (visible - written) * 1e3, "ms"),
        Figure("path", "the pipeline's CPU meanwhile", cores, "cores"),
    ]


def _latency(dsn: str, rate: int, sizes: PathSizes, peers: Peers) -> list[Figure]:
    """Measure commit to visible at a steady rate of single-row transactions."""
    count = max(int(rate * sizes.seconds), 5)
    with Watcher(dsn) as watcher:
        commits = write_steadily(dsn, rate, count, sizes.customers)
        watcher.await_beyond(commits[-1][0])
    waits = watcher.waits_ms(commits)
    p50, p99 = percentile(waits, 0.5), percentile(waits, 0.99)
    group = f"commit to visible, {rate:,} changes/s"
    trigger, refresh = "row trigger, the commit itself", "REFRESH MATERIALIZED VIEW"
    fifty, ninety_nine = peers.trigger_ms
    return [
        Figure(group, "p50", p50, "ms", trigger, fifty, more_is_better=False),
        Figure(group, "p99", p99, "ms", trigger, ninety_nine, more_is_better=False),
        Figure(group, "p50", p50, "ms", refresh, peers.refresh_s * 1e3, more_is_better=False),
    ]


def write_steadily(dsn: str, rate: int, count: int, customers: int) -> list[tuple[int, float]]:
    """Insert `count` rows, as `commit_steadily`."""
    with server.session(dsn) as cursor:
        cursor.execute("SELECT max(order_id) + 1 FROM orders")
        first = cursor.fetchone()[0]
        rows = ((first + number, number % customers, number) for number in range(count))
        return commit_steadily(cursor, rate, ((_INSERT, row) for row in rows))


def commit_steadily(
    cursor: Any, rate: int, statements: Iterable[tuple[str, tuple | None]]
) -> list[tuple[int, float]]:
    """Run statements with their values, each in a transaction of its own, so many in a second.

    Return (position before the commit, time of its return) of each.
    """
    commits = []
    started = time.perf_counter()
    for number, (statement, values) in enumerate(statements):
        pause = started + number / rate - time.perf_counter()
        if pause > 0:
            time.sleep(pause)
        cursor.execute(f"{statement}; {_POSITION}", values)
        commits.append((cursor.fetchone()[0], time.perf_counter()))
    return commits


class Watcher:
    """`with Watcher(dsn) as watcher:` polls the sink's position, in a session of its own."""

    def __init__(self, dsn: str) -> None:
        self._positions: list[int] = []
        self._moments: list[float] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(dsn,), daemon=True)
        self._thread.start()

    def await_beyond(self, position: int, timeout_s: float = 60) -> None:
        """Wait until the sink is beyond a position."""
        deadline = time.monotonic() + timeout_s
        while not self._positions or self._positions[-1] <= position:
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise RuntimeError("the sink does not follow")
            time.sleep(0.001)

    def seen_beyond(self, position: int) -> float:
        """Return the time at which the sink was first seen beyond a position."""
        return self._moments[bisect_left(self._positions, position + 1)]

    def waits_ms(self, commits: Iterable[tuple[int, float]]) -> list[float]:
        """Return how long each commit of `commit_steadily` took to be visible, in ms."""
        return [(self.seen_beyond(position) - at) * 1e3 for position, at in commits]

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self, dsn: str) -> None:
        with server.session(dsn) as cursor:
            while not self._stopping.is_set():
                cursor.execute(PROGRESS)
                position = cursor.fetchone()[0]
                if not self._positions or position > self._positions[-1]:
                    self._moments.append(time.perf_counter())
                    self._positions.append(position)
                time.sleep(POLL_S)


def check_view(cursor: Any) -> None:
    """Check that the view equals its query, once nobody writes."""
    cursor.execute(f"(TABLE {VIEW} EXCEPT {QUERY}) UNION ALL ({QUERY} EXCEPT TABLE {VIEW})")
    wrong = cursor.fetchall()
    if wrong:
        raise RuntimeError(f"the view is wrong: {wrong[:5]}")
