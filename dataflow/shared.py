"""The dataflow of all live views: common work is computed and stored once.

Nodes that compute the same (`dataflow.plan.fingerprint`) are one node, in the scope of the view
that first stored its state. Invariants: all nodes are at one position of the source, so a joining
view can take over a live node; a node lives exactly as long as a view reads it; a failure in a node
fails all views that read it and no others; expressions evaluated in PostgreSQL are shared only by
views that evaluate with the same rights; no delta of an unconsolidated node leaves the dataflow,
reaches a node that stores its rows, or is evaluated in PostgreSQL. One thread steps it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from types import MappingProxyType
from typing import Protocol

import numpy as np

from dataflow.changes import Changes, truncated
from dataflow.clearing import Input, cannot_fail, cleared_inputs
from dataflow.collect import ErrorRows
from dataflow.delta import Delta
from dataflow.due import DueSearch
from dataflow.errors import ViewError
from dataflow.expiry import FEW_ROWS, Expiry, ends_of
from dataflow.expressions.evaluator import Evaluator, NoEvaluator, RowErrors
from dataflow.live_tables import Clock, LiveTable, LiveTables, TableScan, stopped
from dataflow.operators.base import (
    Operator,
    Traits,
    kinds_of,
    parts_of,
    skip_consolidation,
    stored_rows,
    view_error,
)
from dataflow.operators.chunking import EVERY_ROW
from dataflow.plan.explain import in_postgres
from dataflow.plan.fingerprint import fingerprints, repeatable
from dataflow.plan.nodes import Loop, Plan, Scan, TableFunction
from dataflow.schema import VIEW_SOURCE, RelationName
from dataflow.sql.lower.lowering import Node, make_operator
from dataflow.types import SqlType
from dataflow.work import UNLIMITED, WorkMeter
from storage.store import Store

# For SharedDataflow.shape.
_SHAPES = count()


@dataclass(frozen=True)
class StateLocation:
    """The location of a node's state: arrangements "<scope>/<name>/<role>"."""

    scope: str
    name: str

    @property
    def prefix(self) -> str:
        """The prefix of its arrangements' names."""
        return f"{self.scope}/{self.name}/"


class LiveNode:
    """One node of the live dataflow; it passes error rows to all views that read it.

    location: None for a scan. cannot_fail: see `dataflow.clearing`. names: the node's name in each
    view. is_unconsolidated: see `_may_be_unconsolidated`. is_limited: whether its work holds up
    views that do not depend on it. rows_in and rows_out count the rows of
    its deltas, time_s what its steps took.
    """

    def __init__(self, number: int, plan: Plan, location: StateLocation | None) -> None:
        self.number = number
        self.plan = plan
        self.cannot_fail = cannot_fail(plan)
        self.fingerprint: tuple[str, Plan] | None = None
        self.location = location
        self.inputs: tuple[LiveNode, ...] = ()
        self.readers: list[LiveNode] = []
        self.empty = Delta.empty(kinds_of(plan.fields))
        self.operator: Operator | None = None
        self.evaluator: Evaluator = NoEvaluator()
        self.in_chunks_of: Callable[..., Iterator[Delta]] | None = None
        self.scan: TableScan | None = None
        self.is_unconsolidated = False
        self.is_limited = False
        self.names: dict[RelationName, list[str]] = {}
        self.errors: dict[RelationName, ErrorRows] = {}
        self.rows_in = self.rows_out = 0
        self.time_s = 0.0

    @property
    def prefix(self) -> str:
        """The prefix of its arrangements' names; "" for a scan."""
        return "" if self.location is None else self.location.prefix

    @property
    def traits(self) -> Traits | None:
        """The traits of its operator; None for a scan."""
        return None if self.operator is None else self.operator.traits

    def collect(
        self, operator: str, types: Sequence[SqlType], rows: Delta, errors: RowErrors
    ) -> None:
        """Add failed rows to every view, under that view's name for the node."""
        assert self.location is not None
        within = operator[len(self.location.name) :]
        for view, names in self.names.items():
            for name in names:
                self.errors[view].collect(name + within, types, rows, errors)

    def publish(self, rows: Delta) -> None:
        """Pass final rows to every view of the node; there is one, see `fingerprint.repeatable`."""
        for view in self.names:
            self.errors[view].publish(rows)


class LiveView:
    """The nodes that a live view reads, by position; the last one is its output."""

    def __init__(self, nodes: Sequence[LiveNode], errors: ErrorRows) -> None:
        self.nodes = tuple(nodes)
        self.errors = errors

    @property
    def locations(self) -> list[StateLocation | None]:
        """The location of each node's state."""
        return [node.location for node in self.nodes]

    @property
    def root(self) -> LiveNode:
        """The node whose delta is the view's delta."""
        return self.nodes[-1]


@dataclass
class Stepped:
    """A step, or a part of one. outputs: the views' non-empty deltas; failures: why views can no
    longer be maintained."""

    outputs: dict[RelationName, Delta]
    failures: dict[RelationName, ViewError]


class Sizer(Protocol):
    """How many rows one step takes."""

    def chunks(self, name: RelationName, deltas: Iterable[Delta]) -> Iterator[Delta]:
        """Yield the rows that a relation's rows have become, in batches."""
        ...

    def learn_of(self, name: RelationName, taken: int, made: int) -> None:
        """Record what a step over a batch made; call it before taking the next one."""
        ...


class WholeChunks:
    """Takes what a store yields at a time."""

    def chunks(self, name: RelationName, deltas: Iterable[Delta]) -> Iterator[Delta]:
        """See Sizer."""
        del name
        yield from deltas

    def learn_of(self, name: RelationName, taken: int, made: int) -> None:
        """Do nothing."""


class SharedDataflow:
    """The nodes of all live views over one store, views in the order in which they joined.

    part_rows: beyond this many rows a join's output is passed on in parts. widest: the largest
    output of a node in the last step, in rows, all parts together. clock: seconds, for metrics
    only. meter: limits what each view does in an epoch. few_rows: fewer rows are not freed.
    keeps_rows: see `LiveTables`. shape: another number whenever views are added or removed, which
    no other dataflow of the process ever has.
    """

    def __init__(
        self,
        store: Store,
        evaluator: Evaluator,
        part_rows: int = EVERY_ROW,
        clock: Clock = stopped,
        few_rows: int = FEW_ROWS,
        *,
        keeps_rows: bool = False,
        meter: WorkMeter = UNLIMITED,
    ) -> None:
        self._store = store
        self._meter = meter
        self._few_rows = few_rows
        self.part_rows = part_rows
        self._evaluator = evaluator
        self._clock = clock
        self.shape = next(_SHAPES)
        self.views: dict[RelationName, LiveView] = {}
        self.tables = LiveTables(
            store, clock, self._ends_of, self._is_clearable, keeps_rows=keeps_rows
        )
        self._expiry: tuple[int, Expiry] | None = None
        # Of the nodes that read clocks: the newest row, and which have changed since rows were
        # freed.
        self._clocks: dict[int, Delta] = {}
        self._moved: set[int] = set()
        self._nodes: dict[int, LiveNode] = {}
        self._alike: dict[tuple[str, Plan] | None, LiveNode] = {}
        self._by_location: dict[StateLocation, LiveNode] = {}
        self._failures: dict[int, ViewError] = {}
        self._next = 0
        self.widest = 0

    # --- views come and go ---------------------------------------------------------------------

    def add(
        self,
        view: RelationName,
        nodes: Sequence[Node],
        scope: str,
        locations: Sequence[StateLocation | None] | None = None,
        *,
        evaluator: Evaluator | None = None,
        rights: str = "",
    ) -> list[str]:
        """Make a view live; return the prefixes of the state that is now duplicated.

        Its nodes have their state under `scope` (after a restart, under `locations`), at the same
        source position as the live ones. Its tables must have been added (`tables.add`). evaluator:
        its own, if it differs from the others'; rights: a name for what its answers depend on.
        """
        alike, same = fingerprints(nodes[-1].plan), repeatable(nodes[-1].plan)
        kinds = _rights_of(nodes, rights)
        errors = ErrorRows()
        own: list[LiveNode] = []
        twice: list[str] = []
        self.shape = next(_SHAPES)
        for position, node in enumerate(nodes):
            location = None
            if not isinstance(node.plan, Scan):
                location = (locations[position] if locations else None) or StateLocation(
                    scope, node.name
                )
            fingerprint = None
            if id(node.plan) in same:
                fingerprint = (kinds[position], alike[id(node.plan)])
            live = (
                self._by_location.get(location)
                if locations and location
                else self._alike.get(fingerprint)
            )
            if live is None:
                inputs = [own[i] for i in node.inputs]
                live = self._make(node, location, inputs, evaluator or self._evaluator)
                if fingerprint is not None:
                    live.fingerprint = fingerprint
                    self._alike.setdefault(fingerprint, live)
            elif locations is None and location is not None:
                twice.append(location.prefix)
            live.names.setdefault(view, []).append(node.name)
            live.errors[view] = errors
            own.append(live)
        self.views[view] = LiveView(own, errors)
        self._loosen()
        self._limit()
        return twice

    def _loosen(self) -> None:
        """Find the nodes whose rows need no consolidation, readers first."""
        outputs = self._outputs_of_views()
        for number, node in sorted(self._nodes.items(), reverse=True):
            readers = [(reader.traits, reader.is_unconsolidated) for reader in node.readers]
            node.is_unconsolidated = number not in outputs and _may_be_unconsolidated(
                node.traits, readers
            )
            if node.operator is not None:
                skip_consolidation(node.operator, is_unconsolidated=node.is_unconsolidated)

    def _limit(self) -> None:
        """Find the nodes whose work holds up views that do not depend on it."""
        readers: dict[RelationName, set[RelationName]] = {}
        for name, view in reversed(self.views.items()):
            own = readers.setdefault(name, set()) | {name}
            for node in view.nodes:
                if isinstance(node.plan, Scan) and node.inputs:
                    readers.setdefault(node.plan.relation.name, set()).update(own)
        for node in self._nodes.values():
            dependent = set(node.names).union(*(readers[name] for name in node.names))
            node.is_limited = len(dependent) < len(self.views)

    def _make(
        self,
        node: Node,
        location: StateLocation | None,
        inputs: Sequence[LiveNode],
        evaluator: Evaluator,
    ) -> LiveNode:
        live = LiveNode(self._next, node.plan, location)
        self._next += 1
        if location is not None:
            live.inputs, live.evaluator = tuple(inputs), evaluator
            named = replace(node, name=location.name)
            live.operator = make_operator(
                named, self._store, location.scope, evaluator, live, meter=self._meter
            )
            live.in_chunks_of = parts_of(live.operator)
            self._by_location[location] = live
        else:
            self._open_scan(live, node.plan)
        for below in live.inputs:
            below.readers.append(live)
        self._nodes[live.number] = live
        return live

    def _open_scan(self, live: LiveNode, plan: Plan) -> None:
        assert isinstance(plan, Scan)
        relation = plan.relation
        if relation.name.source != VIEW_SOURCE:
            self.tables.read(live.number, plan)
            return
        live.inputs = (self.views[relation.name].root,)
        live.scan = TableScan(plan.columns, len(relation.fields))

    def remove(self, view: RelationName) -> list[str]:
        """Remove a view; return the prefixes of the state that no other view reads."""
        unread: list[str] = []
        self.shape = next(_SHAPES)
        gone = self.views.pop(view)
        for node in dict.fromkeys(reversed(gone.nodes)):
            del node.names[view], node.errors[view]
            if not node.names:
                self._forget(node)
                unread += [node.location.prefix] if node.location else []
        self._loosen()
        self._limit()
        return unread + self.tables.assign_scans()

    def _forget(self, node: LiveNode) -> None:
        del self._nodes[node.number]
        self._failures.pop(node.number, None)
        self._clocks.pop(node.number, None)
        if node.fingerprint is not None and self._alike.get(node.fingerprint) is node:
            del self._alike[node.fingerprint]
        for below in node.inputs:
            below.readers.remove(node)
        if node.location is not None:
            del self._by_location[node.location]
        elif not node.inputs:
            self.tables.forget(node.number)

    def scopes(self) -> set[str]:
        """Return the scopes that contain the state of live views."""
        return {h.scope for h in self._by_location} | {h.scope for h in self.tables.locations}

    def due_search(
        self, source: str, candidates: np.ndarray, refresh_us: Mapping[RelationName, int]
    ) -> DueSearch:
        """Return the search for the next tick of a source that is a clock; see `DueSearch`.

        It holds until views are added or removed, or the clock has another value.
        """
        scans = [
            node
            for node in self._nodes.values()
            if isinstance(node.plan, Scan) and node.plan.relation.name.source == source
        ]
        return DueSearch(scans, candidates, refresh_us, self._outputs_of_views())

    # --- an epoch --------------------------------------------------------------------------------

    def step(self, changes: Sequence[Changes], sizer: Sizer = WholeChunks()) -> Iterator[Stepped]:
        """Apply changes of base relations; may be called several times in an epoch.

        Views' deltas come in parts that add up if a join makes more than part_rows rows at once, or
        a table is truncated whose rows are not stored; read them to the end. A failed view and its
        readers are no longer stepped: remove them. sizer: how many rows of such a table one step
        retracts.
        """
        for name in truncated(changes):
            for cleared in self._cleared(name):
                yield from self._clear(name, cleared, sizer)
        yield from self.step_tables(self.tables.resolve(changes))

    def _cleared(self, name: RelationName) -> list[Input]:
        """Return the inputs that have rows of a relation whose tables do not store them."""
        outputs, found = self._outputs_of_views(), set[Input]()
        for table in self.tables.tables:
            if table.location.relation.name == name and not table.location.is_stored:
                for number in table.scans:
                    cleared = cleared_inputs(self._nodes[number], outputs)
                    assert cleared is not None, "a scan without stored rows needs some"
                    found |= cleared
        return sorted(found)

    def _clear(self, name: RelationName, cleared: Input, sizer: Sizer) -> Iterator[Stepped]:
        """Retract all rows that a node stores of an input."""
        number, side = cleared
        node = self._nodes[number]
        for rows in sizer.chunks(name, self._stored_rows(node, side)):
            queue = _Queue()
            queue.push([node])
            inputs = [below.empty for below in node.inputs]
            inputs[side] = rows.negate()
            self._meter.take(len(rows))
            self.widest = 0
            yield from self._run({}, queue, {number: inputs})
            sizer.learn_of(name, len(rows), self.widest)
        if number in self._failures:
            queue = _Queue()
            queue.push([node])
            yield from self._run({}, queue)

    def _stored_rows(self, node: LiveNode, side: int) -> Iterator[Delta]:
        """Yield what a node stores of an input; stop once it fails."""
        assert node.operator is not None and node.location is not None
        try:
            for rows in stored_rows(node.operator, side):
                if node.number in self._failures:
                    return
                yield rows
        except Exception as error:
            found = view_error(node.location.name, error)
            if found is None:
                raise
            self._failures[node.number] = found

    def step_tables(self, tables: Iterable[tuple[LiveTable, Delta]]) -> Iterator[Stepped]:
        """Like `step`, given the consolidated deltas of tables that have already applied the
        changes."""
        deltas: dict[int, Delta] = {}
        queue = _Queue()
        self.widest = 0
        for table, delta in tables:
            self._meter.take(len(delta))
            for number, scan in table.scans.items():
                node = self._nodes[number]
                rows = self._read(node, scan, delta)
                if table.location.relation.is_single:
                    self._note_clock(number, rows)
                self._pass_on(node, rows, deltas, queue)
        for number, failure in self.tables.failures():
            if number not in self._failures:
                self._failures[number] = failure
                queue.push([self._nodes[number]])
        yield from self._run(deltas, queue)

    def _note_clock(self, number: int, rows: Delta) -> None:
        added = np.flatnonzero(rows.weights > 0)
        if len(added):
            self._clocks[number] = rows.take(added[-1:])
            self._moved.add(number)

    def free(self, max_rows: int) -> Iterator[Stepped]:
        """Free state that the clock has passed, about max_rows rows of each node (see `Expiry`).

        Call it after a whole epoch. What it yields are failures of views alone.
        """
        if self._expiry is None or self._expiry[0] != self.shape:
            outputs, tables = self._outputs_of_views(), self.tables.tables
            expiry = Expiry(self._nodes, outputs, tables, self._few_rows)
            self._expiry = self.shape, expiry
        failed = _Queue()

        def fail(name: str, numbers: Sequence[int], error: Exception) -> None:
            found = view_error(name, error)
            if found is None:
                raise error
            self._failures.update((number, found) for number in numbers)
            failed.push(self._nodes[number] for number in numbers)

        self._expiry[1].free(self._clocks, self._moved, max_rows, fail)
        self._moved.clear()
        if failed:
            yield from self._run({}, failed)

    def _outputs_of_views(self) -> set[int]:
        """Return the numbers of the nodes whose rows are a view's."""
        return {view.root.number for view in self.views.values()}

    def _is_clearable(self, number: int) -> bool:
        node = self._nodes[number]
        assert isinstance(node.plan, Scan)
        # A clock is no table that anybody truncates, and its newest row is noted from its table.
        is_clock = node.plan.relation.is_single
        return not is_clock and cleared_inputs(node, self._outputs_of_views()) is not None

    def _ends_of(self, number: int) -> Collection[str] | None:
        return ends_of(self._nodes[number], self._outputs_of_views())

    def pass_on(
        self, view: RelationName, delta: Delta, columns: Sequence[int]
    ) -> Iterator[Stepped]:
        """Pass readers of a view rows that the view itself does not emit, by these of its
        columns."""
        deltas: dict[int, Delta] = {}
        queue = _Queue()
        self._meter.take(len(delta))
        self.widest = 0
        for node in self.views[view].root.readers:
            if isinstance(node.plan, Scan) and node.plan.relation.name == view:
                positions = [columns.index(c) for c in node.plan.columns]
                rows = TableScan(positions, len(columns)).read(
                    delta, is_unconsolidated=node.is_unconsolidated
                )
                node.rows_in += len(delta)
                self._pass_on(node, rows, deltas, queue)
        yield from self._run(deltas, queue)

    def _run(
        self,
        deltas: dict[int, Delta],
        queue: _Queue,
        given: Mapping[int, Sequence[Delta]] = MappingProxyType({}),
    ) -> Iterator[Stepped]:
        """Step the nodes that have input. Every part of a node's output but the last passes through
        its readers before anything else: the sum of steps equals the step of the sum.

        given: by node number, inputs that no node of the dataflow emits.
        """
        while queue:
            node = self._nodes[queue.pop()]
            inputs = given.get(node.number) or [
                deltas.get(below.number, below.empty) for below in node.inputs
            ]
            part, made = node.empty, 0
            for out in self._outputs(node, inputs):
                if len(part):
                    below: dict[int, Delta] = {}
                    readers = _Queue()
                    self._pass_on(node, part, below, readers)
                    yield from self._run(below, readers)
                part = out
                made += len(out)
            if node.number in self._failures:
                queue.push(node.readers)
            else:
                self._pass_on(node, part, deltas, queue)
            self.widest = max(self.widest, made)
        yield self._by_view(deltas)

    def _outputs(self, node: LiveNode, inputs: Sequence[Delta]) -> Iterator[Delta]:
        """Yield the node's delta, perhaps in parts; nothing if it, or a node that it reads, has
        failed."""
        for below in (node, *node.inputs):
            if below.number in self._failures:
                self._failures[node.number] = self._failures[below.number]
                return
        if node.operator is None:
            assert node.scan is not None
            yield self._read(node, node.scan, inputs[0])
            return
        node.rows_in += sum(map(len, inputs))
        try:
            if node.in_chunks_of is None:
                with self._metered(node):
                    out = node.operator.step(*inputs)
                    self._meter.made(len(out))
                yield out
            else:
                parts = node.in_chunks_of(*inputs, max_rows=self.part_rows)
                yield from self._meter.parts(parts, partial(self._metered, node))
        except Exception as error:
            found = view_error(node.location.name if node.location else "", error)
            if found is None:
                raise
            self._failures[node.number] = found

    def _read(self, node: LiveNode, scan: TableScan, delta: Delta) -> Delta:
        node.rows_in += len(delta)
        started = self._clock()
        rows = scan.read(delta, is_unconsolidated=node.is_unconsolidated)
        node.time_s += self._clock() - started
        return rows

    @contextmanager
    def _metered(self, node: LiveNode) -> Iterator[None]:
        """Measure a step of a node, or of a part of its output; not that of its readers."""
        started = self._clock()
        try:
            with self._meter.step(node.names if node.is_limited else (), node.prefix):
                yield
        finally:
            node.time_s += self._clock() - started

    def _pass_on(self, node: LiveNode, out: Delta, deltas: dict[int, Delta], queue: _Queue) -> None:
        if len(out):
            node.rows_out += len(out)
            self.widest = max(self.widest, len(out))
            deltas[node.number] = out
            queue.push(node.readers)

    def _by_view(self, deltas: Mapping[int, Delta]) -> Stepped:
        stepped = Stepped({}, {})
        for name, view in self.views.items():
            number = view.root.number
            if number in self._failures:
                failure = self._failures[number]
                error = stepped.failures[name] = copy(failure)
                error.relation, error.__cause__ = name, failure.__cause__
            elif number in deltas:
                stepped.outputs[name] = deltas[number]
        return stepped


def _rights_of(nodes: Sequence[Node], rights: str) -> list[str]:
    """Return for each node the rights that its rows depend on; "" if PostgreSQL evaluates
    nothing."""
    found: list[str] = []
    for node in nodes:
        is_evaluated = isinstance(node.plan, TableFunction | Loop) or bool(in_postgres(node.plan))
        is_below = any(found[i] for i in node.inputs)
        found.append(rights if is_evaluated or is_below else "")
    return found


class _Queue:
    """Nodes that have input, each once, inputs before their readers."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._waiting: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def push(self, nodes: Iterable[LiveNode]) -> None:
        """Add nodes that come after the one just stepped."""
        for node in nodes:
            if node.number not in self._waiting:
                self._waiting.add(node.number)
                heappush(self._numbers, node.number)

    def pop(self) -> int:
        """Remove and return the first."""
        return heappop(self._numbers)


def _may_be_unconsolidated(
    traits: Traits | None, readers: Sequence[tuple[Traits | None, bool]]
) -> bool:
    """Return whether a node may emit rows that repeat and cancel out, as its readers consolidate.

    So an update of columns without a reader reaches no join and no aggregate. traits: None for a
    scan. readers: the traits of each, and whether its own rows may be unconsolidated.
    """
    if not readers:
        return False
    if traits is None or traits.passes_rows:
        return all(_leads_to_sums(*reader) for reader in readers)
    return traits.may_skip_consolidation and all(_is_sums(reader) for reader, _ in readers)


def _is_sums(traits: Traits | None) -> bool:
    """Return whether all state of a node is sums over rows."""
    return traits is not None and traits.has_state and traits.accepts_unconsolidated


def _leads_to_sums(traits: Traits | None, is_unconsolidated: bool) -> bool:
    """Return whether rows are summed here, or later before anything else reads them."""
    if traits is None or not traits.accepts_unconsolidated:
        return False
    if traits.passes_rows:
        return is_unconsolidated
    return traits.may_skip_consolidation and not is_unconsolidated
