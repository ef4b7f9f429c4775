"""The dataflow of one view: its operators in topological order, stepped once an epoch.

Invariant: a step over deltas of the base relations gives exactly the delta of the view. A node
without input is not stepped and costs nothing. One thread steps a dataflow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

from dataflow.delta import Delta
from dataflow.expressions.evaluator import Evaluator
from dataflow.operators.base import ErrorCollector, Operator, kinds_of, parts_of, view_error
from dataflow.plan.nodes import Scan
from dataflow.schema import VIEW_SOURCE, RelationName
from dataflow.sql.lower.lowering import Node, make_operator
from dataflow.work import UNLIMITED, WorkMeter
from storage.store import Store

# Its only view, in the meter's accounts.
_VIEW = ("",)


def needed_columns(nodes: Sequence[Node]) -> dict[RelationName, tuple[int, ...]]:
    """Return for each relation the columns that its scans read, sorted, with the primary key that
    finds old rows."""
    needed: dict[RelationName, set[int]] = {}
    for node in nodes:
        if isinstance(node.plan, Scan):
            relation = node.plan.relation
            columns = needed.setdefault(relation.name, set())
            columns.update(node.plan.columns)
            is_searched = not (relation.is_full or relation.is_append)
            if is_searched and relation.name.source != VIEW_SOURCE:
                columns.update(relation.key)
    return {name: tuple(sorted(columns)) for name, columns in needed.items()}


class ViewDataflow:
    """Operators over a store. rows_in and rows_out count the rows of each node's deltas.

    meter: limits what a step does within one of its epochs.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        scope: str,
        store: Store,
        evaluator: Evaluator,
        errors: ErrorCollector,
        *,
        meter: WorkMeter = UNLIMITED,
    ) -> None:
        self.nodes = tuple(nodes)
        self._meter = meter
        self.rows_in = [0] * len(nodes)
        self.rows_out = [0] * len(nodes)
        self._needed = needed_columns(nodes)
        self._empty = [Delta.empty(kinds_of(node.plan.fields)) for node in nodes]
        self._scans: dict[int, tuple[RelationName, tuple[int, ...], bool]] = {}
        self._operators: dict[int, Operator] = {}
        for position, node in enumerate(nodes):
            if isinstance(node.plan, Scan):
                self._scans[position] = self._scan(node.plan)
            else:
                self._operators[position] = make_operator(
                    node, store, scope, evaluator, errors, meter=meter
                )

    def needed_columns(self) -> dict[RelationName, tuple[int, ...]]:
        """Return for each relation the columns, in order, that `step` expects of its delta."""
        return dict(self._needed)

    def seed(self, tables: Mapping[RelationName, Delta] | None = None) -> Delta:
        """Make the first step of a new view: step every operator, also without input.

        This emits constant rows, global aggregates and scalar subqueries. Their state remembers it,
        so seeding again changes nothing.
        """
        return self._run(tables or {}, is_first=True)

    def step(self, tables: Mapping[RelationName, Delta]) -> Delta:
        """Run one epoch; return the view's consolidated delta.

        tables: consolidated deltas of base relations and maintained views, exactly the columns of
        `needed_columns`; a missing relation has not changed.
        """
        return self._run(tables, is_first=False)

    def parts(self, tables: Mapping[RelationName, Delta], max_rows: int) -> Iterator[Delta]:
        """Like `step`, in deltas that add up to its result: a join's output is passed on in parts
        of about that many rows. Read it to the end; the store may flush memory in between. Raise
        ViewError."""
        deltas = {at: self._read(at, tables) for at in self._scans}
        for at, rows in deltas.items():
            self.rows_out[at] += len(rows)
        yield from self._step_from(deltas, 0, max_rows)

    def _step_from(self, deltas: dict[int, Delta], start: int, max_rows: int) -> Iterator[Delta]:
        """Step the nodes from a position on. Every part of a node's output but the last passes
        through all later nodes before the next part: the sum of steps equals the step of the
        sum."""
        for position in range(start, len(self.nodes)):
            inputs = [deltas.get(i, self._empty[i]) for i in self.nodes[position].inputs]
            if not any(map(len, inputs)):
                continue
            self.rows_in[position] += sum(map(len, inputs))
            for out in self._outputs(position, inputs, max_rows):
                if position in deltas:
                    yield from self._step_from({position: deltas[position]}, position + 1, max_rows)
                self.rows_out[position] += len(out)
                deltas[position] = out
        yield deltas.get(len(self.nodes) - 1, self._empty[-1])

    def _outputs(self, position: int, inputs: Sequence[Delta], max_rows: int) -> Iterator[Delta]:
        operator = self._operators[position]
        in_chunks_of = parts_of(operator)
        try:
            if in_chunks_of is None:
                with self._metered(position):
                    out = operator.step(*inputs)
                    self._meter.made(len(out))
                yield out
            else:
                parts = in_chunks_of(*inputs, max_rows=max_rows)
                yield from self._meter.parts(parts, partial(self._metered, position))
        except Exception as error:
            found = view_error(self.nodes[position].name, error)
            if found is None or found is error:
                raise
            raise found from error

    def _metered(self, position: int) -> AbstractContextManager[None]:
        return self._meter.step(_VIEW, self.nodes[position].name)

    def _run(self, tables: Mapping[RelationName, Delta], *, is_first: bool) -> Delta:
        deltas: list[Delta] = []
        for position, node in enumerate(self.nodes):
            if position in self._scans:
                out = self._read(position, tables)
            else:
                inputs = [deltas[i] for i in node.inputs]
                arriving = sum(map(len, inputs))
                if arriving or is_first:
                    self.rows_in[position] += arriving
                    out = self._step(position, inputs)
                else:
                    out = self._empty[position]
            self.rows_out[position] += len(out)
            deltas.append(out)
        return deltas[-1]

    def _step(self, position: int, inputs: Sequence[Delta]) -> Delta:
        try:
            with self._metered(position):
                out = self._operators[position].step(*inputs)
                self._meter.made(len(out))
            return out
        except Exception as error:
            found = view_error(self.nodes[position].name, error)
            if found is None or found is error:
                raise
            raise found from error

    def _scan(self, plan: Scan) -> tuple[RelationName, tuple[int, ...], bool]:
        """Return (relation, positions in its needed columns, whether rows may become equal)."""
        needed = self._needed[plan.relation.name]
        positions = tuple(needed.index(c) for c in plan.columns)
        return plan.relation.name, positions, len(set(positions)) < len(needed)

    def _read(self, position: int, tables: Mapping[RelationName, Delta]) -> Delta:
        name, positions, is_narrower = self._scans[position]
        delta = tables.get(name)
        if delta is None or len(delta) == 0:
            return self._empty[position]
        self.rows_in[position] += len(delta)
        rows = delta.project(positions)
        return rows.consolidate() if is_narrower else rows
