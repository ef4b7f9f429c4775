"""Oracle: the statement that each refusal prints, run by the publication's owner, is enough; and
the catalog, in which nothing of the publication is another row than before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connectors.postgres.removal.source_removal import SourceRemoval
from connectors.postgres.replication.given_publication import GivenPublication
from connectors.postgres.replication.table_changes import why_lost
from connectors.postgres.session.session import Session
from connectors.postgres.source import PostgresSource
from dataflow.errors import SourceError
from dataflow.schema import RelationName
from tests.connectors.postgres.reading import read_all, relation_of, streaming
from tests.harness.postgres import Database
from tests.harness.psql import give_query_role, roles

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, v int);
CREATE TABLE bare (v int);
CREATE TABLE p (id int NOT NULL PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (1000);
INSERT INTO t VALUES (1, 1); INSERT INTO p VALUES (1, 1);
"""
VIA_ROOT = "WITH (publish_via_partition_root = true)"
# How the publication is made, the table, and the code of the refusal.
REFUSED = {
    "SELECT 1": ("t", "source.publication_missing"),
    f"CREATE PUBLICATION given FOR TABLE p {VIA_ROOT}": ("t", "source.not_published"),
    "CREATE PUBLICATION given FOR TABLE t WITH (publish = 'insert, update')": (
        "t",
        "source.publication_options",
    ),
    "CREATE PUBLICATION given FOR TABLE p": ("p", "source.publication_options"),
    "CREATE PUBLICATION given FOR TABLE t WHERE (id > 5)": ("t", "source.publication_options"),
    "CREATE PUBLICATION given FOR TABLE t (id)": ("t", "source.publication_options"),
    "CREATE PUBLICATION given FOR TABLE t, bare": ("bare", "source.no_replica_identity"),
}
# How it is made, the tables that are sent whole, and what takes t out.
TAKEN = {
    "CREATE PUBLICATION given FOR ALL TABLES " + VIA_ROOT: (("t", "p"), "DROP PUBLICATION given"),
    "CREATE PUBLICATION given FOR TABLES IN SCHEMA public " + VIA_ROOT: (
        ("t", "p"),
        "ALTER PUBLICATION given DROP TABLES IN SCHEMA public",
    ),
    "CREATE PUBLICATION given FOR TABLE t, p1": (
        ("t", "p1"),
        "ALTER PUBLICATION given DROP TABLE t",
    ),
    "CREATE PUBLICATION given FOR ALL TABLES": (("t", "p1"), "DROP PUBLICATION given"),
}


@pytest.fixture
def place(every_database: Database) -> Iterator[Database]:
    every_database.execute(TABLES)
    yield every_database


@pytest.fixture
def source(place: Database) -> Iterator[PostgresSource]:
    role = f"reader_{place.name}"
    with roles(place, role):
        place.execute(f"ALTER ROLE {role} LOGIN REPLICATION")
        place.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
        give_query_role(place, role)
        made = PostgresSource(f"{place.dsn} user={role}", place.name, publication="given")
        yield made
        made.drop_slot()
        made.close()


def name(table: str) -> RelationName:
    return RelationName("source", "public", table)


def rows_of(place: Database) -> list[tuple[object, ...]]:
    """The publications as they stand in the catalog, with the versions of their rows."""
    return place.rows(
        "SELECT p.oid, p.xmin::text, r.oid, r.xmin::text FROM pg_publication p"
        " LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid ORDER BY 1, 3"
    )


def statements_of(error: SourceError) -> str:
    return error.hint.replace("add a PRIMARY KEY, or ", "").replace("FOR TABLE ...", "FOR TABLE t")


@pytest.mark.parametrize("made", REFUSED)
def test_what_is_refused_says_what_to_run(
    place: Database, source: PostgresSource, made: str
) -> None:
    table, code = REFUSED[made]
    place.execute(made)
    before = rows_of(place)
    for refuse in (source.watch, source.check_tables):
        with pytest.raises(SourceError) as caught:
            refuse([name(table)])
        assert caught.value.code == code
        with_owner = "role" in caught.value.detail or code == "source.publication_missing"
        assert with_owner, caught.value.detail
    assert rows_of(place) == before
    place.execute(statements_of(caught.value))
    source.watch([name(table)])
    source.check()


@pytest.mark.parametrize("made", TAKEN)
def test_every_kind_of_publication_is_read(
    place: Database, source: PostgresSource, made: str
) -> None:
    tables, removal = TAKEN[made]
    place.execute(made)
    before = rows_of(place)
    source.ensure_slot()
    source.watch([name(table) for table in tables])
    relations = [relation_of(place, table) for table in tables]
    source.require_watched(relations)
    listed = {table.name: table for table in source.list_tables("")}
    assert (listed["t"].is_published, listed["t"].refusal) == (True, None)
    refused = listed["bare"].refusal
    assert refused is not None and refused.code == "source.no_replica_identity"
    catalog = source.tables()
    oids = [relation.oid for relation in relations]
    facts = catalog.read(oids, {}).tables
    assert [facts[oid].withheld for oid in oids] == ["", ""]
    with streaming(source, source.current_position(), relations) as stream:
        place.execute("INSERT INTO t VALUES (7, 7); INSERT INTO p VALUES (7, 7); TRUNCATE t")
        assert sum(batch.rows for batch in read_all(source, stream)) == 3
    digest = catalog.digest(facts)
    source.unwatch(relations)
    assert source.watched() and rows_of(place) == before
    place.execute(removal)
    assert catalog.digest(facts) != digest
    now = catalog.read(oids, facts).tables
    error = why_lost(relations[0], [0, 1], facts[oids[0]], now[oids[0]], given="given")
    assert error is not None and error.code == "source.not_published"
    assert error.hint.startswith('ALTER PUBLICATION "given" ADD TABLE "public"."t";')
    with pytest.raises(SourceError) as caught:
        source.require_watched(relations)
    wanted = "publication_missing" if "DROP PUBLICATION" in removal else "not_published"
    assert caught.value.code == f"source.{wanted}"
    catalog.close()


def test_a_table_leaves_its_published_schema(place: Database, source: PostgresSource) -> None:
    place.execute("CREATE PUBLICATION given FOR TABLES IN SCHEMA public; CREATE SCHEMA elsewhere")
    relation, catalog = relation_of(place, "t"), source.tables()
    facts = catalog.read([relation.oid], {}).tables
    digest = catalog.digest(facts)
    place.execute("ALTER TABLE t SET SCHEMA elsewhere")
    assert catalog.digest(facts) != digest
    now = catalog.read([relation.oid], facts).tables[relation.oid]
    error = why_lost(relation, [0, 1], facts[relation.oid], now, given="given")
    assert error is not None and '"elsewhere"."t"' in error.hint
    catalog.close()


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE p ATTACH PARTITION own FOR VALUES FROM (2000) TO (3000)",
        "ALTER TABLE q ATTACH PARTITION own FOR VALUES FROM (2000) TO (3000);"
        " ALTER PUBLICATION given ADD TABLE q",
    ],
)
@pytest.mark.parametrize("is_given", [True, False])
def test_a_table_becomes_a_part_of_a_published_one(
    place: Database, source: PostgresSource, change: str, is_given: bool
) -> None:
    """From then on its changes are sent as those of the whole, so its own readers would miss
    them."""
    place.execute(
        "CREATE TABLE own (id int NOT NULL PRIMARY KEY, v int); GRANT SELECT ON own TO PUBLIC;"
        " CREATE TABLE q (id int NOT NULL PRIMARY KEY, v int) PARTITION BY RANGE (id);"
        f" CREATE PUBLICATION given FOR TABLE own, p {VIA_ROOT}"
    )
    relation, catalog = relation_of(place, "own"), source.tables()
    if not is_given:
        catalog = PostgresSource(place.dsn, names=("none", "given")).tables()
    facts = catalog.read([relation.oid], {}).tables
    for statement in change.split(";"):
        digest = catalog.digest(facts)
        place.execute(statement)
        assert catalog.digest(facts) != digest, statement
        now = catalog.read([relation.oid], facts).tables[relation.oid]
    error = why_lost(relation, [0, 1], facts[relation.oid], now)
    assert error is not None and error.code == "source.publication_altered"
    assert "its changes are sent as those of" in error.detail
    with pytest.raises(SourceError) as caught:
        source.watch([name("own")])
    assert caught.value.code == "source.partition_overlap"
    catalog.close()


def test_partitions_have_their_own_rights(place: Database, source: PostgresSource) -> None:
    """A new one that is empty does no harm; to read one that has rows needs SELECT on it."""
    place.execute(f"CREATE PUBLICATION given FOR TABLE p {VIA_ROOT}")
    relation, catalog = relation_of(place, "p"), source.tables()
    facts = catalog.read([relation.oid], {}).tables
    found = []
    for statements in (
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (1000) TO (2000)",
        "CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (2000) TO (3000);"
        " INSERT INTO p VALUES (2500, 1)",
    ):
        place.execute(statements)
        now = catalog.read([relation.oid], facts).tables
        error = why_lost(relation, [0, 1], facts[relation.oid], now[relation.oid])
        found.append(error and error.code)
        with pytest.raises(SourceError) as caught:
            source.watch([name("p")])
        assert caught.value.code == "source.privilege"
        place.execute(caught.value.hint)
        source.watch([name("p")])
        facts = now
    assert found == [None, "source.partitions_changed"]
    catalog.close()


def test_it_is_left_when_the_source_is_dropped(place: Database) -> None:
    """Also if the service's role could drop it."""
    place.execute("CREATE PUBLICATION given FOR TABLE t")
    before = rows_of(place)
    source = PostgresSource(place.dsn, place.name, publication="given")
    source.ensure_slot()
    source.drop_slot()
    source.close()
    assert rows_of(place) == before
    session = Session(place.dsn)
    removals = SourceRemoval(session, "given", [("given", "none")], frozenset(), "given").find()
    assert not [removal for removal in removals if "publication" in removal.what], removals
    session.close()
    slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    assert place.rows(slots) == [(0,)]
    session = Session(place.dsn)
    assert [n.name for n in GivenPublication(session, "given").tables().values()] == ["t"]
    session.close()
