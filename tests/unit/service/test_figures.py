"""Oracle: two small plans whose nodes and rows are known by heart, and a clock that ticks once a
look, so that a node's time is the number of its steps."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from dataflow.expressions.evaluator import NoEvaluator
from dataflow.plan.nodes import Distinct, Plan
from dataflow.schema import VIEW_SOURCE, Field, Relation
from dataflow.sharing import planned_nodes
from dataflow.sql.lower.lowering import lower
from dataflow.types import INT4, INT8
from service.api.models import NodeModel
from service.api.shared_nodes import dataflow_of, state_bytes
from service.engine.engine import Engine
from service.metrics.metrics import PipelineMetrics, read_dataflow
from storage.delta import Delta
from storage.memory import MemoryStore
from storage.pages import Tuning
from storage.rocks import RocksStore
from storage.store import ArrangementSpec
from tests.unit.service.test_sharing import (
    answers,
    build,
    counted,
    inserts,
    name_of,
    positive,
    scan,
)

COMMON = counted(positive(scan(1)))


def ticking() -> Any:
    ticks = count()
    return lambda: float(next(ticks))


def engine_of(**plans: Plan) -> Engine:
    store = MemoryStore()
    engine = Engine(store, NoEvaluator(), "source", clock=ticking())
    for name, plan in plans.items():
        engine.add(build(store, name, plan, engine))
    return engine


def told(engine: Engine, folder: Path) -> dict[str, Any]:
    PipelineMetrics(folder).report_dataflow(engine.figures)
    return read_dataflow(folder)


def test_nodes_are_reported_with_what_passes_them(tmp_path: Path) -> None:
    assert read_dataflow(tmp_path)["nodes"] == []
    engine = engine_of(one=COMMON, two=Distinct(COMMON))
    answers(engine, inserts((1, 7, 0, b""), (2, 7, 0, b""), (3, -1, 1, b"")))
    facts = told(engine, tmp_path)
    found = dataflow_of("public.two", facts, ())
    assert [(n.id, n.what, n.inputs, n.rows, n.rows_in, n.rows_out) for n in found.nodes] == [
        ("t0", "table", [], 3, 3, 3),
        ("n0", "scan", ["t0"], 0, 3, 2),
        ("n1", "filter", ["n0"], 0, 2, 1),
        ("n2", "aggregate", ["n1"], 1, 1, 1),
        ("n3", "aggregate", ["n2"], 1, 1, 1),
    ]
    assert [n.time_s for n in found.nodes] == [1.0] * 5
    assert [n.shared_with for n in found.nodes] == [["public.one"]] * 4 + [[]]
    assert found.nodes[3].detail == "aggregate by (a): count(*)"
    assert [n.id for n in dataflow_of("public.one", facts, ()).nodes] == ["t0", "n0", "n1", "n2"]
    sizes = state_bytes(facts)
    assert sum(sizes.values()) == sum(node["bytes"] for node in facts["nodes"])
    assert sizes["public.two"] > sizes["public.one"] > 0

    answers(engine, inserts((4, 7, 0, b"")))
    again = dataflow_of("public.two", told(engine, tmp_path), ()).nodes
    assert [n.time_s for n in again] == [2.0] * 5
    engine.remove(name_of("two"))
    left = dataflow_of("public.one", told(engine, tmp_path), ()).nodes
    assert [(n.id, n.shared_with) for n in left] == [(i, []) for i in ("t0", "n0", "n1", "n2")]


def test_a_view_of_a_view_begins_with_that_ones_rows(tmp_path: Path) -> None:
    fields = (Field("a", INT4), Field("n", INT8, False))
    lower_view = Relation(name_of("one"), 0, fields, key=(0,))
    assert lower_view.name.source == VIEW_SOURCE
    engine = engine_of(one=COMMON, two=Distinct(scan(1, of=lower_view)))
    answers(engine, inserts((1, 7, 0, b"")))
    found = dataflow_of("public.two", told(engine, tmp_path), ()).nodes
    assert [(n.id, n.what, n.inputs) for n in found] == [
        ("n2", "view", []),
        ("n3", "scan", ["n2"]),
        ("n4", "aggregate", ["n3"]),
    ]
    assert found[0].detail == "rows of public.one"
    assert (found[0].rows_out, found[0].time_s) == (1, None)


def test_a_view_that_does_not_run_has_its_plan_without_figures() -> None:
    planned = json.loads(json.dumps(planned_nodes(lower(Distinct(COMMON)))))
    found = dataflow_of("public.new", {"at": 1.0, "since": 0.0, "nodes": []}, planned)
    assert (found.at, found.since) == (None, None)
    assert [(n.id, n.what, n.inputs) for n in found.nodes] == [
        ("p0", "scan", []),
        ("p1", "filter", ["p0"]),
        ("p2", "aggregate", ["p1"]),
        ("p3", "aggregate", ["p2"]),
    ]
    empty = NodeModel(id="", what="", detail="", inputs=[])
    figures = ("rows", "bytes", "rows_in", "rows_out", "time_s")
    assert all(getattr(n, f) == getattr(empty, f) for n in found.nodes for f in figures)


def test_the_size_of_state_counts_texts(tmp_path: Path) -> None:
    rows = 3000
    texts = [(i, str(i).encode() * 100) for i in range(rows)]
    truth = sum(len(text) for _, text in texts)
    store = RocksStore(tmp_path, tuning=Tuning(page_rows=64, memory_rows=100))
    kept = store.arrange(ArrangementSpec("a", "is", (0,)))
    kept.apply(Delta.of("is", texts))
    store.commit()
    assert not kept.runs.memory_bytes
    kept.lookup([Delta.of("i", [(i,) for i in np.arange(0, rows, 50)]).columns[0]])
    found_rows, found_bytes = store.size("a")
    assert found_rows == rows
    assert truth < found_bytes < 1.4 * truth
    store.close()
