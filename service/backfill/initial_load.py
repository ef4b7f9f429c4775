"""The initial rows of a build: staged in a hidden table, or compared with the rows that the view
shows.

The comparison is exact at one epoch: the old rows are those of an epoch from which on the outbox
retains everything; later changes are subtracted. Invariant: nothing here blocks the pipeline. Rows
are read in the build's thread; the pipeline's thread processes epochs only for short periods.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from connectors.sink import Progress, SinkEpoch, SinkLagging, SinkTable
from dataflow.delta import Delta
from dataflow.errors import InvariantError, SinkError, TidemarkError
from service.backfill.build_status import BuildPhase, BuildStatus
from service.backfill.row_difference import Difference, is_one_shape
from service.engine.epoch_buffer import EpochBuffer
from service.runtime.runtime import RUNTIME, Condition, Runtime
from storage.failpoints import failpoint


class RowSink(Protocol):
    """The operations of the sink that a build needs, on sessions of its own."""

    def stage(self, table: SinkTable, rows: Iterable[Delta], token: str = "") -> int:
        """Stage a view's initial rows in a hidden table; return their number."""
        ...

    def holds(self, table: SinkTable) -> bool:
        """Return True if the view's table exists with all of its columns."""
        ...

    def rows_at(
        self, table: SinkTable, *, is_checked: bool = False
    ) -> AbstractContextManager[tuple[Progress, Iterator[Delta]]]:
        """Return the view's rows and the progress that they show; SinkError sink.no_progress."""
        ...

    def renew_hashes(self, table: SinkTable) -> None:
        """Give each row of a multiset the hash of its present text."""
        ...

    def read_rows(self, table: SinkTable, *, is_checked: bool = False) -> Iterator[Delta]:
        """Return the view's rows."""
        ...


@dataclass(frozen=True)
class LiveVersion:
    """The live version that a new version will replace.

    before: the view's current table. has_readers: True if live views read it. find_epoch: returns a
    committed epoch of the outbox. still_at: the epoch to which the sink was rewound, if any: then
    the table does not change. is_maintained: whether epochs still change the table.
    """

    before: SinkTable
    has_readers: bool
    find_epoch: Callable[[int], SinkEpoch | None]
    still_at: int | None = None
    is_maintained: bool = True


@dataclass(frozen=True)
class Bounds:
    """Limits of the comparison.

    epoch_bytes: of memory. turn_s: of the pipeline's time in one turn. passed: called when the
    pipeline has moved on or the build is cancelled.
    """

    epoch_bytes: int
    turn_s: float
    passed: Condition
    is_cancelled: Callable[[], bool]
    runtime: Runtime = RUNTIME


class InitialLoad:
    """The initial rows of one build.

    `load` runs in the build's thread, everything else in the pipeline's after that has ended.
    buffered: changes of the view's table, beside staged rows. is_in_place: these are changes of the
    existing table. difference: the same for the views that read this one. holds_after: the outbox
    must retain the epochs after this one. count: rows of the new version. token: identifies these
    rows if they are staged.
    """

    def __init__(
        self, table: SinkTable, sink: RowSink, live_version: LiveVersion | None, bounds: Bounds
    ) -> None:
        self.buffered = EpochBuffer(bounds.epoch_bytes)
        self.difference: Difference | None = None
        self.is_in_place = False
        self.holds_after: int | None = None
        self.count = 0
        self.token = uuid.uuid4().hex
        self._table = table
        self._sink = sink
        self._live_version = live_version
        self._bounds = bounds
        self._needs_epochs = False
        self._old_epoch: int | None = None

    def load(self, rows: Iterable[Delta], status: BuildStatus) -> None:
        """Stage the rows, or compare them with those that the view shows."""
        live_version = self._live_version
        if live_version is not None and self._sink.holds(live_version.before):
            self._begin(live_version)
        if self.is_in_place:
            status.enter(BuildPhase.COMPARING)
            for delta in self._checked(rows):
                self.count += int(delta.weights.sum())
        else:
            status.enter(BuildPhase.STAGING)
            self.count = self._sink.stage(self._table, self._checked(rows), self.token)
        if live_version is not None and self.difference is not None:
            status.enter(BuildPhase.COMPARING)
            self._compare(live_version, self.difference)

    def _begin(self, live_version: LiveVersion) -> None:
        self.is_in_place = is_one_shape(live_version.before, self._table)
        if self.is_in_place:
            self.difference = Difference(live_version.before, self._table, self.buffered)
        elif live_version.has_readers:
            own = EpochBuffer(self._bounds.epoch_bytes)
            self.difference = Difference(live_version.before, self._table, own)

    def _checked(self, rows: Iterable[Delta]) -> Iterator[Delta]:
        for delta in rows:
            self._require_desired()
            if self.difference is not None:
                self.difference.add_new(delta)
            yield delta

    def _compare(self, live_version: LiveVersion, difference: Difference) -> None:
        """Subtract the rows that the view shows, at an epoch from which on all epochs are
        retained.
        """
        failpoint("build.compare.before")
        before, still_at = live_version.before, live_version.still_at
        if still_at is None:
            self._await_epochs()
        self._require_desired()
        if self.is_in_place and not live_version.is_maintained:
            # Values may have another text since their rows were written.
            self._sink.renew_hashes(before)
        try:
            with self._sink.rows_at(before, is_checked=self.is_in_place) as (progress, rows):
                if still_at is None and progress.epoch >= (self.holds_after or 0):
                    self._old_epoch = progress.epoch
                elif progress.epoch != still_at:
                    raise SinkLagging(progress.epoch, still_at or self.holds_after or 0)
                self._subtract(rows, difference)
        except SinkError as error:
            if error.code != "sink.no_progress":
                raise
            # Nothing is live then, and nothing changes in the sink.
            rows = self._sink.read_rows(before, is_checked=self.is_in_place)
            self._subtract(rows, difference)

    def _await_epochs(self) -> None:
        passed = self._bounds.passed
        with passed:
            self._needs_epochs = True
            passed.wait_for(lambda: self._bounds.is_cancelled() or self.holds_after is not None)

    def _subtract(self, rows: Iterable[Delta], difference: Difference) -> None:
        for delta in rows:
            self._require_desired()
            difference.add_old(delta)

    def _require_desired(self) -> None:
        if self._bounds.is_cancelled():
            raise dropped()

    def hold(self, written: int) -> None:
        """Note that the outbox has everything after epoch `written`, and retain it if required."""
        with self._bounds.passed:
            if self._needs_epochs and self.holds_after is None:
                self.holds_after = written
                self._bounds.passed.notify_all()

    def subtract_old(self, newest: int) -> bool:
        """Subtract what the old version has shown since its rows were read; return True when
        complete.
        """
        if self._old_epoch is None or self.difference is None:
            return True
        assert self._live_version is not None
        deadline = self._bounds.runtime.monotonic() + self._bounds.turn_s
        while self._old_epoch < newest and self._bounds.runtime.monotonic() < deadline:
            number = self._old_epoch + 1
            epoch = self._live_version.find_epoch(number)
            if epoch is None:
                raise InvariantError("state.outbox_gap", f"epoch {number} is not in the outbox")
            for delta in epoch.rows.deltas_of(self._table):
                self.difference.add_old(delta)
            self._old_epoch = self.holds_after = number
        return self._old_epoch >= newest

    def add(self, output: Delta, errors: Delta) -> None:
        """Add the view's changes since its snapshot, and its error rows."""
        self.buffered.add(self._table, output)
        if self.difference is not None and not self.is_in_place:
            self.difference.add_new(output)
        self.buffered.add(self._table, errors, is_errors=True)

    def close(self) -> None:
        """Release its memory and files."""
        self.buffered.close()
        if self.difference is not None:
            self.difference.close()


def dropped() -> TidemarkError:
    """Return the error that ends a build that is no longer desired."""
    return TidemarkError("view.dropped", "the view was dropped while it was built")
