"""`python -m bench.windows [--rows N]`: windows of time, maintained and run once.

Tumbling and hopping windows and sessions over users' events, then Nexmark's queries with windows
(5, 7, 8, 11 and 12) over its events, 1,000 a second. Half of the rows are loaded; the others arrive
in epochs of 10,000 rows, 1,000 and 1. The peer is one run of the query in PostgreSQL, which also
checks the answer. Figures are CPU time: ours of this process, the peer's of the server's backend.
Printed, and written to bench/windows.json.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil

from bench.measure import in_child
from bench.record import stamp
from bench.server import session
from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.postgres.evaluation.evaluator import PostgresEvaluator
from connectors.sink import SinkTable
from dataflow.delta import Column, Delta
from dataflow.plan.nodes import ViewPlan, scans_of
from dataflow.sql.planner import plan_view
from dataflow.types import INT8, TIMESTAMP
from dataflow.values import to_text
from service.engine.definition import View, ViewDefinition
from storage.rocks import RocksStore
from tests.harness.compare import Answer, difference, empty_answer, pin_session, rows_of_query

FIGURES = Path(__file__).parent / "windows.json"
SOURCE = "source"
CACHE_BYTES = 1 << 30
LOAD_ROWS = 65_536
WARM_ROWS = 20_000
# Rows of an epoch, and the share of the rows that come in such epochs.
EPOCHS = {10_000: 0.3, 1_000: 0.15, 1: 0.0005}
# 1 January 2024, in microseconds since 2000.
BEGIN_US = 757_382_400_000_000
EVENT = ("id", "usr", "ts", "amount")
PERSON = ("id", "name", "ts")
AUCTION = ("id", "seller", "category", "ts")
BID = ("id", "auction", "bidder", "price", "ts", "arrived")
_MOMENTS = ("ts", "arrived")
_MINUTE = "date_bin('1 minute', ts, '1970-01-01')"
_TEN = "date_bin('10 seconds', {}, '1970-01-01')"


def _sessions(key: str, gap: str, shown: str) -> str:
    return f"""SELECT {shown} FROM (
    SELECT *, sum(is_new) OVER (PARTITION BY {key} ORDER BY ts) AS session FROM (
        SELECT *, CASE WHEN ts - lag(ts) OVER (PARTITION BY {key} ORDER BY ts) > interval '{gap}'
                       THEN 1 ELSE 0 END AS is_new FROM {{}}) f) s
GROUP BY {key}, session"""


def _hops(table: str, size: str, hop: str) -> str:
    begin = f"date_bin('{hop}', ts, '1970-01-01')"
    return (
        f"{table} CROSS JOIN LATERAL generate_series({begin} - interval '{size}' + "
        f"interval '{hop}', {begin}, interval '{hop}') AS w(start)"
    )


_USERS = _sessions("usr", "30 minutes", "usr, min(ts) AS since, max(ts) AS until, count(*) AS n")
_NUMBERS = _sessions("usr", "30 minutes", "usr, session, min(ts) AS since, count(*) AS n")
_COUNTED = f"""SELECT auction, w.start, count(*) AS num
    FROM {_hops("bid", "10 seconds", "2 seconds")} GROUP BY auction, w.start"""
# By title: (tables, query).
QUERIES = {
    "tumbling, 1 minute": (
        ("event",),
        f"SELECT {_MINUTE} AS minute, count(*) AS n, sum(amount) AS s FROM event GROUP BY 1",
    ),
    "hopping, 5 of 1 minute": (
        ("event",),
        "SELECT w.start, count(*) AS n, sum(amount) AS s "
        f"FROM {_hops('event', '5 minutes', '1 minute')} GROUP BY w.start",
    ),
    "sessions, gap of 30 minutes": (("event",), _USERS.format("event")),
    "sessions with their numbers": (("event",), _NUMBERS.format("event")),
    "Nexmark q5": (
        ("bid",),
        f"""WITH counted AS ({_COUNTED})
SELECT c.auction, c.start, c.num FROM counted c
JOIN (SELECT start, max(num) AS most FROM counted GROUP BY start) m USING (start)
WHERE c.num >= m.most""",
    ),
    "Nexmark q7": (
        ("bid",),
        f"""SELECT b.auction, b.price, b.bidder, b.ts FROM bid b
JOIN (SELECT max(price) AS most, {_TEN.format("ts")} AS start FROM bid GROUP BY 2) m
  ON b.price = m.most AND b.ts >= m.start AND b.ts < m.start + interval '10 seconds'""",
    ),
    "Nexmark q8": (
        ("person", "auction"),
        f"""SELECT p.id, p.name, p.start
FROM (SELECT id, name, {_TEN.format("ts")} AS start FROM person GROUP BY 1, 2, 3) p
JOIN (SELECT seller, {_TEN.format("ts")} AS start FROM auction GROUP BY 1, 2) a
  ON p.id = a.seller AND p.start = a.start""",
    ),
    "Nexmark q11": (
        ("bid",),
        _sessions(
            "bidder", "10 seconds", "bidder, count(*) AS n, min(ts) AS since, max(ts) AS until"
        ).format("bid"),
    ),
    "Nexmark q12": (
        ("bid",),
        f"SELECT bidder, count(*) AS n, {_TEN.format('arrived')} AS start FROM bid GROUP BY 1, 3",
    ),
}
TABLES = {"event": EVENT, "person": PERSON, "auction": AUCTION, "bid": BID}
Rows = dict[str, dict[str, np.ndarray]]


def rows_of(n: int, users: int) -> Rows:
    """Return n events of a week in any order, and n of Nexmark's in order: of 50, 1 person, 3
    auctions and 46 bids. A bidder is one of the newest 100 persons; half of the bids are for the
    newest auction.
    """
    rng = np.random.default_rng(7)
    week_us = 7 * 86_400_000_000
    event = {
        "id": np.arange(n),
        "usr": rng.integers(0, users, n),
        "ts": BEGIN_US + rng.integers(0, week_us, n),
        "amount": rng.integers(1, 500, n),
    }
    turn, moment = np.arange(n) % 50, BEGIN_US + np.arange(n) * 1_000
    persons, auctions = np.cumsum(turn == 0), np.cumsum((turn > 0) & (turn < 4))
    newest = np.where(rng.random(n) < 0.5, 0, rng.integers(0, 100, n))
    seller = np.maximum(persons - 1 - newest, 0)
    is_person, is_bid = turn == 0, turn >= 4
    is_auction = ~is_person & ~is_bid
    bids = int(is_bid.sum())
    return {
        "event": event,
        "person": {
            "id": np.arange(int(is_person.sum())),
            "name": np.arange(int(is_person.sum())),
            "ts": moment[is_person],
        },
        "auction": {
            "id": np.arange(int(is_auction.sum())),
            "seller": seller[is_auction],
            "category": rng.integers(10, 15, int(is_auction.sum())),
            "ts": moment[is_auction],
        },
        "bid": {
            "id": np.arange(bids),
            "auction": np.maximum(auctions - 1 - newest, 0)[is_bid],
            "bidder": np.maximum(persons - 1 - rng.integers(0, 100, n), 0)[is_bid],
            "price": (10 ** (rng.random(bids) * 6) * 100).astype(np.int64),
            "ts": moment[is_bid],
            "arrived": moment[is_bid] + rng.integers(0, 2_000_000, bids),
        },
    }


@dataclass
class Figures:
    """of load and epochs: CPU microseconds a row. one_ms: the median of an epoch of one row.

    once_s: CPU seconds of one run in PostgreSQL. fault: how the answer is wrong, "" if it is right.
    """

    rows: int
    load_us: float
    epoch_us: dict[int, float]
    one_ms: float
    once_s: float
    fault: str


class _Run:
    """One view over a store, and the steps through which rows pass."""

    def __init__(self, plan: ViewPlan, rows: Rows, dsn: str, folder: Path) -> None:
        self._rows = rows
        self._store = RocksStore(folder, cache_bytes=CACHE_BYTES)
        self._evaluator = PostgresEvaluator(dsn)
        table = SinkTable("public", "maintained", plan.root.fields, plan.key)
        definition = ViewDefinition("bench", table, "", plan)
        self._view = View(definition, self._store, self._evaluator)
        self._fields = plan.root.fields
        self.answer: Answer = empty_answer(self._fields)
        self.answer.add(self._view.dataflow.seed(), self._fields)
        self._needed = self._view.dataflow.needed_columns()
        self._relations = {r.name.name: r.name for r in definition.relations()}

    def step(self, share: tuple[float, float], *, is_load: bool = False) -> tuple[int, float]:
        """Step with the rows between two fractions of each table; return (rows, CPU seconds)."""
        deltas = {name: self._delta(name, share) for name in self._relations}
        inputs = {self._relations[n]: d for n, d in deltas.items() if len(d)}
        started = time.process_time()
        output = self._view.step(inputs)
        if is_load:
            self._store.relieve()
        else:
            self._store.commit()
        took = time.process_time() - started
        self.answer.add(output, self._fields)
        return sum(map(len, inputs.values())), took

    def _delta(self, name: str, share: tuple[float, float]) -> Delta:
        columns = self._rows[name]
        n = len(columns["id"])
        low, high = round(share[0] * n), round(share[1] * n)
        names = TABLES[name]
        kept = [Column(columns[names[c]][low:high]) for c in self._needed[self._relations[name]]]
        return Delta(kept, np.ones(high - low, np.int64)).consolidate()

    def close(self) -> None:
        self._store.close()
        self._evaluator.close()


def run(plan: ViewPlan, rows: Rows, dsn: str) -> dict[str, Any]:
    """Load half of the rows and step with the others; call it in a process of its own."""
    tables = {s.relation.name.name for s in scans_of(plan.root)}
    total = sum(len(rows[t]["id"]) for t in tables)
    with TemporaryDirectory(prefix="tidemark-bench-") as folder:
        few = {n: {c: v[:WARM_ROWS] for c, v in columns.items()} for n, columns in rows.items()}
        _measured(plan, few, dsn, Path(folder) / "warm", WARM_ROWS * len(tables))
        load_us, epoch_us, singles, answer = _measured(
            plan, rows, dsn, Path(folder) / "state", total
        )
    return {
        "rows": total,
        "load_us": load_us,
        "epoch_us": epoch_us,
        "one_ms": 1e3 * float(np.median(singles)),
        "answer": answer,
    }


def _measured(
    plan: ViewPlan, rows: Rows, dsn: str, folder: Path, total: int
) -> tuple[float, dict[int, float], list[float], Answer]:
    one = _Run(plan, rows, dsn, folder)
    spent = [one.step(s, is_load=True) for s in _shares(0.0, 0.5, LOAD_ROWS / total)]
    load_us = 1e6 * sum(s for _, s in spent) / max(sum(n for n, _ in spent), 1)
    at, epoch_us, singles = 0.5, {}, [0.0]
    for size, share in EPOCHS.items():
        end = at + share
        spent = [one.step(s) for s in _shares(at, end, size / total)]
        at = end
        if size == 1:
            singles = [s for n, s in spent if n] or singles
        else:
            epoch_us[size] = 1e6 * sum(s for _, s in spent) / max(sum(n for n, _ in spent), 1)
    one.step((at, 1.0))
    answer = one.answer
    one.close()
    return load_us, epoch_us, singles, answer


def _shares(low: float, high: float, step: float) -> Iterator[tuple[float, float]]:
    while low < high - step / 1e3:
        yield low, min(low + step, high)
        low += step


def measure(n: int, users: int, titles: Sequence[str]) -> dict[str, Any]:
    """Return the figures of each title."""
    rows, found = rows_of(n, users), {}
    with EmbeddedPostgres(settings={"fsync": "off"}) as server:
        with session(server.dsn) as cursor:
            for name, columns in TABLES.items():
                types = (f"{c} {_type(c)} NOT NULL" for c in columns)
                cursor.execute(f"CREATE TABLE {name} ({', '.join(types)}, PRIMARY KEY (id))")
                _copy(cursor, name, rows[name])
            cursor.execute("ANALYZE")
        with PostgresAnalyzer(server.dsn, SOURCE) as analyzer:
            plans = {title: plan_view(QUERIES[title][1], analyzer) for title in titles}
        for title, plan in plans.items():
            made = in_child(run, plan, rows, server.dsn)
            once_s, expected = _run_once(server.dsn, QUERIES[title][1])
            answer = made.pop("answer")
            fault = difference(Answer(answer.columns, expected), answer)
            found[title] = asdict(Figures(**made, once_s=once_s, fault=fault))
            print(f"{title}: {found[title]}", file=sys.stderr, flush=True)
    return found


def _type(column: str) -> str:
    return "timestamp" if column in _MOMENTS else "bigint"


def _copy(cursor: Any, name: str, rows: Mapping[str, np.ndarray]) -> None:
    texts = [
        to_text(TIMESTAMP if c in _MOMENTS else INT8, Column(rows[c])).to_list()
        for c in TABLES[name]
    ]
    lines = (b"\t".join(line) for line in zip(*texts, strict=True))
    cursor.copy_expert(f"COPY {name} FROM STDIN", io.BytesIO(b"\n".join(lines) + b"\n"))


def _run_once(dsn: str, query: str) -> tuple[float, Any]:
    """Return CPU seconds of one run, and the rows."""
    with session(dsn) as cursor:
        connection = cursor.connection
        pin_session(connection)
        backend = psutil.Process(connection.info.backend_pid)
        before = backend.cpu_times()
        cursor.execute(f"SELECT count(*) FROM ({query}) q OFFSET 0")
        cursor.fetchall()
        after = backend.cpu_times()
        rows = rows_of_query(connection, query)
    return after.user + after.system - before.user - before.system, rows


def main(arguments: list[str]) -> int:
    """Measure, print, write; return 1 if an answer is wrong."""
    parser = argparse.ArgumentParser(prog="python -m bench.windows", description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--users", type=int, default=1_000)
    parser.add_argument("--only", default="", help="titles, separated by ;")
    parser.add_argument("--out", type=Path, default=FIGURES)
    options = parser.parse_args(arguments)
    titles = [t for t in QUERIES if not options.only or t in options.only.split(";")]
    figures = {
        **stamp(),
        "rows": options.rows,
        "users": options.users,
        "queries": measure(options.rows, options.users, titles),
    }
    options.out.write_text(json.dumps(figures, indent=1) + "\n")
    print("\n".join(report(figures)))
    return 1 if any(f["fault"] for f in figures["queries"].values()) else 0


def section(path: Path = FIGURES) -> list[str]:
    """Return the section as Markdown lines; none before the first run."""
    if not path.exists():
        return []
    return ["", "## Windows of time", "", *report(json.loads(path.read_text()))]


def report(figures: dict[str, Any]) -> list[str]:
    """Return a table for human readers."""
    lines = [
        f"{figures['rows']:,} events of {figures['users']:,} users in a week, in any order; as "
        "many of Nexmark's, 1,000 a second. Half are loaded, the others are stepped through; by "
        f"`python -m bench.windows`: {figures['date']}, revision {figures['revision']}, load of "
        f"the machine {figures['load']}. CPU time. The peer is one run of the query in PostgreSQL "
        "over all rows, whose answer ours equals.",
        "",
        "| query | loaded, µs a row | epochs of 10,000, µs a row | of 1,000 | of 1, ms | "
        "one run in PostgreSQL, ms | answer |",
        "|---|---|---|---|---|---|---|",
    ]
    for title, found in figures["queries"].items():
        epochs = [f"{us:.1f}" for us in found["epoch_us"].values()]
        lines.append(
            f"| {title} | {found['load_us']:.1f} | {epochs[0]} | {epochs[1]} | "
            f"{found['one_ms']:.2f} | {found['once_s'] * 1e3:,.0f} | {found['fault'] or 'right'} |"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
