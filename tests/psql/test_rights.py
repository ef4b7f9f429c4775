"""Oracle: docs/PSQL.md and PostgreSQL: who may not run a query may not have it kept, and a view is
its creator's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.postgres import Database
from tests.harness.psql import as_role, psql, refusal, roles, session_of
from tests.harness.service import RunningService
from tests.harness.waiting import wait_until

# --- rights -------------------------------------------------------------------------------

RIGHTS = """
CREATE SCHEMA hidden; CREATE TABLE hidden.h (id int PRIMARY KEY);
CREATE TABLE open (id int PRIMARY KEY, shown int, secret int);
INSERT INTO open VALUES (1, 2, 3);
CREATE TABLE shut (id int PRIMARY KEY);
CREATE TABLE ours (id int PRIMARY KEY, who text);
ALTER TABLE ours ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON ours USING (who = current_user);
CREATE VIEW window_ AS SELECT id FROM shut;
CREATE FUNCTION private(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 + 1';
REVOKE EXECUTE ON FUNCTION private FROM PUBLIC;
GRANT SELECT (id, shown) ON open TO ann; GRANT SELECT ON window_, ours, hidden.h TO ann, bob;
GRANT USAGE, CREATE ON SCHEMA public TO ann, bob;
GRANT SELECT ON open TO bob;
"""
MAY_NOT = {
    "SELECT id, secret FROM open": "42501",
    "SELECT id FROM open WHERE secret > 0": "42501",
    "SELECT o FROM open AS o": "42501",
    "SELECT id, count(o) AS n FROM open AS o GROUP BY id": "42501",
    "SELECT id FROM shut": "42501",
    "SELECT count(*) AS n FROM shut": "42501",
    "SELECT id FROM anns": "42501",
    "SELECT id FROM hidden.h": "42501",
    "SELECT id FROM ours": "42501",
    "SELECT private(id) AS p FROM open": "42501",
}


@pytest.fixture(scope="module")
def people(service: RunningService, place: Database) -> Iterator[None]:
    with roles(place, "ann", "bob", "eve"):
        place.execute(RIGHTS)
        creators = Path("deploy/creators.sql").read_text()
        for name in ("ann", "bob"):
            ended = psql(place, creators, creators=name)
            assert ended.returncode == 0, ended.stderr
        place.execute("GRANT USAGE ON SCHEMA tidemark TO eve")
        mine = session_of(place, "ann")
        mine.cursor().execute("CREATE VIEW anns AS SELECT id FROM shut")
        mine.close()
        yield


@pytest.mark.parametrize(("query", "state"), MAY_NOT.items())
def test_who_may_not_read_may_not_create(
    people: None, place: Database, query: str, state: str
) -> None:
    call_it = f"CALL tidemark.create_view('leak', $q${query}$q$)"
    error = refusal(lambda: as_role(place, "ann", call_it))
    assert error.pgcode == state, error
    # PostgreSQL itself refuses the same.
    assert "ours" in query or refusal(lambda: as_role(place, "ann", query)).pgcode == state
    assert place.rows("SELECT to_regclass('leak')") == [(None,)]


def test_what_a_creator_may(people: None, place: Database) -> None:
    create = "CALL tidemark.create_view('anns_view', 'SELECT id, shown FROM open')"
    as_role(place, "ann", create)
    as_role(place, "ann", "CALL tidemark.create_view('over', 'SELECT count(*) AS n FROM window_')")
    assert as_role(place, "ann", "SELECT * FROM anns_view") == [(1, 2)]
    assert as_role(place, "ann", "SELECT name, owner FROM tidemark.status ORDER BY 1") == [
        ("anns_view", "ann"),
        ("over", "ann"),
    ]
    # Her table: index, comment and grant are hers, the rows are not.
    as_role(place, "ann", "CREATE INDEX ON anns_view (shown); GRANT SELECT ON anns_view TO bob")
    written = refusal(lambda: as_role(place, "ann", "UPDATE anns_view SET shown = 0"))
    assert written.pgcode == "42501"
    place.execute("INSERT INTO open VALUES (2, 3, 4)")
    as_role(place, "ann", "SELECT tidemark.wait()")
    assert as_role(place, "bob", "SELECT count(*) FROM anns_view") == [(2,)]
    assert as_role(place, "bob", "SELECT name FROM tidemark.status") == [("anns_view",)]
    # Bob reads it, and may build on it, but it is not his.
    as_role(place, "bob", "CALL tidemark.create_view('bobs', 'SELECT sum(id) AS s FROM anns_view')")
    for statement in ("CALL tidemark.drop_view('anns_view')", "DROP TABLE anns_view"):
        assert refusal(lambda text=statement: as_role(place, "bob", text)).pgcode == "42501"
    in_use = refusal(lambda: as_role(place, "ann", "CALL tidemark.drop_view('anns_view')"))
    assert in_use.pgcode == "2BP01"
    as_role(place, "bob", "CALL tidemark.drop_view('bobs')")
    as_role(place, "ann", "CALL tidemark.drop_view('anns_view')")
    # Who may act as ann may do what ann may; somebody else may not say so.
    spoof = "SELECT tidemark.ask('drop_view', '{\"name\": \"over\", \"options\": {}}', 'ann')"
    assert refusal(lambda: as_role(place, "bob", spoof)).pgcode == "42501"
    session = place.connect()
    session.cursor().execute("SET ROLE ann")
    session.cursor().execute("CALL tidemark.drop_view('over')")
    session.close()


@pytest.mark.parametrize(
    "statement",
    [
        "CALL tidemark.create_view('v', 'SELECT 1 AS x')",
        "SELECT tidemark.ask('create_view', '{}', 'eve')",
        "CALL tidemark.request('create_view', '{}', '{}')",
        "CALL tidemark.create_source('s', 'files')",
        "SELECT * FROM tidemark.views",
        "SELECT * FROM tidemark.errors",
        "SELECT * FROM tidemark.requests",
        "SELECT * FROM tidemark.sources",
        "SELECT tidemark.await_ring(1)",
        "SELECT tidemark.advance('tidemark', 1, '{}')",
    ],
)
def test_a_reader_may_read_only(people: None, place: Database, statement: str) -> None:
    assert refusal(lambda: as_role(place, "eve", statement)).pgcode == "42501"
    assert as_role(place, "eve", "SELECT count(*) FROM tidemark.status") == [(0,)]
    assert as_role(place, "eve", "SELECT count(*) FROM tidemark.my_requests") == [(0,)]


def test_a_creator_declares_no_sources(people: None, place: Database) -> None:
    statement = "CALL tidemark.create_source('s', 'files')"
    assert refusal(lambda: as_role(place, "ann", statement)).pgcode == "42501"


def test_a_dropped_table_fails_its_view_alone(people: None, place: Database) -> None:
    """An owner may drop the table; the views of others continue."""
    as_role(place, "ann", "CALL tidemark.create_view('mine', 'SELECT id, shown FROM open')")
    as_role(place, "bob", "CALL tidemark.create_view('his', 'SELECT id FROM open')")
    as_role(place, "ann", "DROP TABLE mine")
    place.execute("INSERT INTO open VALUES (9, 9, 9)")
    assert as_role(place, "bob", "SELECT tidemark.wait('60 s') IS NOT NULL") == [(True,)]
    assert (9,) in as_role(place, "bob", "SELECT id FROM his")
    shown = "SELECT status, code FROM tidemark.status WHERE name = 'mine'"
    wait_until(lambda: as_role(place, "ann", shown) == [("failed", "sink.table_missing")])
    as_role(place, "ann", "CALL tidemark.drop_view('mine')")
    as_role(place, "bob", "CALL tidemark.drop_view('his')")
