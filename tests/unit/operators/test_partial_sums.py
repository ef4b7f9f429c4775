"""Oracle: the same operator, stepped with the rows themselves: its output, errors and state.

Each delta of a random table is cut as buckets would have it, and each part is added up first.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from dataflow.collect import ErrorRows
from dataflow.delta import Delta
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import ColumnRef
from dataflow.operators.aggregates import aggregate
from dataflow.operators.aggregates.aggregate import AggregateOperator, is_additive
from dataflow.plan.nodes import Aggregate, AggregateCall, Plan
from dataflow.schema import Field
from dataflow.sql.lower.lowering import Node, lower, make_operator
from dataflow.types import INT8
from storage.memory import MemoryArrangement, MemoryStore
from tests.harness.buckets import counted
from tests.harness.tiers import count
from tests.property.plans import ADDITIVE, SMALL, WIDE, Table

SEEDS = count("TIDEMARK_TEST_PARTIAL_SUMS", 40, 600)
BUCKETS = 3


class Summing:
    """An aggregate over a store of its own."""

    def __init__(self, node: Node) -> None:
        self.store, self.errors = MemoryStore(), ErrorRows()
        operator = make_operator(node, self.store, "v1", NoEvaluator(), self.errors)
        assert isinstance(operator, AggregateOperator)
        self.operator = operator

    def facts(self) -> dict[str, list[str]]:
        """All its state, and the errors since the last time."""
        found = {"errors": sorted(map(repr, self.errors.take().rows()))}
        for state in self.store.contents():
            if isinstance(state, MemoryArrangement):
                rows = [row for part in state.scan() for row in part.rows()]
            else:
                rows = [
                    row
                    for keys, sums in state.scan()
                    for row in zip(*(k.to_list() for k in keys), *sums.tolist(), strict=True)
                ]
            found[state.spec.name] = sorted(map(repr, rows))
        return found


@pytest.mark.parametrize("summed_rows", [1, 2])
def test_a_step_over_sums_is_the_step_over_their_rows(
    summed_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregate, "SUMMED_ROWS", summed_rows)
    crossed = 0
    for seed in range(SEEDS):
        random = Random(seed)
        table = Table("w", WIDE, random)
        _, *below, node = _up_to_aggregate(ADDITIVE["sums"](random, *[table.scan()] * 3))
        if not is_additive(node.plan):
            # Of groups whose values print differently the least value is shown.
            continue
        local, summing, adding = Summing(node), Summing(node), Summing(node)
        projects = [make_operator(n, MemoryStore(), "", NoEvaluator(), ErrorRows()) for n in below]
        empty = adding.facts()
        for _ in range(6):
            delta = table.change()
            for project in projects:
                delta = project.step(delta)
            owners = np.array([random.randrange(BUCKETS) for _ in range(len(delta))], np.int64)
            parts = [
                adding.operator.partial_sums(delta.filter(owners == bucket))
                for bucket in range(BUCKETS)
            ]
            rows, sums = (Delta.concat(found).consolidate() for found in zip(*parts, strict=True))
            crossed += len(sums)
            found, expected = summing.operator.step_sums(rows, sums), local.operator.step(delta)
            assert counted(found.rows()) == counted(expected.rows()), seed
            assert summing.facts() == local.facts(), seed
        assert adding.facts() == empty, "adding up has changed state"
    assert crossed, "no sums are made"


def _up_to_aggregate(plan: Plan) -> list[Node]:
    nodes = lower(plan)
    (at,) = [i for i, node in enumerate(nodes) if isinstance(node.plan, Aggregate)]
    return list(nodes[: at + 1])


def test_many_rows_of_a_group_become_one_and_few_stay() -> None:
    table = Table("a", SMALL, Random(1))
    groups = (table.scan().fields[0],)
    key = ColumnRef(0, groups[0].type)
    call = AggregateCall("count", None, False, None, Field("n", INT8))
    plan = Aggregate(table.scan(), (key,), (call,), (*groups, call.field))
    (*_, node) = _up_to_aggregate(plan)
    many = [(7,)] * aggregate.SUMMED_ROWS + [(8,)] * (aggregate.SUMMED_ROWS - 1)
    weights = np.arange(1, len(many) + 1)
    rows, sums = Summing(node).operator.partial_sums(Delta.of("i", many, weights))
    assert {row[0] for row, _ in rows.rows()} == {8}
    n = aggregate.SUMMED_ROWS
    assert sums.rows() == [((7, n * (n + 1) // 2), 1)]
    # What adds up to nothing does not cross.
    cancelling = Delta.of("i", [(7,)] * 2 * n, [1, -1] * n)
    assert [len(part) for part in Summing(node).operator.partial_sums(cancelling)] == [0, 0]
