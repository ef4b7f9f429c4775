"""When a view next changes although no table does: the first tick of a clock that matters.

A clock is a relation of one row. Candidates are the values that it may have next, in order; what
the dataflow computes of the clock's row alone is computed for all of them at once. A threshold
filter then says from which on another set of rows passes, a watermark from which on it moves, any
other reader from which on its input differs. Nothing is assumed of the expressions: they may go
back, stay constant or jump. Invariant: at every candidate before the one that is found, each view
has the rows that it has now.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dataflow.delta import Column
from dataflow.errors import ViewError
from dataflow.expressions.compile import compile_expression
from dataflow.expressions.evaluator import Evaluator
from dataflow.operators.base import Operator
from dataflow.operators.lateness.watermark import WatermarkOperator
from dataflow.operators.ordered.threshold_filter import ThresholdFilterOperator
from dataflow.plan.nodes import (
    Plan,
    Project,
    Scan,
    SemiJoin,
    SingleRow,
    ThresholdFilter,
    Watermark,
)
from dataflow.schema import RelationName

AT = "at"


class LiveNode(Protocol):
    """What is needed of a node of the live dataflow; see `dataflow.shared.LiveNode`."""

    number: int
    plan: Plan
    rows_in: int
    operator: Operator | None
    evaluator: Evaluator

    @property
    def inputs(self) -> Sequence[LiveNode]:
        """The nodes that it reads."""
        ...

    @property
    def readers(self) -> Sequence[LiveNode]:
        """The nodes that read it."""
        ...

    @property
    def names(self) -> Mapping[RelationName, Sequence[str]]:
        """Its names in each view that has it."""
        ...


@dataclass
class _Threshold:
    """A filter, its thresholds at all candidates, and the answer as of so many rows read."""

    node: LiveNode
    values: Column
    rows_in: int = -1
    first: int = 0

    def find(self) -> int:
        if self.rows_in != self.node.rows_in:
            operator = self.node.operator
            assert isinstance(operator, ThresholdFilterOperator)
            self.first, self.rows_in = operator.first_change(self.values), self.node.rows_in
        return self.first


class _Watermark:
    """A watermark and the answer when the search began: rows that come since need a tick."""

    def __init__(self, node: LiveNode, candidates: np.ndarray) -> None:
        self._node, self._rows_in = node, node.rows_in
        assert isinstance(node.operator, WatermarkOperator)
        self._first = node.operator.first_change(candidates)

    def find(self) -> int:
        return self._first if self._node.rows_in == self._rows_in else 1


class Moving(Protocol):
    """Where rows leave or come by the clock."""

    def find(self) -> int:
        """Return the position of the first candidate at which that happens; n if at none."""
        ...


class TickSearch(Protocol):
    """Finds the next tick of a clock among candidates."""

    def first(self) -> int:
        """Return the position of the first candidate at which a view changes; n if none does."""
        ...


class DueSearch:
    """The next tick of one clock; a TickSearch.

    scans: the nodes that read its relation. candidates: int64[n], microseconds since 2000, in
    order; the first is the clock's present value. refresh_us: by view, how often values that follow
    the clock are to change. outputs: the numbers of the nodes whose rows are a view's.
    """

    def __init__(
        self,
        scans: Sequence[LiveNode],
        candidates: np.ndarray,
        refresh_us: Mapping[RelationName, int],
        outputs: Collection[int],
    ) -> None:
        self._outputs = outputs
        self._candidates = candidates
        self._refresh_us = refresh_us
        self._moving: list[Moving] = []
        self._fixed = len(candidates)
        for scan in scans:
            self._follow(scan, list(_columns_of(scan.plan, candidates)))

    def first(self) -> int:
        """Return the position of the first candidate at which a view changes; n if none does."""
        return min([self._fixed, *(moving.find() for moving in self._moving)])

    def _follow(self, node: LiveNode, columns: list[Column]) -> None:
        """Follow the readers of a node whose one row is `columns` at each candidate."""
        if node.number in self._outputs:
            self._note(node, columns)
        for reader in node.readers:
            plan = reader.plan
            if isinstance(plan, Project):
                self._project(reader, plan, columns)
            elif isinstance(plan, ThresholdFilter) and reader.inputs[1] is node:
                self._moving.append(self._moving_by(reader, columns[0]))
            elif isinstance(plan, Watermark) and reader.inputs[1] is node:
                self._moving.append(self._moving_by(reader, Column(self._candidates)))
            elif isinstance(plan, SingleRow) or _passes(reader, node):
                self._follow(reader, columns)
            else:
                self._note(reader, columns)

    def _moving_by(self, reader: LiveNode, values: Column) -> Moving:
        """Return what answers for a reader. values: of the clock, at all candidates."""
        if isinstance(reader.plan, Watermark):
            return _Watermark(reader, self._candidates)
        return _Threshold(reader, values)

    def _project(self, node: LiveNode, plan: Project, columns: list[Column]) -> None:
        n = len(self._candidates)
        computed = []
        for expression in plan.expressions:
            try:
                compiled = compile_expression(expression, node.evaluator)
                column, errors = compiled.evaluate(columns, n)
            except ViewError:
                # The next step fails the view, and no other.
                self._fixed = min(self._fixed, 1)
                return
            if errors:
                self._fixed = min(self._fixed, max(1, min(errors.by_row)))
            computed.append(column)
        self._follow(node, computed)

    def _note(self, node: LiveNode, columns: Sequence[Column]) -> None:
        """Take into account the first candidate at which a row differs from the present one."""
        first = min([len(self._candidates), *map(_first_other, columns)])
        periods = [self._refresh_us.get(view, 0) for view in node.names]
        if periods and all(periods):
            due = int(np.searchsorted(self._candidates, self._candidates[0] + min(periods)))
            first = max(first, due)
        self._fixed = min(self._fixed, first)


def _columns_of(plan: Plan, candidates: np.ndarray) -> Iterator[Column]:
    assert isinstance(plan, Scan)
    for index in plan.columns:
        is_at = plan.relation.fields[index].name == AT
        yield Column(candidates if is_at else np.ones(len(candidates), np.int64))


def _passes(reader: LiveNode, node: LiveNode) -> bool:
    """Return whether a reader passes the row on as it is, as long as there is any other row."""
    plan = reader.plan
    is_plain = isinstance(plan, SemiJoin) and not plan.left_keys and plan.residual is None
    return is_plain and reader.inputs[0] is node


def _first_other(column: Column) -> int:
    """Return the position of the first value that is not the first one; n if there is none."""
    if column.data is not None:
        values = column.to_list()
        return next((i for i, value in enumerate(values) if value != values[0]), len(values))
    other = column.values != column.values[0]
    if column.valid is not None:
        other = (other & column.valid) | (column.valid != column.valid[0])
    return int(other.argmax()) if other.any() else len(column)
