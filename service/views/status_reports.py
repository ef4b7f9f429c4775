"""The pipeline's reports on views to the catalog, and those it could not write yet.

The sink may be down while views continue: a report that cannot be written is stored, joined with
later ones, and written afterwards. Invariant: a view is reported live only once the epoch that
shows it is committed in the sink. What happened to it before is reported again after it, because
the epoch itself says "live". A change that was abandoned is not started again, whatever the catalog
still shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from connectors.postgres.catalog import change_requests
from connectors.postgres.catalog.catalog import Control
from dataflow.errors import TemporaryError
from service.runtime.log import log
from service.views.lifecycle import ViewEvent, change, joined_path
from storage import clock

# Columns that are written together with the status.
STANDING = ("progress", "code", "detail", "hint")
_TAKEN_OUT = (ViewEvent.FAIL, ViewEvent.DEGRADE)


@dataclass
class _Report:
    """events: oldest first; () leaves the status unchanged.

    unanswered: the last events of writes that failed, and may have been committed all the same.
    """

    events: tuple[ViewEvent, ...] = ()
    reason: str = ""
    columns: dict[str, Any] = field(default_factory=dict)
    unanswered: frozenset[ViewEvent] = frozenset()


@dataclass
class _InFlight:
    """An epoch in flight to the sink that shows a view with `rows` rows.

    taken: why the view has left the dataflow since.
    """

    epoch: int
    rows: int
    taken: _Report | None = None


@dataclass
class _Abandoned:
    """A requested change that came to nothing. is_written: the catalog has it by now."""

    identity: str
    columns: Mapping[str, Any]
    is_written: bool = False


class StatusReports:
    """Used by the pipeline's thread only; views are identified by their identities."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._pending: dict[str, _Report] = {}
        self._in_flight: dict[str, _InFlight] = {}
        # Events since the catalog was last read, which does not show them yet.
        self._newest: dict[str, ViewEvent] = {}
        # By the ids of the changes; each stays until the catalog is read without it.
        self._abandoned: dict[str, _Abandoned] = {}

    # --- what the catalog does not show yet ------------------------------------------------------

    def refreshed(self) -> None:
        """Record that the catalog was read: it shows everything not pending or to be repeated."""
        repeated = {i for i, found in self._in_flight.items() if found.taken is not None}
        missing = {*self._pending, *repeated}
        self._newest = {i: event for i, event in self._newest.items() if i in missing}
        self._abandoned = {i: a for i, a in self._abandoned.items() if not a.is_written}

    def is_failed(self, identity: str) -> bool:
        """Return True if the view has failed and the catalog may not show it yet."""
        return self._newest.get(identity) is ViewEvent.FAIL

    def is_abandoned(self, change: Mapping[str, Any]) -> bool:
        """Return True if a requested change came to nothing and the catalog may still show it."""
        return change["id"] in self._abandoned

    def is_in_flight(self, identity: str) -> bool:
        """Return True while the epoch that shows the view is on its way to the sink."""
        return identity in self._in_flight

    def is_resolved(self, identity: str) -> bool:
        """Return True if nothing is left to be reported that could call the view live."""
        found = self._in_flight.get(identity)
        return identity not in self._pending and (found is None or found.taken is not None)

    @property
    def owes_failures(self) -> bool:
        """Return True if the catalog may still call a view live that has left the dataflow."""
        if any(found.taken is not None for found in self._in_flight.values()):
            return True
        return any(r.events[-1] in _TAKEN_OUT for r in self._pending.values() if r.events)

    # --- reports ---------------------------------------------------------------------------------

    def write(self, identity: str, **columns: Any) -> None:
        """Set columns of a view's row, together with its pending report."""
        pending = self._pending.pop(identity, _Report())
        pending.columns |= columns
        self._write(identity, pending)

    def happened(self, identity: str, event: ViewEvent, reason: str, **columns: Any) -> None:
        """Report what happened to a view, with other columns of its row."""
        pending = self._pending.pop(identity, _Report())
        self._newest[identity] = event
        events = joined_path(pending.events, event)
        columns = pending.columns | columns
        self._write(identity, _Report(events, reason, columns, pending.unanswered))

    def taken_out(self, identity: str, event: ViewEvent, facts: Mapping[str, Any]) -> None:
        """Report a view that left the dataflow; repeat it after an epoch in flight that shows the
        view.
        """
        columns = {"progress": None, **facts}
        found = self._in_flight.get(identity)
        if found is not None and found.taken is None:
            found.taken = _Report((event,), str(facts["code"]), columns)
        self.happened(identity, event, str(facts["code"]), **columns)

    def abandoned(
        self, identity: str, change: Mapping[str, Any], columns: Mapping[str, Any]
    ) -> None:
        """Report that a requested change came to nothing, with columns of the view's row."""
        self._abandoned[change["id"]] = _Abandoned(identity, columns)
        self._write_abandoned()

    def joined(self, identity: str, epoch: int, rows: int) -> None:
        """Record that the view is in the dataflow; it is live once `epoch` is in the sink.

        Pending reports on its previous version are dropped.
        """
        self._newest.pop(identity, None)
        pending = self._pending.get(identity)
        if pending is not None:
            pending.events = ()
            for column in ("replacing", *STANDING):
                pending.columns.pop(column, None)
        self._in_flight[identity] = _InFlight(epoch, rows)

    def written(self, epoch: int) -> None:
        """Report what the sink shows up to an epoch as live, then what was taken out since."""
        done = {i: found for i, found in self._in_flight.items() if found.epoch <= epoch}
        for identity in done:
            del self._in_flight[identity]
        for identity, found in done.items():
            if found.taken is None:
                self.shown(identity, found.epoch, found.rows)
        for identity, found in done.items():
            if found.taken is not None:
                reason, columns = found.taken.reason, found.taken.columns
                self.happened(identity, found.taken.events[0], reason, **columns)

    def shown(self, identity: str, epoch: int, rows: int | None) -> None:
        """Report a view live since an epoch."""
        standing = dict.fromkeys(STANDING) | {"live_at": clock.utc()}
        columns = {"epoch": epoch, "row_estimate": rows, **standing}
        self.happened(identity, ViewEvent.SHOW, f"the sink has epoch {epoch}", **columns)

    def retry(self) -> None:
        """Write all pending reports."""
        for identity in list(self._pending):
            self.write(identity)
        self._write_abandoned()

    def forget(self, identity: str) -> None:
        """Drop the reports on a dropped view."""
        for found in (self._pending, self._in_flight, self._newest):
            found.pop(identity, None)
        self._abandoned = {i: a for i, a in self._abandoned.items() if a.identity != identity}

    def _write(self, identity: str, report: _Report) -> None:
        try:
            if report.events:
                change(
                    self._control,
                    identity,
                    report.events,
                    report.reason,
                    report.unanswered,
                    **report.columns,
                )
            else:
                self._control.update_view(identity, **report.columns)
        except TemporaryError as error:
            report.unanswered |= set(report.events[-1:])
            self._pending[identity] = report
            log.warning("catalog.retry", code=error.code)

    def _write_abandoned(self) -> None:
        pending = {i: found for i, found in self._abandoned.items() if not found.is_written}
        for change_id, found in pending.items():
            identity, columns = found.identity, found.columns
            try:
                change_requests.end_change(self._control, identity, change_id, **columns)
                found.is_written = True
            except TemporaryError as error:
                log.warning("catalog.retry", code=error.code)
