"""Oracle: the control tables as plain SQL in another session reads and writes them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import psycopg2
import pytest

from connectors.postgres.catalog import change_requests
from connectors.postgres.catalog.catalog import Control, SourceRow, ViewRow
from connectors.postgres.catalog.error_rows import read_left_out
from connectors.postgres.schema import schema_setup
from connectors.postgres.sink.postgres_sink import PostgresSink
from connectors.sink import (
    Progress,
    SinkEpoch,
    SinkRepair,
    SinkRows,
    SinkTable,
    ViewChange,
    ViewDdl,
)
from connectors.view_states import ANY, DesiredState, ViewEvent, ViewState, follow
from dataflow import types
from dataflow.delta import Delta
from dataflow.errors import InvariantError, SinkError, TemporaryError
from dataflow.schema import Field
from tests.harness.postgres import Database

pytestmark = pytest.mark.versions

_VIEW = ViewRow(
    "public",
    'we "ird %s',
    "SELECT 'it''s' AS x",
    "id-1",
    kind="multiset",
    options={"backfill": "auto", "nested": [1, None]},
    key=[],
    fields=[{"name": "x", "type": "text"}],
    plan={"node": "Values"},
    warnings=["sorted for no one"],
)


@pytest.fixture
def control(every_database: Database) -> Iterator[Control]:
    control = Control(every_database.dsn)
    control.ensure()
    yield control
    control.close()


def test_a_view_is_stored_as_it_was_requested(every_database: Database, control: Control) -> None:
    stored = control.insert_view(_VIEW)
    assert stored == control.get_view(_VIEW.schema, _VIEW.name) == control.list_views()[0]
    for name in ("query", "options", "key", "fields", "plan", "warnings", "kind", "identity"):
        assert getattr(stored, name) == getattr(_VIEW, name)
    assert (stored.status, stored.desired, stored.created_by) == ("analyzing", "live", "postgres")
    assert stored.created_at is not None and stored.live_at is None
    assert stored.title == 'public.we "ird %s'
    assert every_database.rows("SELECT name, options->'nested' FROM tidemark.views") == [
        (_VIEW.name, [1, None])
    ]
    assert control.get_view("public", "none") is None


def test_a_name_is_taken_once(control: Control) -> None:
    control.insert_view(_VIEW)
    assert control.insert_view(_VIEW).identity == "id-1", "the same creation, tried again"
    again = ViewRow(_VIEW.schema, _VIEW.name, "SELECT 2", "id-2")
    with pytest.raises(SinkError) as raised:
        control.insert_view(again)
    assert raised.value.code == "view.name_taken"
    control.update_view("id-1", desired="dropped")
    with pytest.raises(SinkError) as raised:
        control.insert_view(again)
    assert "dropped" in raised.value.detail
    assert control.delete_view("id-1")
    assert not control.delete_view("id-1")
    assert control.insert_view(again).query == "SELECT 2"


def test_updates_set_what_is_named(control: Control) -> None:
    before = control.insert_view(_VIEW)
    progress = {"phase": "backfill", "rows": 5}
    facts = {"progress": progress, "row_estimate": 7}
    assert control.change_view("id-1", [ViewEvent.READ], "", **facts)
    after = control.get_view(_VIEW.schema, _VIEW.name)
    assert after is not None
    assert (after.status, after.progress, after.row_estimate) == ("backfilling", progress, 7)
    assert after.options == before.options
    assert after.updated_at >= before.updated_at  # type: ignore[operator]
    control.update_view("id-1", progress=None, code="x.y", detail="it's", hint="%s")
    after = control.get_view(_VIEW.schema, _VIEW.name)
    assert after is not None
    assert (after.progress, after.code, after.detail, after.hint) == (None, "x.y", "it's", "%s")
    assert not control.update_view("nobody", row_estimate=1)
    assert not control.change_view("nobody", [ViewEvent.SHOW], "")
    with pytest.raises(ValueError, match="schema"):
        control.update_view("id-1", schema="other")
    with pytest.raises(ValueError, match="status"):
        control.update_view("id-1", status="live")


def test_the_catalog_takes_a_status_with_its_event_alone(
    every_database: Database, control: Control
) -> None:
    """Every state and event, against the table of transitions."""
    control.insert_view(_VIEW)
    status = lambda: control.list_views()[0].status  # noqa: E731
    for state in ANY:
        for event in ViewEvent:
            wanted = DesiredState.DROPPED if state == ViewState.DROPPING else DesiredState.LIVE
            every_database.execute(
                f"UPDATE tidemark.views SET status = '{state}', desired = '{wanted}', code = NULL"
            )
            after = follow(state, [event])
            if after is not None:
                assert control.change_view("id-1", [event], "why", code="x.y")
                assert (status(), control.list_views()[0].code) == (after, "x.y")
                continue
            with pytest.raises(InvariantError, match=f'"{event}" is illegal') as refused:
                control.change_view("id-1", [event], "why", code="x.y")
            assert refused.value.what.startswith(f'view "{_VIEW.title}" is {state}')
            assert refused.value.detail == "why"
            assert (status(), control.list_views()[0].code) == (state, None)


def test_a_status_whose_answer_was_lost_is_written_again(
    every_database: Database, control: Control
) -> None:
    control.insert_view(_VIEW)
    events = [ViewEvent.READ, ViewEvent.FAIL]
    assert control.change_view("id-1", events, "")
    with pytest.raises(InvariantError, match="is illegal"):
        control.change_view("id-1", events, "")
    assert control.change_view("id-1", events, "", {ViewEvent.FAIL}, code="x.y")
    assert control.change_view("id-1", [ViewEvent.READ], "", {ViewEvent.FAIL})
    assert control.list_views()[0].status == "backfilling"
    with pytest.raises(InvariantError, match="is illegal"):
        control.change_view("id-1", [ViewEvent.RECALL], "", {ViewEvent.FAIL})


def test_what_is_to_be_dropped_keeps_its_status(every_database: Database, control: Control) -> None:
    """Somebody has asked for that by SQL alone."""
    control.insert_view(_VIEW)
    control.update_view("id-1", desired=DesiredState.DROPPED)
    assert control.change_view("id-1", [ViewEvent.SHOW], "", row_estimate=3)
    row = control.list_views()[0]
    assert (row.status, row.row_estimate) == ("analyzing", 3)
    assert control.change_view("id-1", [ViewEvent.DROP], "", desired=DesiredState.DROPPED)
    assert control.list_views()[0].status == "dropping"


@pytest.mark.parametrize("column", ["status", "desired"])
def test_no_other_word_is_a_state(every_database: Database, control: Control, column: str) -> None:
    control.insert_view(_VIEW)
    with pytest.raises(psycopg2.errors.CheckViolation, match=f"views_{column}_known"):
        every_database.execute(f"UPDATE tidemark.views SET {column} = 'almost live'")
    states = {"status": ViewState, "desired": DesiredState}[column]
    for state in states:
        every_database.execute(f"UPDATE tidemark.views SET {column} = '{state}'")


def test_sources_and_progress(every_database: Database, control: Control) -> None:
    source = SourceRow("source", "dbname=shop", "slot", "pub", "7123", 1, 2**64 - 1, {"a": 1})
    control.upsert_source(source)
    control.upsert_source(SourceRow("source", "dbname=shop2", "slot", position=5))
    found = control.get_source("source")
    assert found is not None
    assert (found.dsn, found.position, found.system_identifier) == ("dbname=shop2", 5, None)
    assert control.list_sources() == [found]
    control.upsert_source(source)
    assert control.list_sources()[0].position == 2**64 - 1
    assert control.read_progress() is None
    sink = PostgresSink(every_database.dsn)
    sink.write(SinkEpoch(Progress(1, {"source": 2**63})))
    assert control.read_progress() == Progress(1, {"source": 2**63}) == sink.read_progress()
    assert control.delete_source("source") and not control.delete_source("source")
    sink.close()


def test_errors_of_a_view(every_database: Database, control: Control) -> None:
    sink = PostgresSink(every_database.dsn)
    rows = [("public.v", "project", "22012", f"no {i}", "{}") for i in range(5)]
    other = ("public.w", "filter", "22012", "other", "{}")
    errors = Delta.of("sssss", [*rows, other], [1, 1, 1, 1, 2, 1])
    sink.write(SinkEpoch(Progress(1, {}), SinkRows(errors=errors)))
    left_out = read_left_out(control, "public.v", 100, None)
    assert {e.message for e in left_out} == {f"no {i}" for i in range(5)}
    assert len(read_left_out(control, "public.v", 2, None)) == 2
    assert control.count_errors() == {"public.v": 6, "public.w": 1}
    sink.close()


def test_a_sink_that_comes_back_calls_no_view_live_that_is_not(
    every_database: Database, control: Control
) -> None:
    groups = {"kept": {}, "lost": {}, "ours": {"group": "default"}, "theirs": {"group": "other"}}
    for name, options in groups.items():
        control.insert_view(replace(_VIEW, name=name, identity=name, options=options))
        control.change_view(name, [ViewEvent.SHOW], "")
    control.update_view("ours", desired="dropped")
    sink = PostgresSink(every_database.dsn)
    sink.write(SinkEpoch(Progress(1, {})))
    statuses = lambda: {r.name: r.status for r in control.list_views()}  # noqa: E731
    live = frozenset({"kept"})
    repair = SinkRepair(1, live, "default", is_default=True)
    sink.write(SinkEpoch(Progress(9, {}), repair=repair))
    backfilling = {"lost": "backfilling"}
    assert statuses() == dict.fromkeys(groups, "live") | backfilling
    repair = SinkRepair(9, live, "other", is_default=False)
    sink.write(SinkEpoch(Progress(12, {}), repair=repair))
    assert statuses() == dict.fromkeys(groups, "live") | backfilling | {"theirs": "backfilling"}
    sink.close()


def test_a_change_that_is_shown_was_not_cancelled(
    every_database: Database, control: Control
) -> None:
    """One was cancelled while its epoch was on its way; after another one was asked for since."""
    table = SinkTable(_VIEW.schema, _VIEW.name, (Field("x", types.TEXT),), ())
    control.insert_view(_VIEW)
    sink = PostgresSink(every_database.dsn)
    sink.load(table, [], None)
    asked, cancelled = {"id": "a", "kind": "version"}, {"id": "a", "status": "cancelled"}
    later = {"id": "b", "kind": "version"}
    cases = [
        ((asked, asked), (None, None)),
        ((None, cancelled), (None, None)),
        ((later, {"id": "b"}), (later, {"id": "b"})),
        ((None, {"id": "b", "status": "failed"}), (None, {"id": "b", "status": "failed"})),
    ]
    for epoch, ((change, replacing), wanted) in enumerate(cases, 1):
        control.update_view("id-1", change=change, replacing=replacing)
        ending = ViewChange("id-1", table, table, {}, ends="a")
        sink.write(SinkEpoch(Progress(epoch, {}), ddl=ViewDdl((ending,))))
        row = control.list_views()[0]
        assert (row.change, row.replacing) == wanted
    sink.close()


def test_only_live_views_can_be_paused(every_database: Database, control: Control) -> None:
    """A sink that was set back may know a view as one that was only asked for."""
    control.insert_view(_VIEW)
    assert not change_requests.request_pause(control, _VIEW.identity)
    assert control.list_views()[0].desired == "live"
    control.change_view(_VIEW.identity, [ViewEvent.SHOW], "")
    assert change_requests.request_pause(control, _VIEW.identity)
    assert control.list_views()[0].desired == "paused"


def test_waiting_requests_are_reported(every_database: Database, control: Control) -> None:
    waiting = Control(every_database.dsn)
    assert waiting.wait(0.01), "what was missed before the first call counts as a change"
    assert not waiting.wait(0.05)
    control.insert_view(_VIEW)
    assert waiting.wait(5)
    control.update_view("id-1", row_estimate=5)
    assert not waiting.wait(0.1), "figures wake nobody"
    control.change_view("id-1", [ViewEvent.SHOW], "")
    assert waiting.wait(5)
    every_database.execute("UPDATE tidemark.views SET desired = 'dropped'")
    assert waiting.wait(5), "psql alone is enough"
    timer = threading.Timer(0.2, control.notify)
    timer.start()
    started = time.monotonic()
    assert waiting.wait(10)
    assert time.monotonic() - started < 5
    timer.join()
    waiting.close()


def test_a_lost_session_is_replaced(every_database: Database, control: Control) -> None:
    control.insert_view(_VIEW)
    assert control.wait(0.01)
    every_database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name LIKE 'tidemark %'"
    )
    assert control.get_view(_VIEW.schema, _VIEW.name) is not None
    told = [control.wait(0.2) for _ in range(3)]
    assert any(told), "it listens again, and says that something may have been missed"


def test_tables_are_made_once_and_by_one(every_database: Database) -> None:
    controls = [Control(every_database.dsn) for _ in range(6)]
    threads = [threading.Thread(target=c.ensure) for c in controls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert every_database.rows("SELECT version FROM tidemark.version ORDER BY 1") == [
        (number,) for number in range(1, schema_setup.VERSION + 1)
    ]
    described = every_database.rows(
        "SELECT relname FROM pg_class WHERE relnamespace = 'tidemark'::regnamespace "
        "AND relkind = 'r' AND obj_description(oid) IS NULL"
    )
    assert described == []
    every_database.execute("INSERT INTO tidemark.version (version) VALUES (99)")
    with pytest.raises(SinkError) as raised:
        controls[0].ensure()
    assert raised.value.code == "sink.version"
    for control in controls:
        control.close()


def test_tables_of_an_earlier_version_continue(every_database: Database) -> None:
    """What stood in them stands there still."""
    every_database.execute(schema_setup.STEPS[0])
    every_database.execute("INSERT INTO tidemark.version (version) VALUES (1)")
    every_database.execute("INSERT INTO tidemark.sources (name, dsn) VALUES ('source', 'x')")
    control = Control(every_database.dsn)
    control.ensure()
    control.ensure()
    row = control.get_source("source")
    assert row is not None and (row.dsn, row.type, row.status) == ("x", "postgres", "running")
    found = every_database.rows("SELECT max(version) FROM tidemark.version")
    assert found == [(schema_setup.VERSION,)]
    control.close()


def test_refusals_have_codes(database: Database) -> None:
    control = Control(database.dsn)
    with pytest.raises(SinkError) as raised:
        control.list_views()
    assert raised.value.code == "control.missing"
    control.close()
    with pytest.raises(TemporaryError):
        Control("host=127.0.0.1 port=1 dbname=x user=y").list_views()
