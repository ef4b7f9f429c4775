"""Oracle: at any time one claim's epochs are taken, those of every earlier one are refused by name,
and the rows are those of the epochs that were taken."""

from __future__ import annotations

import psycopg2
import pytest

from connectors.postgres.schema.lease import Claim
from connectors.postgres.schema.sink_target import target_of
from connectors.postgres.sink.postgres_sink import PostgresSink
from connectors.sink import Progress, SinkEpoch, SinkRows, SinkTable
from dataflow import types
from dataflow.delta import Delta
from dataflow.errors import SinkError, TemporaryError
from dataflow.schema import Field
from tests.harness.postgres import Database

TABLE = SinkTable("public", "small", (Field("id", types.INT4, False),), (0,))


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.postgres.schema.lease.RELEASE_S", 0.3)


def _epoch(number: int) -> SinkEpoch:
    return SinkEpoch(
        Progress(number, {"source": number}), SinkRows([(TABLE, Delta.of("i", [(number,)], [1]))])
    )


def _claimed(database: Database, place: str) -> PostgresSink:
    sink = PostgresSink(database.dsn, claim=Claim("tidemark", place))
    sink.claim()
    return sink


def _end_sessions(database: Database, sink: PostgresSink) -> None:
    """As when a machine is gone: its sessions are, and it does not know."""
    assert sink._claim is not None
    database.rows(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s",
        (sink._claim.sink_application,),
    )


def test_the_second_is_refused_by_name_until_the_first_is_gone(database: Database) -> None:
    first = _claimed(database, "the first place")
    with pytest.raises(SinkError, match=r"sink\.in_use") as raised:
        _claimed(database, "the second place")
    assert "the first place" in raised.value.detail
    first.load(TABLE, [], None)
    first.write(_epoch(1))
    first.close()
    second = _claimed(database, "the second place")
    second.write(_epoch(2))
    assert database.rows("SELECT id FROM small ORDER BY id") == [(1,), (2,)]
    second.close()


def test_who_was_thought_dead_writes_nothing_any_more(database: Database) -> None:
    first = _claimed(database, "the first place")
    first.load(TABLE, [], None)
    first.write(_epoch(1))
    _end_sessions(database, first)
    second = _claimed(database, "the second place")
    # The sink has no newer epoch yet: by its number alone this one would fit.
    with pytest.raises((SinkError, TemporaryError)):
        first.write(_epoch(2))
    with pytest.raises(SinkError, match=r"sink\.in_use"):
        first.write(_epoch(2))
    for doing in (lambda: first.stage(TABLE, []), lambda: first.drop([TABLE])):
        with pytest.raises(SinkError, match=r"sink\.fenced"):
            doing()
    # Whether an epoch that was on its way is there cannot be told by its number.
    second.write(_epoch(2))
    with pytest.raises(SinkError, match=r"sink\.fenced"):
        first.read_progress()
    second.close()
    # Nobody has it now, and still it is not the first one's any more.
    with pytest.raises(SinkError, match=r"sink\.fenced") as raised:
        first.write(_epoch(2))
    assert "the second place" in raised.value.detail
    third = _claimed(database, "the third place")
    assert (third.read_progress() or Progress(0, {})).epoch == 2
    third.write(_epoch(3))
    assert database.rows("SELECT id FROM small ORDER BY id") == [(1,), (2,), (3,)]
    third.close()


def test_what_a_displaced_one_has_begun_is_not_committed(database: Database) -> None:
    first = _claimed(database, "the first place")
    first.load(TABLE, [], None)
    first.write(_epoch(1))
    # In the middle of an epoch, in a session that nobody has ended: asleep.
    assert first._claim is not None
    asleep = psycopg2.connect(database.dsn, application_name=first._claim.other_application)
    marked = "SELECT set_config('tidemark.epoch', pg_current_xact_id()::text, true)"
    asleep.cursor().execute(f"{marked}; INSERT INTO {target_of(TABLE).sql} VALUES (7)")
    _end_sessions(database, first)
    second = _claimed(database, "the second place")
    with pytest.raises(psycopg2.Error):
        asleep.cursor().execute("COMMIT")
    second.write(_epoch(2))
    assert database.rows("SELECT id FROM small ORDER BY id") == [(1,), (2,)]
    second.close()
