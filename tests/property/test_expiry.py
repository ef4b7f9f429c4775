"""Oracle: the same views each by itself, whose operators and tables never free a row.

Views compare integers with a clock that moves on; rows of their tables are inserted, changed and
deleted long after the clock has passed them. Views come, go and are opened again meanwhile. A
failure names the seed; to repeat one: TIDEMARK_SEED=<seed> pytest tests/property/test_expiry.py
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest

from dataflow.changes import Changes
from dataflow.delta import Column, Delta
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import Call, ColumnRef, Expression, Literal
from dataflow.plan.nodes import (
    Distinct,
    Filter,
    Plan,
    Project,
    Scan,
    SemiJoin,
    ThresholdFilter,
    ThresholdFlag,
)
from dataflow.plan.walk import refs
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import BOOL, INT4
from service.engine import engine as engine_module
from service.engine.engine import Engine
from storage import memory
from storage.memory import MemoryStore
from storage.store import Store
from tests.property.test_sharing import ROUNDS, STEPS, Run, renamed, rocks, seeds

CLOCK = Relation(
    RelationName("clock", "clock", "now"),
    8,
    (Field("id", INT4, False), Field("at", INT4)),
    (0,),
    is_single=True,
)
BEGINNING = -9


class Clock:
    """The one row of a clock, as a table of the run."""

    relation = CLOCK

    def __init__(self, random: Random) -> None:
        self.at = BEGINNING
        self._random = random

    def delta(self, columns: tuple[int, ...]) -> Delta:
        """The row."""
        return Delta.of("i" * len(columns), [tuple((1, self.at)[c] for c in columns)])

    def change(self) -> Changes:
        """A tick."""
        self.at += self._random.choice((0, 1, 1, 2))
        columns = (Column(np.array([1])), Column(np.array([self.at])))
        return Changes(CLOCK, np.array([Changes.UPSERT], np.uint8), columns)


class Expiring(Run):
    """One engine whose clock moves. freed: rows that its tables and filters have freed."""

    def __init__(self, seed: int, reopen: Callable[[Store | None], Store]) -> None:
        super().__init__(seed, reopen)
        self.tables = [*self.tables[:2], Clock(self.random)]  # type: ignore[list-item]
        self.freed_most = self.settled_most = 0

    def opened(self) -> Engine:
        return Engine(self.store, NoEvaluator(), "source", few_rows=1)

    def step(self) -> None:
        super().step()
        dataflow = self.engine.dataflow
        freed = [table.state.freed.count for table in dataflow.tables.tables]
        self.freed_most = max([self.freed_most, *freed])
        operators = [node.operator for v in dataflow.views.values() for node in v.nodes]
        settled = [getattr(operator, "settled_rows", 0) for operator in operators]
        self.settled_most = max([self.settled_most, *settled])

    def plan(self) -> Plan:
        """Rows compared with the clock, often a part that others have too."""
        common = Random(self.random.randrange(9))
        table = self.tables[common.random() < 0.4]
        rows: Plan = self.scan(common, table)
        if common.random() < 0.5:
            rows = Filter(rows, Call("<>", (ref(rows, 1), number(3)), BOOL))
        if common.random() < 0.3:
            rows = renamed(rows, 7)
        for _ in range(common.choice((1, 1, 2))):
            rows = self.compared(rows, common)
        above = self.random.randrange(15)
        if above == 0:
            return Distinct(renamed(rows, self.made))
        if above == 1:
            return renamed(rows, self.made)
        if above == 2 and isinstance(rows, ThresholdFilter):
            flag = ThresholdFlag(rows, rows.threshold, ref(rows, 1), "<")
            return Filter(flag, Call("or", (refs(flag)[-1], small(rows)), BOOL))
        if above == 3:
            return Distinct(self.scan(common, table))
        return rows

    def compared(self, rows: Plan, common: Random) -> Plan:
        clock = Scan(CLOCK, (1,), (CLOCK.fields[1],))
        single: Plan = clock
        draw = common.random()
        if draw < 0.4:
            # Of the compared rows, or of other rows, which are not the filter's.
            guard = rows if draw < 0.3 else self.scan(common, self.tables[common.random() < 0.5])
            single = SemiJoin("semi", clock, guard, (), (), None)
        bound = ref(clock, 0)
        if common.random() < 0.5:
            bound = Call("/", (bound, number(common.choice((1, 2)))), INT4)
        threshold = Project(single, (bound,), (Field("threshold", INT4),))
        # Of rows that pass for ever, only those are freed that another filter takes.
        is_first = isinstance(rows, Scan | Filter | Project)
        weights = (4, 4, 1, 1) if is_first else (4, 4, 0, 0)
        (operator,) = common.choices((">", ">=", "<", "<="), weights)
        return ThresholdFilter(rows, threshold, ref(rows, common.randrange(3)), operator)


def ref(plan: Plan, at: int) -> Expression:
    return ColumnRef(at, plan.fields[at].type)


def number(value: int) -> Literal:
    return Literal(str(value), INT4)


def small(rows: Plan) -> Expression:
    return Call("<", (ref(rows, 2), number(0)), BOOL)


def check(reopen: Callable[[Store | None], Store], count: int) -> None:
    freed = settled = 0
    for seed in seeds(count):
        run = Expiring(seed, reopen)
        try:
            for _ in range(STEPS):
                run.step()
        except Exception as error:
            repeat = f"TIDEMARK_SEED={seed} pytest tests/property/test_expiry.py"
            raise AssertionError(f"seed {seed}: {error}\n{repeat}") from error
        finally:
            run.store.close()
        freed += run.freed_most
        settled += run.settled_most
    if len(seeds(count)) > 1:
        assert freed > count and settled > count, (freed, settled)


@pytest.mark.parametrize("max_rows", [2, pytest.param(32_768, marks=pytest.mark.whole)])
def test_memory(monkeypatch: pytest.MonkeyPatch, max_rows: int) -> None:
    monkeypatch.setattr(engine_module, "FREED_ROWS", max_rows)
    monkeypatch.setattr(memory, "_SCAN_ROWS", 3)
    check(lambda store: store or MemoryStore(), 2 * ROUNDS)


def test_rocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "FREED_ROWS", 4)
    check(rocks(tmp_path), ROUNDS // 3)
