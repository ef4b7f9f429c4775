"""Oracle: the same operators in this process over a memory store, from the same rows at once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest

from connectors.pages import decode_delta
from connectors.partition_cache import Progress
from connectors.shuffle_storage import Exchange, FolderExchange
from connectors.spark import segment
from connectors.spark.backfill import (
    SparkBackfill,
    calling_pages,
    gather,
    node_specs,
    table_specs,
)
from connectors.spark.result import BackfillResult
from connectors.spark.segment import Job, additive_nodes
from connectors.spark.session import LazySession
from connectors.spark.stages import cut
from connectors.spark.tasks import read_part, run_slot
from dataflow.changes import Changes
from dataflow.collect import ErrorRows
from dataflow.delta import Delta
from dataflow.errors import TidemarkError
from dataflow.graph import ViewDataflow, needed_columns
from dataflow.operators.tables.table import TableState
from dataflow.plan.nodes import Plan, scans_of
from dataflow.schema import Relation, RelationName
from dataflow.sql.lower.lowering import lower
from storage.memory import MemoryStore
from storage.rocks import RocksStore
from storage.store import Store
from tests.connectors.spark.views import (
    CUSTOMERS,
    LOG,
    ORDERS,
    DrawnPart,
    draw_rows,
    no_evaluator,
    plans,
    to_delta,
)

SIZES = {CUSTOMERS.name: 150, ORDERS.name: 1200, LOG.name: 90}
PARTS = 3
PLANS = plans()


def relations_of(plan: Plan) -> list[Relation]:
    return list({scan.relation.name: scan.relation for scan in scans_of(plan)}.values())


def kept_of(plan: Plan, *, is_wide: bool = False) -> dict[RelationName, tuple[int, ...]]:
    """The columns that are kept of each relation: needed ones; or all, for other views to read."""
    if is_wide:
        return {r.name: tuple(range(len(r.fields))) for r in relations_of(plan)}
    return needed_columns(lower(plan))


def parts_of(plan: Plan, *, is_wide: bool = False) -> dict:
    kept = kept_of(plan, is_wide=is_wide)
    parts = {}
    for relation in relations_of(plan):
        ends = np.linspace(0, SIZES[relation.name], PARTS + 1, dtype=int).tolist()
        parts[relation.name] = [
            DrawnPart(relation, kept[relation.name], range(a, b)) for a, b in pairwise(ends)
        ]
    return parts


def run_spark(
    session: LazySession, plan: Plan, work_dir: Path, buckets: int, **changed
) -> BackfillResult:
    given = {
        "nodes": lower(plan),
        "scope": "v1",
        "relations": relations_of(plan),
        "columns": needed_columns(lower(plan)),
        "parts": parts_of(plan),
        "evaluator": no_evaluator,
        "work_dir": work_dir / "work",
        "on_progress": lambda progress: None,
    }
    return SparkBackfill(session, buckets).run(**{**given, **changed})


@dataclass
class Running:
    """A view's dataflow and tables over a store; places: of what is needed in what is kept."""

    dataflow: ViewDataflow
    tables: dict
    positions: dict
    errors: ErrorRows

    @staticmethod
    def over(plan: Plan, store: Store, *, is_wide: bool = False) -> Running:
        errors = ErrorRows()
        dataflow = ViewDataflow(lower(plan), "v1", store, no_evaluator(), errors)
        needed = dataflow.needed_columns()
        kept = kept_of(plan, is_wide=is_wide)
        tables = {r.name: TableState(r, kept[r.name], store, "v1") for r in relations_of(plan)}
        positions = {name: [kept[name].index(c) for c in needed[name]] for name in tables}
        return Running(dataflow, tables, positions, errors)

    def load(self, plan: Plan) -> Delta:
        """The local engine."""
        deltas = {}
        for name, parts in parts_of(plan).items():
            deltas[name] = Delta.concat([rows for part in parts for rows in part.read()])
            self.tables[name].load(deltas[name])
            deltas[name] = deltas[name].consolidate()
        return self.dataflow.seed(deltas)

    def change(self, changes: list[Changes]) -> tuple[Counter, Counter]:
        """(delta, error rows) of one epoch."""
        deltas = {}
        for change in changes:
            name = change.relation.name
            rows = self.tables[name].resolve(change)
            deltas[name] = rows.project(self.positions[name]).consolidate()
        return bag(self.dataflow.step(deltas)), bag(self.errors.take())


def bag(delta: Delta | None) -> Counter:
    return Counter() if delta is None else Counter(dict(delta.rows()))


def draw_changes(relation: Relation, rng: Random, living: dict[int, tuple]) -> Changes:
    """Inserts, updates and deletes; living: position -> row, changed in place."""
    rows, kinds = [], []
    for key in rng.sample(sorted(living), 20):
        if rng.random() < 0.5:
            rows.append(living.pop(key))
            kinds.append(Changes.DELETE)
        else:
            [new] = draw_rows(relation, rng, range(key, key + 1))
            if relation.is_full:
                rows.append(living[key])
                kinds.append(Changes.OLD)
            living[key] = new
            rows.append(new)
            kinds.append(Changes.NEW)
    start = max(living) + 1
    for key in range(start, start + 10):
        [living[key]] = draw_rows(relation, rng, range(key, key + 1))
        rows.append(living[key])
        kinds.append(Changes.INSERT)
    every = tuple(range(len(relation.fields)))
    columns = to_delta(relation, rows, every).columns
    return Changes(relation, np.array(kinds, np.uint8), columns)


def living_rows(relation: Relation, parts: list[DrawnPart]) -> dict[int, tuple]:
    rows = [draw_rows(relation, Random(p.keys.start), p.keys) for p in parts]
    return dict(enumerate(row for share in rows for row in share))


def run_here(plan: Plan, work_dir: Path, buckets: int, *, is_wide: bool = False) -> BackfillResult:
    """All tasks of a backfill one after the other in this process, without a JVM."""
    return gather(run_tasks(plan, FolderExchange(work_dir), buckets, is_wide=is_wide), work_dir)


def run_tasks(plan: Plan, exchange: Exchange, buckets: int, *, is_wide: bool = False) -> Job:
    """The same without its end: the job, whose tasks have left their files in the exchange."""
    nodes, relations = lower(plan), relations_of(plan)
    parts, columns = parts_of(plan, is_wide=is_wide), kept_of(plan, is_wide=is_wide)
    tables = table_specs(columns, "v1", relations, parts)
    specs, additive = node_specs(nodes, "v1", no_evaluator()), additive_nodes(nodes)
    stages = cut(nodes, tables, specs, buckets, additive)
    flat = tuple((name, part) for name, shares in parts.items() for part in shares)
    job = Job(exchange, nodes, "v1", stages, flat, no_evaluator, columns)
    pages = calling_pages(stages)
    for number in range(len(flat)):
        pages += read_part(job, number)
    for slot in range(stages.level_slots[-1]):
        inputs: dict[int, list[Delta]] = {}
        for _, tag, page in [row for row in pages if row[0] == slot]:
            inputs.setdefault(tag, []).append(decode_delta(page))
        if inputs:
            later = list(run_slot(job, slot, inputs))
            assert all(to > slot for to, _, _ in later)
            pages += later
    return job


def check(plan: Plan, result: BackfillResult, state: Path, *, is_wide: bool = False) -> None:
    """The result is that of the local engine, and the view continues alike from its state."""
    local = Running.over(plan, MemoryStore())
    wanted = bag(local.load(plan))
    pages = [dict(page.rows()) for page in result.read_output()]
    assert sum(map(len, pages)) == len(wanted), "a row comes once"
    assert Counter({row: n for page in pages for row, n in page.items()}) == wanted
    assert bag(result.errors) == bag(local.errors.take())
    assert result.rows == sum(SIZES[r.name] for r in relations_of(plan))

    store = RocksStore(state)
    ours = Running.over(plan, store, is_wide=is_wide)
    store.ingest(result.files)
    rng, parts = Random(5), parts_of(plan)
    living = {r.name: living_rows(r, parts[r.name]) for r in relations_of(plan)}
    for _ in range(8):
        changes = [draw_changes(r, rng, living[r.name]) for r in relations_of(plan)]
        assert ours.change(changes) == local.change(changes)
        store.commit()
    store.close()


@pytest.mark.parametrize("buckets", [1, 2, 5])
@pytest.mark.parametrize("name", PLANS)
def test_tasks_give_the_same_view_and_state(name: str, buckets: int, tmp_path: Path) -> None:
    check(PLANS[name], run_here(PLANS[name], tmp_path / "work", buckets), tmp_path / "state")


@pytest.mark.parametrize("name", PLANS)
def test_tasks_keep_columns_that_other_views_read(name: str, tmp_path: Path) -> None:
    result = run_here(PLANS[name], tmp_path / "work", 2, is_wide=True)
    check(PLANS[name], result, tmp_path / "state", is_wide=True)


def test_a_large_bucket_is_stepped_in_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "STEP_ROWS", 70)
    monkeypatch.setattr(segment, "PAGE_ROWS", 30)
    for name in ("grouped join", "full join", "not in", "scalar subquery"):
        folder = tmp_path / name
        check(PLANS[name], run_here(PLANS[name], folder / "work", 2), folder / "state")


@pytest.mark.whole
@pytest.mark.parametrize(
    "name", ["grouped join", "scalar subquery", "constant and rows", "failing rows", "recursion"]
)
def test_both_engines_give_the_same_view_and_continue_alike(
    name: str, session: LazySession, tmp_path: Path
) -> None:
    check(PLANS[name], run_spark(session, PLANS[name], tmp_path, 3), tmp_path / "state")


@pytest.mark.whole
def test_a_failure_keeps_its_code(session: LazySession, tmp_path: Path) -> None:
    with pytest.raises(TidemarkError) as failed:
        run_spark(session, PLANS["plain scan"], tmp_path, 2, evaluator=refuse)
    assert failed.value.code == "evaluator.gone"


def refuse() -> None:
    raise TidemarkError("evaluator.gone", "evaluator is gone", detail="a fact")


@pytest.mark.whole
def test_the_caller_can_cancel(session: LazySession, tmp_path: Path) -> None:
    calls = []

    def stop(progress: Progress) -> None:
        calls.append(progress)
        raise TidemarkError("view.dropped", "the view was dropped")

    with pytest.raises(TidemarkError, match="dropped"):
        run_spark(session, PLANS["grouped join"], tmp_path, 2, on_progress=stop)
    assert len(calls) == 1
    run_spark(session, PLANS["words"], tmp_path / "again", 2)


@pytest.mark.whole
def test_progress_ends_at_the_total(session: LazySession, tmp_path: Path) -> None:
    calls: list[Progress] = []
    result = run_spark(session, PLANS["grouped join"], tmp_path, 4, on_progress=calls.append)
    last = calls[-1]
    assert (last.parts_done, last.tasks_done) == (last.parts_total, last.tasks_total)
    assert last.rows == result.rows
    assert last.bytes > 8 * last.rows
    steps = [call.parts_done + call.tasks_done for call in calls]
    assert steps == sorted(steps)
    assert {call.parts_total for call in calls} == {last.parts_total}
    # While the session is waited for, tasks are not counted yet.
    assert {call.tasks_total for call in calls} - {0} == {last.tasks_total}
    assert any(0 < step < steps[-1] for step in steps)
