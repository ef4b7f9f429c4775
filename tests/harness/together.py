"""Views maintained in process by one engine, which computes once what they have in common.

Invariant: beside `Maintained`, whose views share nothing, only the engine is another: plans,
snapshot, stream and comparison are the same. Before each tick the search for the next one is asked
of every view alone; a tick at which nothing is due for a view must not change it.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from connectors.source import SourceBatch
from dataflow.delta import Delta
from dataflow.due import DueSearch
from dataflow.plan.nodes import Plan, Scan, ViewPlan
from dataflow.schema import RelationName
from dataflow.shared import LiveNode
from dataflow.types import EPOCH_2000_US, UTC
from dataflow.work import WorkBudget, WorkMeter
from service.engine.engine import Engine
from storage.store import Store
from tests.harness.maintained import MARKER, SOURCE, Fault, Maintained
from tests.harness.moving_clock import CLOCK
from tests.harness.postgres import Database

DROP_EVERY = 6
# Values of a clock that moves far, with the first and the last.
TICKS = 4
SECOND_US = 1_000_000


class Together(Maintained):
    """All plans in one engine. Every so many transactions the view that came first is dropped.

    max_shared: nodes of views that were another view's node already, when there were most.
    """

    def __init__(
        self,
        database: Database,
        plans: Mapping[str, ViewPlan],
        store: Store,
        clock_us: int | None = None,
    ) -> None:
        super().__init__(database, plans, store, clock_us)
        self._engine = self._opened()
        for view in self._views.values():
            self._engine.add(view)
        store.commit()
        self._names = {view.definition.name: name for name, view in self._views.items()}
        self._dropped_at = 0
        self._undue: set[str] = set()
        nodes = [node for v in self._engine.dataflow.views.values() for node in v.nodes]
        self.max_shared = len(nodes) - len(set(nodes))

    def restart(self) -> None:
        """Open the engine again over the state that was committed."""
        self._engine = self._opened()

    def _opened(self) -> Engine:
        return Engine(
            self._store,
            self._evaluators[UTC],
            SOURCE,
            evaluator_of=lambda role, zone: self._evaluators[zone],
            few_rows=1,
            # As in the service, with more than any view needs.
            meter=WorkMeter(WorkBudget(1e9, 1e9), time.thread_time),
        )

    def move_clock(self, us: int | None, number: int) -> None:
        """As `Maintained`, by several ticks if it moves far."""
        if us is None or self._clock is None:
            return
        values = np.unique(np.linspace(self._clock.us, us, TICKS, dtype=np.int64))
        # Whole seconds, as a clock has them.
        values = np.unique(values - values % SECOND_US)
        for passed in range(1, len(values)):
            self._undue = self._not_due(values[passed - 1 :])
            super().move_clock(int(values[passed]), number)
            self._undue = set()

    def _not_due(self, values: np.ndarray) -> set[str]:
        """The views for which the second of the clock's values is no tick, by their names."""
        candidates = values - EPOCH_2000_US
        found: dict[str, int] = {}
        for name, view in self._engine.dataflow.views.items():
            alone = _Alone(name)
            scans = [alone.of(n) for n in view.nodes if _is_clock(n.plan)]
            outputs = {view.root.number}
            found[self._names[name]] = DueSearch(scans, candidates, {}, outputs).first()
        first = self._engine.due_search(CLOCK, candidates).first()
        assert first <= min(found.values()), (first, found)
        return {name for name, due in found.items() if due > 1}

    def _step(self, batch: SourceBatch, number: int) -> None:
        epoch = self._engine.step(batch)
        for error in self._engine.refused():
            assert error.relation is not None
            self.faults.append(Fault(self._names[error.relation], number, str(error)))
            self._engine.remove(error.relation)
        for table, delta in epoch.rows.deltas:
            try:
                if len(delta.consolidate()) and table.name in self._undue:
                    self._undue.discard(table.name)
                    self.faults.append(Fault(table.name, number, f"changed undue: {delta.rows()}"))
                self.answers[table.name].add(delta, table.fields)
            except Exception:
                self.faults.append(Fault(table.name, number, traceback.format_exc(limit=-6)))
        if epoch.rows.errors is not None:
            self._note_titled(epoch.rows.errors)
        self._engine.commit(epoch, written=epoch.progress.epoch)
        if number >= self._dropped_at + DROP_EVERY:
            self._dropped_at = number
            self._drop_first()

    def _note_titled(self, errors: Delta) -> None:
        by_name: dict[str, Counter[tuple[Any, ...]]] = {}
        for (title, *row), weight in errors.rows():
            by_name.setdefault(title.decode().removeprefix("public."), Counter())[*row] += weight
        for name, rows in by_name.items():
            kinds = "s" * len(next(iter(rows)))
            self._note_errors(name, Delta.of(kinds, list(rows), list(rows.values())))

    def _drop_first(self) -> None:
        """Unless there is one left beside the marker."""
        for view, name in self._names.items():
            if len(self.answers) > 2 and name != MARKER and view in self._engine.views:
                self._engine.remove(view)
                self._store.commit()
                del self.answers[name]
                return


def _is_clock(plan: Plan) -> bool:
    return isinstance(plan, Scan) and plan.relation.name.source == CLOCK


class _Alone:
    """Makes live nodes as they were if one view alone had them."""

    def __init__(self, view: RelationName) -> None:
        self.view = view
        self._known: dict[int, _NodeAlone] = {}

    def of(self, node: LiveNode) -> _NodeAlone:
        """The node; the same one each time."""
        return self._known.setdefault(node.number, _NodeAlone(self, node))


class _NodeAlone:
    """A live node with the readers and the name of one view."""

    def __init__(self, alone: _Alone, node: LiveNode) -> None:
        self._alone, self._node = alone, node
        self.number, self.plan, self.rows_in = node.number, node.plan, node.rows_in
        self.operator, self.evaluator = node.operator, node.evaluator
        self.names = {alone.view: node.names[alone.view]}

    @property
    def inputs(self) -> Sequence[_NodeAlone]:
        """The nodes that it reads."""
        return [self._alone.of(node) for node in self._node.inputs]

    @property
    def readers(self) -> Sequence[_NodeAlone]:
        """The nodes of the view that read it."""
        readers = [node for node in self._node.readers if self._alone.view in node.names]
        return [self._alone.of(node) for node in readers]
