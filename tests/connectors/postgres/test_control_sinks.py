"""Oracle: the control table of additional sinks as plain SQL in another session sees it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from connectors.postgres.catalog import sink_records
from connectors.postgres.catalog.catalog import Control, ViewRow
from connectors.postgres.catalog.sink_records import SinkRow
from dataflow.errors import SinkError
from tests.harness.postgres import Database

_ROW = SinkRow(
    "public", 'we "ird %s', "events", "kafka", "s1", "v1", "default", {"topic": "x", "n": [1, None]}
)


@pytest.fixture
def control(every_database: Database) -> Iterator[Control]:
    control = Control(every_database.dsn)
    control.ensure()
    yield control
    control.close()


def test_a_sink_is_stored_as_it_was_given(every_database: Database, control: Control) -> None:
    stored = sink_records.insert_sink(control, _ROW)
    assert stored is not None and [stored] == sink_records.list_sinks(control)
    assert stored == sink_records.find_sink(control, "v1", "events")
    assert (stored.options, stored.status, stored.desired) == (_ROW.options, "starting", "live")
    assert stored.title == 'public.we "ird %s/events' and stored.created_by == "postgres"
    assert every_database.rows("SELECT options->>'topic' FROM tidemark.sinks") == [("x",)]
    assert sink_records.insert_sink(control, _ROW) == stored, "the same one, tried again"
    with pytest.raises(SinkError) as raised:
        sink_records.insert_sink(control, replace(_ROW, identity="s2"))
    assert raised.value.code == "sink.exists"
    assert sink_records.find_sink(control, "v2", "events") is None
    assert sink_records.delete_sink(control, "s1")
    assert not sink_records.delete_sink(control, "s1")


def test_a_sink_waits_for_no_change_of_its_view(every_database: Database, control: Control) -> None:
    """None is entered while the view changes, or under a group that it has left."""
    control.insert_view(ViewRow("public", "v", "SELECT 1", "v1", options={"group": "a"}))
    row = replace(_ROW, view_group="a")
    assert sink_records.insert_sink(control, _ROW) is None
    every_database.execute("""UPDATE tidemark.views SET change = '{"id": "c"}'""")
    assert sink_records.insert_sink(control, row) is None
    every_database.execute("UPDATE tidemark.views SET change = NULL")
    changing = every_database.connect(autocommit=False)
    with changing.cursor() as cursor, ThreadPoolExecutor(1) as pool:
        cursor.execute("""UPDATE tidemark.views SET change = '{"id": "d"}'""")
        adding = pool.submit(sink_records.insert_sink, control, row)
        with pytest.raises(TimeoutError):
            adding.result(0.3)
        changing.commit()
        assert adding.result(10) is None
    changing.close()
    every_database.execute("UPDATE tidemark.views SET change = NULL")
    assert sink_records.insert_sink(control, row) is not None


def test_updates_set_what_is_named_and_wake_who_waits(
    every_database: Database, control: Control
) -> None:
    sink_records.insert_sink(control, _ROW)
    sink_records.insert_sink(control, replace(_ROW, identity="s2", name="other"))
    waiting = Control(every_database.dsn)
    waiting.wait(0.01)
    sink_records.update_sink(control, "s1", epoch=7, positions={"source": 5}, backlog_bytes=9)
    assert not waiting.wait(0.1), "figures wake nobody"
    sink_records.update_sink(control, "s1", status="live", code="a.b", hint="%s")
    assert waiting.wait(5)
    waiting.close()
    found = sink_records.find_sink(control, "v1", "events")
    assert found is not None
    assert (found.epoch, found.positions, found.backlog_bytes) == (7, {"source": 5}, 9)
    assert (found.status, found.code, found.hint) == ("live", "a.b", "%s")
    with pytest.raises(ValueError, match="name"):
        sink_records.update_sink(control, "s1", name="x")
    sink_records.update_sink(control, "s2", desired="erased")
    sink_records.drop_sinks(control, "v1", is_erased=False)
    rows = "SELECT identity, status, desired FROM tidemark.sinks ORDER BY 1"
    assert every_database.rows(rows) == [
        ("s1", "dropping", "dropped"),
        ("s2", "dropping", "erased"),
    ]
