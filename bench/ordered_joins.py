"""`python -m bench.ordered_joins [--rows N]`: as-of and interval joins of trades and ticks.

Ours loads as the local backfill does, then takes changes row by row over RocksDB, one commit an
epoch. The peers are DuckDB's batch run and PostgreSQL's own query with an index on both tables; all
three answers are compared. Figures are CPU time of this process and the server's, which other load
hardly affects; printed, and written to a file.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np
import psutil

from bench.record import stamp
from bench.server import session
from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from connectors.postgres.embedded.server import EmbeddedPostgres
from dataflow.collect import ErrorRows
from dataflow.delta import Column, Delta
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.graph import ViewDataflow, needed_columns
from dataflow.plan.nodes import Plan, scans_of
from dataflow.schema import RelationName
from dataflow.sql.lower.lowering import lower
from dataflow.sql.planner import plan_view
from storage.memory import MemoryStore
from storage.rocks import RocksStore
from storage.store import Store

FIGURES = Path(__file__).parent / "ordered_joins.json"
SYMBOLS = 1_000
CACHE_BYTES = 1 << 30
# Rows of an epoch, and how many epochs are measured.
EPOCHS = {1: 300, 1_000: 10}
TABLES = ("trades", "ticks")
DDL = "CREATE TABLE {} (id bigint PRIMARY KEY, sym bigint NOT NULL, ts bigint NOT NULL)"
# As many ticks as rows lie in this many units for each symbol, on average two in an interval.
SPAN = 10**12
AS_OF = """SELECT t.id, k.id AS tick FROM trades t LEFT JOIN LATERAL (
    SELECT i.id FROM ticks i WHERE i.sym = t.sym AND i.ts <= t.ts ORDER BY i.ts DESC LIMIT 1
) k ON true"""
QUERIES = {
    "as-of join": (AS_OF, "SELECT t.id, k.id FROM trades t ASOF LEFT JOIN ticks k "
                   "ON k.sym = t.sym AND k.ts <= t.ts"),
    "interval join": ("SELECT t.id, k.id AS tick FROM trades t JOIN ticks k ON k.sym = t.sym "
                      "AND k.ts BETWEEN t.ts - {reach} AND t.ts + {reach}", ""),
}  # fmt: skip
Sum = tuple[int, int]


def main(arguments: list[str]) -> int:
    """Measure, print, and write the file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=FIGURES)
    given = parser.parse_args(arguments)
    figures = {
        **stamp(),
        "rows": given.rows,
        "joins": measure(given.rows),
    }
    given.out.write_text(json.dumps(figures, indent=1) + "\n")
    print("\n".join(section(given.out)))
    return 0


def measure(n: int) -> dict[str, dict[str, float]]:
    """Return the figures of each join of two tables of n rows; AssertionError if answers differ."""
    reach = SPAN * SYMBOLS // n
    rows = {name: _rows(n, seed) for seed, name in enumerate(TABLES)}
    found = {}
    with EmbeddedPostgres(settings={"fsync": "off", "jit": "off"}) as server:
        _fill(server.dsn, rows)
        for name, (query, peer) in QUERIES.items():
            query = query.format(reach=reach)
            with PostgresAnalyzer(server.dsn, "source") as analyzer:
                plan = plan_view(query, analyzer).root
            figures, answer = _ours(plan, rows, n)
            in_postgres, expected = _postgres(server, query)
            in_duckdb, other = _duckdb(rows, peer or query)
            if not answer == expected == other:
                raise AssertionError(f"{name}: {answer}, PostgreSQL {expected}, DuckDB {other}")
            found[name] = {**figures, "postgres_s": in_postgres, "duckdb_s": in_duckdb}
    return found


def _rows(n: int, seed: int) -> dict[str, np.ndarray]:
    """Return distinct times, so that every query has exactly one answer."""
    random = np.random.default_rng(seed)
    moments = random.permutation(n) * (SPAN // n) + random.integers(0, SPAN // n, n)
    return {"id": np.arange(n), "sym": random.integers(0, SYMBOLS, n), "ts": moments}


def _fill(dsn: str, rows: dict[str, dict[str, np.ndarray]]) -> None:
    with session(dsn) as cursor:
        for name, columns in rows.items():
            cursor.execute(DDL.format(name))
            with TemporaryDirectory() as folder:
                path = Path(folder) / "rows.csv"
                np.savetxt(path, np.stack(list(columns.values()), 1), "%d", ",")
                with path.open() as lines:
                    cursor.copy_expert(f"COPY {name} FROM STDIN (FORMAT csv)", lines)
            cursor.execute(f"CREATE INDEX ON {name} (sym, ts)")
            cursor.execute(f"VACUUM ANALYZE {name}")


def _ours(
    plan: Plan, rows: dict[str, dict[str, np.ndarray]], n: int
) -> tuple[dict[str, float], Sum]:
    relations = {scan.relation.name: scan.relation for scan in scans_of(plan)}
    columns = {
        name: [relations[name].fields[i].name for i in needed]
        for name, needed in needed_columns(lower(plan)).items()
    }
    whole = {
        name: Delta([Column(rows[name.name][c]) for c in own], np.ones(n, np.int64))
        for name, own in columns.items()
    }
    flow = _flow(plan, MemoryStore())
    spent, outputs = _cpu(lambda: [flow.step({name: rows}) for name, rows in whole.items()])
    total = Delta.concat(outputs).consolidate()
    tick = total.columns[1]
    answer = (len(total), int(tick.values[tick.mask()].sum()))
    figures: dict[str, float] = {"load_s": spent}
    with TemporaryDirectory() as folder:
        store = RocksStore(Path(folder) / "state", CACHE_BYTES)
        flow = _flow(plan, store)
        for name, delta in whole.items():
            flow.step({name: delta})
        store.commit()
        figures["state_bytes"] = sum(store.size(name)[1] for name in store.names())
        random = np.random.default_rng(9)
        for name, own in columns.items():
            for size, epochs in EPOCHS.items():
                deltas = [_new_rows(own, size, random) for _ in range(epochs)]
                spent, _ = _cpu(lambda d=deltas, t=name: [_epoch(flow, store, t, x) for x in d])
                figures[f"{name.name}_{size}_us"] = spent / (size * epochs) * 1e6
        store.close()
    return figures, answer


def _flow(plan: Plan, store: Store) -> ViewDataflow:
    flow = ViewDataflow(lower(plan), "v", store, NoEvaluator(), ErrorRows())
    flow.seed()
    return flow


def _epoch(flow: ViewDataflow, store: Store, name: RelationName, delta: Delta) -> None:
    flow.step({name: delta})
    store.commit()


def _new_rows(columns: list[str], n: int, random: np.random.Generator) -> Delta:
    values = {
        "id": random.integers(1 << 40, 1 << 41, n),
        "sym": random.integers(0, SYMBOLS, n),
        "ts": random.integers(0, SPAN, n),
    }
    return Delta([Column(values[c]) for c in columns], np.ones(n, np.int64)).consolidate()


def _cpu(run: Callable[[], Any]) -> tuple[float, Any]:
    before = time.process_time()
    out = run()
    return time.process_time() - before, out


def _postgres(server: EmbeddedPostgres, query: str) -> tuple[float, Sum]:
    process = psutil.Process(server.pid)
    before = process.cpu_times()
    with session(server.dsn) as cursor:
        cursor.execute(f"SELECT count(*), sum(tick) FROM ({query}) q")
        (count, total) = cursor.fetchone()
    time.sleep(1)  # a session's process is counted when it has ended
    after = process.cpu_times()
    spent = after.children_user - before.children_user
    return spent + after.children_system - before.children_system, (int(count), int(total))


def _duckdb(rows: dict[str, dict[str, np.ndarray]], query: str) -> tuple[float, Sum]:
    with duckdb.connect() as connection:
        for name, columns in rows.items():
            connection.register("given", columns)
            connection.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
            connection.unregister("given")
        run = f"SELECT count(*), sum(tick) FROM ({query}) q(id, tick)"
        spent, found = _cpu(lambda: connection.execute(run).fetchone())
    return spent, (int(found[0]), int(found[1]))


def section(path: Path = FIGURES) -> list[str]:
    """Return the last run's figures as Markdown lines; none before the first run."""
    if not path.exists():
        return []
    figures = json.loads(path.read_text())
    joins = figures["joins"]
    n = figures["rows"]
    lines = [
        "",
        "## Ordered joins",
        "",
        f"Trades and ticks of {n:,} rows each and {SYMBOLS:,} symbols, by "
        f"`python -m bench.ordered_joins`: {figures['date']}, revision {figures['revision']}, load "
        f"of the machine {figures['load']}. CPU time. DuckDB and PostgreSQL compute the query "
        "once; PostgreSQL has an index on (sym, ts). All three answers are equal.",
        "",
        f"| | {' | '.join(joins)} |",
        "|---|" + "---|" * len(joins),
    ]
    for title, value in _LINES.items():
        lines.append(f"| {title} | {' | '.join(value(f, n) for f in joins.values())} |")
    return lines


_LINES: dict[str, Callable[[dict[str, float], int], str]] = {
    "ours: initial load, s": lambda f, n: f"{f['load_s']:.1f}",
    "ours: rows/s of the initial load": lambda f, n: f"{2 * n / f['load_s']:,.0f}",
    "DuckDB, s": lambda f, n: f"{f['duckdb_s']:.1f}",
    "PostgreSQL, s": lambda f, n: f"{f['postgres_s']:.1f}",
    "ours: a new trade, ms": lambda f, n: f"{f['trades_1_us'] / 1e3:.2f}",
    "ours: a new tick, ms": lambda f, n: f"{f['ticks_1_us'] / 1e3:.2f}",
    "ours: a trade of 1,000 in an epoch, ms": lambda f, n: f"{f['trades_1000_us'] / 1e3:.2f}",
    "ours: a tick of 1,000 in an epoch, ms": lambda f, n: f"{f['ticks_1000_us'] / 1e3:.2f}",
    "ours: state, bytes a row": lambda f, n: f"{f['state_bytes'] / (2 * n):.0f}",
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
