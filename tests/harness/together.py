"""Views maintained in process by one engine, which computes once what they have in common.

Invariant: beside `Maintained`, whose views share nothing, only the engine is another: plans,
snapshot, stream and comparison are the same.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Mapping
from typing import Any

from connectors.source import SourceBatch
from dataflow.delta import Delta
from dataflow.plan.nodes import ViewPlan
from dataflow.types import UTC
from service.engine.engine import Engine
from storage.store import Store
from tests.harness.maintained import MARKER, SOURCE, Fault, Maintained
from tests.harness.postgres import Database

DROP_EVERY = 6


class Together(Maintained):
    """All plans in one engine. Every so many transactions the view that came first is dropped.

    most_shared: nodes of views that were another view's node already, when there were most.
    """

    def __init__(self, database: Database, plans: Mapping[str, ViewPlan], store: Store) -> None:
        super().__init__(database, plans, store)
        self._engine = Engine(store, self._evaluators[UTC], SOURCE)
        for view in self._views.values():
            self._engine.add(view)
        store.commit()
        self._names = {view.definition.name: name for name, view in self._views.items()}
        self._dropped_at = 0
        nodes = [node for v in self._engine.dataflow.views.values() for node in v.nodes]
        self.most_shared = len(nodes) - len(set(nodes))

    def restart(self) -> None:
        """Open the engine again over the state that was committed."""
        self._engine = Engine(self._store, self._evaluators[UTC], SOURCE)

    def _step(self, batch: SourceBatch, number: int) -> None:
        epoch = self._engine.step(batch)
        for error in self._engine.refused():
            assert error.relation is not None
            self.faults.append(Fault(self._names[error.relation], number, str(error)))
            self._engine.remove(error.relation)
        for table, delta in epoch.rows.deltas:
            try:
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
        for view, name in self._names.items():
            if name != MARKER and view in self._engine.views:
                self._engine.remove(view)
                self._store.commit()
                del self.answers[name]
                return
