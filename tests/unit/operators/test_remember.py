"""Oracle: the value that the counter gave when a row first came, whatever it would give later."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dataflow.collect import ErrorRows
from dataflow.delta import Column, Delta
from dataflow.expressions.evaluator import RowErrors
from dataflow.expressions.ir import ColumnRef, InPostgres
from dataflow.operators.base import Context
from dataflow.operators.tables.remember import RememberOperator
from dataflow.plan.nodes import Remember, Values
from dataflow.schema import Field
from dataflow.types import INT4, INT8
from storage.rocks import RocksStore

K, V = Field("k", INT4), Field("v", INT8)


class Counter:
    """An evaluator whose answer is another one every time; fails for negative arguments."""

    def __init__(self) -> None:
        self.calls = 0

    def evaluate(self, sql, types, columns, n, result):
        self.calls += 1
        errors = RowErrors()
        for i, k in enumerate(columns[0].to_list()):
            if k is not None and k < 0:
                errors.add(i, "22000", f"call {self.calls}")
        return Column(np.full(n, self.calls, np.int64)), errors


def operator(store: RocksStore, evaluator: Counter, errors: ErrorRows) -> RememberOperator:
    call = InPostgres("f($1)", (ColumnRef(0, INT4, "k"),), INT8, is_stable=True)
    plan = Remember(Values((), (K,)), (call,), (K, V))
    return RememberOperator(plan, Context("00.remember", "v", store, evaluator, errors))  # type: ignore[arg-type]


def rows(*pairs: tuple[int | None, int]) -> Delta:
    return Delta.of("i", [(k,) for k, _ in pairs], [w for _, w in pairs])


def test_a_row_goes_with_the_value_that_it_came_with(tmp_path: Path) -> None:
    evaluator, errors = Counter(), ErrorRows()
    store = RocksStore(tmp_path / "state", 1 << 20)
    step = operator(store, evaluator, errors).step
    assert sorted(step(rows((1, 2), (None, 1))).rows(), key=repr) == [((1, 1), 2), ((None, 1), 1)]
    assert step(rows((1, -1), (2, 1))).rows() == [((1, 1), -1), ((2, 2), 1)]
    assert len(step(rows((-5, 1)))) == 0
    (failed,) = errors.take().rows()
    assert failed[1] == 1
    store.commit()
    store.close()
    store = RocksStore(tmp_path / "state", 1 << 20)
    step = operator(store, evaluator, errors).step
    calls = evaluator.calls
    out = step(rows((1, -1), (None, -1), (2, 1), (-5, -1)))
    assert sorted(out.rows(), key=repr) == [((1, 1), -1), ((2, 2), 1), ((None, 1), -1)]
    assert evaluator.calls == calls
    assert errors.take().rows() == [(failed[0], -1)]
    assert step(rows((1, 1))).rows() == [((1, calls + 1), 1)]
    store.close()
