"""The engine alone on W1: operators over RocksDB, one commit an epoch, no network.

It is given what the replication stream gives under the default replica identity (new rows, and
keys of deleted ones), so old rows come out of its own state, as with the dictionaries beside it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bench.dictionaries import DictionaryResult
from bench.measure import Figure, in_child, peak_rss_mb, percentile, reset_peak_rss_mb
from bench.orders import QUERY, TABLES, Change, Order, Sizes, generate
from bench.server import session
from connectors.postgres.analyzer import PostgresAnalyzer
from connectors.postgres.embedded import EmbeddedPostgres
from connectors.sink import SinkTable
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.delta import Column, Delta
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.schema import Relation
from dataflow.sql.plan import ViewPlan
from dataflow.sql.planner import plan_view
from service.engine import Engine, View, ViewDefinition
from storage.rocks import RocksStore

SOURCE = "source"
WARM_UP = Sizes(customers=200, orders=1_000, changes=3_000)
CACHE_BYTES = 512 << 20
LOAD_ROWS = 65_536
# Share of the changes that each epoch size gets, and no more epochs than this of it.
EPOCHS = ((10_000, 0.6, 1_000), (100, 0.3, 1_500), (1, 0.1, 5_000))


@dataclass(frozen=True)
class EpochResult:
    """changes_s over all epochs of a size, and what one epoch took."""

    size: int
    changes_s: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class EngineResult:
    """One run over the whole workload."""

    snapshot_rows_s: float
    epochs: list[EpochResult]
    rss_mb: float
    changes: int
    rows: dict[tuple[str, str], tuple[int, int]]


def run(sizes: Sizes, by_hand: DictionaryResult) -> list[Figure]:
    """The engine's figures beside the dictionaries'."""
    with EmbeddedPostgres() as postgres:
        with session(postgres.dsn) as cursor:
            cursor.execute(TABLES)
        plan = plan_query(postgres.dsn)
    result: EngineResult = in_child(measure, sizes, plan)
    peer = "dictionaries, not durable"
    figures = [
        Figure(
            "engine", "snapshot", result.snapshot_rows_s, "rows/s", peer, by_hand.snapshot_rows_s
        )
    ]
    for epoch in result.epochs:
        group = f"engine, epochs of {epoch.size:,}"
        figures += [
            Figure(group, "changes", epoch.changes_s, "changes/s", peer, by_hand.changes_s),
            Figure(group, "an epoch, p50", epoch.p50_ms, "ms"),
            Figure(group, "an epoch, p99", epoch.p99_ms, "ms"),
        ]
    rss = Figure(
        "memory",
        "engine, RSS gained",
        result.rss_mb,
        "MB",
        peer,
        by_hand.rss_mb,
        more_is_better=False,
    )
    return [*figures, rss]


def plan_query(dsn: str) -> ViewPlan:
    """The plan of the workload's view, from a database with its tables."""
    with PostgresAnalyzer(dsn, SOURCE) as analyzer:
        return plan_view(QUERY, analyzer)


def measure(sizes: Sizes, plan: ViewPlan) -> EngineResult:
    """The whole workload; run it in a process of its own."""
    if sizes != WARM_UP:
        measure(WARM_UP, plan)
    workload = generate(sizes)
    rss_before = reset_peak_rss_mb()
    table = SinkTable("public", "by_region", plan.root.fields, plan.key)
    definition = ViewDefinition("bench", table, QUERY, plan)
    with TemporaryDirectory(prefix="tidemark-bench-") as folder:
        store = RocksStore(Path(folder) / "store", cache_bytes=CACHE_BYTES)
        engine = Engine(store, NoEvaluator(), SOURCE)
        view = View(definition, store, NoEvaluator())
        orders = _relation(view, "orders")
        chunks = {
            relation.name: _chunks(view, relation, getattr(workload, relation.name.name))
            for relation in definition.relations()
        }
        started = time.perf_counter()
        outputs = [view.dataflow.seed()]
        for name, deltas in chunks.items():
            for delta in deltas:
                view.tables[name].load(delta)
                outputs.append(view.step({name: delta}))
        engine.add(view)
        store.commit()
        loaded = time.perf_counter()
        counts = len(workload.customers) + len(workload.orders)
        epochs, low = [], 0
        for size, share, most in EPOCHS:
            high = min(low + int(share * sizes.changes), low + most * size)
            epochs.append(_run_epochs(engine, orders, workload.changes[low:high], size, outputs))
            low = high
        _run_epochs(engine, orders, workload.changes[low:], 10_000, outputs)
        store.close()
    found = Delta.concat(outputs).consolidate().rows()
    return EngineResult(
        counts / (loaded - started),
        epochs,
        peak_rss_mb() - rss_before,
        sizes.changes,
        {(r[0].decode(), r[1].decode()): (r[2], int(r[3])) for r, _ in found},
    )


def _relation(view: View, name: str) -> Relation:
    return next(r for r in view.definition.relations() if r.name.name == name)


def _chunks(view: View, relation: Relation, rows: Sequence[tuple[object, ...]]) -> list[Delta]:
    """The snapshot's rows in the columns that the view needs."""
    needed = view.dataflow.needed_columns()[relation.name]
    kinds = [relation.fields[c].type.physical for c in needed]
    return [
        Delta.of(kinds, [tuple(row[c] for c in needed) for row in rows[start : start + LOAD_ROWS]])
        for start in range(0, len(rows), LOAD_ROWS)
    ]


def _run_epochs(
    engine: Engine, relation: Relation, changes: list[Change], size: int, outputs: list[Delta]
) -> EpochResult:
    batches = [
        _batch(relation, changes[start : start + size], engine.position + start + 1)
        for start in range(0, len(changes), size)
    ]
    seconds = []
    for batch in batches:
        started = time.perf_counter()
        epoch = engine.step(batch)
        engine.commit(epoch, written=epoch.progress.epoch - 1)
        seconds.append(time.perf_counter() - started)
        outputs += [delta for _, delta in epoch.deltas]
    if not seconds:
        return EpochResult(size, 0, 0, 0)
    # The first epochs warm caches and compiled loops up.
    steady = seconds[len(seconds) // 10 :]
    return EpochResult(
        size,
        len(changes) / len(seconds) * len(steady) / sum(steady),
        percentile(steady, 0.5) * 1e3,
        percentile(steady, 0.99) * 1e3,
    )


_KINDS = {"c": Changes.INSERT, "u": Changes.NEW, "d": Changes.DELETE_KEY}


def _batch(relation: Relation, changes: list[Change], position: int) -> SourceBatch:
    rows = [_sent(*change) for change in changes]
    columns = tuple(
        Column.of(f.type.physical, [row[i] for row in rows]) for i, f in enumerate(relation.fields)
    )
    kinds = np.array([_KINDS[op] for op, _, _ in changes], np.uint8)
    return SourceBatch(position, [Changes(relation, kinds, columns)], len(changes), len(changes))


def _sent(op: str, before: Order | None, after: Order | None) -> tuple[object, ...]:
    if after is not None:
        return after
    assert before is not None
    return (before[0], None, None, None)
