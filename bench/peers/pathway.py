"""Pathway on a workload: `python -m bench.peers.pathway JOB`, in Pathway's own environment.

JOB is JSON: workload, folder, threads, singles. Rows enter through its Python connector, one commit
an epoch with the same changes as ours. The initial rows are one commit, whose end is awaited and
not counted. After the last epoch, `singles` changes are sent one at a time, each awaited, for the
latency. Prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pathway as pw
import pyarrow.parquet as pq

from bench.peers.own import cpu_s, peak_rss_mb, percentile
from bench.rows import DELETE, OLD, Generated
from bench.workloads import EPOCH, WORKLOADS, Table, Workload, difference, fold

SETTLED_S = 1.5
QUIET_S = 0.5
# "id" is the row's pointer there.
RENAMED = {"id": "number"}
_KINDS = {"i": int, "s": str}


def main(job: dict[str, Any]) -> dict[str, Any]:
    pw.set_license_key(None)
    workload = WORKLOADS[job["workload"]]
    run = Run(workload, Generated(Path(job["folder"])), job["singles"])
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    return {"version": pw.__version__, **run.figures()}


class Run:
    """One feed a table, a barrier between them at each epoch, and the output."""

    def __init__(self, workload: Workload, rows: Generated, singles: int) -> None:
        self._workload, self._rows = workload, rows
        self._frames = [_frame(rows, table) for table in workload.tables]
        last = max(int(f["seq"].max()) for f in self._frames)
        # The last ones go one at a time.
        self._single_from = last + 1 - singles if singles else last + 1
        self.epochs = [*range(0, self._single_from, EPOCH), self._single_from]
        self.singles = list(range(self._single_from, last + 1))
        # A feed that has no more to send leaves after the load: while it is open and silent, the
        # others' rows wait for it.
        self.barrier = threading.Barrier(len(self._frames))
        self.streaming = threading.Barrier(len(workload.stream))
        self.lock = threading.Lock()
        self.seen = threading.Event()
        self.last = 0.0
        self.marks: dict[str, tuple[float, float]] = {}
        self.waits_ms: list[float] = []
        self._outputs: list[tuple[tuple[Any, ...], int]] = []
        self._totals: dict[str, Any] = {}
        tables = {
            table.name: pw.io.python.read(
                Feed(self, table, frame), schema=_schema(table), autocommit_duration_ms=None
            )
            for table, frame in zip(workload.tables, self._frames, strict=True)
        }
        result = _QUERIES[workload.name](**tables)
        self._names = result.column_names()
        pw.io.subscribe(result, on_change=self._on_change)

    def mark(self, name: str, moment: float | None = None) -> None:
        """Note the first time of an event, and the CPU seconds until then."""
        with self.lock:
            self.marks.setdefault(name, (moment or time.perf_counter(), cpu_s()))

    def settle(self, barrier: threading.Barrier) -> None:
        """Wait until there has been no output for a while."""
        barrier.wait()
        started = time.perf_counter()
        while time.perf_counter() - max(self.last, started) < SETTLED_S:
            time.sleep(0.05)
        barrier.wait()

    def figures(self) -> dict[str, Any]:
        """Return the figures, and how the answer is wrong."""
        (fed, cpu_fed), (done, cpu_done) = self.marks["fed"], self.marks["done"]
        changes = sum(
            int(((f["kind"] != OLD) & (f["seq"] >= 0) & (f["seq"] < self._single_from)).sum())
            for f in self._frames
        )
        loaded = sum(int((f["seq"] < 0).sum()) for f in self._frames)
        found = fold(self._workload, self._outputs)
        waits = self.waits_ms
        return {
            "changes": changes,
            "wall_s": done - fed,
            # Waiting for the output to settle takes no CPU to speak of.
            "cpu_s": cpu_done - cpu_fed,
            "load_rows": loaded,
            "load_s": self.marks["loaded"][0] - self.marks["started"][0] if loaded else 0.0,
            "p50_ms": percentile(waits, 0.5) if waits else None,
            "p99_ms": percentile(waits, 0.99) if waits else None,
            "singles": len(waits),
            "peak_rss_mb": peak_rss_mb(),
            "fault": difference(self._rows.answer(self._workload), found),
        }

    def _on_change(self, key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:
        self._outputs.append((tuple(row.values()), 1 if is_addition else -1))
        self.last = _now()
        self.seen.set()


class Feed(pw.io.python.ConnectorSubject):
    """The rows of one table, in step with the other tables' feeds."""

    _deletions_enabled = True

    def __init__(self, run: Run, table: Table, frame: pd.DataFrame) -> None:
        super().__init__()
        self._run = run
        self._seq = frame["seq"].to_numpy()
        self._gone = frame["kind"].isin((OLD, DELETE)).to_numpy().tolist()
        names = [RENAMED.get(n, n) for n in table.names]
        values = zip(*(frame[n].tolist() for n in table.names), strict=True)
        self._values = [dict(zip(names, v, strict=True)) for v in values]
        self._at = 0

    def run(self) -> None:
        """Load, then epochs, then single changes."""
        run = self._run
        run.barrier.wait()
        run.mark("started")
        self._send(0)
        run.settle(run.barrier)
        run.mark("loaded", run.last)
        if self._at == len(self._seq):
            return
        run.streaming.wait()
        run.mark("fed")
        for before in run.epochs[1:]:
            self._send(before)
        run.settle(run.streaming)
        run.mark("done", run.last)
        for number in run.singles:
            run.seen.clear()
            started = _now()
            if self._send(number + 1):
                # Without a visible effect nothing comes.
                if run.seen.wait(QUIET_S):
                    run.waits_ms.append((run.last - started) * 1e3)
                time.sleep(0.002)

    def _send(self, before: int) -> int:
        """Send all rows of changes below `before`, and a commit; return how many."""
        start, high = self._at, int(self._seq.searchsorted(before))
        for at in range(self._at, high):
            if self._gone[at]:
                self._remove_inner(None, self._values[at])
            else:
                self._add_inner(None, self._values[at])
        self._at = high
        if high > start:
            self.commit()
        return high - start


def _frame(rows: Generated, table: Table) -> pd.DataFrame:
    """Yield the initial rows, with number -1, and the changes."""
    parts = []
    if rows.parquet(table, "load").exists():
        load = pq.read_table(rows.parquet(table, "load")).to_pandas()
        parts.append(load.assign(seq=-1, kind=ord("I")))
    if rows.parquet(table, "changes").exists():
        parts.append(pq.read_table(rows.parquet(table, "changes")).to_pandas())
    return pd.concat(parts, ignore_index=True)


def _schema(table: Table) -> Any:
    columns = {}
    for at, (name, kind) in enumerate(table.columns):
        columns[RENAMED.get(name, name)] = pw.column_definition(
            dtype=_KINDS[kind], primary_key=at < table.key
        )
    return pw.schema_builder(columns)


def _count_and_sum(customers: Any, orders: Any) -> Any:
    kept = orders.filter(orders.status != "cancelled")
    joined = kept.join(customers, kept.customer_id == customers.customer_id).select(
        customers.region, customers.segment, kept.amount
    )
    return joined.groupby(joined.region, joined.segment).reduce(
        joined.region, joined.segment, n=pw.reducers.count(), total=pw.reducers.sum(joined.amount)
    )


def _max_of_auction(auction: Any, bid: Any) -> Any:
    joined = auction.join(bid, auction.number == bid.auction).select(
        auction.number,
        auction.category,
        auction.expires,
        bid.price,
        started=auction.ts,
        at=bid.ts,
    )
    joined = joined.filter((joined.at >= joined.started) & (joined.at <= joined.expires))
    won = joined.groupby(joined.number, joined.category).reduce(
        joined.category, final=pw.reducers.max(joined.price)
    )
    return won.groupby(won.category).reduce(won.category, average=pw.reducers.avg(won.final))


def _project(bid: Any) -> Any:
    return bid.select(bid.auction, bid.bidder, price=bid.price * 0.908, ts=bid.ts)


def _filter(bid: Any) -> Any:
    return bid.filter(bid.auction % 123 == 0).select(pw.this.auction, pw.this.price)


def _join(person: Any, auction: Any) -> Any:
    sellers = person.filter(
        (person.state == "OR") | (person.state == "ID") | (person.state == "CA")
    )
    expected = auction.filter(auction.category == 10)
    return expected.join(sellers, expected.seller == sellers.number).select(
        sellers.name, sellers.city, sellers.state, expected.number
    )


_QUERIES = {
    "w1": _count_and_sum,
    "w2": _max_of_auction,
    "w2r": _max_of_auction,
    "q1": _project,
    "q2": _filter,
    "q3": _join,
}
_now = time.perf_counter


if __name__ == "__main__":
    print("\n" + json.dumps(main(json.loads(sys.argv[1]))))
