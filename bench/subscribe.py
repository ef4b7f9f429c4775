"""Subscriptions: the time from a commit to its event at each reader, and the cost of a change log.

Changes arrive at a steady rate. For the same commits two times are measured: until the sink's table
shows them, and until each reader (server-sent events, a connection each) has their progress marker.
The lower bound is as many sessions that LISTEN to a row trigger's NOTIFY. Then W1's changes are
written at full speed, alternately with an unread change log and without.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from bench import server
from bench.listeners import elsewhere, heard_by, listen, notifying, subscribe
from bench.measure import percentile
from bench.path import BATCH, VIEW, Watcher, check_view, write_steadily
from bench.rows import Generated
from bench.server import QUERY
from bench.service_run import ServiceRun, await_position
from bench.workloads import Sizes
from connectors.postgres.embedded.server import EmbeddedPostgres

SUBSCRIBE = "subscribe"
# A log lives so long without readers: one run of changes fits, and its end is soon there.
RETENTION_S = 8
LOG_WAIT_S = 60.0


@dataclass(frozen=True)
class SubscribeSizes:
    """customers, orders: initial rows. readers: how many at a time. pairs: of runs of `changes`
    changes each, with a log and without.
    """

    customers: int
    orders: int
    readers: tuple[int, ...] = (1, 10, 100)
    rate: int = 100
    seconds: float = 10.0
    pairs: int = 4
    changes: int = 40_000


def sizes_of(sizes: Sizes, seconds: float, *, is_quick: bool) -> SubscribeSizes:
    """Return sizes that fit these rows."""
    if is_quick:
        few = SubscribeSizes(sizes.customers, sizes.orders, (1, 3), seconds=1, pairs=1)
        return replace(few, changes=sizes.changes // 4)
    return SubscribeSizes(sizes.customers, sizes.orders, seconds=seconds)


def run(rows: Generated, sizes: SubscribeSizes) -> dict[str, Any]:
    """Measure `latency`, one figure a number of readers, and `log`, one a run."""
    with (
        EmbeddedPostgres() as postgres,
        TemporaryDirectory(prefix="tidemark-bench-") as name,
        server.session(postgres.dsn) as cursor,
    ):
        folder = Path(name)
        count = server.fill(cursor, rows)
        settings = {"TIDEMARK_CHANGES_RETENTION_S": str(RETENTION_S)}
        with ServiceRun(postgres.dsn, folder, settings) as service:
            service.create(VIEW, QUERY, "local")
            logs = list(_logged_runs(cursor, service, folder, sizes, count))
            latency = [_latency(postgres.dsn, service, n, sizes) for n in sizes.readers]
            check_view(cursor)
    return {"latency": latency, "log": logs}


# --- what a log costs ----------------------------------------------------------------------------


def _logged_runs(
    cursor: Any, service: ServiceRun, folder: Path, sizes: SubscribeSizes, count: int
) -> Iterator[dict[str, Any]]:
    """Run once to warm up, then in pairs, in alternating order."""
    low = 0
    for number in range(-1, sizes.pairs):
        for has_log in (False, True) if number % 2 else (True, False):
            high = low + sizes.changes
            if high > count:
                raise ValueError(f"{count} changes are too few")
            _set_log(service, folder, has_log=has_log)
            figures = _one_run(cursor, service, low, high)
            if has_log and not _has_log(folder):
                raise RuntimeError("the log was given up during the run")
            if number >= 0:
                yield {"has_log": has_log, **figures}
            low = high


def _set_log(service: ServiceRun, folder: Path, *, has_log: bool) -> None:
    """Start a change log by a reader; or wait until the log without readers has ended."""
    if has_log:
        url = f"{service.url}/views/{VIEW}/changes?snapshot=false"
        with httpx.stream("GET", url, timeout=LOG_WAIT_S) as lines:
            next(line for line in lines.iter_lines() if line.startswith("event: progress"))
        return
    deadline = time.monotonic() + LOG_WAIT_S
    while _has_log(folder):
        if time.monotonic() > deadline:
            raise RuntimeError("a log without readers stays")
        time.sleep(0.05)


def _has_log(folder: Path) -> bool:
    return any((folder / "state" / "changes").glob("*/log.json"))


def _one_run(cursor: Any, service: ServiceRun, low: int, high: int) -> dict[str, float]:
    """Return changes a second until visible, and CPU of the pipeline."""
    cpu_s, started = service.pipeline_cpu_s(), time.perf_counter()
    server.apply_all(cursor, low, high - 1, BATCH)
    cursor.execute("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint")
    position = cursor.fetchone()[0]
    server.apply_all(cursor, high - 1, high, BATCH)
    wall_s = await_position(cursor, position, 600) - started
    # What is written after the sink has it, the log among it, belongs to the run.
    time.sleep(0.5)
    cpu_s = service.pipeline_cpu_s() - cpu_s
    return {"changes": high - low, "wall_s": wall_s, "cpu_s": cpu_s}


# --- from the commit to the readers ---------------------------------------------------------------


def _latency(dsn: str, service: ServiceRun, readers: int, sizes: SubscribeSizes) -> dict[str, Any]:
    """Measure the lower bound, then ours, each at the same rate for the same time."""
    count = max(int(sizes.rate * sizes.seconds), 5)
    load = (dsn, sizes.rate, count, sizes.customers)
    with notifying(dsn), elsewhere(listen, dsn, readers) as others:
        commits = write_steadily(*load)
        heard = heard_by(others, count)
        # Notifications come in the order of commits: the n-th is of the n-th.
        floor = [
            (moments[n] - at) * 1e3 for _, moments in heard for n, (_, at) in enumerate(commits)
        ]
    with (
        Watcher(dsn) as watcher,
        elsewhere(subscribe, (service.url, VIEW), readers) as others,
    ):
        before, began = service.cpu_s(), time.perf_counter()
        commits = write_steadily(*load)
        watcher.await_beyond(commits[-1][0])
        elapsed = time.perf_counter() - began
        cores = {name: (s - before[name]) / elapsed for name, s in service.cpu_s().items()}
        reported = heard_by(others, commits[-1][0] + 1)
    table = watcher.waits_ms(commits)
    events = [
        (moments[bisect_left(positions, position + 1)] - at) * 1e3
        for positions, moments in reported
        for position, at in commits
    ]
    spread = {"floor": _spread(floor), "table": _spread(table), "event": _spread(events)}
    return {"readers": readers, **spread, "cores": cores}


def _spread(waits: Sequence[float]) -> dict[str, float]:
    return {"p50_ms": percentile(waits, 0.5), "p99_ms": percentile(waits, 0.99)}
