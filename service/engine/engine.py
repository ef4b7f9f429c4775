"""The engine: all live views over one store, stepped together, one epoch at a time.

A large epoch is stepped in slices whose outputs are added up: memory depends neither on the size of
a transaction nor on how many rows it becomes. Invariant: after `step` and `commit`, state, source
position and outbox agree; they are written together or not at all. The engine has no clock, socket
or thread: pipeline, tests and benchmarks drive it alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from connectors.feed_source import REJECTED_KINDS
from connectors.sink import SinkEpoch, SinkRows, SinkTable, Swap, ViewChange, ViewDdl
from connectors.source import SourceBatch
from connectors.spark.result import BackfillResult
from dataflow.changes import Changes, Letter, since_truncation, truncated
from dataflow.delta import Delta
from dataflow.due import TickSearch
from dataflow.errors import TidemarkError, ViewError
from dataflow.expiry import FEW_ROWS
from dataflow.expressions.evaluator import Evaluator
from dataflow.live_tables import Clock, TableLocation, stopped
from dataflow.operators.base import view_error
from dataflow.schema import RelationName
from dataflow.shared import SharedDataflow, StateLocation, Stepped
from dataflow.sharing import DataflowFigures, NodeFigures
from dataflow.sql.lower.lowering import lower
from dataflow.types import UTC
from dataflow.work import UNLIMITED, WorkMeter
from service.engine.batch_sizer import BatchSizer, rows_to_go
from service.engine.column_requirements import Read, widened
from service.engine.definition import StateLayout, View, ViewDefinition
from service.engine.encoding.registered import decode, encode
from service.engine.epoch_buffer import EpochBuffer, named
from service.engine.live_views import LiveViews
from service.engine.outbox import Outbox
from service.engine.positions import Positions
from service.engine.range_reader import RangeReader
from service.engine.replay import CatchUp, Replay
from storage.store import Store

_VIEWS = "view/"
EPOCH_BYTES = 64 << 20
# Rows of one node that an epoch frees, or examines for it, at most.
FREED_ROWS = 32_768
# Bytes of a row in progress: hits, columns, and both again when it is consolidated.
BYTES_A_ROW = 300
# A step aims at the rows that fit; output this many times larger is passed on in parts.
PARTS_FROM = 2
_LAYOUT = "layout"


class Engine:
    """Live views in creation order (each after the views that it reads).

    - source: the name under which the database's position is stored
    - evaluator_of: returns an evaluator with the privileges of a role, in a time zone
    - epoch_bytes: memory for an epoch's output, and roughly for one slice's deltas
    - clock: seconds, for figures only
    - meter: limits what each view does in an epoch
    - few_rows: fewer rows are not freed (see `dataflow.expiry`)
    - keeps_rows: whether all tables store their rows, so that a view can be copied (`copy_to`)
    - spare_bytes: how much of what every sink has the outbox retains
    """

    def __init__(
        self,
        store: Store,
        evaluator: Evaluator,
        source: str,
        epoch_bytes: int = EPOCH_BYTES,
        *,
        clock: Clock = stopped,
        evaluator_of: Callable[[str, str], Evaluator] | None = None,
        spare_bytes: int = 0,
        few_rows: int | None = None,
        keeps_rows: bool = False,
        meter: WorkMeter = UNLIMITED,
    ) -> None:
        self.store = store
        self.meter = meter
        self._evaluator_of = cache(evaluator_of) if evaluator_of else None
        self.source = source
        self._evaluator = evaluator
        self._clock = clock
        self._epoch_bytes = epoch_bytes
        self._few_rows = FEW_ROWS if few_rows is None else few_rows
        self._keeps_rows = keeps_rows
        self._batch_sizer = BatchSizer(epoch_bytes // BYTES_A_ROW)
        self.views = LiveViews()
        self.dataflow = self._new_dataflow()
        self._figures = DataflowFigures(self.dataflow, store)
        self._refused: list[ViewError] = []
        self.positions = Positions(store, source)
        self._outbox = Outbox(store, spare_bytes)
        # find_epoch: a retained epoch or None, from any thread. clear_outbox: remove all of them.
        self.find_epoch, self.clear_outbox = self._outbox.find, self._outbox.clear
        self._open_views()

    def _new_dataflow(self) -> SharedDataflow:
        part_rows = PARTS_FROM * self._epoch_bytes // BYTES_A_ROW
        return SharedDataflow(
            self.store,
            self._evaluator,
            part_rows,
            self._clock,
            self._few_rows,
            keeps_rows=self._keeps_rows,
            meter=self.meter,
        )

    def _open_views(self) -> None:
        """Build the dataflow from the stored definitions."""
        definitions = [decode(value) for _, value in self.store.items(_VIEWS)]
        stored = self.store.get(_LAYOUT)
        layout = decode(stored) if stored else StateLayout()
        unread = []
        for location in layout.tables:
            self.dataflow.tables.add(location)
        for definition in definitions:
            unread += self._enter(definition, layout.locations.get(definition.identity))
        unread += self.dataflow.tables.assign_scans()
        self._drop(unread)

    def _enter(
        self,
        definition: ViewDefinition,
        locations: Sequence[StateLocation | None] | None,
        tables: Sequence[TableLocation] | None = None,
    ) -> list[str]:
        """Add a view to the dataflow; return the prefixes of state that is now duplicate.

        locations: of its nodes. None: in its own scope, as are its tables.
        """
        nodes = lower(definition.plan.root)
        if locations is None:
            for location in tables or definition.tables():
                self.dataflow.tables.add(location)
        self.views[definition.name] = definition
        role, zone = definition.role, definition.plan.time_zone
        how = {
            "evaluator": self._own_evaluator(definition),
            "rights": role if zone == UTC else f"{role} in {zone}",
        }
        return self.dataflow.add(definition.name, nodes, definition.scope, locations, **how)

    def _own_evaluator(self, definition: ViewDefinition) -> Evaluator | None:
        """Return what evaluates with a view's role in its time zone; None for the common one."""
        role, zone, of = definition.role, definition.plan.time_zone, self._evaluator_of
        is_own = bool(role) or zone != UTC
        assert of is not None or not is_own, f"no evaluator for {role} in {zone}"
        return of(role, zone) if of and is_own else None

    def _drop(self, prefixes: Iterable[str]) -> None:
        """Remove state and record where the rest is stored; part of the open epoch."""
        for prefix in prefixes:
            self.store.drop(prefix)
        layout = self._layout()
        self.store.put(_LAYOUT, encode(layout) if layout.locations else None)

    def _layout(self) -> StateLayout:
        running = self.dataflow.views
        locations = {self.views[n].identity: view.locations for n, view in running.items()}
        return StateLayout(locations, self.dataflow.tables.locations)

    @property
    def position(self) -> int:
        """Return the database's position of the state; 0 before the first epoch."""
        return self.positions.database

    @property
    def depends_on_history(self) -> bool:
        """Return whether any view does: its state must be durable before a sink sees an epoch."""
        return any(definition.depends_on_history for definition in self.views.values())

    @property
    def epoch(self) -> int:
        """Return the number of the newest epoch; 0 before the first."""
        return self.positions.epoch

    def add(self, view: View) -> None:
        """Make a built view live from the next epoch on; part of the open epoch.

        It reads what live views already compute from them, and its own state for that is dropped.
        """
        definition = view.definition
        unread = self._enter(definition, None, view.locations)
        self._put_definition(definition)
        self._drop(unread + self.dataflow.tables.assign_scans())

    def remove(self, name: RelationName) -> None:
        """Remove a live view and the state that no other view reads; part of the open epoch."""
        self._forget(self.views.pop(name))
        self._drop(self.dataflow.remove(name))

    def copy_to(
        self, name: RelationName, store: Store, folder: Path
    ) -> Mapping[RelationName, tuple[int, ...]]:
        """Copy a live view's state to a store, under the view's own scope; commit it there.

        Call it between two epochs. folder: empty, for files. Return the stored columns of each base
        relation. TidemarkError view.rows_in_parts, view.rows_not_stored: the view stays as it is.
        After any other error, this engine must not be used any more.
        """
        from service.engine.handover import StateCopy, Stores

        del folder
        definition = self.views[name]
        evaluator = self._own_evaluator(definition) or self._evaluator
        stores = Stores(self.store, store)
        columns = StateCopy(self.dataflow, definition, evaluator, stores).run()
        store.commit()
        return columns

    def _put_definition(self, definition: ViewDefinition, number: int | None = None) -> None:
        """Store a view, as part of the open epoch. Restarts open views in this order: the epoch
        puts parents before children, and so does the number within it."""
        order = f"{self.epoch:020d}" + ("" if number is None else f".{number:06d}")
        self.store.put(f"{_VIEWS}{order}/{definition.identity}", encode(definition))

    def recover(self, written: int) -> list[TidemarkError]:
        """Add the epochs that are committed and missing in the store, before anything is read.

        written: as for `commit`. Views whose state is lost leave the engine; return why.
        """
        del written
        return []

    def note(self, definition: ViewDefinition) -> None:
        """Replace what is noted of a live view that is still the same; part of the open epoch."""
        for key, _ in list(self.store.items(_VIEWS)):
            if key.endswith("/" + definition.identity):
                self.store.put(key, encode(definition))
        self.views[definition.name] = definition

    def _forget(self, definition: ViewDefinition) -> None:
        for key, _ in list(self.store.items(_VIEWS)):
            if key.endswith("/" + definition.identity):
                self.store.put(key, None)

    # --- a live view changes as a whole ----------------------------------------------------------

    def readers_of(self, name: RelationName) -> list[ViewDefinition]:
        """Return the live views that read a view, directly or indirectly, parents first."""
        names, found = {name}, []
        for definition in self.views.values():
            if names.intersection(definition.parents()):
                names.add(definition.name)
                found.append(definition)
        return found

    def renew(self, view: View) -> None:
        """Replace the live version of a view by a built one, below its readers; part of the open
        epoch.

        The readers must then be stepped by the difference (`pass_on`).
        """
        self._rearrange(view.definition.name, view.definition, view)

    def rename(self, name: RelationName, table: SinkTable) -> None:
        """Rename a live view, also for its readers; part of the open epoch."""
        self._rearrange(name, replace(self.views[name], table=table))

    def _rearrange(
        self, name: RelationName, definition: ViewDefinition, fresh: View | None = None
    ) -> None:
        """Build the dataflow again, as after a restart, with one view changed.

        fresh: the built view, if it brings its own state.
        """
        layout, before = self._layout(), self._prefixes()
        readers = [d.reading(name, definition.relation) for d in self.readers_of(name)]
        moved = {d.identity: d for d in (definition, *readers)}
        unchanged = [d for d in self.views.values() if d.identity not in moved]
        self.dataflow, self.views = self._new_dataflow(), LiveViews()
        self._figures = DataflowFigures(self.dataflow, self.store)
        unread: list[str] = []
        for location in layout.tables:
            self.dataflow.tables.add(location)
        for d in (*unchanged, *moved.values()):
            if fresh is not None and d is definition:
                unread += self._enter(d, None, fresh.locations)
            else:
                unread += self._enter(d, layout.locations[d.identity])
        for number, d in enumerate(moved.values()):
            self._forget(d)
            self._put_definition(d, number)
        unread += self.dataflow.tables.assign_scans()
        self._drop([*unread, *(before - self._prefixes())])

    def _prefixes(self) -> set[str]:
        """Return the prefixes of all nodes' state."""
        locations = (at for view in self.dataflow.views.values() for at in view.locations)
        return {location.prefix for location in locations if location is not None}

    def pass_on(
        self,
        name: RelationName,
        rows: Iterable[Delta],
        columns: Sequence[int],
        buffered: EpochBuffer,
    ) -> None:
        """Step the readers of a view by changes that the view's dataflow does not output.

        columns: which of the view's columns the consolidated rows have.
        """
        failures: dict[RelationName, ViewError] = {}
        with self.meter.epoch():
            for delta in rows:
                stepped = self.dataflow.pass_on(name, delta, columns)
                self._gather_all(stepped, buffered, failures)
        self._refuse(failures, buffered)

    def open_build(
        self, definition: ViewDefinition, columns: Mapping[RelationName, tuple[int, ...]]
    ) -> View:
        """Return a backfilled view, to be stepped here until it joins the others.

        columns: what it stores of each base relation.
        """
        evaluator = self._own_evaluator(definition) or self._evaluator
        is_alone = self.views.keys() <= {definition.name}
        meter = UNLIMITED if is_alone else self.meter
        return View(definition, self.store, evaluator, columns, meter=meter)

    def catch_up(self, view: View, backfilled: BackfillResult) -> CatchUp:
        """Return what steps a view that is being built, from its backfilled state on."""
        self.store.ingest(backfilled.files)
        return Replay(view, self._epoch_bytes // BYTES_A_ROW)

    def forget_build(self, definition: ViewDefinition) -> None:
        """Delete the state of a build that does not join. Part of the open epoch."""
        self.store.drop(f"{definition.scope}/")

    def columns_to_keep(
        self, definition: ViewDefinition, others: Iterable[Read]
    ) -> dict[RelationName, tuple[int, ...]]:
        """Return the columns of each base relation that a build stores.

        They include what other views read, unless a live table already has what this view reads.
        """
        own = definition.reads()
        new = [read for read in own if not self.dataflow.tables.has(*read)]
        return {relation.name: columns for relation, columns in own} | widened(new, others)

    def in_free_scope(self, definition: ViewDefinition) -> ViewDefinition:
        """Return the definition with a scope that no live view's state uses."""
        used = self.dataflow.scopes()
        while definition.scope in used:
            definition = replace(definition, rebuilt=definition.rebuilt + 1)
        return definition

    def due_search(self, source: str, candidates: np.ndarray) -> TickSearch:
        """Return the search for the next tick of a clock; see `SharedDataflow.due_search`.

        It holds as long as `views` has the same version.
        """
        refresh = {name: d.plan.refresh_us for name, d in self.views.items()}
        return self.dataflow.due_search(source, candidates, refresh)

    def step(self, batch: SourceBatch) -> SinkEpoch:
        """Step every view by one batch of whole source transactions; commit nothing yet.

        A view that fails, and the views that read it, have no rows in the epoch: see `refused`.
        """
        buffered = self.gather()
        failures: dict[RelationName, ViewError] = {}
        with self.meter.epoch(batch.rows):
            for chunk in batch.chunks():
                for changes in self._batch_sizer.slices(chunk):
                    self._step_slice(changes, buffered, failures)
        if not failures:
            self._gather_all(self.dataflow.free(FREED_ROWS), buffered, failures)
        self._refuse(failures, buffered)
        self.positions.pass_over(batch, self.epoch + 1)
        rejected = _rejected(batch.rejected, self.dataflow.tables.rejected())
        return self._buffered_epoch(buffered, rejected, commit_time_us=batch.commit_time_us)

    def gather(self) -> EpochBuffer:
        """Return a buffer for the output of views."""
        return EpochBuffer(self._epoch_bytes)

    def _step_slice(
        self,
        changes: Sequence[Changes],
        buffered: EpochBuffer,
        failures: dict[RelationName, ViewError],
    ) -> None:
        """Step every view that has not failed."""
        tables = self.dataflow.tables.tables
        states = [(table.location.relation.name, table.state) for table in tables]
        emptied = truncated(changes)
        self.meter.announce(sum(state.row_count() for name, state in states if name in emptied))
        for at, rows in rows_to_go(states, changes, self._batch_sizer):
            self._gather_all(self.dataflow.step_tables([(tables[at], rows)]), buffered, failures)
            self._batch_sizer.learn_of(states[at][0], len(rows), self.dataflow.widest)
        stepped = self.dataflow.step(since_truncation(changes), self._batch_sizer)
        self._gather_all(stepped, buffered, failures)
        self._batch_sizer.learn(changes, self.dataflow.widest)

    def _gather_all(
        self,
        parts: Iterable[Stepped],
        buffered: EpochBuffer,
        failures: dict[RelationName, ViewError],
    ) -> None:
        for stepped in parts:
            self._gather(stepped, buffered, failures)
            self.store.relieve()

    def _gather(
        self, stepped: Stepped, buffered: EpochBuffer, failures: dict[RelationName, ViewError]
    ) -> None:
        failures.update(stepped.failures)
        for name, definition in self.views.items():
            if name in failures:
                continue
            try:
                if name in stepped.outputs:
                    buffered.add(definition.table, stepped.outputs[name])
                errors = self.dataflow.views[name].errors
                found = errors.take()
                if len(found):
                    buffered.add(definition.table, named(definition.table, found), is_errors=True)
                for rows in errors.take_final():
                    buffered.add(definition.published, rows)
            except Exception as error:
                failure = view_error("output", error)
                if failure is None:
                    raise
                failure.relation = name
                self._fail_with_readers(failure, failures)

    def _fail_with_readers(
        self, failure: ViewError, failures: dict[RelationName, ViewError]
    ) -> None:
        """Fail a view whose rows cannot be output, and the views that have read them."""
        assert failure.relation is not None
        names = [failure.relation, *(d.name for d in self.readers_of(failure.relation))]
        failures.update((name, failure) for name in names if name not in failures)

    def _refuse(self, failures: dict[RelationName, ViewError], buffered: EpochBuffer) -> None:
        for name, error in failures.items():
            if failures.keys().isdisjoint(self.views[name].parents()):
                self._refused.append(error)
        # Output from before the failure is dropped: the view's table stays unchanged.
        buffered.leave_out(failures)

    def _buffered_epoch(
        self,
        buffered: EpochBuffer,
        rejected: Delta | None = None,
        ddl: ViewDdl = ViewDdl(),
        *,
        commit_time_us: int = 0,
    ) -> SinkEpoch:
        assert self.positions.progress is not None
        part = buffered.take()
        later = buffered if buffered.is_spilled else None
        rows = SinkRows(part.deltas, part.errors, rejected, later)
        return SinkEpoch(self.positions.progress, rows, ddl, commit_time_us=commit_time_us)

    def figures(self) -> list[NodeFigures]:
        """Return all running nodes with their figures."""
        return self._figures.nodes()

    @property
    def has_refused(self) -> bool:
        """Return whether `refused` has any."""
        return bool(self._refused)

    def refused(self) -> list[ViewError]:
        """Return the views that failed since the last call; remove them before the commit."""
        found, self._refused = self._refused, []
        return found

    def range_reader(self, is_alone: Callable[[], bool]) -> RangeReader | None:
        """Return what reads ranges of sources, if tasks elsewhere step the views.

        is_alone: whether nothing but this engine reads the sources at present.
        """
        return None

    def advance(self, batch: SourceBatch) -> None:
        """Move a source's position over a batch without changes; part of the open epoch."""
        self.positions.pass_over(batch, self.epoch)

    def announce(
        self,
        view: View,
        buffered: EpochBuffer,
        errors: Delta | None,
        rejected: Delta | None = None,
        *,
        token: str | None,
    ) -> SinkEpoch:
        """Return the epoch in which a built view becomes visible, at the current position.

        buffered: changes of the view since its rows were staged, or against its existing rows.
        errors, rejected: its snapshot's error rows and malformed records. token: of its staged
        rows; None where its table has them.
        """
        table = view.definition.table
        for found in (errors, view.errors.take()):
            if found is not None and len(found):
                buffered.add(table, named(table, found), is_errors=True)
        for rows in view.errors.take_final():
            buffered.add(view.definition.published, rows)
        self.positions.set_epoch(self.epoch + 1)
        ddl = ViewDdl(swaps=() if token is None else (Swap(table, token),))
        return self._buffered_epoch(buffered, _rejected(rejected, view.rejected()), ddl)

    def change_views(
        self,
        changes: Iterable[ViewChange],
        buffered: EpochBuffer | None = None,
        rejected: Delta | None = None,
    ) -> SinkEpoch:
        """Return an epoch that changes views as a whole, at the current position.

        buffered: changes of their rows and error rows. rejected: malformed records.
        """
        self.positions.set_epoch(self.epoch + 1)
        rows = self.gather() if buffered is None else buffered
        return self._buffered_epoch(rows, rejected, ViewDdl(tuple(changes)))

    def commit(self, epoch: SinkEpoch | None, *, written: int, sync: bool = False) -> None:
        """Write state, progress and outbox atomically; trim the outbox up to epoch `written`."""
        if epoch is not None:
            buffered = epoch.rows.later
            self._outbox.put(epoch)
            if buffered is not None:
                buffered.close()
        self.positions.save()
        self._outbox.forget(written)
        self.store.commit(sync=sync)

    def retain(self, epoch: SinkEpoch) -> None:
        """Commit an epoch of another group for additional sinks, in a store that is being made."""
        self._outbox.put(epoch)
        self.store.commit()

    def outbox(self, after: int) -> list[SinkEpoch]:
        """Return the epochs after number `after` that the sink may lack, in order, none missing."""
        return self._outbox.read(after, self.epoch)

    def outbox_bytes(self, after: int) -> int:
        """Return the bytes on disk of the epochs after number `after`."""
        return self._outbox.nbytes(after)


def _rejected(found: Delta | None, letters: Sequence[Letter]) -> Delta | None:
    """Return malformed records: those of a source, plus those that tables rejected."""
    if not letters:
        return found
    more = Delta.of(REJECTED_KINDS, letters, 1)
    return more if found is None else Delta.concat([found, more])
