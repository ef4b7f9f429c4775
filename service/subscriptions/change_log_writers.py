"""The pipeline's writer of change logs: it decides which views have one.

A view has a log (service/subscriptions/change_log.py) while an API process touches its file
`wanted`, and for the retention after that; with the option changes_retention_s always. One thread
writes all logs from the outbox, once the sink has an epoch: subscribers never see more than the
view's table shows. Invariant: an epoch leaves the outbox only once every log has it; a log that
cannot continue without a gap ends, and its subscribers get an error. Nothing here stops an epoch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from connectors.postgres.catalog.catalog import ViewRow
from connectors.sink import SinkEpoch, SinkTable
from dataflow.errors import TidemarkError
from dataflow.schema import RelationName
from service.engine.engine import Engine
from service.engine.view_positions import ViewPositions
from service.runtime.log import log
from service.runtime.runtime import RUNTIME, Runtime, Thread
from service.runtime.settings import Settings
from service.sinks.sink_workers import shown_positions
from service.subscriptions.change_encoder import change_lines, marker_line
from service.subscriptions.change_log import FOLDER, REQUESTED, ChangeLog, forget
from service.views.lifecycle import DesiredState, ViewState

# How often subscribers learn of epochs that do not change their view.
IDLE_PROGRESS_S = 0.1
EXPIRE_S = 1.0
# How long an ended log stays for its subscribers.
ENDED_S = 60.0
UNREAD = "it has no readers"
REFUSED = "the sink refused an epoch of the view"


@dataclass
class _Served:
    """A log and its view, by identity and table.

    passed: the newest epoch that was processed. unreported: its positions until the log has them.
    ending: why the log must end; only the thread ends it.
    """

    identity: str
    table: SinkTable
    log: ChangeLog
    passed: int
    unreported: Mapping[str, Any] | None = None
    ending: str = ""


class ChangeLogs:
    """One per pipeline, used by its thread; a second thread writes."""

    def __init__(self, settings: Settings, engine: Engine, runtime: Runtime = RUNTIME) -> None:
        self._runtime = runtime
        self._engine = engine
        self._folder = settings.state / FOLDER
        self._retention_s = settings.changes_retention_s
        self._max_bytes = settings.changes_budget_mb << 20
        self._budget_bytes = settings.sink_budget_mb << 20
        self._positions = ViewPositions(lambda: engine.views)
        self._logs: dict[str, _Served] = {}
        self._written: Callable[[], int] = int
        self._is_stopping = False
        self._refused: set[RelationName] = set()
        self._moved = runtime.condition()
        self._thread: Thread | None = None
        # By folder: the modification time of its request, and when that time was first read.
        self._touches: dict[Path, tuple[int, float]] = {}
        self._positions.refresh()
        self._reopen()

    def _reopen(self) -> None:
        """Reopen the existing logs, before the outbox is trimmed."""
        views = {d.identity: d for d in self._engine.views.values()}
        for folder in _folders(self._folder):
            definition = views.get(folder.name)
            try:
                found = ChangeLog.reopen(folder, self._max_bytes, self._runtime)
            except (OSError, ValueError) as error:
                log.warning("changes.unreadable", view=folder.name, why=repr(error))
                forget(folder)
                continue
            if found is not None and definition is None:
                found.end("the view was dropped")
            elif found is not None and definition is not None:
                self._logs[folder.name] = _Served(
                    folder.name, definition.published, found, found.reached
                )

    # --- for the pipeline's loop ---------------------------------------------------------------

    def start(
        self,
        written: Callable[[], int],
        refused: Collection[RelationName] = (),
        *,
        is_gap: bool = False,
    ) -> None:
        """Start writing.

        written: returns the newest epoch in the sink. refused: views whose table differs from the
        outbox. is_gap: the sink lacks epochs that are no longer stored.
        """
        self._written = written
        for followed in self._logs.values():
            if followed.table.relation in refused:
                followed.ending = REFUSED
            if is_gap or followed.log.reached > written():
                followed.ending = "the sink was restored to an older state"
        self._run_thread()

    def hold(self, written: int) -> int:
        """Return the epoch up to which the outbox may be trimmed, with `written` in the sink."""
        if not self._logs:
            return written
        self._positions.refresh()
        with self._moved:
            reached = [f.log.reached for f in self._logs.values() if not f.ending]
        return min([written, *reached])

    def advance(self) -> None:
        """Announce that the sink has one more epoch; from the writer's thread."""
        if self._logs:
            with self._moved:
                self._moved.notify_all()

    def refuse(self, view: RelationName) -> None:
        """End the logs of a view that the sink stops updating, from a future epoch on.

        Called from the writer's thread.
        """
        with self._moved:
            self._refused.add(view)
            for followed in self._logs.values():
                if followed.table.relation == view:
                    followed.ending = REFUSED
            self._moved.notify_all()

    def forgive(self) -> None:
        """Forget refused views, once they have left the dataflow."""
        with self._moved:
            self._refused = set()

    def reconcile(self, rows: Sequence[ViewRow], *, is_muted: bool) -> None:
        """Start and end logs according to requests, options and views. rows: of the catalog."""
        self._positions.refresh()
        folders = {folder.name: folder for folder in _folders(self._folder)}
        retained = {r.identity: _retention_of(r) for r in rows if _retention_of(r)}
        if not (folders or retained or self._logs):
            return
        with self._moved:
            logs = dict(self._logs)
        views = {d.identity: d for d in self._engine.views.values()}
        by_identity = {row.identity: row for row in rows}
        for identity, followed in logs.items():
            definition = views.get(identity)
            if definition is None:
                followed.ending = _why_gone(by_identity.get(identity))
            elif definition.published != followed.table:
                followed.ending = "the view was replaced"
            elif self._engine.outbox_bytes(followed.log.reached) > self._budget_bytes:
                followed.ending = "its backlog exceeds the limit"
            elif identity not in retained and not self._is_desired(
                folders.get(identity), followed.log
            ):
                followed.ending = UNREAD
        live = {r.identity for r in rows if r.status == ViewState.LIVE}
        for identity in sorted({*folders, *retained} - logs.keys()):
            folder = folders.get(identity, self._folder / identity)
            retention_s = retained.get(identity, self._retention_s)
            is_desired = identity in retained or self._is_touched(folder, retention_s)
            if identity in views and identity in live and is_desired:
                if not is_muted and views[identity].name not in self._refused:
                    self._begin(identity, views[identity].published, folder, retention_s)
            elif not self._is_touched(folder, ENDED_S):
                forget(folder)
        self._run_thread()

    def close(self) -> None:
        """Stop writing; call before the store is closed."""
        with self._moved:
            self._is_stopping = True
            self._moved.notify_all()
        if self._thread is not None:
            self._thread.join()
        for followed in self._logs.values():
            followed.log.close()

    def _begin(self, identity: str, table: SinkTable, folder: Path, retention_s: float) -> None:
        # Not beyond the sink: subscribers start with what the view's table shows.
        floor = self._written()
        try:
            made = ChangeLog.begin(
                folder, floor, retention_s, self._max_bytes, runtime=self._runtime
            )
        except OSError as error:
            log.warning("changes.refused", view=table.title, why=str(error))
            return
        with self._moved:
            self._logs[identity] = _Served(identity, table, made, floor)
        log.info("changes.began", view=table.title, epoch=floor)

    def _is_desired(self, folder: Path | None, found: ChangeLog) -> bool:
        return folder is not None and self._is_touched(folder, found.head.retention_s)

    def _is_touched(self, folder: Path, seconds: float) -> bool:
        """Return True if the log was requested within the last `seconds`.

        Measured by the monotonic clock since the file was seen to change.
        """
        now = self._runtime.monotonic()
        try:
            touched = (folder / REQUESTED).stat().st_mtime_ns
        except FileNotFoundError:
            self._touches.pop(folder, None)
            return False
        last, at = self._touches.get(folder, (None, now))
        if last != touched:
            at = now
            self._touches[folder] = touched, now
        return now - at < seconds

    # --- the thread ----------------------------------------------------------------------------

    def _run_thread(self) -> None:
        """Start the thread if there are logs and it does not run."""
        if self._logs and self._thread is None:
            self._thread = self._runtime.begin(self._run, "change-logs")
        elif self._logs:
            self.advance()

    def _run(self) -> None:
        reported_at = expired_at = self._runtime.monotonic()
        while not self._is_stopping:
            try:
                self._write_waiting()
                now = self._runtime.monotonic()
                if now - reported_at > IDLE_PROGRESS_S:
                    reported_at = now
                    self._report_progress()
                if now - expired_at > EXPIRE_S:
                    expired_at = now
                    self._expire()
                self._end_some()
            except Exception as error:
                log.exception("changes.failed")
                for followed in self._logs.values():
                    followed.ending = f"writing failed: {error!r}"
                self._end_some()

    def _write_waiting(self) -> None:
        """Sleep until there is work, then bring all logs to the sink's epoch."""
        with self._moved:
            is_idle = not self._is_stopping and not any(f.ending for f in self._logs.values())
            if is_idle and self._next() > self._written():
                has_unreported = any(f.unreported is not None for f in self._logs.values())
                self._moved.wait(IDLE_PROGRESS_S if has_unreported else EXPIRE_S)
            number, newest = self._next(), self._written()
        while number <= newest and not self._is_stopping:
            self._write(number)
            number += 1

    def _next(self) -> int:
        """Return the first epoch that some log has not processed; without logs, the next one."""
        passed = [f.passed for f in self._logs.values() if not f.ending]
        return min(passed, default=self._written()) + 1

    def _write(self, number: int) -> None:
        """Write an epoch to all logs that lack it."""
        epoch = self._engine.find_epoch(number)
        with self._moved:
            lacking = [f for f in self._logs.values() if f.passed < number and not f.ending]
        for followed in lacking:
            if epoch is None:
                followed.ending = "an epoch is no longer in the outbox"
            elif epoch.repair is not None or any(
                s.table.relation == followed.table.relation for s in epoch.ddl.swaps
            ):
                followed.ending = "the view was rebuilt"
            elif epoch.rows.count_of(followed.table) is not None:
                lines = _lines(epoch, followed.table)
                self._append(followed, number, epoch.progress.positions, lines)
            else:
                followed.passed, followed.unreported = number, epoch.progress.positions

    def _append(
        self,
        followed: _Served,
        number: int,
        positions: Mapping[str, Any],
        lines: Iterable[bytes] = (),
    ) -> None:
        own = self._positions.of(followed.identity, positions)
        marker = marker_line(followed.log.head.name, number, shown_positions(own))
        try:
            followed.log.append(number, lines, marker)
            followed.passed, followed.unreported = number, None
        except (OSError, TidemarkError) as error:
            followed.ending = f"it cannot be written: {error}"

    def _report_progress(self) -> None:
        """Write a progress marker to logs that no epoch has changed lately."""
        with self._moved:
            logs = list(self._logs.values())
        for followed in logs:
            if followed.unreported is not None and not followed.ending:
                self._append(followed, followed.passed, followed.unreported)

    def _expire(self) -> None:
        with self._moved:
            logs = list(self._logs.values())
        for followed in logs:
            try:
                followed.log.expire()
            except OSError as error:
                log.warning("changes.refused", view=followed.table.title, why=str(error))

    def _end_some(self) -> None:
        with self._moved:
            ending = {i: f for i, f in self._logs.items() if f.ending}
        for identity, followed in ending.items():
            try:
                followed.log.end(followed.ending)
            except OSError as error:
                log.warning("changes.refused", view=followed.table.title, why=str(error))
            if followed.ending == UNREAD:
                forget(followed.log.folder)
            log.info("changes.ended", view=followed.table.title, why=followed.ending)
            with self._moved:
                self._logs.pop(identity, None)


def _why_gone(row: ViewRow | None) -> str:
    """Return why the dataflow no longer has the view. row: of the catalog, as last read."""
    if row is None or row.desired == DesiredState.DROPPED:
        return "the view was dropped"
    if row.status == ViewState.PAUSED:
        return "the view is paused"
    if row.status in (ViewState.FAILED, ViewState.DEGRADED):
        word = "has failed" if row.status == ViewState.FAILED else "is being rebuilt"
        return f"the view {word}: {row.detail} [{row.code}]"
    return "the view is no longer followed: its status has the reason"


def _lines(epoch: SinkEpoch, table: SinkTable) -> Iterator[bytes]:
    """Yield the lines of a view's changes in an epoch."""
    for delta in epoch.rows.deltas_of(table):
        yield from change_lines(table.fields, delta, epoch.progress.epoch)


def _folders(folder: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(folder)]
    except FileNotFoundError:
        return []


def _retention_of(row: ViewRow) -> float:
    """Return how long a view's epochs are retained without subscribers; 0 if not at all."""
    return float(row.options.get("changes_retention_s") or 0)
