"""The next tick of a clock for a view in buckets: its thresholds are compared where its rows are.

A search costs a job, so there is one only after a tick before which nothing else came: a view whose
tables change is looked at by each tick. Invariant: as of `dataflow.due`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dataflow.delta import Column
from dataflow.due import DueSearch, LiveNode, Moving
from dataflow.expressions.evaluator import Evaluator
from dataflow.operators.base import Operator
from dataflow.plan.nodes import Plan, Scan
from dataflow.schema import RelationName
from dataflow.sql.lower.lowering import Node

# Asks the buckets of nodes, by number: their thresholds at all candidates. The first of these at
# which rows leave or come.
Ask = Callable[[Mapping[int, Column]], int]


@dataclass
class _Node:
    """A LiveNode whose operators are elsewhere."""

    number: int
    plan: Plan
    evaluator: Evaluator
    view: RelationName
    inputs: list[LiveNode]
    readers: list[LiveNode] = field(default_factory=list)
    rows_in: int = 0
    operator: Operator | None = None

    @property
    def names(self) -> Mapping[RelationName, Sequence[str]]:
        """See LiveNode."""
        return {self.view: ()}


class _Elsewhere:
    """A node that `BucketDueSearch` asks together with the others."""

    def __init__(self, never: int) -> None:
        self._never = never

    def find(self) -> int:
        """See Moving."""
        return self._never


class BucketDueSearch(DueSearch):
    """See DueSearch. view: its name and refresh_us. clock: its source and the candidates. changes:
    returns a number that differs once other rows came, which need a tick."""

    def __init__(
        self,
        nodes: Sequence[Node],
        evaluator: Evaluator,
        *,
        view: tuple[RelationName, int],
        clock: tuple[str, np.ndarray],
        changes: Callable[[], int],
        ask: Ask,
    ) -> None:
        name, refresh_us = view
        source, candidates = clock
        self._thresholds: dict[int, Column] = {}
        self._found: int | None = None
        self._changes, self._as_of = changes, changes()
        self._ask = ask
        live = _live(nodes, evaluator, name)
        scans = [
            n for n in live if isinstance(n.plan, Scan) and n.plan.relation.name.source == source
        ]
        super().__init__(scans, candidates, {name: refresh_us}, [len(nodes) - 1])

    def _moving_by(self, reader: LiveNode, values: Column) -> Moving:
        self._thresholds[reader.number] = values
        return _Elsewhere(len(values))

    def first(self) -> int:
        """See DueSearch."""
        if self._changes() != self._as_of:
            return 1
        if self._found is None:
            self._found = super().first()
            if self._thresholds and self._found > 1:
                self._found = min(self._found, self._ask(self._thresholds))
        return self._found


def _live(nodes: Sequence[Node], evaluator: Evaluator, view: RelationName) -> list[_Node]:
    found: list[_Node] = []
    for number, node in enumerate(nodes):
        inputs: list[LiveNode] = [found[i] for i in node.inputs]
        live = _Node(number, node.plan, evaluator, view, inputs)
        for i in node.inputs:
            found[i].readers.append(live)
        found.append(live)
    return found
