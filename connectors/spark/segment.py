"""A stage's nodes as operators over one store, and the routing of their rows.

These are the operators of the stream: the rows of a bucket are only their first deltas. Invariant:
rows are split by the same hash of the same columns as the state. The state of a bucket's operators
is therefore one range of key hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, cast

import numpy as np

from connectors import netguard
from connectors.pages import encode_delta
from connectors.shuffle_storage import Exchange
from connectors.source import SnapshotPart
from connectors.spark.frame import Row
from connectors.spark.stages import SNAPSHOT, SUMS, Cut, Spec, Stage
from dataflow.collect import ErrorRows
from dataflow.delta import Column, Delta
from dataflow.errors import InvariantError
from dataflow.expressions.evaluator import Evaluator
from dataflow.operators.aggregates.aggregate import is_additive
from dataflow.operators.base import Additive, ErrorCollector, Operator, kinds_of, view_error
from dataflow.operators.lateness.watermark import WatermarkOperator
from dataflow.operators.ordered.threshold_filter import ThresholdFilterOperator
from dataflow.operators.tables.table import table_spec
from dataflow.plan.nodes import Scan
from dataflow.schema import VIEW_SOURCE, Relation, RelationName
from dataflow.sql.lower.lowering import Node, make_operator
from storage.bulk import partition_positions
from storage.memory import MemoryStore
from storage.store import ArrangementSpec, Store

STEP_ROWS = 1 << 20
PAGE_ROWS = 1 << 16
_T = TypeVar("_T")


@dataclass(frozen=True)
class Job:
    """Everything that a task needs; picklable. columns: those that the parts of each relation read.

    exchange: where the tasks of one run store their files. guard: what the service may reach, which
    also applies to its tasks.
    """

    exchange: Exchange
    nodes: tuple[Node, ...]
    scope: str
    cut: Cut
    parts: tuple[tuple[RelationName, SnapshotPart], ...]
    evaluator: Callable[[], Evaluator]
    columns: Mapping[RelationName, tuple[int, ...]]
    guard: netguard.Guard = field(default_factory=netguard.installed)


class Staged(Protocol):
    """What a segment needs of a view that is cut into stages; see Job."""

    @property
    def nodes(self) -> Sequence[Node]:
        """All nodes of the view."""
        ...

    @property
    def scope(self) -> str:
        """The prefix of the names of its arrangements."""
        ...

    @property
    def cut(self) -> Cut:
        """Its stages."""
        ...

    @property
    def evaluator(self) -> Callable[[], Evaluator]:
        """Returns what evaluates expressions in PostgreSQL."""
        ...

    @property
    def columns(self) -> Mapping[RelationName, tuple[int, ...]]:
        """The columns of each relation's rows."""
        ...


class Segment:
    """The nodes of one stage, over their own store."""

    def __init__(self, job: Staged, stage: Stage, store: Store, errors: ErrorCollector) -> None:
        self._job = job
        self._stage = stage
        evaluator = job.evaluator()
        self._operators = {
            number: make_operator(job.nodes[number], store, job.scope, evaluator, errors)
            for number in stage.nodes
            if not isinstance(job.nodes[number].plan, Scan)
        }
        fed = (job.cut.stages[port.stage] for port in stage.outputs)
        # Only to add rows up: without state.
        self._adders = {
            (n := to.nodes[0]): _additive(
                make_operator(job.nodes[n], MemoryStore(), job.scope, evaluator, errors)
            )
            for to in fed
            if to.is_summed
        }

    def read(self, snapshot: Delta) -> dict[int, Delta]:
        """Step rows of the stage's relation through its nodes; return the delta of each."""
        deltas = {SNAPSHOT: snapshot}
        for number in self._stage.nodes:
            plan = self._job.nodes[number].plan
            if isinstance(plan, Scan):
                columns_read = self._job.columns[plan.relation.name]
                deltas[number] = snapshot.project([columns_read.index(c) for c in plan.columns])
            else:
                deltas[number] = self._follow(number, deltas)
        return deltas

    def step(self, inputs: Mapping[int, Sequence[Delta]]) -> dict[int, Delta]:
        """Step all rows of a bucket, by input, through the stage's nodes; return the delta of each.

        It steps at least once, in chunks, so that a large input is never in memory twice.
        """
        chunks = {tag: list(_chunks(deltas)) for tag, deltas in inputs.items()}
        steps = max([1, *map(len, chunks.values())])
        found: list[dict[int, Delta]] = []
        for at in range(steps):
            step_inputs = {tag: parts[at] for tag, parts in chunks.items() if at < len(parts)}
            found.append(self.step_once(step_inputs))
        if steps == 1:
            return found[0]
        numbers = self._stage.nodes
        return {n: Delta.concat([part[n] for part in found]).consolidate() for n in numbers}

    def step_once(self, inputs: Mapping[int, Delta]) -> dict[int, Delta]:
        """Step consolidated rows, by input, through the stage's nodes; return the delta of each."""
        head, *sink_workers = self._stage.nodes
        producers = self._job.nodes[head].inputs
        step_inputs = [inputs.get(tag, self._empty(n)) for tag, n in enumerate(producers)]
        if self._stage.is_summed:
            additive = _additive(self._operators[head])
            sums = inputs.get(SUMS, Delta.empty(additive.sums_kinds))
            if sums.kinds != additive.sums_kinds:
                raise InvariantError("spark.exchange", f"sums of another form: {sums.kinds}")
            deltas = {head: self._named(head, additive.step_sums, [*step_inputs, sums])}
        elif max(inputs, default=0) >= max(1, len(producers)):
            raise InvariantError("spark.exchange", f"rows for input {max(inputs)}")
        else:
            deltas = {head: self._stepped(head, step_inputs)}
        for number in sink_workers:
            deltas[number] = self._follow(number, deltas)
        return deltas

    def _follow(self, number: int, deltas: Mapping[int, Delta]) -> Delta:
        """Step a node without exchange: rows from other stages are stepped elsewhere."""
        inputs = self._job.nodes[number].inputs
        step_inputs = [deltas[n] if n in deltas else self._empty(n) for n in inputs]
        return self._stepped(number, step_inputs)

    def _stepped(self, number: int, inputs: Sequence[Delta]) -> Delta:
        return self._named(number, self._operators[number].step, inputs)

    def _named(self, number: int, work: Callable[..., _T], inputs: Sequence[Delta]) -> _T:
        """Return a node's work; its failures get the node's name."""
        try:
            return work(*inputs)
        except Exception as error:
            found = view_error(self._job.nodes[number].name, error)
            if found is None or found is error:
                raise
            raise found from error

    def first_change(self, number: int, values: Column) -> int:
        """Return the first of n values of the clock at which a node's rows change; n if at none."""
        operator = self._operators[number]
        if isinstance(operator, WatermarkOperator):
            return operator.first_change(values.values)
        assert isinstance(operator, ThresholdFilterOperator)
        return operator.first_change(values)

    def _empty(self, number: int) -> Delta:
        return Delta.empty(kinds_of(self._job.nodes[number].plan.fields))

    def pages(self, deltas: Mapping[int, Delta]) -> Iterator[Row]:
        """Yield the pages for the next stages."""
        yield from self.pages_of_slices([deltas])

    def pages_of_slices(self, slices: Iterable[Mapping[int, Delta]]) -> Iterator[Row]:
        """Yield the pages for the next stages of what several steps make; equal rows stay apart.

        Sums are made of all steps together.
        """
        stages = self._job.cut.stages
        summed: dict[int, list[Delta]] = {}
        for deltas in slices:
            for number, port in enumerate(self._stage.outputs):
                rows = deltas[port.producer]
                if stages[port.stage].is_summed:
                    summed.setdefault(number, []).append(rows)
                else:
                    yield from split(rows, port.key, stages[port.stage], port.tag)
        for number, found in summed.items():
            port, together = self._stage.outputs[number], Delta.concat(found)
            if len(together):
                to = stages[port.stage]
                node = to.nodes[0]
                rows, sums = self._named(node, self._adders[node].partial_sums, [together])
                yield from split(sums, range(len(port.key)), to, SUMS)
                yield from split(rows, port.key, to, port.tag)


def _additive(operator: Operator) -> Additive:
    return cast(Additive, operator)


def split(rows: Delta, key: Sequence[int], to: Stage, tag: int) -> Iterator[Row]:
    """Yield rows as pages for the buckets of a stage."""
    n = len(rows)
    if n == 0:
        return
    if to.buckets == 1:
        for start in range(0, n, PAGE_ROWS):
            yield to.slot, tag, encode_delta(rows.slice(start, min(start + PAGE_ROWS, n)))
        return
    if to.routing is None:
        parts = list(partition_positions([rows.columns[i] for i in key], n, to.buckets))
        # One copy of all rows, of which each page is a slice.
        rows = rows.take(np.concatenate([positions for _, positions in parts]))
        start = 0
        for number, positions in parts:
            end = start + len(positions)
            for at in range(start, end, PAGE_ROWS):
                page = rows.slice(at, min(at + PAGE_ROWS, end))
                yield to.slot + number, tag, encode_delta(page)
            start = end
        return
    for number, positions in to.routing.positions(rows.columns, key, n, to.buckets, tag):
        for start in range(0, len(positions), PAGE_ROWS):
            page = rows.take(positions[start : start + PAGE_ROWS])
            yield to.slot + number, tag, encode_delta(page)


def _chunks(deltas: Sequence[Delta]) -> Iterator[Delta]:
    """Yield the rows in consolidated deltas of about STEP_ROWS."""
    pending: list[Delta] = []
    rows = 0
    for delta in deltas:
        pending.append(delta)
        rows += len(delta)
        if rows >= STEP_ROWS:
            yield Delta.concat(pending).consolidate()
            pending, rows = [], 0
    if pending:
        yield Delta.concat(pending).consolidate()


def table_specs(
    columns: Mapping[RelationName, tuple[int, ...]],
    scope: str,
    relations: Sequence[Relation],
    read: Iterable[RelationName],
) -> dict[RelationName, ArrangementSpec | None]:
    """Return the arrangement of each relation that is read.

    None for a maintained view's rows and for append-only relations.
    """
    stored = [r for r in relations if not r.is_append]
    specs = {r.name: table_spec(r, columns[r.name], scope) for r in stored}
    return {name: specs.get(name) if name.source != VIEW_SOURCE else None for name in read}


def additive_nodes(nodes: Sequence[Node]) -> set[int]:
    """Return the nodes whose input is added up before it is exchanged."""
    return {number for number, node in enumerate(nodes) if is_additive(node.plan)}


def node_specs(nodes: Sequence[Node], scope: str, evaluator: Evaluator) -> dict[int, list[Spec]]:
    """Return the state of each node, found by making its operator once."""
    specs = {}
    for number, node in enumerate(nodes):
        if not isinstance(node.plan, Scan):
            store = MemoryStore()
            make_operator(node, store, scope, evaluator, ErrorRows())
            specs[number] = [state.spec for state in store.contents()]
    return specs
