"""Oracle: the control tables as plain SQL reads them, while several services have theirs there.

Each sees its own rows only; psql's requests and waits reach the service that is meant.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg2
import pytest

from connectors.feed_source import REJECTED_KINDS
from connectors.postgres.catalog import (
    idempotency,
    reported_statuses,
    sink_records,
    source_readers,
    token_records,
    verification_records,
)
from connectors.postgres.catalog.catalog import Control, SourceRow, ViewRow, control_of
from connectors.postgres.catalog.dead_letters import DeadLetters
from connectors.postgres.catalog.idempotency import RequestKey, Worker
from connectors.postgres.catalog.reported_statuses import ReportedStatus
from connectors.postgres.catalog.requests import Outcome, Requests
from connectors.postgres.catalog.sink_records import SinkRow
from connectors.postgres.catalog.token_records import TokenRow
from connectors.postgres.schema import schema_setup
from connectors.postgres.sink.rejected_rows import write_rejected
from dataflow.delta import Delta
from dataflow.errors import SinkError
from dataflow.schema import RelationName
from tests.harness.postgres import Database

pytestmark = pytest.mark.versions
TOPIC = SourceRow("topic", "", type="kafka", relations=[{"name": "t", "columns": []}])


def view(name: str, **facts: Any) -> ViewRow:
    return ViewRow("public", name, "SELECT 1 AS x", f"id-{name}", kind="keyed", **facts)


@pytest.fixture
def services(every_database: Database) -> Iterator[tuple[Control, Control]]:
    with (
        control_of(every_database.dsn, "one") as one,
        control_of(every_database.dsn, "two") as two,
    ):
        one.ensure()
        two.ensure()
        yield one, two


def test_views_and_sources_are_of_one_service(services: tuple[Control, Control]) -> None:
    one, two = services
    one.insert_view(view("a"))
    two.insert_view(view("b"))
    assert [r.name for r in one.list_views()] == ["a"] and one.get_view("public", "b") is None
    assert two.other_service_of("public", "a") == "one"
    assert one.other_service_of("public", "a") == ""
    with pytest.raises(SinkError) as raised:
        two.insert_view(replace(view("a"), identity="another"))
    assert raised.value.code == "view.name_taken" and '"one"' in raised.value.detail
    for control, dsn in ((one, "x"), (two, "y")):
        control.upsert_source(SourceRow("source", dsn))
        control.upsert_source(replace(SourceRow("source", dsn), position=7))
        control.insert_source(replace(TOPIC, options={"whose": control.service}))
    for control, dsn in ((one, "x"), (two, "y")):
        found = control.get_source("source")
        assert found is not None and (found.dsn, found.position) == (dsn, 7)
        assert [r.name for r in control.list_sources()] == ["source", "topic"]
    assert one.update_source("topic", status="stopped") and one.retry_source("topic")
    other = two.get_source("topic")
    assert other is not None and (other.status, other.options) == ("running", {"whose": "two"})
    assert one.delete_source("topic") and not one.delete_source("topic")
    assert two.get_source("topic") is not None


def test_grants_of_a_source_are_of_one_service(services: tuple[Control, Control]) -> None:
    one, two = services
    for control in services:
        control.insert_source(TOPIC)
    assert source_readers.grant(one, "topic", "t", "public", "me")
    before = source_readers.digest(two)
    assert [g.relation for g in source_readers.grants(one)] == ["t"]
    assert source_readers.grants(two) == []
    assert not source_readers.revoke(two, "topic", "t", "public")
    assert source_readers.revoke(one, "topic", "t", "public")
    assert source_readers.digest(two) == before
    (role,) = one.rows("SELECT current_user::text")[0]
    assert source_readers.readable(one, role) == {("topic", "t")}
    assert source_readers.owns(one, role, "topic")
    one.delete_source("topic")
    assert source_readers.readable(one, role) == set()
    assert source_readers.readable(two, role) == {("topic", "t")}


def test_the_rest_is_of_one_service(every_database: Database, services: tuple) -> None:
    one, two = services
    token_records.insert_token(one, TokenRow("1", "boss", "admin", b"x", None, "me"))
    assert token_records.list_tokens(two) == []
    with pytest.raises(SinkError) as raised:
        token_records.insert_token(two, TokenRow("2", "guest", "reader", b"y", None, "me"))
    assert raised.value.code == "token.first_not_admin"
    token_records.insert_token(two, TokenRow("3", "boss", "admin", b"z", None, "me"))
    assert token_records.revoke_token(two, "boss")
    assert [t.revoked_at for t in token_records.list_tokens(one)] == [None]
    key, worker = RequestKey("", "/views", "k"), Worker("a", "1")
    for control in services:
        assert idempotency.claim(control, worker, key, "f", 1) is None
    assert idempotency.free(one, Worker("a", "2")) == 1
    assert idempotency.claim(two, worker, key, "f", 1) is not None
    reported_statuses.write(one, {("service", ""): ReportedStatus("ok")})
    reported_statuses.write(two, {})
    assert every_database.rows("SELECT service, status FROM tidemark.standings") == [("one", "ok")]
    for control, name in ((one, "a"), (two, "b")):
        row = control.insert_view(view(name))
        facts = ("public", name, "s", "kafka", f"sink-{name}", row.identity, "default")
        assert sink_records.insert_sink(control, SinkRow(*facts)) is not None
    assert [s.view for s in sink_records.list_sinks(one)] == ["a"]
    assert verification_records.try_lock(one) and verification_records.try_lock(two)


def test_dead_letters_are_of_one_service(every_database: Database, services: tuple) -> None:
    one, two = services
    rejected = Delta.of(REJECTED_KINDS, [("topic", "t", "0:1", "c", "r", b"", b"v")], [1])
    connection = every_database.connect(autocommit=True)
    with contextlib.closing(connection), connection.cursor() as cursor:
        for key in ("one", "one/reports", "two"):
            write_rejected(cursor, key, rejected)
    name = RelationName("topic", "topic", "t")
    assert DeadLetters(one).counts() == {name: 2} and DeadLetters(two).counts() == {name: 1}
    assert {x.sink_key for x in DeadLetters(one).read("", "", 9)} == {"one", "one/reports"}
    assert DeadLetters(two).mark("drop", "topic", "", []) == 1
    DeadLetters(two).mark_gone("topic")
    assert DeadLetters(one).counts() == {name: 2}
    assert {x.desired for x in DeadLetters(one).read("topic", "t", 9)} == {None}


def ask(database: Database, operation: str, arguments: dict, options: dict | None = None) -> str:
    """The service to which a request goes."""
    sql = "SELECT tidemark.service_for(%s, %s, %s)"
    values = (operation, json.dumps(arguments), json.dumps(options or {}))
    return database.rows(sql, values)[0][0]


def test_requests_reach_the_service_that_is_meant(
    every_database: Database, services: tuple[Control, Control]
) -> None:
    one, two = services
    # A service that keeps nothing and does not run has left.
    assert every_database.rows("SELECT tidemark.present_services()") == [(["one", "two"],)]
    one.insert_view(view("a"))
    assert ask(every_database, "create_view", {"name": "n"}) == "one"
    two.insert_view(view("B"))
    for name, service in (("a", "one"), ("PUBLIC.A", "one"), ('"B"', "two"), ('public."B"', "two")):
        assert ask(every_database, "drop_view", {"name": name}) == service
    for operation, name in (("create_view", "n"), ("drop_view", "b"), ("drop_view", "not a name")):
        with pytest.raises(psycopg2.Error) as caught:
            ask(every_database, operation, {"name": name})
        assert "service.ambiguous" in str(caught.value.diag.message_detail)
        assert "one, two" in str(caught.value.diag.message_primary)
        assert ask(every_database, operation, {"name": name}, {"service": "two"}) == "two"
    with pytest.raises(psycopg2.Error) as caught:
        ask(every_database, "drop_view", {"name": "a"}, {"service": "three"})
    assert "service.unknown" in str(caught.value.diag.message_detail)
    two.insert_source(TOPIC)
    for operation in ("drop_source", "grant_source"):
        assert ask(every_database, operation, {"name": "topic.t"}) == "two"
    takers = [Requests(every_database.dsn, c.service) for c in services]
    try:
        for taker in takers:
            assert taker.take() is None
        one.rows("SELECT tidemark.ask('drop_view', '{\"name\": \"a\"}', current_user, 'one')")
        assert takers[1].take() is None
        request = takers[0].take()
        assert request is not None and request.operation == "drop_view"
        takers[0].end(request, Outcome("done"))
        served = "SELECT tidemark.is_served('one'), tidemark.is_served('two')"
        assert one.rows(served) == [(True, True)]
        takers[1].close()
        assert one.rows(served) == [(True, False)]
    finally:
        takers[0].close()


def test_waits_are_for_services_that_read_this_database(
    every_database: Database, services: tuple[Control, Control]
) -> None:
    one, two = services
    system = one.rows("SELECT system_identifier::text, current_database() FROM pg_control_system()")
    for control, (server, name) in ((one, system[0]), (two, ("1", "elsewhere"))):
        facts = {"database": name}
        control.insert_view(view(control.service))
        control.upsert_source(SourceRow("source", "", system_identifier=server, facts=facts))
        sql = "SELECT tidemark.advance(%s, 1, %s)"
        every_database.rows(sql, (control.service, json.dumps({"source": len(name)})))
    shown = "SELECT tidemark.is_source(), tidemark.shown_position() - '0/0'"
    assert every_database.rows(shown) == [(True, len(system[0][1]))]
    chosen = "SELECT set_config('tidemark.service', 'two', false)"
    connection = every_database.connect()
    with contextlib.closing(connection), connection.cursor() as cursor:
        cursor.execute(chosen)
        cursor.execute(shown)
        assert cursor.fetchone() == (False, len("elsewhere"))
    sql = "SELECT name, service, \"position\" - '0/0' FROM tidemark.status ORDER BY 1"
    assert [row[:2] for row in every_database.rows(sql)] == [("one", "one"), ("two", "two")]
    health = every_database.rows("SELECT service, status FROM tidemark.health ORDER BY 1")
    assert [name for name, _ in health] == ["one", "two"]


@pytest.mark.parametrize("written", ["source", "progress", "nothing"])
def test_a_catalog_of_one_service_stays_its_own(every_database: Database, written: str) -> None:
    """Whichever service starts first after the upgrade, the rows are of the one that wrote them."""
    before = schema_setup.STEPS[:29]
    for step in before:
        every_database.execute(step)
    every_database.execute("INSERT INTO tidemark.version SELECT generate_series(1, 29)")
    every_database.execute(
        "INSERT INTO tidemark.views (schema, name, query, identity)"
        " VALUES ('public', 'v', 'SELECT 1', 'i')"
    )
    every_database.execute(
        "INSERT INTO tidemark.tokens (id, name, role, hash, created_by)"
        " VALUES ('1', 'boss', 'admin', '', '')"
    )
    if written == "source":
        every_database.execute(
            "INSERT INTO tidemark.sources (name, dsn, publication) VALUES"
            " ('source', 'x', 'shop_source'), ('source/reports', 'x', 'shop_source_reports')"
        )
        every_database.execute("INSERT INTO tidemark.progress VALUES ('shop/reports', 1, '{}')")
    elif written == "progress":
        every_database.execute("INSERT INTO tidemark.progress VALUES ('shop/reports', 1, '{}')")
    with (
        control_of(every_database.dsn, "shop") as own,
        control_of(every_database.dsn, "other") as other,
    ):
        for control in (own, other) if written == "nothing" else (other, own):
            control.ensure()
        assert [r.name for r in own.list_views()] == ["v"] and other.list_views() == []
        assert [t.name for t in token_records.list_tokens(own)] == ["boss"]
        assert token_records.list_tokens(other) == []
        assert [s.name for s in own.list_sources()] == (
            ["source", "source/reports"] if written == "source" else []
        )
