"""The pipeline's side of subscriptions: which views' changes are written down for readers.

A view has a log (service/subscriptions/change_log.py) while an API process asks for one by
touching the file
`wanted`, and for the retention after that; with the option changes_retention_s always. One thread
writes all logs, from the outbox, once the sink has an epoch: nobody reads what the view's table
does not show. Invariant: an epoch leaves the outbox only when every log has it; a log that cannot
go on without a gap ends, and its readers are told. Nothing here ever stops an epoch.
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
from service.runtime.log import log
from service.runtime.runtime import RUNTIME, Runtime, Thread
from service.runtime.settings import Settings
from service.sinks.sink_workers import shown_positions
from service.subscriptions.change_encoder import change_lines, mark_line
from service.subscriptions.change_log import FOLDER, WANTED, ChangeLog, forget
from service.views.lifecycle import ViewState

# Epochs that do not change a view are told to its readers at most this often.
IDLE_PROGRESS_S = 0.1
EXPIRE_S = 1.0
# How long a log that has ended stays for its readers.
ENDED_S = 60.0
GONE, UNREAD = "the view is gone, or another one", "nobody reads it"
REFUSED = "the sink has refused what came for the view"


@dataclass
class _Served:
    """A log and its view. passed: the newest epoch that was looked at; unmarked: its positions,
    while the log does not have it. ending: why it is to end; only the thread ends it."""

    table: SinkTable
    log: ChangeLog
    passed: int
    unmarked: Mapping[str, Any] | None = None
    ending: str = ""


class ChangeLogs:
    """One for a pipeline, used by its thread; the writing is another's."""

    def __init__(self, settings: Settings, engine: Engine, host: Runtime = RUNTIME) -> None:
        self._host = host
        self._engine = engine
        self._home = settings.state / FOLDER
        self._retention_s = settings.changes_retention_s
        self._most_bytes = settings.changes_budget_mb << 20
        self._budget_bytes = settings.sink_budget_mb << 20
        self._logs: dict[str, _Served] = {}
        self._written: Callable[[], int] = int
        self._is_stopping = False
        self._refused: set[RelationName] = set()
        self._moved = host.condition()
        self._thread: Thread | None = None
        # By folder: when it was asked for, as the file says, and when that was seen.
        self._touches: dict[Path, tuple[int, float]] = {}
        self._reopen()

    def _reopen(self) -> None:
        """Go on with what there was, before the outbox forgets anything."""
        views = {d.identity: d for d in self._engine.views.values()}
        for folder in _folders(self._home):
            definition = views.get(folder.name)
            try:
                found = ChangeLog.reopen(folder, self._most_bytes, self._host)
            except (OSError, ValueError) as error:
                log.warning("changes.unreadable", view=folder.name, why=repr(error))
                forget(folder)
                continue
            if found is not None and definition is None:
                found.end("the view is gone")
            elif found is not None and definition is not None:
                self._logs[folder.name] = _Served(definition.table, found, found.reached)

    # --- for the pipeline's loop ---------------------------------------------------------------

    def start(
        self,
        written: Callable[[], int],
        refused: Collection[RelationName] = (),
        *,
        is_gap: bool = False,
    ) -> None:
        """written: the newest epoch that the sink holds, at any time; refused: views that it does
        not show as the outbox has them; is_gap: it lacks epochs that are not kept."""
        self._written = written
        for followed in self._logs.values():
            if followed.table.relation in refused:
                followed.ending = REFUSED
            if is_gap or followed.log.reached > written():
                followed.ending = "the sink was restored to an older state"
        self._run_thread()

    def hold(self, written: int) -> int:
        """Up to which epoch the outbox may forget, with `written` of them in the sink."""
        if not self._logs:
            return written
        with self._moved:
            held = [f.log.reached for f in self._logs.values() if not f.ending]
        return min([written, *held])

    def advance(self) -> None:
        """The sink holds one more epoch; from the writer's thread."""
        if self._logs:
            with self._moved:
                self._moved.notify_all()

    def refuse(self, view: RelationName) -> None:
        """The sink shows nothing more of a view, from an epoch on that it does not hold yet; from
        the writer's thread."""
        with self._moved:
            self._refused.add(view)
            for followed in self._logs.values():
                if followed.table.relation == view:
                    followed.ending = REFUSED
            self._moved.notify_all()

    def forgive(self) -> None:
        """The refused views are out of the dataflow."""
        with self._moved:
            self._refused = set()

    def reconcile(self, rows: Sequence[ViewRow], *, is_muted: bool) -> None:
        """Begin and end logs as readers, options and views want it; rows: of the catalog."""
        folders = {folder.name: folder for folder in _folders(self._home)}
        kept = {r.identity: _kept_s(r) for r in rows if _kept_s(r)}
        if not (folders or kept or self._logs):
            return
        with self._moved:
            known = dict(self._logs)
        views = {d.identity: d for d in self._engine.views.values()}
        for identity, followed in known.items():
            definition = views.get(identity)
            if definition is None or definition.table != followed.table:
                followed.ending = GONE
            elif self._engine.outbox_bytes(followed.log.reached) > self._budget_bytes:
                followed.ending = "it fell too far behind"
            elif identity not in kept and not self._is_desired(folders.get(identity), followed.log):
                followed.ending = UNREAD
        live = {r.identity for r in rows if r.status == ViewState.LIVE}
        for identity in sorted({*folders, *kept} - known.keys()):
            folder = folders.get(identity, self._home / identity)
            retention_s = kept.get(identity, self._retention_s)
            is_desired = identity in kept or self._is_touched(folder, retention_s)
            if identity in views and identity in live and is_desired:
                if not is_muted and views[identity].name not in self._refused:
                    self._begin(identity, views[identity].table, folder, retention_s)
            elif not self._is_touched(folder, ENDED_S):
                forget(folder)
        self._run_thread()

    def close(self) -> None:
        """Stop writing; before the store is closed."""
        with self._moved:
            self._is_stopping = True
            self._moved.notify_all()
        if self._thread is not None:
            self._thread.join()
        for followed in self._logs.values():
            followed.log.close()

    def _begin(self, identity: str, table: SinkTable, folder: Path, retention_s: float) -> None:
        # Not beyond the sink: its readers begin with what the view's table shows.
        floor = self._written()
        try:
            made = ChangeLog.begin(folder, floor, retention_s, self._most_bytes, host=self._host)
        except OSError as error:
            log.warning("changes.refused", view=table.title, why=str(error))
            return
        with self._moved:
            self._logs[identity] = _Served(table, made, floor)
        log.info("changes.began", view=table.title, epoch=floor)

    def _is_desired(self, folder: Path | None, found: ChangeLog) -> bool:
        return folder is not None and self._is_touched(folder, found.head.retention_s)

    def _is_touched(self, folder: Path, seconds: float) -> bool:
        """Whether someone has asked for the log lately: by a clock that nobody can set, since the
        file was seen to change."""
        now = self._host.monotonic()
        try:
            touched = (folder / WANTED).stat().st_mtime_ns
        except FileNotFoundError:
            self._touches.pop(folder, None)
            return False
        known, at = self._touches.get(folder, (None, now))
        if known != touched:
            at = now
            self._touches[folder] = touched, now
        return now - at < seconds

    # --- the thread ----------------------------------------------------------------------------

    def _run_thread(self) -> None:
        """Begin to write, if anything is to be written and that has not begun."""
        if self._logs and self._thread is None:
            self._thread = self._host.begin(self._run, "change-logs")
        elif self._logs:
            self.advance()

    def _run(self) -> None:
        marked_at = expired_at = self._host.monotonic()
        while not self._is_stopping:
            try:
                self._write_waiting()
                now = self._host.monotonic()
                if now - marked_at > IDLE_PROGRESS_S:
                    marked_at = now
                    self._mark()
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
        """Sleep until there is something to do, then bring all logs to the sink's epoch."""
        with self._moved:
            is_idle = not self._is_stopping and not any(f.ending for f in self._logs.values())
            if is_idle and self._next() > self._written():
                has_unmarked = any(f.unmarked is not None for f in self._logs.values())
                self._moved.wait(IDLE_PROGRESS_S if has_unmarked else EXPIRE_S)
            number, newest = self._next(), self._written()
        while number <= newest and not self._is_stopping:
            self._write(number)
            number += 1

    def _next(self) -> int:
        """The first epoch that some log has not looked at; one beyond all without logs."""
        passed = [f.passed for f in self._logs.values() if not f.ending]
        return min(passed, default=self._written()) + 1

    def _write(self, number: int) -> None:
        """Bring an epoch to all logs that lack it."""
        epoch = self._engine.find_epoch(number)
        with self._moved:
            lacking = [f for f in self._logs.values() if f.passed < number and not f.ending]
        for followed in lacking:
            if epoch is None:
                followed.ending = "an epoch is not kept any more"
            elif epoch.returns is not None or any(
                t.relation == followed.table.relation for t in epoch.swaps
            ):
                followed.ending = "the view was filled anew"
            elif any(t.relation == followed.table.relation for t in epoch.row_counts()):
                lines = _lines(epoch, followed.table)
                self._append(followed, number, epoch.progress.positions, lines)
            else:
                followed.passed, followed.unmarked = number, epoch.progress.positions

    def _append(
        self,
        followed: _Served,
        number: int,
        positions: Mapping[str, Any],
        lines: Iterable[bytes] = (),
    ) -> None:
        mark = mark_line(followed.log.head.name, number, shown_positions(positions))
        try:
            followed.log.append(number, lines, mark)
            followed.passed, followed.unmarked = number, None
        except (OSError, TidemarkError) as error:
            followed.ending = f"it cannot be written: {error}"

    def _mark(self) -> None:
        """Tell where the logs stand that no epoch has changed."""
        with self._moved:
            known = list(self._logs.values())
        for followed in known:
            if followed.unmarked is not None and not followed.ending:
                self._append(followed, followed.passed, followed.unmarked)

    def _expire(self) -> None:
        with self._moved:
            known = list(self._logs.values())
        for followed in known:
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


def _lines(epoch: SinkEpoch, table: SinkTable) -> Iterator[bytes]:
    """What an epoch changes in a view."""
    for part in epoch.parts():
        for found, delta in part.deltas:
            if found.relation == table.relation and len(delta):
                yield from change_lines(table.fields, delta, epoch.progress.epoch)


def _folders(home: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(home)]
    except FileNotFoundError:
        return []


def _kept_s(row: ViewRow) -> float:
    """How long a view's epochs are kept without readers; 0 when not."""
    return float(row.options.get("changes_retention_s") or 0)
