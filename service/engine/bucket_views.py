"""The view of an engine whose state is in buckets (decisions 34, 35).

The engine's own store has the view's definition, its outbox and a record: where the state is, and
which of its epochs the outbox has. A driver's epoch is committed before the engine's, so after a
kill the driver may be ahead: `recover` then returns what the outbox lacks. Invariant: an epoch that
the driver has committed becomes exactly one epoch of the engine, with the number, positions and
notes that were fixed with its input.
"""

from __future__ import annotations

import base64
import functools
import json
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from connectors.feed_source import RangePlanner
from connectors.objects.shared_storage import SharedStorage
from connectors.sink import Progress
from connectors.source import SourceBatch, StoredInput
from connectors.spark.maintained.bases import open_state
from connectors.spark.maintained.commits import LOST_CODES
from connectors.spark.maintained.driver import Batch, Driver, Limits
from connectors.spark.maintained.growth import DEFAULT_GROWTH, GrowthLimits
from connectors.spark.maintained.imports import BackfilledState
from connectors.spark.maintained.input_pages import LargeInput
from connectors.spark.maintained.layout import Layout, MaintainedView, Spread
from connectors.spark.maintained.output import CommittedEpoch
from connectors.spark.maintained.scheduler import Scheduler
from connectors.spark.maintained.tasks import Figures
from dataflow.changes import Changes
from dataflow.collect import ERROR_KINDS
from dataflow.delta import Column, Delta
from dataflow.errors import InvariantError, TemporaryError, TidemarkError
from dataflow.expressions.evaluator import Evaluator
from dataflow.live_tables import TableLocation
from dataflow.operators.tables.table import FreedRows, prefix_of, table_spec
from dataflow.schema import RelationName
from dataflow.sql.lower.lowering import Node, lower
from service.engine.definition import View, ViewDefinition
from service.runtime.log import log
from service.runtime.long_work import finished
from storage.store import Store

_RECORD = "buckets/"
LOST_FILE = "buckets.lost"
COLLECT_S = 60.0
# While a view catches up, an epoch has about so many changes.
CATCH_UP_ROWS = 100_000
# More rows of a batch than so many are stored for the tasks while it is decoded.
HELD_ROWS = 200_000


@dataclass(frozen=True)
class BucketParts:
    """What views in buckets run on.

    storage: shared, called with the name of a view's folder, or "" for that of all. evaluator:
    returns what tasks evaluate with; picklable. buckets: of a new view. growth: when they are
    split. held_rows: of an epoch's input in memory. folder: local, for files on their way.
    while_waiting: called twice a second in the caller's thread while tasks run. warm: called once
    in a thread of its own, so that the first epoch need not wait for it.
    """

    storage: Callable[[str], SharedStorage]
    scheduler: Scheduler
    evaluator: Callable[[ViewDefinition], Callable[[], Evaluator]]
    buckets: int
    folder: Path
    growth: GrowthLimits = DEFAULT_GROWTH
    held_rows: int = HELD_ROWS
    while_waiting: Callable[[], object] = lambda: None
    warm: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class FixedEpoch:
    """What an epoch of the engine is beside its rows, as fixed with its input.

    notes: of the source that was read, to store with the state.
    """

    progress: Progress
    source: str
    notes: Mapping[str, bytes | None]
    commit_time_us: int = 0

    @classmethod
    def of(cls, progress: Progress, batch: SourceBatch) -> FixedEpoch:
        """Return the epoch of a batch. progress: after it."""
        return cls(progress, batch.source, batch.notes, batch.commit_time_us)

    def facts(self) -> dict[str, Any]:
        """Return it as JSON."""
        notes = {
            name: None if note is None else base64.b64encode(note).decode()
            for name, note in self.notes.items()
        }
        return {
            "epoch": self.progress.epoch,
            "positions": dict(self.progress.positions),
            "source": self.source,
            "notes": notes,
            "commit_time_us": self.commit_time_us,
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> FixedEpoch:
        """Return what `facts` gave."""
        notes = {
            name: None if text is None else base64.b64decode(text)
            for name, text in facts["notes"].items()
        }
        progress = Progress(facts["epoch"], facts["positions"])
        return cls(progress, facts["source"], notes, facts["commit_time_us"])


class BucketViews:
    """The views in buckets of one engine; used by its thread. There is at most one (decision 35).

    Its records belong to the open epoch of the store.
    """

    def __init__(self, store: Store, parts: BucketParts) -> None:
        self._store = store
        self._parts = parts
        self._running: dict[str, _Running] = {}
        # Views that catch up after a backfill, by scope.
        self._building: dict[str, _Running] = {}
        self._unneeded: list[str] = []
        self._is_warm = False
        self._lost = LostStates(parts.folder.with_name(LOST_FILE))

    @property
    def held_rows(self) -> int:
        """How many rows of an epoch's input are held in memory."""
        return self._parts.held_rows

    def warm(self) -> None:
        """Begin what the first epoch would wait for, once."""
        if self._is_warm:
            return
        self._is_warm = True
        threading.Thread(target=self._parts.warm, name="warm-buckets", daemon=True).start()

    def enter(self, definition: ViewDefinition) -> None:
        """Take up a view that is in the store; `recover` comes before its first step."""
        stored = self._store.get(_RECORD + definition.identity)
        if stored is None:
            raise InvariantError("state.buckets", f"{definition.table.title} has no buckets")
        self._run(definition, json.loads(stored))

    def _run(
        self, definition: ViewDefinition, record: dict[str, Any], built: _Running | None = None
    ) -> _Running:
        if self._running.keys() - {definition.identity}:
            raise InvariantError("state.buckets", "two views in buckets have one engine")
        running = built or _Running(definition, record, self._parts)
        self._running[definition.identity] = running
        return running

    def begin(self, view: View, progress: Progress) -> None:
        """Take up a built view; if its state is in the store, move that into buckets.

        progress: of the last epoch before the one in which the view becomes visible.
        """
        definition, facts = view.definition, FixedEpoch(progress, "", {}).facts()
        before = self._running.get(definition.identity)
        caught_up = self._building.pop(definition.scope, None)
        running = self._run(definition, _new_record(view, self._store), caught_up)
        try:
            if caught_up is None:
                self._move(running, facts)
            else:
                # Its positions are this epoch's from now on; what came before is in `CatchUp`.
                self._await(running, lambda: running.driver.step(Batch(facts)))
                running.take()
                running.record["epoch"] = running.driver.epoch
            running.record["commit"] = running.driver.commit
        except BaseException:
            self._unneeded.append(running.record["folder"])
            raise
        if before is not None:
            self._unneeded.append(before.record["folder"])
        running.begin()
        self._save(running)

    def _move(self, running: _Running, facts: Mapping[str, Any]) -> None:
        local = self._parts.folder / uuid.uuid4().hex
        try:
            self._await(
                running, lambda: running.driver.start_moved(self._store, facts, local, epoch=1)
            )
        finally:
            shutil.rmtree(local, ignore_errors=True)

    def catch_up(self, view: View, state: BackfilledState) -> BucketCatchUp:
        """Return what steps a view that is being built, from state that tasks have written.

        TidemarkError as of `Driver.start_imported`.
        """
        running = _Running(view.definition, _new_record(view, self._store), self._parts)
        self._building[view.definition.scope] = running
        self._await(running, lambda: running.driver.start_imported(state, {}, epoch=1))
        return BucketCatchUp(view, running, functools.partial(self._await, running))

    def forget_build(self, definition: ViewDefinition) -> None:
        """Delete what is there of a build that does not join; its files by `clean`."""
        running = self._building.pop(definition.scope, None)
        if running is not None:
            self._unneeded.append(running.record["folder"])

    def rename(self, definition: ViewDefinition) -> None:
        """Note the new name of a view."""
        self._running[definition.identity].definition = definition

    def remove(self, identity: str) -> None:
        """Forget a view; its files are deleted by `clean`."""
        running = self._running.pop(identity)
        self._unneeded.append(running.record["folder"])
        self._store.put(_RECORD + identity, None)

    def clean(self) -> None:
        """Delete the files of removed views; after the commit that has removed them."""
        while self._unneeded:
            folder = self._unneeded.pop()
            storage = self._parts.storage(folder)
            for name in storage.names(""):
                storage.delete(name)
            self._lost.forget(folder)

    def sweep(self) -> None:
        """Delete what a process that was killed has left of views that it built.

        TemporaryError spark.storage.
        """
        storage = self._parts.storage("")
        own = tuple(f"{running.record['folder']}/" for running in self._running.values())
        for name in storage.names(""):
            if not name.startswith(own):
                storage.delete(name)

    def recover(self, identity: str) -> Iterator[tuple[FixedEpoch, CommittedEpoch]]:
        """Yield the epochs that are committed and missing in the store, in order.

        TidemarkError of LOST_CODES, spark.fenced; TemporaryError.
        """
        running = self._running[identity]
        self._lost.check(running.record["folder"])
        self._await(running, running.driver.start)
        running.begin()
        for committed in running.take():
            yield FixedEpoch.from_facts(committed.positions), committed

    def read(self, identity: str, planner: RangePlanner, max_rows: int) -> SourceBatch | None:
        """Let tasks read ranges of a view for its next epoch; see `Driver.read`."""
        running, found = self._running[identity], list[SourceBatch | None]()
        self._await(running, lambda: found.append(running.driver.read(planner, max_rows)))
        return found[0]

    def large_batch(self, identity: str) -> LargeBatch:
        """Return what stores a batch for a view's next epoch. TemporaryError spark.late_read."""
        running, made = self._running[identity], list[LargeInput]()
        self._await(running, lambda: made.append(running.driver.large_input()))
        return LargeBatch(made[0], functools.partial(self._await, running))

    def step(
        self,
        identity: str,
        fixed: FixedEpoch,
        changes: Sequence[Changes],
        stored: StoredInput | None = None,
    ) -> CommittedEpoch:
        """Run an epoch, and commit it in the shared storage. stored: by `read` or `large_batch`."""
        running = self._running[identity]
        if not running.is_started:
            raise InvariantError("state.buckets", "a view is stepped before it is recovered")
        batch = Batch(fixed.facts(), changes, stored=stored)
        self._await(running, lambda: running.driver.step(batch))
        running.report_shape()
        (committed,) = running.take()
        running.collect_garbage()
        return committed

    def export(
        self, identity: str, store: Store, folder: Path
    ) -> Mapping[RelationName, tuple[int, ...]]:
        """Put the state of a view into another store, and return the columns of each base relation.

        folder: for files. Its driver runs an epoch that reads nothing, which is none of the
        engine's. It may take long, and while_waiting is not called.
        """
        running = self._running[identity]
        files = running.driver.export(folder)
        for specs in running.driver.layout.specs.values():
            for spec, _ in specs:
                open_state(store, spec)
        store.commit()
        store.ingest(files)
        columns, freed = running.columns(), running.freed()
        for relation in running.definition.relations():
            if relation.name in freed:
                spec = table_spec(relation, columns[relation.name], running.definition.scope)
                found = FreedRows(store, prefix_of(spec))
                found.set_ends(freed[relation.name][1])
                found.add(freed[relation.name][0])
        return columns

    def nodes(self, identity: str) -> Sequence[Node]:
        """Return the nodes of a view, as lowered."""
        return self._running[identity].driver.layout.nodes

    def first_change(self, identity: str, thresholds: Mapping[int, Column]) -> int:
        """Return the first of so many candidates at which rows of a view leave or come; 1, the next
        one, while Spark does not answer. See `Driver.first_change`."""
        running, found = self._running[identity], []
        try:
            self._await(running, lambda: found.append(running.driver.first_change(thresholds)))
        except TemporaryError as error:
            log.warning("buckets.unanswered", code=error.code, why=error.described)
            return 1
        return found[0]

    def _await(self, running: _Running, work: Callable[[], object]) -> None:
        """Do what may take long; the caller's thread shows meanwhile that it is alive.

        That a view's state is lost is noted: this process ends, and the next one rebuilds the view.
        """
        try:
            finished(work, self._parts.while_waiting, "buckets")
        except TidemarkError as error:
            if error.code in LOST_CODES:
                self._lost.note(running.record["folder"], error)
            raise

    def keep(self, identity: str, committed: CommittedEpoch) -> None:
        """Record with the open epoch that it contains an epoch of a view."""
        running = self._running[identity]
        running.record |= {"epoch": committed.epoch, "commit": committed.commit}
        self._save(running)

    def figures(self, identity: str) -> tuple[Layout, Sequence[Figures], Mapping[int, int]]:
        """Return the stages of a view, what the tasks of its last epoch took, and the bytes of its
        state by level."""
        driver = self._running[identity].driver
        return driver.layout, driver.figures, driver.state_bytes()

    def _save(self, running: _Running) -> None:
        record = json.dumps(running.record).encode()
        self._store.put(_RECORD + running.definition.identity, record)


class LostStates:
    """The file that says which states are lost, by their folder. It outlives the process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, folder: str, error: TidemarkError) -> None:
        """Note that the state in a folder of the storage cannot be continued."""
        self._write({**self._read(), folder: [error.code, error.what, error.detail, error.hint]})

    def check(self, folder: str) -> None:
        """Raise why the state in a folder is lost, if it is. TidemarkError of LOST_CODES."""
        if folder in (found := self._read()):
            code, what, detail, hint = found[folder]
            raise TidemarkError(code, what, detail=detail, hint=hint)

    def forget(self, folder: str) -> None:
        """Forget a folder, which is deleted."""
        found = self._read()
        if found.pop(folder, None) is not None:
            self._write(found)

    def _write(self, found: Mapping[str, list[str]]) -> None:
        draft = self._path.with_name(f".{self._path.name}.{uuid.uuid4().hex}")
        draft.write_text(json.dumps(found))
        draft.replace(self._path)

    def _read(self) -> dict[str, list[str]]:
        with suppress(FileNotFoundError):
            return json.loads(self._path.read_text())
        return {}


class LargeBatch:
    """A LargeInput, while whose files are written the caller's thread shows that it is alive."""

    def __init__(
        self, stored: LargeInput, await_work: Callable[[Callable[[], object]], None]
    ) -> None:
        self._stored = stored
        self._await = await_work

    def add(self, changes: Sequence[Changes]) -> None:
        """See LargeInput."""
        self._await(lambda: self._stored.add(changes))

    def finish(self) -> StoredInput | None:
        """See LargeInput."""
        found: list[StoredInput | None] = []
        self._await(lambda: found.append(self._stored.finish()))
        return found[0]


class BucketCatchUp:
    """See CatchUp: changes become epochs of the view's driver, of many rows each."""

    def __init__(
        self, view: View, running: _Running, await_work: Callable[[Callable[[], object]], None]
    ) -> None:
        self._view = view
        self._running = running
        self._await = await_work
        self._held: list[Changes] = []
        self._rows = 0
        self._errors = Delta.empty(ERROR_KINDS)

    def take(self, changes: Sequence[Changes]) -> Iterator[Delta]:
        """See CatchUp. Each epoch is a job, so small changes are held back."""
        self._held += [change for change in changes if len(change)]
        self._rows += sum(map(len, changes))
        if self._rows >= CATCH_UP_ROWS:
            yield from self.finish()

    def finish(self) -> Iterator[Delta]:
        """See CatchUp."""
        held, self._held, self._rows = self._held, [], 0
        if not held:
            return
        self._await(lambda: self._running.driver.step(Batch({}, held)))
        for committed in self._running.take():
            for part in committed.parts():
                self._errors = Delta.concat([self._errors, part.errors]).consolidate()
                self._view.reject(row for row, n in part.rejected.rows() for _ in range(n))
                for rows in part.final:
                    self._view.errors.publish(rows)
                yield part.rows
        self._running.collect_garbage()

    def errors(self) -> Delta:
        """See CatchUp."""
        found, self._errors = self._errors, Delta.empty(ERROR_KINDS)
        return found


class _Running:
    """One view, and what its driver has committed since `take`; the driver's EpochSink."""

    def __init__(
        self, definition: ViewDefinition, record: dict[str, Any], parts: BucketParts
    ) -> None:
        self.definition = definition
        self.record = record
        self.is_started = False
        # The buckets and the keys that were spread when the log last said so.
        self._shape: tuple[int, Spread] = (0, ())
        self._committed: list[CommittedEpoch] = []
        self._shown: int = record["epoch"]
        self._collected_at = time.monotonic()
        view = MaintainedView(
            record["folder"],
            lower(definition.plan.root),
            definition.scope,
            definition.relations(),
            self.columns(),
            parts.evaluator(definition),
            freed=frozenset(self.freed()),
        )
        self.driver = Driver(
            view,
            parts.storage(record["folder"]),
            parts.scheduler,
            self,
            buckets=parts.buckets,
            limits=Limits(growth=parts.growth),
        )

    def columns(self) -> Mapping[RelationName, tuple[int, ...]]:
        """Return which columns of each base relation are stored."""
        found = {tuple(name): tuple(columns) for *name, columns in self.record["columns"]}
        return {r.name: found[_name_of(r.name)] for r in self.definition.relations()}

    def freed(self) -> Mapping[RelationName, tuple[int, Mapping[str, int]]]:
        """Return of which relations rows were freed before: how many, and at which operators."""
        found = {tuple(name): (n, ends) for *name, n, ends in self.record.get("freed", ())}
        names = [relation.name for relation in self.definition.relations()]
        return {name: found[_name_of(name)] for name in names if _name_of(name) in found}

    def begin(self) -> None:
        """Note that the driver has started."""
        self.is_started = True
        self._shape = self.driver.buckets, self.driver.spread

    def report_shape(self) -> None:
        """Log whether the driver has split buckets or spread keys since the last call."""
        name, (buckets, spread) = self.definition.table.title, self._shape
        self._shape = self.driver.buckets, self.driver.spread
        if self.driver.buckets != buckets:
            log.info("buckets.split", view=name, before=buckets, buckets=self.driver.buckets)
        if self.driver.spread != spread:
            log.info("buckets.spread", view=name, keys=len(self.driver.spread))

    def progress(self) -> int:
        """See EpochSink: what the store has, or need not have."""
        return self._shown

    def commit(self) -> str:
        """See EpochSink."""
        return str(self.record.get("commit", ""))

    def apply(self, epoch: CommittedEpoch) -> None:
        """See EpochSink."""
        if epoch.epoch != self.progress() + 1:
            raise InvariantError("state.buckets", f"epoch {epoch.epoch} after {self.progress()}")
        self._shown = epoch.epoch
        if not epoch.is_move:
            # An epoch that only moves state is none of the engine's.
            self._committed.append(epoch)

    def take(self) -> list[CommittedEpoch]:
        """Return and forget what was committed."""
        found, self._committed = self._committed, []
        return found

    def collect_garbage(self) -> None:
        """Delete files that are no longer needed, now and then."""
        now = time.monotonic()
        if now - self._collected_at > COLLECT_S:
            self._collected_at = now
            self.driver.collect_garbage()


def _new_record(view: View, store: Store) -> dict[str, Any]:
    return {
        "folder": f"{view.definition.scope}/{uuid.uuid4().hex[:12]}",
        "epoch": 1,
        "columns": _columns_of(view.locations),
        "freed": _freed_of(view.locations, store),
    }


def _columns_of(locations: Sequence[TableLocation]) -> list[list[Any]]:
    """Return which columns of each base relation are stored, as JSON."""
    return [[*_name_of(at.relation.name), list(at.columns)] for at in locations]


def _freed_of(locations: Sequence[TableLocation], store: Store) -> list[list[Any]]:
    """Return what is known of the freed rows of each base relation, as JSON."""
    known = [(at.relation.name, FreedRows(store, at.prefix)) for at in locations]
    return [[*_name_of(n), f.count, dict(f.ends)] for n, f in known if not f.is_complete]


def _name_of(name: RelationName) -> tuple[str, str, str]:
    return name.source, name.schema, name.name
