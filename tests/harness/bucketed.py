"""Views maintained in buckets in this process, over the real change stream of one database.

Invariant: beside `Maintained` only where the rows are is another: plans, snapshot, stream and
comparison are the same.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any

from connectors.source import SourceBatch
from connectors.spark.maintained.driver import Batch, Driver, Limits
from connectors.spark.maintained.layout import MaintainedView
from connectors.spark.maintained.output import CommittedEpoch
from connectors.spark.maintained.scheduler import InProcessScheduler
from connectors.spark.maintained.tasks import STATES
from dataflow.delta import Delta
from dataflow.expressions.evaluator import Evaluator
from dataflow.plan.properties.unique_keys import keys_of
from dataflow.sql.lower.lowering import lower
from service.engine.definition import ViewDefinition
from tests.harness.buckets import MemoryStorage, memory_folder
from tests.harness.compare import empty_answer
from tests.harness.maintained import Fault, Maintained

BUCKETS, HEAVY_ROWS = 3, 20
# By database and time zone: an evaluator of this process cannot be pickled with its session.
_EVALUATORS: dict[tuple[str, str], Evaluator] = {}


@dataclass(frozen=True)
class EvaluatorOf:
    """Returns this process's evaluator."""

    key: tuple[str, str]

    def __call__(self) -> Evaluator:
        return _EVALUATORS[self.key]


class Bucketed(Maintained):
    """All plans over one stream, each by a driver of its own."""

    def __init__(self, database: Any, *rest: Any) -> None:
        self._dsn = database.dsn
        self._drivers: dict[str, tuple[Driver, MaintainedView]] = {}
        self._local = memory_folder()
        self._folder = self._local.__enter__()
        self._shown: dict[str, int] = {}
        super().__init__(database, *rest)

    def _load(self, name: str, definition: ViewDefinition, snapshot: Any) -> None:
        zone = definition.plan.time_zone
        _EVALUATORS[self._dsn, zone] = self._evaluators[zone]
        view = MaintainedView(
            definition.scope or name,
            lower(definition.plan.root),
            definition.scope,
            definition.relations(),
            dict((r.name, columns) for r, columns in definition.reads()),
            EvaluatorOf((self._dsn, zone)),
        )
        self.answers[name] = empty_answer(definition.table.fields)
        self._definitions = {**getattr(self, "_definitions", {}), name: definition}
        self._facts[name] = keys_of(definition.plan.root)
        driver = self._driver(name, view)
        self._drivers[name] = driver, view
        rows = {
            relation.name: Delta.concat(parts)
            for relation in definition.relations()
            if (parts := list(self._rows(relation, view.columns[relation.name], snapshot)))
        }
        driver.step(Batch({}, rows=rows))

    def _driver(self, name: str, view: MaintainedView) -> Driver:
        storage = MemoryStorage(f"{self._dsn}/{view.identity}")
        driver = Driver(
            view,
            storage,
            InProcessScheduler(str(self._folder), 2),
            _Sink(self, name),
            buckets=BUCKETS,
            # So that states are made again from bases as well as from logs, and keys are spread.
            limits=Limits(min_log_bytes=4000, rewritten=1, heavy_rows=HEAVY_ROWS, output_bytes=500),
        )
        driver.start()
        return driver

    def restart(self) -> None:
        """Lose the driver and every local state."""
        STATES.close()
        for name, (_, view) in list(self._drivers.items()):
            self._drivers[name] = self._driver(name, view), view

    def _step(self, batch: SourceBatch, number: int) -> None:
        changes = batch.whole()
        for name, (driver, view) in list(self._drivers.items()):
            if any(change.relation.name in view.tables for change in changes):
                try:
                    driver.step(Batch({}, changes))
                except Exception:
                    del self._drivers[name]
                    self.faults.append(Fault(name, number, traceback.format_exc(limit=-6)))

    def close(self) -> None:
        """Also forget the states."""
        self._local.__exit__(None, None, None)
        super().close()


class _Sink:
    """Adds a view's epochs to its answer."""

    def __init__(self, views: Bucketed, name: str) -> None:
        self._views = views
        self._name = name

    def commit(self) -> str:
        """See EpochSink."""
        return ""

    def progress(self) -> int:
        """See EpochSink."""
        return self._views._shown.get(self._name, 0)

    def apply(self, epoch: CommittedEpoch) -> None:
        """See EpochSink."""
        views, name = self._views, self._name
        assert epoch.epoch == self.progress() + 1
        views._shown[name] = epoch.epoch
        shown = epoch.whole()
        views.answers[name].add(shown.rows, views._definitions[name].table.fields)
        views._note_errors(name, shown.errors)
