"""Oracle: a server put into each bad state on purpose, and the code documented for it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.postgres.session.session import redact
from connectors.postgres.source import PostgresSource
from dataflow.errors import SourceError, TemporaryError, TidemarkError
from dataflow.schema import RelationName
from tests.connectors.postgres.reading import opened, read_all, relation_of, streaming
from tests.harness.postgres import SERVER_SETTINGS, Database, new_database, versions_to_test


def refused(call, *arguments, **options) -> TidemarkError:
    with pytest.raises(TidemarkError) as caught:
        call(*arguments, **options)
    error = caught.value
    assert isinstance(error, TemporaryError) or error.hint, error
    return error


def name(table: str) -> RelationName:
    return RelationName("source", "public", table)


@pytest.fixture
def role(database: Database) -> Iterator[str]:
    """A role with no rights, and the DSN that logs in as it."""
    user = f"weak_{database.name}"
    database.execute(f"CREATE ROLE {user} LOGIN PASSWORD 'hush hush'")
    yield user
    database.execute(f"DROP OWNED BY {user}")
    database.execute(f"DROP ROLE {user}")


def test_unreachable(database: Database) -> None:
    source = PostgresSource("host=127.0.0.1 port=1 dbname=x user=u password=sesame")
    for call in (source.check, source.identity, source.ensure_slot, source.open_snapshot):
        error = refused(call)
        assert (error.code, error.is_temporary) == ("source.unreachable", True)
        assert "sesame" not in f"{error} {error.what} {error.detail} {error.hint}"
    dsn = f"{database.dsn} password=sesame"
    error = refused(PostgresSource(dsn.replace(database.name, "nowhere")).check)
    assert error.code == "source.database" and "sesame" not in error.detail
    error = refused(PostgresSource(f"{dsn} user=nobody_at_all").check)
    assert error.code == "source.login" and "sesame" not in error.detail
    error = refused(PostgresSource("postgresql://u:se%zzsame@h/x").check)
    assert error.code == "source.dsn" and "same" not in error.detail
    assert redact("postgresql://u:sesame@h/x?sslpassword=sesame").count("sesame") == 0


def test_settings_of_the_server() -> None:
    settings = {**SERVER_SETTINGS, "wal_level": "replica"}
    with EmbeddedPostgres(versions_to_test()[0], settings) as server:
        error = refused(PostgresSource(server.dsn).check)
        assert error.code == "source.wal_level" and "ALTER SYSTEM" in error.hint
        assert refused(PostgresSource(server.dsn).ensure_slot).code == "source.wal_level"


def test_no_free_slot_and_no_free_wal_sender() -> None:
    settings = {**SERVER_SETTINGS, "max_replication_slots": 1, "max_wal_senders": 1}
    with (
        EmbeddedPostgres(versions_to_test()[0], settings) as server,
        new_database(server) as database,
    ):
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        with opened(database, "t") as (source, [relation]):
            source.check()
            assert refused(source.open_snapshot, [relation]).code == "source.no_free_slot"
            other = PostgresSource(database.dsn, "other")
            assert refused(other.check).code == "source.no_free_slot"
            assert refused(other.ensure_slot).code == "source.no_free_slot"
            with streaming(source, source.current_position(), [relation]):
                error = refused(source.open_snapshot, [relation])
                assert error.code == "source.no_free_wal_sender"
                assert refused(source.identity).code == "source.no_free_wal_sender"


def test_privileges(database: Database, role: str) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE ROLE boss_of_t")
    database.execute("ALTER TABLE t OWNER TO boss_of_t")
    try:
        dsn = f"{database.dsn} user={role}"
        source = PostgresSource(dsn, database.name)
        steps = [
            (source.check, f"ALTER ROLE {role} REPLICATION", "REPLICATION"),
            (source.check, f"GRANT CREATE ON DATABASE {database.name} TO {role}", "CREATE"),
            (lambda: source.watch([name("t")]), f"GRANT SELECT ON t TO {role}", "SELECT"),
            (lambda: source.watch([name("t")]), f"GRANT boss_of_t TO {role}", "boss_of_t"),
        ]
        for call, remedy, word in steps:
            error = refused(call)
            assert error.code == "source.privilege" and word in error.hint, error.hint
            database.execute(remedy)
        source.check()
        source.ensure_slot()
        source.watch([name("t")])
        relation = relation_of(database, "t")
        source.open_snapshot([relation]).close()
        with streaming(source, source.current_position(), [relation]) as stream:
            database.execute("INSERT INTO t VALUES (1)")
            assert sum(b.rows for b in read_all(source, stream)) == 1
        source.drop_slot()
        source.close()
    finally:
        database.execute("DROP TABLE t; DROP ROLE boss_of_t")


def test_a_role_without_replication_cannot_open_a_stream(database: Database, role: str) -> None:
    source = PostgresSource(f"{database.dsn} user={role}")
    assert refused(source.identity).code == "source.privilege"


def test_tables_that_cannot_be_followed(database: Database) -> None:
    database.execute(
        "CREATE TABLE nokey (a int); CREATE TABLE nothing (a int PRIMARY KEY);"
        "ALTER TABLE nothing REPLICA IDENTITY NOTHING; CREATE VIEW v AS SELECT 1 AS a;"
        "CREATE UNLOGGED TABLE fast (a int PRIMARY KEY); CREATE TABLE parent (a int PRIMARY KEY);"
        "CREATE TABLE child () INHERITS (parent);"
        "CREATE TABLE part (a int PRIMARY KEY) PARTITION BY RANGE (a);"
        "CREATE TABLE part1 PARTITION OF part FOR VALUES FROM (0) TO (10)"
    )
    source = PostgresSource(database.dsn, database.name)
    expected = {
        "nokey": "source.no_replica_identity",
        "nothing": "source.no_replica_identity",
        "v": "source.not_publishable",
        "fast": "source.not_publishable",
        "parent": "source.not_publishable",
        "absent": "source.table_missing",
    }
    for table, code in expected.items():
        with pytest.raises(SourceError) as caught:
            source.watch([name(table)])
        assert caught.value.code == code, table
    # Refused before anything is published: nobody's UPDATE or DELETE has begun to fail.
    database.execute("INSERT INTO nokey VALUES (1); UPDATE nokey SET a = 2; DELETE FROM nokey")
    assert source.watched() == []
    error = refused(source.watch, [name("part"), name("part1")])
    assert error.code == "source.partition_overlap"
    source.watch([name("part")])
    assert refused(source.watch, [name("part1")]).code == "source.partition_overlap"
    database.execute("ALTER TABLE part1 REPLICA IDENTITY FULL")
    assert refused(source.watch, [name("part")]).code == "source.no_replica_identity"
    source.drop_slot()
    source.close()


def test_watch_and_unwatch(database: Database) -> None:
    database.execute(
        'CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE "Od\'d ""one" (id int PRIMARY KEY)'
    )
    odd = "Od'd \"one"
    source = PostgresSource(database.dsn, database.name)
    source.watch([name("t"), name(odd)])
    source.watch([name("t")])
    assert {n.name for n in source.watched()} == {odd, "t"}
    [(is_root, is_all)] = database.rows("SELECT pubviaroot, puballtables FROM pg_publication")
    assert is_root and not is_all
    source.unwatch([name(odd), name("never"), name(odd)])
    assert [n.name for n in source.watched()] == ["t"]
    relation = relation_of(database, "t")
    source.require_watched([relation])
    source.unwatch([relation])
    assert refused(source.require_watched, [relation]).code == "source.not_published"
    database.execute("DROP TABLE t")
    assert refused(source.require_watched, [relation]).code == "source.table_missing"
    source.unwatch([relation])
    source.drop_slot()
    source.drop_slot()
    assert refused(source.require_watched, [relation]).code == "source.publication_missing"
    source.close()


def test_a_slot_dropped_or_made_again_is_refused(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with opened(database, "t") as (source, [relation]):
        position = source.current_position()
        database.execute("SELECT pg_drop_replication_slot(%s)", (source.slot_name,))
        assert refused(source.stream, position, [relation]).code == "source.slot_missing"
        assert refused(source.require_slot).code == "source.slot_missing"
        database.execute("INSERT INTO t VALUES (1)")
        database.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (source.slot_name,)
        )
        assert refused(source.stream, position, [relation]).code == "source.slot_advanced"
        source.require_slot()
        assert source.ensure_slot() > position


def test_a_foreign_slot_is_not_taken(database: Database) -> None:
    source = PostgresSource(database.dsn, database.name)
    database.execute("CREATE DATABASE elsewhere")
    other = Database(database.server, "elsewhere")
    try:
        other.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (source.slot_name,)
        )
        for call in (source.check, source.ensure_slot, source.require_slot):
            assert refused(call).code == "source.slot_foreign"
        other.execute("SELECT pg_drop_replication_slot(%s)", (source.slot_name,))
    finally:
        source.close()
        database.execute("DROP DATABASE elsewhere WITH (FORCE)")


def test_another_server_is_refused(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with opened(database, "t") as (source, [relation]):
        identity = source.identity()
        assert identity.database == database.name
        position = source.current_position()
        source.require_slot(list(identity))
        source.stream(position, [relation], identity=list(identity)).close()
        for wrong in (
            identity._replace(system="1"),
            identity._replace(timeline=identity.timeline + 1),
            identity._replace(database="x"),
        ):
            assert refused(source.require_slot, wrong).code == "source.identity_changed"
            error = refused(source.stream, position, [relation], identity=wrong)
            assert error.code == "source.identity_changed"
        error = refused(source.stream, position + (1 << 40), [relation])
        assert error.code == "source.identity_changed"


def test_a_lost_slot_is_refused() -> None:
    settings = {
        **SERVER_SETTINGS,
        "max_slot_wal_keep_size": "1MB",
        "max_wal_size": "64MB",
        "min_wal_size": "32MB",
    }
    with (
        EmbeddedPostgres(versions_to_test()[0], settings) as server,
        new_database(server) as database,
    ):
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        with opened(database, "t") as (source, [relation]):
            position = source.current_position()
            deadline = time.monotonic() + 60
            while database.rows("SELECT wal_status FROM pg_replication_slots") != [("lost",)]:
                assert time.monotonic() < deadline
                database.execute("SELECT pg_logical_emit_message(true, 'x', 'y')")
                database.execute("SELECT pg_switch_wal()")
                database.execute("CHECKPOINT")
            for call in (source.check, source.ensure_slot, source.require_slot):
                assert refused(call).code == "source.slot_lost"
            assert refused(source.stream, position, [relation]).code == "source.slot_lost"


def test_a_publication_dropped_under_the_stream(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with opened(database, "t") as (source, [relation]):
        with streaming(source, source.current_position(), [relation]) as stream:
            database.execute(f"DROP PUBLICATION {source.publication_name}")
            database.execute("INSERT INTO t VALUES (1)")
            if database.server.version < 18:
                with pytest.raises(SourceError) as caught:
                    for _ in range(100):
                        stream.poll(10, 0.1)
                assert caught.value.code == "source.publication_missing"
        error = refused(source.stream, stream.position, [relation])
        assert error.code == "source.publication_missing"
