"""Oracle: PostgreSQL's rules for GRANT and REVOKE, written as a table. Roles of the sink read the
relations of declared sources by grant, by membership, as PUBLIC, or as the declarer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from connectors.postgres.catalog import source_readers
from connectors.postgres.catalog.catalog import Control, SourceRow, control_of
from connectors.postgres.catalog.source_readers import PUBLIC
from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.postgres.schema.schema_setup import STEPS
from dataflow.errors import SinkError
from tests.harness.postgres import Database, new_database
from tests.harness.psql import roles

RELATIONS = [
    {"name": "prices", "fields": [], "key": []},
    {"name": "wages", "fields": [], "key": []},
]
PRICES, WAGES = ("shop", "prices"), ("shop", "wages")
NEW = ("shop", "new")


class Place:
    """A sink with source "shop" of the declarer, and roles: a reader, its member, a stranger."""

    def __init__(self, database: Database, control: Control) -> None:
        self.database, self.control = database, control
        self.declarer, self.reader, self.member, self.stranger = (
            f"{word}_{database.name}" for word in ("declarer", "reader", "member", "stranger")
        )

    def reads(self, role: str) -> set[tuple[str, str]]:
        """What a role reads of "shop", asked in each of the ways that there are."""
        pairs = [PRICES, WAGES, NEW]
        refused = source_readers.unreadable(self.control, role, pairs)
        found = {pair for pair in pairs if pair not in refused}
        assert source_readers.readable(self.control, role) == found - {NEW}
        return found

    def grant(self, role: str, relation: str = "") -> None:
        assert source_readers.grant(self.control, "shop", relation, role, "admin")

    def revoke(self, role: str, relation: str = "") -> None:
        assert source_readers.revoke(self.control, "shop", relation, role)


@pytest.fixture(scope="module")
def server(postgres: EmbeddedPostgres) -> Iterator[Place]:
    with new_database(postgres) as database, control_of(database.dsn) as control:
        place = Place(database, control)
        with roles(database, place.declarer, place.reader, place.member, place.stranger):
            database.execute(f"GRANT {place.reader} TO {place.member}")
            control.ensure()
            yield place


@pytest.fixture
def place(server: Place) -> Iterator[Place]:
    row = SourceRow("shop", "", type="files", relations=RELATIONS)
    server.control.insert_source(row, server.declarer)
    yield server
    server.control.delete_source("shop")


ALL, NONE = {PRICES, WAGES, NEW}, set[tuple[str, str]]()
# What is granted, and what then the reader, its member, and a stranger read.
GRANTS: list[tuple[str, Callable[[Place], None], set[tuple[str, str]], set[tuple[str, str]]]] = [
    ("nothing", lambda p: None, NONE, NONE),
    ("a relation", lambda p: p.grant(p.reader, "prices"), {PRICES}, NONE),
    ("the source", lambda p: p.grant(p.reader), ALL, NONE),
    ("a relation to all", lambda p: p.grant(PUBLIC, "wages"), {WAGES}, {WAGES}),
    ("the source to all", lambda p: p.grant("PUBLIC"), ALL, ALL),
    ("membership in the declarer", lambda p: _join(p, p.declarer, p.reader), ALL, NONE),
]


def _join(place: Place, group: str, role: str) -> None:
    place.database.execute(f"GRANT {group} TO {role}")


@pytest.mark.parametrize(
    ("given", "readers", "strangers"), [g[1:] for g in GRANTS], ids=[g[0] for g in GRANTS]
)
def test_a_grant_counts_for_its_role_and_the_members(
    place: Place,
    given: Callable[[Place], None],
    readers: set[tuple[str, str]],
    strangers: set[tuple[str, str]],
) -> None:
    given(place)
    try:
        assert place.reads(place.reader) == place.reads(place.member) == readers
        assert place.reads(place.stranger) == strangers
        assert place.reads(place.declarer) == place.reads("postgres") == ALL
        assert place.reads("nobody") == NONE
    finally:
        place.database.execute(f"REVOKE {place.declarer} FROM {place.reader}")


def test_a_revoked_grant_leaves_the_others(place: Place) -> None:
    place.grant(place.reader)
    place.grant(place.reader, "prices")
    place.grant(PUBLIC, "wages")
    # As in PostgreSQL, each grant is taken back by itself.
    place.revoke(place.reader)
    assert place.reads(place.reader) == {PRICES, WAGES}
    place.revoke(PUBLIC, "wages")
    assert place.reads(place.reader) == {PRICES}
    assert place.reads(place.stranger) == NONE
    assert not source_readers.revoke(place.control, "shop", "wages", PUBLIC)
    assert not source_readers.revoke(place.control, "shop", "", "nobody")
    assert not source_readers.grant(place.control, "shop", "", "nobody", "admin")
    place.revoke(place.reader, "prices")
    assert place.reads(place.reader) == place.reads(place.member) == NONE


def test_a_role_without_inheritance_reads_nothing_by_membership(place: Place) -> None:
    place.grant(place.reader)
    database, name = place.database, f"idle_{place.database.name}"
    database.execute(f"CREATE ROLE {name} NOINHERIT; GRANT {place.reader} TO {name}")
    try:
        assert place.reads(name) == NONE
    finally:
        database.execute(f"DROP ROLE {name}")


def test_a_role_that_is_created_again_is_another_one(place: Place) -> None:
    database, name = place.database, f"again_{place.database.name}"
    row = SourceRow("mine", "", type="files", relations=RELATIONS)
    database.execute(f"CREATE ROLE {name}")
    try:
        place.grant(name, "prices")
        place.control.insert_source(row, name)
        own = {("mine", "prices"), ("mine", "wages")}
        assert source_readers.readable(place.control, name) == own | {PRICES}
        assert source_readers.owns(place.control, name, "mine")
        database.execute(f"ALTER ROLE {name} RENAME TO {name}_2; CREATE ROLE {name}")
        assert source_readers.readable(place.control, name) == NONE
        assert PRICES in source_readers.readable(place.control, f"{name}_2")
        database.execute(f"DROP ROLE {name}, {name}_2; CREATE ROLE {name}")
        assert source_readers.readable(place.control, name) == NONE
        assert not source_readers.owns(place.control, name, "mine")
        # Without its declarer it is the service's.
        assert source_readers.owns(place.control, "postgres", "mine")
        assert source_readers.declarers(place.control) == {"shop": place.declarer}
        assert source_readers.grants(place.control) == []
        place.grant(place.reader)
        assert len(database.rows("SELECT FROM tidemark.source_readers")) == 1
    finally:
        place.control.delete_source("mine")
        database.execute(f"DROP ROLE {name}")


def test_grants_of_a_relation_end_with_it(place: Place) -> None:
    place.grant(place.reader, "prices")
    place.grant(place.reader, "wages")
    place.control.update_source("shop", options={"folder": "other"}, relations=RELATIONS)
    assert place.reads(place.reader) == {PRICES, WAGES}
    place.control.update_source("shop", relations=RELATIONS[1:])
    place.control.update_source("shop", relations=RELATIONS)
    assert place.reads(place.reader) == {WAGES}
    place.control.delete_source("shop")
    place.control.insert_source(SourceRow("shop", "", type="files", relations=RELATIONS))
    assert place.reads(place.reader) == place.reads(place.declarer) == NONE


def test_a_name_belongs_to_the_first_declarer(place: Place) -> None:
    row = SourceRow("shop", "", type="files", relations=RELATIONS)
    with pytest.raises(SinkError, match="exists already"):
        place.control.insert_source(row, place.stranger)
    assert source_readers.declarers(place.control) == {"shop": place.declarer}


def test_views_from_before_the_upgrade_go_on(postgres: EmbeddedPostgres) -> None:
    """The creators of views get what their views read, and nothing else."""
    with new_database(postgres) as database, control_of(database.dsn) as control:
        place = Place(database, control)
        with roles(database, place.reader, place.stranger):
            for number, step in enumerate(STEPS[:26], 1):
                database.execute(step)
                database.execute("INSERT INTO tidemark.version (version) VALUES (%s)", (number,))
            declared = "INSERT INTO tidemark.sources (name, dsn, type, relations) VALUES"
            relations = '[{"name": "prices"}, {"name": "wages"}]'
            database.execute(f"{declared} ('shop', '', 'files', %s)", (relations,))
            view = (
                "INSERT INTO tidemark.views (schema, name, query, identity, plan, created_by)"
                " VALUES ('public', %s, 'SELECT', %s, %s, %s)"
            )
            reads = '{"reads": [["shop", "prices"], ["source", "orders"], ["shop", "gone"]]}'
            for name, creator in (("a", place.reader), ("b", "postgres"), ("c", "dropped")):
                database.execute(view, (name, name, reads, creator))
            database.execute(view, ("d", "d", None, place.stranger))
            control.ensure()
            found = [(g.relation, g.role) for g in source_readers.grants(control)]
            assert found == [("prices", place.reader)]
            assert place.reads(place.reader) == {PRICES}
            assert place.reads(place.stranger) == NONE
