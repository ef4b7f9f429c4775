"""Oracle: service/views/status_reports.py: no view is live before the sink has its epoch."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from connectors.sink import SinkTable, ViewChange
from connectors.view_states import follow_retried
from dataflow.errors import InvariantError, TemporaryError
from service.views.lifecycle import ViewEvent, ViewState, follow, joined_path
from service.views.status_reports import StatusReports

WHY = {"code": "x.y", "detail": "what", "hint": "do"}


class Catalog:
    """One view; it may be away."""

    def __init__(self, status: ViewState) -> None:
        self.status, self.columns = status, dict[str, Any]()
        self.is_away = False
        self.loses_answers = False

    def change_view(
        self,
        identity: str,
        events: Sequence[ViewEvent],
        reason: str,
        unanswered: Collection[ViewEvent] = (),
        **columns: Any,
    ) -> bool:
        if self.is_away:
            raise TemporaryError("sink.unreachable", "away")
        after = follow_retried(self.status, events, unanswered)
        if after is None:
            raise InvariantError("view.illegal_transition", reason)
        self.status = after
        self.columns |= columns
        if self.loses_answers:
            raise TemporaryError("sink.unreachable", "the answer was lost")
        return True

    def update_view(self, identity: str, **columns: Any) -> bool:
        return self.change_view(identity, (), "", (), **columns)


def reports_of(status: ViewState) -> tuple[StatusReports, Catalog]:
    catalog: Any = Catalog(status)
    return StatusReports(catalog), catalog


def test_a_view_is_live_once_the_sink_has_its_epoch() -> None:
    reports, catalog = reports_of(ViewState.CATCHING_UP)
    reports.joined("v", 7, 3)
    reports.written(6)
    assert catalog.status == ViewState.CATCHING_UP
    assert reports.is_in_flight("v") and not reports.is_resolved("v")
    reports.written(7)
    assert catalog.status == ViewState.LIVE
    assert (catalog.columns["epoch"], catalog.columns["row_estimate"]) == (7, 3)
    assert reports.is_resolved("v") and not reports.is_in_flight("v")


def test_a_failure_is_reported_again_after_the_epoch_that_shows_the_view() -> None:
    reports, catalog = reports_of(ViewState.CATCHING_UP)
    reports.joined("v", 7, 3)
    reports.taken_out("v", ViewEvent.FAIL, WHY)
    assert catalog.status == ViewState.FAILED and reports.owes_failures
    catalog.status = ViewState.LIVE  # by the epoch itself
    reports.refreshed()
    assert reports.is_failed("v")
    reports.written(7)
    assert catalog.status == ViewState.FAILED and not reports.owes_failures
    assert reports.is_failed("v"), "the catalog was not read since"
    reports.refreshed()
    assert not reports.is_failed("v"), "the catalog shows it"


def test_what_could_not_be_written_is_joined_and_written_later() -> None:
    reports, catalog = reports_of(ViewState.LIVE)
    catalog.is_away = True
    reports.taken_out("v", ViewEvent.DEGRADE, WHY)
    assert reports.owes_failures
    reports.happened("v", ViewEvent.READ, "", progress={"rows": 1})
    reports.happened("v", ViewEvent.READ, "", progress={"rows": 2})
    reports.retry()
    assert catalog.status == ViewState.LIVE and not reports.is_resolved("v")
    catalog.is_away = False
    reports.retry()
    assert catalog.status == ViewState.BACKFILLING
    assert catalog.columns == {**WHY, "progress": {"rows": 2}}
    assert reports.is_resolved("v") and not reports.owes_failures


def test_a_version_that_joined_drops_what_was_pending_of_the_one_before() -> None:
    reports, catalog = reports_of(ViewState.BACKFILLING)
    catalog.is_away = True
    reports.happened("v", ViewEvent.FAIL, "", **WHY, row_estimate=1)
    reports.joined("v", 7, 3)
    catalog.is_away = False
    reports.retry()
    assert catalog.status == ViewState.BACKFILLING and catalog.columns == {"row_estimate": 1}


def test_an_illegal_report_is_refused() -> None:
    reports, catalog = reports_of(ViewState.PAUSED)
    with pytest.raises(InvariantError):
        reports.happened("v", ViewEvent.CATCH_UP, "a build reports")
    assert catalog.status == ViewState.PAUSED and reports.is_resolved("v")


@pytest.mark.parametrize("later", [ViewEvent.READ, ViewEvent.FAIL, ViewEvent.SHOW])
def test_a_report_whose_answer_was_lost_is_written_again(later: ViewEvent) -> None:
    reports, catalog = reports_of(ViewState.ANALYZING)
    catalog.is_away = True
    reports.happened("v", ViewEvent.READ, "")
    catalog.is_away, catalog.loses_answers = False, True
    reports.happened("v", ViewEvent.FAIL, "", **WHY)
    assert catalog.status == ViewState.FAILED
    reports.retry()
    catalog.is_away, catalog.loses_answers = True, False
    for event in (ViewEvent.RECALL, ViewEvent.READ, later):
        reports.happened("v", event, "")
    catalog.is_away = False
    reports.retry()
    assert catalog.status == follow(ViewState.BACKFILLING, [later])
    with pytest.raises(InvariantError):
        reports.happened("v", ViewEvent.RECALL if later is ViewEvent.READ else ViewEvent.READ, "")


def test_a_path_of_events_stays_short() -> None:
    path: tuple[ViewEvent, ...] = ()
    for event in (ViewEvent.DEGRADE, ViewEvent.READ, ViewEvent.CATCH_UP) * 5:
        path = joined_path(path, event)
    assert path == (ViewEvent.DEGRADE, ViewEvent.READ, ViewEvent.CATCH_UP)
    assert joined_path(path, ViewEvent.READ) == (ViewEvent.DEGRADE, ViewEvent.READ)


def test_an_epoch_is_stored_without_the_enum() -> None:
    """A state directory must not depend on where the enum is defined."""
    table = SinkTable("public", "v", (), (0,))
    change = ViewChange("1", table, table, {}, status=ViewState.LIVE.value)
    assert b"view_states" not in pickle.dumps(change)


def test_an_abandoned_change_is_written_once_and_known_until_the_catalog_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[tuple[str, str, dict[str, Any]]] = []

    def end_change(catalog: Catalog, identity: str, change_id: str, **columns: Any) -> None:
        if catalog.is_away:
            raise TemporaryError("sink.unreachable", "away")
        ended.append((identity, change_id, columns))

    monkeypatch.setattr("connectors.postgres.catalog.change_requests.end_change", end_change)
    reports, catalog = reports_of(ViewState.LIVE)
    catalog.is_away = True
    reports.abandoned("v", {"id": "1"}, {"replacing": WHY})
    reports.refreshed()
    assert reports.is_abandoned({"id": "1"}) and not reports.is_abandoned({"id": "2"})
    catalog.is_away = False
    reports.retry()
    reports.retry()
    assert ended == [("v", "1", {"replacing": WHY})] and reports.is_abandoned({"id": "1"})
    reports.refreshed()
    assert not reports.is_abandoned({"id": "1"})
    catalog.is_away = True
    reports.abandoned("v", {"id": "3"}, {})
    reports.forget("v")
    assert not reports.is_abandoned({"id": "3"})
