"""The engine: all live views over one store, stepped together, one epoch at a time.

Invariant: after `step` and the store's commit, state, source position and outbox say the same
thing; nothing of an epoch is written without the rest. No clock, no socket, no thread in here:
pipeline, tests and benches drive it alike.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from connectors.sink import Progress, SinkEpoch, SinkTable
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.collect import ErrorRows
from dataflow.delta import Column, Delta
from dataflow.errors import InvariantError, ViewError
from dataflow.expressions.evaluator import Evaluator
from dataflow.graph import ViewDataflow, needed_columns
from dataflow.operators.table import TableState
from dataflow.schema import VIEW_SOURCE, Relation, RelationName
from dataflow.sql.lower import lower
from dataflow.sql.plan import ViewPlan, scans_of
from storage.store import Store

_PROGRESS = "progress"
_VIEWS = "view/"
_OUTBOX = "outbox/"


@dataclass(frozen=True)
class ViewDefinition:
    """A planned view: all that is needed to run it again after a restart.

    identity is new for each creation, so that state of an earlier view of the same name is
    never mistaken for this one's.
    """

    identity: str
    table: SinkTable
    query: str
    plan: ViewPlan

    @property
    def scope(self) -> str:
        """The prefix of its arrangements' names."""
        return f"v{self.identity}"

    @property
    def name(self) -> RelationName:
        """What other views call it."""
        return RelationName(VIEW_SOURCE, self.table.schema, self.table.name)

    def relations(self) -> tuple[Relation, ...]:
        """The base relations that it reads, each once."""
        found = {s.relation.name: s.relation for s in scans_of(self.plan.root)}
        return tuple(r for name, r in found.items() if name.source != VIEW_SOURCE)

    def reads(self) -> list[tuple[Relation, tuple[int, ...]]]:
        """The base relations, each with the positions of the fields that are used."""
        needed = needed_columns(lower(self.plan.root))
        return [(relation, needed[relation.name]) for relation in self.relations()]

    def parents(self) -> tuple[RelationName, ...]:
        """The maintained views that it reads, each once."""
        names = dict.fromkeys(s.relation.name for s in scans_of(self.plan.root))
        return tuple(name for name in names if name.source == VIEW_SOURCE)


class View:
    """A view's running dataflow: changes of base relations in, its own delta out."""

    def __init__(self, definition: ViewDefinition, store: Store, evaluator: Evaluator) -> None:
        self.definition = definition
        self.errors = ErrorRows()
        nodes = lower(definition.plan.root)
        self.dataflow = ViewDataflow(nodes, definition.scope, store, evaluator, self.errors)
        self._needed = self.dataflow.needed_columns()
        self._parents = set(definition.parents())
        self.tables = {
            relation.name: TableState(
                relation, self._needed[relation.name], store, definition.scope
            )
            for relation in definition.relations()
        }

    def resolve(self, changes: Iterable[Changes]) -> dict[RelationName, Delta]:
        """Exact deltas of the base relations that this view reads."""
        deltas: dict[RelationName, list[Delta]] = {}
        for change in changes:
            name = change.relation.name
            if name in self.tables:
                deltas.setdefault(name, []).append(self.tables[name].resolve(change))
        return {name: _added_up(parts) for name, parts in deltas.items()}

    def step(self, deltas: Mapping[RelationName, Delta]) -> Delta:
        """The view's own delta for one epoch of its inputs' deltas.

        Those of base relations as `resolve` gives them, those of other views whole.
        """
        inputs = dict(deltas)
        for name in self._parents & inputs.keys():
            inputs[name] = inputs[name].project(self._needed[name]).consolidate()
        return self.dataflow.step(inputs)


class Engine:
    """Live views in creation order (a view stands after those that it reads)."""

    def __init__(self, store: Store, evaluator: Evaluator, source: str) -> None:
        self.store = store
        self.source = source
        self.views: dict[RelationName, View] = {}
        self._refused: list[ViewError] = []
        stored = store.get(_PROGRESS)
        self.progress: Progress | None = None
        if stored is not None:
            facts = json.loads(stored)
            self.progress = Progress(facts["epoch"], facts["positions"])
        self._kept = [int(key[len(_OUTBOX) :]) for key, _ in store.items(_OUTBOX)]
        for _, value in store.items(_VIEWS):
            definition = pickle.loads(value)
            self.views[definition.name] = View(definition, store, evaluator)

    @property
    def position(self) -> int:
        """The source position that the state stands at; 0 before the first epoch."""
        return 0 if self.progress is None else self.progress.positions.get(self.source, 0)

    @property
    def epoch(self) -> int:
        """The number of the newest epoch; 0 before the first."""
        return 0 if self.progress is None else self.progress.epoch

    def add(self, view: View) -> None:
        """Make a built view live from the next epoch on; part of the open epoch."""
        definition = view.definition
        self.views[definition.name] = view
        # Views are opened again in this order: the epoch keeps parents before children.
        key = f"{_VIEWS}{self.epoch:020d}/{definition.identity}"
        self.store.put(key, pickle.dumps(definition))

    def remove(self, name: RelationName) -> None:
        """Forget a live view and its state; part of the open epoch."""
        view = self.views.pop(name)
        for key, _ in list(self.store.items(_VIEWS)):
            if key.endswith("/" + view.definition.identity):
                self.store.put(key, None)
        self.store.drop(view.definition.scope + "/")

    def step(self, batch: SourceBatch) -> SinkEpoch:
        """Step every view by one batch of whole source transactions. Nothing is committed yet.

        Views that cannot be kept any longer, and those that read them, have no rows in it: see
        `refused`.
        """
        outputs: dict[RelationName, Delta] = {}
        deltas: list[tuple[SinkTable, Delta]] = []
        errors: list[Delta] = []
        broken: set[RelationName] = set()
        for name, view in self.views.items():
            if not broken.isdisjoint(view.definition.parents()):
                broken.add(name)
                continue
            inputs = view.resolve(batch.changes)
            for parent in view.definition.parents():
                if parent in outputs:
                    inputs[parent] = outputs[parent]
            if not inputs:
                continue
            try:
                output = view.step(inputs)
            except ViewError as error:
                error.relation = name
                self._refused.append(error)
                broken.add(name)
                continue
            if len(output):
                outputs[name] = output
                deltas.append((view.definition.table, output))
            found = view.errors.take()
            if len(found):
                errors.append(_named(view.definition.table, found))
        progress = Progress(self.epoch + 1, {self.source: batch.position})
        self.progress = progress
        rows = Delta.concat(errors).consolidate() if errors else None
        return SinkEpoch(progress, deltas, rows, batch.commit_time_us)

    def refused(self) -> list[ViewError]:
        """The views that failed since the last call; remove them before the epoch's commit."""
        found, self._refused = self._refused, []
        return found

    def advance(self, position: int) -> None:
        """Move the source position over what has no changes; part of the open epoch."""
        self.progress = Progress(self.epoch, {self.source: position})

    def announce(self, view: View, outputs: list[Delta], errors: Delta | None) -> SinkEpoch:
        """The epoch in which a staged view becomes visible, at the position that stands now.

        outputs: what changed in the view since its snapshot; errors: its snapshot's error rows.
        """
        table = view.definition.table
        rows = [_named(table, found) for found in (errors, view.errors.take()) if found is not None]
        rows = [found for found in rows if len(found)]
        output = Delta.concat(outputs).consolidate() if outputs else None
        self.progress = Progress(self.epoch + 1, {self.source: self.position})
        return SinkEpoch(
            self.progress,
            [(table, output)] if output is not None and len(output) else [],
            Delta.concat(rows).consolidate() if rows else None,
            swaps=(table,),
        )

    def commit(self, epoch: SinkEpoch | None, *, written: int, sync: bool = False) -> None:
        """One atomic write: state, progress and outbox; forget the outbox up to epoch `written`."""
        if epoch is not None:
            self.store.put(_outbox_key(epoch.progress.epoch), pickle.dumps(epoch))
            self._kept.append(epoch.progress.epoch)
        if self.progress is not None:
            facts = {"epoch": self.progress.epoch, "positions": dict(self.progress.positions)}
            self.store.put(_PROGRESS, json.dumps(facts).encode())
        while self._kept and self._kept[0] <= written:
            self.store.put(_outbox_key(self._kept.pop(0)), None)
        self.store.commit(sync=sync)

    def outbox(self, after: int) -> list[SinkEpoch]:
        """The epochs after number `after` that the sink may not have, in order, none missing."""
        epochs = [pickle.loads(value) for _, value in self.store.items(_OUTBOX)]
        epochs = [e for e in epochs if e.progress.epoch > after]
        numbers = [e.progress.epoch for e in epochs]
        if numbers != list(range(after + 1, self.epoch + 1)):
            raise InvariantError(
                "state.outbox_gap",
                f"the sink is at epoch {after} and the outbox holds {numbers}",
                hint="the sink was restored to an older state: drop and create its views again",
            )
        return epochs

    def forget_progress(self) -> None:
        """Start anew: no position, no epoch; when the last view is gone."""
        self.progress = None
        self.store.put(_PROGRESS, None)


def _outbox_key(epoch: int) -> str:
    return f"{_OUTBOX}{epoch:020d}"


def _added_up(parts: list[Delta]) -> Delta:
    # Each is consolidated already: only several can meet in a row.
    return parts[0] if len(parts) == 1 else Delta.concat(parts).consolidate()


def _named(table: SinkTable, found: Delta) -> Delta:
    """Error rows of one view with its name in front."""
    title, n = table.title.encode(), len(found)
    offsets = np.arange(n + 1, dtype=np.int64) * len(title)
    name = Column(offsets, None, np.frombuffer(title * n, np.uint8))
    return Delta((name, *found.columns), found.weights)
