"""Imports what tasks use, by stepping a small view, so that no task waits for it.

Invariant: it touches nothing that tasks use, and a failure only means that the first tasks are
slow.
"""

from __future__ import annotations

import numpy as np

from dataflow.collect import ErrorRows
from dataflow.delta import Column, Delta
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import ColumnRef
from dataflow.graph import ViewDataflow
from dataflow.plan.nodes import Aggregate, AggregateCall, Join, Scan
from dataflow.schema import Field, Relation, RelationName
from dataflow.sql.lower.lowering import lower
from dataflow.types import INT8, NUMERIC, TEXT
from storage.bulk import partition_rows
from storage.layout import Layout
from storage.memory import MemoryStore
from storage.pages import Tuning, cut, order_rows
from storage.store import ArrangementSpec

_FIELDS = (Field("id", INT8, False), Field("word", TEXT), Field("amount", INT8))


def _scan(name: str) -> Scan:
    relation = Relation(RelationName("", "", name), 0, _FIELDS, (0,), is_full=True)
    return Scan(relation, (0, 1, 2), _FIELDS)


def warm() -> None:
    """Step a join and an aggregate over a few rows, and hash rows by key."""
    left, right = _scan("left"), _scan("right")
    keys = (ColumnRef(0, INT8),), (ColumnRef(0, INT8),)
    joined = Join("inner", left, right, *keys, None, _FIELDS + _FIELDS)
    calls = (
        AggregateCall("count", None, False, None, Field("n", INT8)),
        AggregateCall("sum", ColumnRef(2, INT8), False, None, Field("total", NUMERIC)),
    )
    group = ColumnRef(1, TEXT)
    plan = Aggregate(joined, (group,), calls, (_FIELDS[1], *(c.field for c in calls)))
    view = ViewDataflow(lower(plan), "warm", MemoryStore(), NoEvaluator(), ErrorRows())
    rows = [(n, str(n % 3), n) for n in range(20)]
    added = Delta.of("isi", rows)
    for delta in (added, added.slice(0, 5).negate()):
        view.step({scan.relation.name: delta for scan in (left, right)})
    partition_rows([Column(np.arange(20))], 20, 4)


def warm_files() -> None:
    """Order and cut a few rows into the pages of a file, and write none."""
    rows = Delta.of("isi", [(n, str(n % 3), n) for n in range(20)])
    layout = Layout.of(ArrangementSpec("warm", "isi", (0,)))
    image = layout.image(rows.columns, rows.weights.reshape(1, -1))
    list(cut(layout, order_rows(layout, image), Tuning()))
