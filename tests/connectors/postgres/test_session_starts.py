"""Oracle: PostgreSQL's own settings, each of which keeps a session from beginning; and the words
of libpq, PostgreSQL and PgBouncer where no such server can be started here."""

from __future__ import annotations

import pytest

from connectors.loopback import free_port
from connectors.postgres.catalog.catalog import Control
from connectors.postgres.catalog.requests import Requests
from connectors.postgres.session.session import Session, connect
from connectors.postgres.session.start_refusals import start_refusal
from connectors.postgres.sink.postgres_sink import PostgresSink
from dataflow.errors import SinkError, TemporaryError, TidemarkError
from tests.harness.postgres import Database, new_database
from tests.harness.psql import roles

# (SQL in the database for role `guest`, what the DSN says otherwise, code, a word of the hint)
REFUSED = [
    ("", "sslmode=require", "source.tls", "sslmode"),
    ("", "sslmode=verify-full sslrootcert=/nowhere.pem", "source.tls", "sslrootcert"),
    ("", "dbname=nowhere", "source.database", "database name"),
    ("", "user=nobody_of_this_name", "source.login", "pg_hba.conf"),
    ("ALTER ROLE guest NOLOGIN", "", "source.login", "pg_hba.conf"),
    ("REVOKE CONNECT ON DATABASE {0} FROM PUBLIC", "", "source.privilege", "GRANT CONNECT"),
    ("ALTER DATABASE {0} ALLOW_CONNECTIONS false", "", "source.database", "ALLOW_CONNECTIONS"),
    ("ALTER ROLE guest CONNECTION LIMIT 0", "", "source.busy", "max_connections"),
    ("ALTER DATABASE {0} CONNECTION LIMIT 0", "", "source.busy", "max_connections"),
    ("", "target_session_attrs=standby", "source.unreachable", "target_session_attrs"),
    ("", "sslmode=nonsense", "source.dsn", "postgresql://"),
    ("", "port=99999999", "source.dsn", "postgresql://"),
    ("", "port={free}", "source.unreachable", "host and port"),
]
TEMPORARY = {"source.busy", "source.unreachable"}


def test_each_refusal_of_a_start_is_named(database: Database) -> None:
    """With what to do about it: host and port are right, except where nothing listens."""
    admin = Database(database.server, "postgres")
    for sql, otherwise, code, word in REFUSED:
        with roles(database, "guest"), new_database(database.server) as place:
            if sql:
                admin.execute(sql.format(place.name))
            dsn = place.dsn.replace("user=postgres", "user=guest")
            dsn = f"{dsn} {otherwise.format(free=free_port())}"
            with pytest.raises(TidemarkError) as caught:
                connect(dsn)
            error = caught.value
            told = f"{error.what} {error.hint}"
            assert error.code == code and word in told, (sql, otherwise, error, error.hint)
            assert isinstance(error, TemporaryError) == (code in TEMPORARY)
            assert ("host and port" in told) == (word == "host and port")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("SSL error: certificate verify failed", "tls"),
        ('server certificate for "db" does not match host name "127.0.0.1"', "tls"),
        ('could not load private key file "/k.pem": key values mismatch', "tls"),
        ("SSL error: tlsv1 alert unknown ca", "tls"),
        ("SSL error: unexpected eof while reading", "unreachable"),
        ("SSL SYSCALL error: EOF detected", "unreachable"),
        ("FATAL:  connection requires a valid client certificate", "login"),
        ('FATAL:  no pg_hba.conf entry for host "::1", user "me", SSL encryption', "login"),
        ("authentication method 13 not supported", "login"),
        ("FATAL:  sorry, too many clients already", "busy"),
        ("FATAL:  remaining connection slots are reserved for superusers", "busy"),
        ('FATAL:  too many connections for database "shop"', "busy"),
        ("FATAL:  the database system is starting up", "unreachable"),
        # Of PgBouncer 1.18.
        ("FATAL: unsupported startup parameter: options", "pooler"),
        ("FATAL: no more connections allowed (max_client_conn)", "busy"),
        ("FATAL: query_wait_timeout", "unreachable"),
        ("FATAL: no such database: nowhere", "database"),
        ("FATAL: no such user: nobody", "login"),
        ("FATAL: server login failed: FATAL the database system is starting up", "unreachable"),
        ("could not translate host name", "unreachable"),
    ],
)
def test_words_of_other_servers(words: str, name: str) -> None:
    assert start_refusal(f'connection to server at "db", port 1 failed: {words}').name == name


def test_a_session_is_not_kept_longer_than_the_setting_that_it_refuses_by(
    database: Database,
) -> None:
    """ALTER DATABASE ... SET is for new sessions: those that were opened meanwhile stay as it was.

    Each of them writes again once it is reset, without anything that is restarted.
    """
    admin = Database(database.server, "postgres")
    with new_database(database.server) as place:
        before = PostgresSink(place.dsn)
        before.prepare()
        place.execute("CREATE TABLE t (n int)")
        admin.execute(f"ALTER DATABASE {place.name} SET default_transaction_read_only = on")
        control, requests = Control(place.dsn), Requests(place.dsn)
        session, sink = Session(place.dsn, "sink"), PostgresSink(place.dsn)
        writes = {
            "control": lambda: control.retry_source("nothing"),
            "session": lambda: session.execute("INSERT INTO public.t VALUES (1)"),
            "requests": lambda: requests.wait(0),
            "sink": sink.forget_progress,
        }
        for name, write in writes.items():
            with pytest.raises(SinkError) as caught:
                write()
            error = caught.value
            assert (error.code, error.what) == ("sink.read_only", "the sink is read-only"), name
            assert "default_transaction_read_only" in error.hint
        admin.execute(f"ALTER DATABASE {place.name} RESET default_transaction_read_only")
        for write in writes.values():
            write()
        for one in (control, requests, session, sink, before):
            one.close()


def test_a_stopped_server_is_reported_as_unreachable(database: Database) -> None:
    """Whatever was being done when that was found: here, how a lost epoch has ended."""
    sink = PostgresSink(database.dsn)
    sink.claim()
    lost = sink._writing_session()
    assert lost.keywords is not None
    lost.keywords["port"] = str(free_port())
    sink._lost = lost
    with pytest.raises(TemporaryError) as caught:
        sink.read_progress()
    sink.close()
    error = caught.value
    assert (error.code, error.what) == ("sink.unreachable", "the sink cannot be reached")
    assert "refused" in error.detail and "server runs" in error.hint
