"""Rows that no view can show again, because the clock has passed them: their state is freed.

A threshold filter forgets the rows that no later threshold tells apart (`lower_bound` says what a
threshold will never be less than). A table forgets the rows that end at such filters on every way
to a view. Invariants: no view has another row because of it, whatever becomes of the rows later;
rows are freed between two epochs, by the state and the newest value of the clock alone, so that
an epoch repeated after a crash frees the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dataflow.delta import Column, Delta
from dataflow.expressions.compile import Compiled, compile_expression
from dataflow.expressions.evaluator import Evaluator
from dataflow.expressions.ir import ColumnRef, Expression, Literal, substitute
from dataflow.expressions.lower_bound import lower_bound
from dataflow.expressions.time_zones import offsets_of
from dataflow.live_tables import LiveTable
from dataflow.operators.base import Operator
from dataflow.operators.filter import is_true
from dataflow.operators.ordered.threshold_filter import ThresholdFilterOperator
from dataflow.plan.nodes import (
    Filter,
    Plan,
    Project,
    Scan,
    SemiJoin,
    SingleRow,
    ThresholdFilter,
    ThresholdFlag,
)
from dataflow.plan.trees import in_postgres

# It is not worth while to free fewer rows.
FEW_ROWS = 64
# Rows that are not settled yet are looked at again after so long, by the clock.
RETRY_US = 600_000_000

# Called with the name of what has raised an exception, and the numbers of its nodes.
Failed = Callable[[str, Sequence[int], Exception], None]


class LiveNode(Protocol):
    """What is needed of a node of the live dataflow; see `dataflow.shared.LiveNode`."""

    number: int
    plan: Plan
    operator: Operator | None
    evaluator: Evaluator

    @property
    def prefix(self) -> str:
        """The prefix of its arrangements' names."""
        ...

    @property
    def inputs(self) -> Sequence[LiveNode]:
        """The nodes that it reads."""
        ...

    @property
    def readers(self) -> Sequence[LiveNode]:
        """The nodes that read it."""
        ...


def ends_of(node: LiveNode, outputs: Collection[int]) -> dict[str, LiveNode] | None:
    """Return the filters, by prefix, at which rows end on every way from a node.

    None if a way leads to anything else that depends on the rows. outputs: the numbers of the nodes
    whose rows are a view's.
    """
    found: dict[str, LiveNode] = {}
    if node.number in outputs:
        return None
    for reader in node.readers:
        if _is_guard(reader, node):
            continue
        plan = reader.plan
        if _is_rows_filter(reader, node) and _filter_of(reader).frees_failing:
            found[reader.prefix] = reader
        elif _is_rows_filter(reader, node) or _is_native(plan):
            below = ends_of(reader, outputs)
            if below is None:
                return None
            found |= below
        else:
            return None
    return found


def _is_rows_filter(reader: LiveNode, node: LiveNode) -> bool:
    plan = reader.plan
    is_filter = isinstance(plan, ThresholdFilter) and not isinstance(plan, ThresholdFlag)
    return is_filter and reader.inputs[0] is node and reader.inputs[1] is not node


def _filter_of(node: LiveNode) -> ThresholdFilterOperator:
    assert isinstance(node.operator, ThresholdFilterOperator)
    return node.operator


def _is_native(plan: Plan) -> bool:
    if isinstance(plan, Filter):
        return not in_postgres(plan.predicate)
    return isinstance(plan, Project) and not any(map(in_postgres, plan.expressions))


def _is_guard(reader: LiveNode, node: LiveNode) -> bool:
    """Return whether a reader passes the threshold of a node's rows as long as there are any.

    Without a row to compare, it makes no difference whether there is a threshold.
    """
    plan = reader.plan
    if not isinstance(plan, SemiJoin) or plan.kind != "semi" or plan.left_keys or plan.residual:
        return False
    return reader.inputs[1] is node and reader.inputs[0] is not node and _is_own(reader, node)


def _is_own(threshold: LiveNode, node: LiveNode) -> bool:
    """Return whether a threshold is nothing but one of filters that compare a node's rows."""
    for reader in threshold.readers:
        if isinstance(reader.plan, ThresholdFilter):
            if reader.inputs[0] is threshold or not _is_part(reader.inputs[0], node):
                return False
        elif not isinstance(reader.plan, Project) or not _is_own(reader, node):
            return False
    return bool(threshold.readers)


def _is_part(rows: LiveNode, node: LiveNode) -> bool:
    """Return whether a node has no rows without one of another node."""
    # A projection that cannot fail has a row for each of its input.
    while isinstance(node.plan, Project) and _is_selection(node.plan):
        node = node.inputs[0]
    while rows is not node:
        if not isinstance(rows.plan, Filter | Project | ThresholdFilter):
            return False
        rows = rows.inputs[0]
    return True


def _is_selection(plan: Project) -> bool:
    return all(isinstance(e, ColumnRef | Literal) for e in plan.expressions)


@dataclass
class _Settling:
    """A filter of which settled rows can be freed.

    scan: the number of the node that reads the clock. left_rows: how many below its threshold were
    not settled when this was tried, at tried_us. has_more: the last call left settled ones.
    """

    node: LiveNode
    scan: int
    bound: Compiled
    left_rows: int = 0
    tried_us: int = 0
    has_more: bool = False

    def is_due(self, now_us: int | None, few_rows: int) -> bool:
        if self.has_more:
            return True
        if now_us is None:
            return False
        is_time = self.left_rows >= few_rows and now_us - self.tried_us >= RETRY_US
        return is_time or _filter_of(self.node).waiting_rows >= few_rows


@dataclass
class _Sweep:
    """A table of which rows can be freed. started: the counts of expired rows at the beginning of
    the examination in progress; None if there is none."""

    table: LiveTable
    ends: Mapping[str, LiveNode]
    started: dict[str, int] | None = None

    def totals(self) -> dict[str, int]:
        return {name: _filter_of(end).settled_rows for name, end in self.ends.items()}

    def is_due(self, few_rows: int) -> bool:
        state = self.table.state
        if self.table.failure is not None or self.started is not None:
            return self.table.failure is None
        known = state.freed.ends
        expired = min(total - known.get(name, 0) for name, total in self.totals().items())
        return expired >= few_rows and 2 * expired >= state.row_count()


class Expiry:
    """What can be freed in one shape of the dataflow.

    nodes: all of them. outputs: the numbers of those whose rows are a view's. few_rows: fewer rows
    are not freed.
    """

    def __init__(
        self,
        nodes: Mapping[int, LiveNode],
        outputs: Collection[int],
        tables: Sequence[LiveTable],
        few_rows: int,
    ) -> None:
        self._few_rows = few_rows
        self._nodes = nodes
        self._compiled: dict[int, list[Compiled]] = {}
        self._settling: list[_Settling] = []
        for node in nodes.values():
            if isinstance(node.plan, Scan) and node.plan.relation.is_single:
                fields = node.plan.fields
                columns = [ColumnRef(i, f.type, f.name) for i, f in enumerate(fields)]
                self._follow(node, node.number, columns, is_guarded=False)
        moving = {settling.node.prefix for settling in self._settling}
        self._sweeps: list[_Sweep] = []
        for table in tables:
            found = [ends_of(nodes[number], outputs) for number in table.scans]
            ends = {name: end for some in found if some for name, end in some.items()}
            if table.state.can_free and None not in found and ends and moving.issuperset(ends):
                self._sweeps.append(_Sweep(table, ends))

    def _follow(
        self, node: LiveNode, scan: int, columns: Sequence[Expression], *, is_guarded: bool
    ) -> None:
        """Find the thresholds that a node leads to; columns: its row, over the clock's columns."""
        for reader in node.readers:
            plan = reader.plan
            if isinstance(plan, Project):
                computed = [substitute(e, tuple(columns)) for e in plan.expressions]
                self._follow(reader, scan, computed, is_guarded=is_guarded)
            elif isinstance(plan, ThresholdFilter) and reader.inputs[1] is node:
                if not is_guarded or self._may_vanish(reader):
                    self._add(reader, scan, columns[0])
            elif isinstance(plan, SingleRow) or (
                isinstance(plan, SemiJoin)
                and plan.kind == "semi"
                and not plan.left_keys
                and not plan.residual
                and reader.inputs[0] is node
            ):
                self._follow(reader, scan, columns, is_guarded=True)

    def _may_vanish(self, node: LiveNode) -> bool:
        """Return whether a filter without a threshold has the settled rows that it has with one."""
        return _filter_of(node).frees_failing and not isinstance(node.plan, ThresholdFlag)

    def _add(self, node: LiveNode, scan: int, threshold: Expression) -> None:
        def spread_of(zone: str) -> int | None:
            offsets = offsets_of(zone, node.evaluator)
            return None if offsets is None else int(offsets.us.max() - offsets.us.min())

        bound = None if in_postgres(threshold) else lower_bound(threshold, spread_of)
        if bound is not None:
            compiled = compile_expression(bound, node.evaluator)
            self._settling.append(_Settling(node, scan, compiled))

    def free(
        self,
        clocks: Mapping[int, Delta],
        moved: Collection[int],
        max_rows: int,
        failed: Failed,
    ) -> None:
        """Free what is due, about max_rows rows of each filter and table.

        clocks: the newest rows of the nodes that read clocks; moved: those that have changed since
        the last call.
        """
        has_freed = False
        for settling in self._settling:
            if settling.scan in clocks:
                row = clocks[settling.scan]
                now_us = _moment(row) if settling.scan in moved else None
                if settling.is_due(now_us, self._few_rows):
                    has_freed |= self._settle(settling, row, max_rows, failed)
        for sweep in self._sweeps:
            if (has_freed or sweep.started is not None) and sweep.is_due(self._few_rows):
                try:
                    self._examine(sweep, max_rows)
                except Exception as error:
                    table = sweep.table
                    failed(f"rows of {table.location.relation.name}", list(table.scans), error)

    def _settle(
        self,
        settling: _Settling,
        row: Delta,
        max_rows: int,
        failed: Failed,
    ) -> bool:
        """Return whether rows were freed."""
        operator = _filter_of(settling.node)
        try:
            bound, errors = settling.bound.evaluate(row.columns, 1)
            if errors or not bound.mask().all():
                return False
            before = operator.settled_rows
            settling.left_rows = operator.settle(bound, max_rows)
        except Exception as error:
            failed(settling.node.prefix, [settling.node.number], error)
            return False
        settling.tried_us = _moment(row)
        freed = operator.settled_rows - before
        settling.has_more = 2 * freed >= max_rows
        return freed > 0

    def _examine(self, sweep: _Sweep, max_rows: int) -> None:
        freed = sweep.table.state.freed
        if sweep.started is None:
            sweep.started = sweep.totals()
            freed.set_ends({name: freed.ends.get(name, 0) for name in sweep.ends})
        if sweep.table.state.free(lambda rows: self._is_unseen(sweep.table, rows), max_rows):
            freed.set_ends(sweep.started)
            sweep.started = None

    def _is_unseen(self, table: LiveTable, rows: Delta) -> np.ndarray:
        """Return bool[n]: which rows of a table end on every way to a view."""
        unseen = np.ones(len(rows), np.bool_)
        for number, scan in table.scans.items():
            columns = scan.columns_of(rows)
            unseen &= self._ends(self._nodes[number], columns, len(rows))
        return unseen

    def _ends(self, node: LiveNode, columns: Sequence[Column], n: int) -> np.ndarray:
        """Return bool[n]: which rows of a node, given as columns, end on every way from it."""
        unseen = np.ones(n, np.bool_)
        for reader in node.readers:
            if n and not _is_guard(reader, node):
                unseen &= self._ends_in(reader, columns, n)
        return unseen

    def _ends_in(self, reader: LiveNode, columns: Sequence[Column], n: int) -> np.ndarray:
        plan = reader.plan
        if isinstance(plan, ThresholdFilter):
            operator = _filter_of(reader)
            settled = operator.is_settled(Delta(columns, np.ones(n, np.int64)))
            if operator.frees_failing:
                return settled
            never = ~columns[operator.value_position].mask()
            return settled & (never | self._ends(reader, columns, n))
        computed, is_right = self._computed(reader, columns, n)
        if isinstance(plan, Filter):
            (verdict,) = computed
            return is_right & (~is_true(verdict) | self._ends(reader, columns, n))
        return is_right & self._ends(reader, computed, n)

    def _computed(
        self, reader: LiveNode, columns: Sequence[Column], n: int
    ) -> tuple[list[Column], np.ndarray]:
        """Return the values of a filter or projection, and bool[n]: which rows do not fail."""
        plan = reader.plan
        if reader.number not in self._compiled:
            assert isinstance(plan, Filter | Project)
            own = (plan.predicate,) if isinstance(plan, Filter) else plan.expressions
            compiled = [compile_expression(e, reader.evaluator) for e in own]
            self._compiled[reader.number] = compiled
        is_right = np.ones(n, np.bool_)
        found = []
        for cell in self._compiled[reader.number]:
            column, errors = cell.evaluate(columns, n)
            found.append(column)
            if errors:
                is_right &= ~errors.mask(n)
        return found, is_right


def _moment(row: Delta) -> int:
    """Return the greatest number of a clock's row, which is its value."""
    return max((int(column.values[0]) for column in row.columns), default=0)
