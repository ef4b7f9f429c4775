"""Oracle: what PostgreSQL says of the session, and the documented meaning of its SQLSTATEs."""

from __future__ import annotations

import subprocess
import sys
import time

import psycopg2
import pytest

from connectors.postgres.replication.wal_connection import WalConnection
from connectors.postgres.session.session import Session, connect, redact, translated
from connectors.postgres.session.session_settings import NOT_PINNED, PINNED, later_settings
from dataflow.errors import SinkError, SourceError, TemporaryError
from tests.harness.hostile_settings import make_hostile
from tests.harness.postgres import Database
from tests.harness.psql import roles

pytestmark = pytest.mark.versions


def test_settings_are_pinned(every_database: Database) -> None:
    dsn = f"{every_database.dsn} options='-c TimeZone=Asia/Tokyo -c work_mem=7MB'"
    connection = connect(dsn, application_name="tidemark test", settings={"work_mem": "9MB"})
    with connection.cursor() as cursor:
        for name, value in {
            **PINNED,
            "work_mem": "9MB",
            "statement_timeout": "1min",
            "lock_timeout": "30s",
        }.items():
            cursor.execute("SELECT current_setting(%s)", (name,))
            assert cursor.fetchone() == (value,), name
        cursor.execute("SELECT current_setting('application_name')")
        assert cursor.fetchone() == ("tidemark test",)
    connection.close()


@pytest.mark.parametrize("is_replication", [False, True])
def test_no_role_or_database_has_a_say_in_values(
    every_database: Database, is_replication: bool
) -> None:
    place = every_database
    with roles(place, "hostile"):
        place.execute("ALTER ROLE hostile REPLICATION")
        for target in (f"ROLE hostile IN DATABASE {place.name}", "ROLE hostile"):
            given = make_hostile(place, target)
        dsn = place.dsn.replace("user=postgres", "user=hostile")
        if is_replication:
            wal = WalConnection(dsn)
            rows = wal.command("SELECT name, setting FROM pg_settings")
            version = wal.server_version
            wal.close()
        else:
            session = Session(dsn)
            rows = session.rows("SELECT name, setting FROM pg_settings")
            version = session.server_version
            session.close()
    found = {name.lower(): value for name, value in rows}
    pinned = {**PINNED, **later_settings(version)}
    assert {n.lower() for n in pinned} <= {n.lower() for n in given}
    assert {n: found[n.lower()] for n in pinned} == pinned
    assert all(found[n] == "0" for n in found if n.startswith("idle_") and n.endswith("timeout"))


def test_every_setting_is_pinned_or_known_to_be_harmless(every_database: Database) -> None:
    """What a new version brings has to be put into one of the lists."""
    rows = every_database.rows(
        "SELECT name FROM pg_settings WHERE context IN ('user', 'superuser')"
    )
    pinned = {
        n.lower() for n in (*PINNED, "transaction_timeout", "restrict_nonsystem_relation_kind")
    }
    known = tuple(word for words in NOT_PINNED.values() for word in words)
    assert [n for (n,) in rows if n.lower() not in pinned and not n.startswith(known)] == []


def test_redacted_dsns_still_name_the_server() -> None:
    shown = redact("postgresql://me:s%20e@db.example:5433/shop?sslmode=require")
    assert "db.example" in shown and "5433" in shown and "s e" not in shown and "s%20e" not in shown
    assert redact("host=h dbname=d") == "dbname=d host=h" or redact("host=h dbname=d")
    assert redact("not a dsn") == "(unreadable DSN)"


@pytest.mark.parametrize(
    ("sql", "side", "kind", "code"),
    [
        ("SELECT 1/0", "source", SourceError, "source.failed"),
        ("SELECT 1/0", "sink", SinkError, "sink.failed"),
        (
            "SELECT pg_terminate_backend(pg_backend_pid())",
            "sink",
            TemporaryError,
            "sink.unreachable",
        ),
        ("DO $$BEGIN RAISE SQLSTATE '40001'; END$$", "sink", TemporaryError, "sink.busy"),
        ("DO $$BEGIN RAISE SQLSTATE '53300'; END$$", "source", TemporaryError, "source.busy"),
        ("SET ROLE powerless; SELECT * FROM pg_authid", "sink", SinkError, "sink.privilege"),
    ],
)
def test_errors_of_statements(
    database: Database, sql: str, side: str, kind: type[Exception], code: str
) -> None:
    database.execute(
        "DO $$BEGIN CREATE ROLE powerless; EXCEPTION WHEN duplicate_object THEN NULL; END$$"
    )
    connection = connect(database.dsn, side=side)
    with pytest.raises(kind) as caught, translated(side, "trying"), connection.cursor() as cursor:
        cursor.execute(sql)
    assert caught.value.code == code  # type: ignore[attr-defined]
    assert isinstance(caught.value.__cause__, psycopg2.Error)
    connection.close()


def test_a_session_survives_the_loss_of_its_connection(database: Database) -> None:
    session = Session(database.dsn)
    [(first,)] = session.rows("SELECT pg_backend_pid()")
    assert session.rows("SELECT pg_backend_pid()") == [(first,)]
    database.execute("SELECT pg_terminate_backend(%s)", (first,))
    [(second,)] = session.rows("SELECT pg_backend_pid()")
    assert first != second
    with pytest.raises(SourceError) as caught:
        session.execute("SELECT nonsense", doing="cannot do it")
    assert caught.value.what == "cannot do it" and "nonsense" in caught.value.detail
    session.close()
    assert session.rows("SELECT 1") == [(1,)]
    session.close()


def test_what_a_killed_client_was_doing_ends_with_it(database: Database) -> None:
    """In the midst of a statement the server hears nothing of its client: it must look."""
    program = (
        "import sys; from connectors.postgres.session.session import connect\n"
        "connect(sys.argv[1], application_name='long', is_long=True)"
        ".cursor().execute('SELECT pg_sleep(600)')"
    )
    found = "SELECT pid FROM pg_stat_activity WHERE application_name = 'long' AND state = 'active'"
    with subprocess.Popen([sys.executable, "-c", program, database.dsn]) as client:
        while not database.rows(found):
            assert client.poll() is None
            time.sleep(0.05)
        client.kill()
    deadline = time.monotonic() + 60
    while database.rows(found):
        assert time.monotonic() < deadline, "it goes on for nobody"
        time.sleep(0.1)
