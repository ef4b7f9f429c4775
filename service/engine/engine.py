"""The engine: all live views over one store, stepped together, one epoch at a time.

A large epoch is stepped in slices whose outputs are added up: memory depends on neither the size of
a transaction nor what its rows become. Invariant: after `step` and the store's commit, state,
source position and outbox say the same thing; nothing of an epoch is written without the rest. No
clock, no socket, no thread in here: pipeline, tests and benches drive it alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache

from connectors.feed_source import REJECTED_KINDS
from connectors.sink import SinkEpoch, SinkTable, ViewChange
from connectors.source import SourceBatch
from dataflow.changes import Changes, Letter, since_truncation
from dataflow.delta import Delta
from dataflow.errors import ViewError
from dataflow.expressions.evaluator import Evaluator
from dataflow.live_tables import Clock, TableLocation, stopped
from dataflow.operators.base import view_error
from dataflow.schema import RelationName
from dataflow.shared import SharedDataflow, StateLocation, Stepped
from dataflow.sharing import DataflowFigures, NodeFigures
from dataflow.sql.lower.lowering import lower
from service.engine.batch_sizer import BatchSizer, rows_to_go
from service.engine.column_requirements import Read, widened
from service.engine.definition import StateLayout, View, ViewDefinition
from service.engine.encoding.registered import decode, encode
from service.engine.epoch_buffer import EpochBuffer, named
from service.engine.outbox import Outbox
from service.engine.positions import Positions
from storage.store import Store

_VIEWS = "view/"
EPOCH_BYTES = 64 << 20
# What a row takes while it is made: hits, columns, and both once more when it is consolidated.
BYTES_A_ROW = 300
# A step aims at the rows that fit; what makes so many times more is passed on in parts.
PARTS_FROM = 2
_LAYOUT = "layout"


class Engine:
    """Live views in creation order (a view stands after those that it reads).

    source: the name under which the database's position is kept. evaluator_of: an evaluator with
    the rights of a role, where views have them.
    epoch_bytes: what an epoch's output may take in memory, and about what one slice's deltas may.
    clock: seconds, for figures alone. spare_bytes: what the outbox keeps of what sinks have.
    """

    def __init__(
        self,
        store: Store,
        evaluator: Evaluator,
        source: str,
        epoch_bytes: int = EPOCH_BYTES,
        *,
        clock: Clock = stopped,
        evaluator_of: Callable[[str], Evaluator] | None = None,
        spare_bytes: int = 0,
    ) -> None:
        self.store = store
        self._evaluator_of = cache(evaluator_of) if evaluator_of else None
        self.source = source
        self._evaluator = evaluator
        self._clock = clock
        self._epoch_bytes = epoch_bytes
        self._batch_sizer = BatchSizer(epoch_bytes // BYTES_A_ROW)
        self.views: dict[RelationName, ViewDefinition] = {}
        self.dataflow = self._new_dataflow()
        self._figures = DataflowFigures(self.dataflow, store)
        self._refused: list[ViewError] = []
        self.positions = Positions(store, source)
        self._outbox = Outbox(store, spare_bytes)
        # A committed epoch that is kept, or None, from any thread; keep none any more.
        self.find_epoch, self.clear_outbox = self._outbox.find, self._outbox.clear
        self._open_views()

    def _new_dataflow(self) -> SharedDataflow:
        part_rows = PARTS_FROM * self._epoch_bytes // BYTES_A_ROW
        return SharedDataflow(self.store, self._evaluator, part_rows, self._clock)

    def _open_views(self) -> None:
        """Put the dataflow together as the state has it."""
        definitions = [decode(value) for _, value in self.store.items(_VIEWS)]
        stored = self.store.get(_LAYOUT)
        layout = decode(stored) if stored else StateLayout()
        unread = []
        for home in layout.tables:
            self.dataflow.tables.add(home)
        for definition in definitions:
            unread += self._enter(definition, layout.homes.get(definition.identity))
        unread += self.dataflow.tables.assign_scans()
        self._drop(unread)

    def _enter(
        self,
        definition: ViewDefinition,
        homes: Sequence[StateLocation | None] | None,
        tables: Sequence[TableLocation] | None = None,
    ) -> list[str]:
        """Let a view into the dataflow; the state that it has twice now.

        homes: where its nodes live. None: in its own scope, as do its tables.
        """
        nodes = lower(definition.plan.root)
        if homes is None:
            for home in tables or definition.tables():
                self.dataflow.tables.add(home)
        self.views[definition.name] = definition
        role, of = definition.role, self._evaluator_of
        assert of is not None or not role, f"no evaluator for {role}"
        how = {"evaluator": of(role) if of and role else None, "rights": role}
        return self.dataflow.add(definition.name, nodes, definition.scope, homes, **how)

    def _drop(self, prefixes: Iterable[str]) -> None:
        """Remove state, and note where the rest of it lies; part of the open epoch."""
        for prefix in prefixes:
            self.store.drop(prefix)
        layout = self._layout()
        self.store.put(_LAYOUT, encode(layout) if layout.homes else None)

    def _layout(self) -> StateLayout:
        homes = {d.identity: self.dataflow.views[n].locations for n, d in self.views.items()}
        return StateLayout(homes, self.dataflow.tables.locations)

    @property
    def position(self) -> int:
        """The database's position that the state stands at; 0 before the first epoch."""
        return self.positions.database

    @property
    def epoch(self) -> int:
        """The number of the newest epoch; 0 before the first."""
        return self.positions.epoch

    def add(self, view: View) -> None:
        """Make a built view live from the next epoch on; part of the open epoch.

        What live views compute already it reads from them, and its own state of it is dropped.
        """
        definition = view.definition
        unread = self._enter(definition, None, view.homes)
        # Views are opened again in this order: the epoch keeps parents before children.
        key = f"{_VIEWS}{self.epoch:020d}/{definition.identity}"
        self.store.put(key, encode(definition))
        self._drop(unread + self.dataflow.tables.assign_scans())

    def remove(self, name: RelationName) -> None:
        """Forget a live view and the state that no other one reads; part of the open epoch."""
        self._forget(self.views.pop(name))
        self._drop(self.dataflow.remove(name))

    def _forget(self, definition: ViewDefinition) -> None:
        for key, _ in list(self.store.items(_VIEWS)):
            if key.endswith("/" + definition.identity):
                self.store.put(key, None)

    # --- a live view changes as a whole ----------------------------------------------------------

    def readers_of(self, name: RelationName) -> list[ViewDefinition]:
        """The live views that read a view, directly or not, parents first."""
        names, found = {name}, []
        for definition in self.views.values():
            if names.intersection(definition.parents()):
                names.add(definition.name)
                found.append(definition)
        return found

    def renew(self, view: View) -> None:
        """Put a built version in the place of the live one, below what reads it; part of the open
        epoch. What reads it must be given the difference (`pass_on`)."""
        self._rearrange(view.definition.name, view.definition, view)

    def rename(self, name: RelationName, table: SinkTable) -> None:
        """Another name for a live view, by which its readers know it; part of the open epoch."""
        self._rearrange(name, replace(self.views[name], table=table))

    def _rearrange(
        self, name: RelationName, definition: ViewDefinition, fresh: View | None = None
    ) -> None:
        """Put the dataflow together again, as after a restart, with one view changed.

        fresh: the built view where it brings state of its own.
        """
        layout, before = self._layout(), self._prefixes()
        readers = [d.reading(name, definition.relation) for d in self.readers_of(name)]
        moved = {d.identity: d for d in (definition, *readers)}
        kept = [d for d in self.views.values() if d.identity not in moved]
        self.dataflow, self.views = self._new_dataflow(), {}
        self._figures = DataflowFigures(self.dataflow, self.store)
        unread: list[str] = []
        for home in layout.tables:
            self.dataflow.tables.add(home)
        for d in (*kept, *moved.values()):
            if fresh is not None and d is definition:
                unread += self._enter(d, None, fresh.homes)
            else:
                unread += self._enter(d, layout.homes[d.identity])
        # They are opened again in this order: parents before children.
        for number, d in enumerate(moved.values()):
            self._forget(d)
            key = f"{_VIEWS}{self.epoch:020d}.{number:06d}/{d.identity}"
            self.store.put(key, encode(d))
        unread += self.dataflow.tables.assign_scans()
        self._drop([*unread, *(before - self._prefixes())])

    def _prefixes(self) -> set[str]:
        """Where the state of nodes lies."""
        homes = (h for view in self.dataflow.views.values() for h in view.locations)
        return {home.prefix for home in homes if home is not None}

    def pass_on(
        self,
        name: RelationName,
        rows: Iterable[Delta],
        columns: Sequence[int],
        gathered: EpochBuffer,
    ) -> None:
        """Step what reads a view by changes that the view itself does not give out.

        columns: which of the view's the consolidated rows have.
        """
        failures: dict[RelationName, ViewError] = {}
        for delta in rows:
            stepped = self.dataflow.pass_on(name, delta, columns)
            self._gather_all(stepped, gathered, failures)
        self._refuse(failures, gathered)

    def columns_to_keep(
        self, definition: ViewDefinition, others: Iterable[Read]
    ) -> dict[RelationName, tuple[int, ...]]:
        """What a build keeps of each base relation: what others read too, where no live table
        has what the view itself reads."""
        own = definition.reads()
        new = [read for read in own if not self.dataflow.tables.has(*read)]
        return {relation.name: columns for relation, columns in own} | widened(new, others)

    def in_free_scope(self, definition: ViewDefinition) -> ViewDefinition:
        """The definition with a scope in which no live view's state lies."""
        used = self.dataflow.scopes()
        while definition.scope in used:
            definition = replace(definition, rebuilt=definition.rebuilt + 1)
        return definition

    def step(self, batch: SourceBatch) -> SinkEpoch:
        """Step every view by one batch of whole source transactions. Nothing is committed yet.

        Views that cannot be kept any longer, and those that read them, have no rows in it: see
        `refused`.
        """
        gathered = self.gather()
        failures: dict[RelationName, ViewError] = {}
        for chunk in batch.chunks():
            for changes in self._batch_sizer.slices(chunk):
                self._step_slice(changes, gathered, failures)
        self._refuse(failures, gathered)
        self.positions.pass_over(batch, self.epoch + 1)
        epoch = self._buffered_epoch(gathered, batch.commit_time_us)
        epoch.rejected = _rejected(batch.rejected, self.dataflow.tables.rejected())
        return epoch

    def gather(self) -> EpochBuffer:
        """Room to add up what views give out."""
        return EpochBuffer(self._epoch_bytes)

    def _step_slice(
        self,
        changes: Sequence[Changes],
        gathered: EpochBuffer,
        failures: dict[RelationName, ViewError],
    ) -> None:
        """Step every view that has not failed."""
        tables = self.dataflow.tables.tables
        states = [(table.location.relation.name, table.state) for table in tables]
        for at, rows in rows_to_go(states, changes, self._batch_sizer):
            self._gather_all(self.dataflow.step_tables([(tables[at], rows)]), gathered, failures)
            self._batch_sizer.learn_of(states[at][0], len(rows), self.dataflow.widest)
        self._gather_all(self.dataflow.step(since_truncation(changes)), gathered, failures)
        self._batch_sizer.learn(changes, self.dataflow.widest)

    def _gather_all(
        self,
        parts: Iterable[Stepped],
        gathered: EpochBuffer,
        failures: dict[RelationName, ViewError],
    ) -> None:
        for stepped in parts:
            self._gather(stepped, gathered, failures)
            self.store.relieve()

    def _gather(
        self, stepped: Stepped, gathered: EpochBuffer, failures: dict[RelationName, ViewError]
    ) -> None:
        failures.update(stepped.failures)
        for name, definition in self.views.items():
            if name in failures:
                continue
            try:
                if name in stepped.outputs:
                    gathered.add(definition.table, stepped.outputs[name])
                found = self.dataflow.views[name].errors.take()
                if len(found):
                    gathered.add(definition.table, named(definition.table, found), is_errors=True)
            except Exception as error:
                failure = view_error("output", error)
                if failure is None:
                    raise
                failure.relation = name
                self._fail_with_readers(failure, failures)

    def _fail_with_readers(
        self, failure: ViewError, failures: dict[RelationName, ViewError]
    ) -> None:
        """Of a view whose rows cannot be given out, and of what has read them."""
        assert failure.relation is not None
        names = [failure.relation, *(d.name for d in self.readers_of(failure.relation))]
        failures.update((name, failure) for name in names if name not in failures)

    def _refuse(self, failures: dict[RelationName, ViewError], gathered: EpochBuffer) -> None:
        for name, error in failures.items():
            if failures.keys().isdisjoint(self.views[name].parents()):
                self._refused.append(error)
        # What a view gave out before it failed is not shown: its table stays as it was.
        gathered.leave_out(failures)

    def _buffered_epoch(
        self, gathered: EpochBuffer, commit_time_us: int = 0, swaps: tuple[SinkTable, ...] = ()
    ) -> SinkEpoch:
        assert self.positions.progress is not None
        part = gathered.take()
        later = gathered if gathered.is_spilled else None
        return SinkEpoch(
            self.positions.progress, part.deltas, part.errors, commit_time_us, swaps, later=later
        )

    def figures(self) -> list[NodeFigures]:
        """All nodes as they run, with figures for people."""
        return self._figures.nodes()

    def refused(self) -> list[ViewError]:
        """The views that failed since the last call; remove them before the epoch's commit."""
        found, self._refused = self._refused, []
        return found

    def advance(self, batch: SourceBatch) -> None:
        """Move a source's position over what has no changes; part of the open epoch."""
        self.positions.pass_over(batch, self.epoch)

    def announce(
        self,
        view: View,
        gathered: EpochBuffer,
        errors: Delta | None,
        rejected: Delta | None = None,
        *,
        is_staged: bool = True,
    ) -> SinkEpoch:
        """The epoch in which a built view becomes visible, at the position that stands now.

        gathered: what changed in the view since its rows were staged, or against the rows that are
        there; errors, rejected: its snapshot's error rows and records that are not rows.
        """
        table = view.definition.table
        for found in (errors, view.errors.take()):
            if found is not None and len(found):
                gathered.add(table, named(table, found), is_errors=True)
        self.positions.stand(self.epoch + 1)
        epoch = self._buffered_epoch(gathered, swaps=(table,) if is_staged else ())
        epoch.rejected = _rejected(rejected, view.rejected())
        return epoch

    def tell(self, changes: Iterable[ViewChange], gathered: EpochBuffer | None = None) -> SinkEpoch:
        """An epoch that changes views as a whole, at the position that stands now. gathered: what
        changes in their rows and error rows."""
        self.positions.stand(self.epoch + 1)
        epoch = self._buffered_epoch(self.gather() if gathered is None else gathered)
        epoch.changes = tuple(changes)
        return epoch

    def commit(self, epoch: SinkEpoch | None, *, written: int, sync: bool = False) -> None:
        """One atomic write: state, progress and outbox; forget the outbox up to epoch `written`."""
        if epoch is not None:
            gathered = epoch.later
            self._outbox.put(epoch)
            if gathered is not None:
                gathered.close()
        self.positions.save()
        self._outbox.forget(written)
        self.store.commit(sync=sync)

    def outbox(self, after: int) -> list[SinkEpoch]:
        """The epochs after number `after` that the sink may not have, in order, none missing."""
        return self._outbox.read(after, self.epoch)

    def outbox_bytes(self, after: int) -> int:
        """What the epochs after number `after` take on disk."""
        return self._outbox.nbytes(after)


def _rejected(told: Delta | None, letters: Sequence[Letter]) -> Delta | None:
    """Records that are not rows: those of a source, and those that tables have left out."""
    if not letters:
        return told
    more = Delta.of(REJECTED_KINDS, letters, 1)
    return more if told is None else Delta.concat([told, more])
