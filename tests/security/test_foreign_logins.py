"""Oracle: the bytes that a hostile PostgreSQL receives; a plain client in the same environment
sends it what the service would lose."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg2
import pytest
from psycopg2 import _psycopg

from connectors import netguard
from connectors.dbapi import source as dbapi
from connectors.iceberg import sink as iceberg
from connectors.iceberg.iceberg_sink import IcebergSink
from connectors.iceberg.options import IcebergOptions
from connectors.postgres.additional import sink as additional
from connectors.postgres.additional.options import TableOptions
from connectors.postgres.remote import source as remote
from connectors.postgres.remote.options import read_options
from connectors.postgres.session.foreign import OWN, ForeignDsn
from connectors.postgres.session.session import connect
from connectors.sink import SinkTable
from dataflow.errors import SourceError, TidemarkError
from dataflow.schema import Field
from dataflow.types import INT4
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.security.login_servers import postgres_asking, serving

MARK = "marker-of-the-service"
OWN_PASSWORD = "password-of-the-login"
# Requests of the protocol: the login is over; a password as it is, by MD5; Kerberos; SSPI; SCRAM.
OK, PLAIN, MD5 = struct.pack("!I", 0), struct.pack("!I", 3), struct.pack("!I", 5) + b"salt"
KERBEROS, SSPI = struct.pack("!I", 7), struct.pack("!I", 9)
SCRAM = struct.pack("!I", 10) + b"SCRAM-SHA-256\0\0"
# Settings of a session, not of a login; each session sets them again when it has begun.
OF_SESSIONS = {"PGTZ": "UTC", "PGDATESTYLE": "ISO", "PGGEQO": "on"}
# Without a default of the environment's effect on a login: where messages and services are found.
OTHERS = {"PGLOCALEDIR": MARK, "PGSYSCONFDIR": MARK, "PGOAUTHDEBUG": MARK}
# Values that libpq accepts, where it does not take any text.
VALID = {
    "PGSSLMODE": "require",
    "PGCHANNELBINDING": "require",
    "PGCONNECT_TIMEOUT": "1",
    "PGCLIENTENCODING": "SQL_ASCII",
    "PGSSLNEGOTIATION": "postgres",
    "PGSSLCOMPRESSION": "1",
    "PGSSLCERTMODE": "require",
    "PGSSLSNI": "0",
    "PGREQUIREAUTH": "gss",
    "PGSSLMINPROTOCOLVERSION": "TLSv1.3",
    "PGSSLMAXPROTOCOLVERSION": "TLSv1.3",
    "PGGSSENCMODE": "disable",
    "PGGSSDELEGATION": "1",
    "PGTARGETSESSIONATTRS": "standby",
    "PGLOADBALANCEHOSTS": "random",
    "PGPORT": "1",
    "PGHOSTADDR": "127.0.0.9",
}
TABLE = SinkTable("public", "v", (Field("id", INT4, False),), (0,))

Options = dict[str, Any]


def _source(options: Options) -> None:
    remote.discover({**options, "tables": ["public.t"]})


def _sink(options: Options) -> None:
    additional.check(options, TABLE, "t")


def _keywords(options: Options) -> list[ForeignDsn]:
    source = read_options({**options, "tables": ["public.t"]}, needs_columns=False)
    catalog = IcebergOptions.of(_catalog_options(options), TABLE)
    made = [source.login, TableOptions.of(options, TABLE).login, catalog.database]
    return [ForeignDsn.of(login) for login in made]


def _catalog(options: Options) -> None:
    iceberg.check(_catalog_options(options), TABLE, "t")


def _catalog_options(options: Options) -> Options:
    server = f"{options['host']}:{options.get('port', 5432)}"
    url = f"postgresql://{quote(options['user'], safe='')}@{server}/{options['database']}"
    given = {"password": options["password"]} if "password" in options else {}
    return {"path": netguard.installed().writable[0], "catalog": url, **given}


def _module(options: Options) -> None:
    login = {name: value for name, value in options.items() if name != "database" and value}
    relations = {"t": {"query": "SELECT 1 AS id", "key": ["id"]}}
    connect_ = {**login, "dbname": options["database"]}
    dbapi.discover({"module": "psycopg2", "connect": connect_, "relations": relations})


CONNECTORS: dict[str, Callable[[Options], None]] = {
    "source": _source,
    "sink": _sink,
    "catalog": _catalog,
    "module": _module,
}
SIDES = {"source": "source", "sink": "sink", "catalog": "sink", "module": "source"}

OWN_CODES = {"source": "source.own_database", "sink": "sink.own_database"}


@pytest.fixture(autouse=True)
def _warehouse(tmp_path: Path) -> Iterator[Path]:
    """A folder for the files of an Iceberg table."""
    before = netguard.installed()
    folder = tmp_path / "warehouse"
    folder.mkdir()
    netguard.install(replace(before, writable=(str(folder),), modules=("psycopg2",)))
    yield folder
    netguard.install(before)


class _Option(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_char_p) for name in ("keyword", "variable", "compiled", "value")),
        *((name, ctypes.c_char_p) for name in ("label", "shown")),
        ("size", ctypes.c_int),
    ]


def _known() -> dict[str, str]:
    """Each keyword of this libpq with its variable, "" without one."""
    library = ctypes.CDLL(_psycopg.__file__)
    library.PQconndefaults.restype = ctypes.POINTER(_Option)
    found, options = {}, library.PQconndefaults()
    for option in iter(options):
        if option.keyword is None:
            return found
        found[option.keyword.decode()] = (option.variable or b"").decode()
    raise AssertionError


@pytest.fixture
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What an operator may have set for the service's own DSN: every variable, and every file."""
    variables = {name: VALID.get(name, MARK) for name in _known().values() if name}
    service = {k: VALID.get(n, MARK) for k, n in _known().items() if n and k != "service"}
    lines = [f"{k}={v}" for k, v in service.items() if k not in ("host", "hostaddr", "port")]
    (tmp_path / "services").write_text("\n".join([f"[{MARK}]", *lines, ""]))
    (tmp_path / ".pgpass").write_text(f"*:*:*:*:{MARK}\n")
    (tmp_path / ".pgpass").chmod(0o600)
    (tmp_path / ".postgresql").mkdir()
    for name in ("postgresql.crt", "postgresql.key", "root.crt", "root.crl"):
        (tmp_path / ".postgresql" / name).write_text(MARK)
        (tmp_path / ".postgresql" / name).chmod(0o600)
    files = {"PGSERVICEFILE": str(tmp_path / "services"), "HOME": str(tmp_path)}
    for name, value in {**variables, **OF_SESSIONS, **OTHERS, **files}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SECRET_LOGIN", OWN_PASSWORD)


@pytest.mark.usefixtures("_own_environment")
@pytest.mark.parametrize("connector", CONNECTORS)
@pytest.mark.parametrize("request_", [PLAIN, MD5, KERBEROS, SSPI, SCRAM], ids=str)
@pytest.mark.parametrize("password", ["", "${env:SECRET_LOGIN}"])
def test_a_hostile_server_gets_nothing_of_the_service(
    connector: str, request_: bytes, password: str
) -> None:
    with serving(postgres_asking(request_, OK)) as server:
        options = {"host": "127.0.0.1", "port": server.port, "user": "me", "database": "shop"}
        with pytest.raises(TidemarkError) as raised:
            CONNECTORS[connector]({**options, "password": password})
    assert MARK not in server.received.decode("latin-1")
    assert MARK not in f"{raised.value} {raised.value.described}"
    assert b"user\0me\0" in server.received and b"database\0shop\0" in server.received
    # The control: what the login itself says arrives, where the protocol sends it as it is.
    assert (OWN_PASSWORD.encode() in server.received) == (bool(password) and request_ == PLAIN)


@pytest.mark.usefixtures("_own_environment")
def test_a_plain_client_would_lose_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGREQUIREAUTH", "PGCHANNELBINDING", "PGSSLMODE", "PGSERVICE", "PGHOSTADDR"):
        monkeypatch.delenv(name)
    with serving(postgres_asking(PLAIN, OK)) as server, suppress(psycopg2.Error):
        psycopg2.connect(host="127.0.0.1", port=server.port)
    assert server.received.decode("latin-1").count(MARK) > 2


def test_every_default_of_this_libpq_is_set() -> None:
    """A keyword that a newer libpq has must be given a value too."""
    login = {"host": "127.0.0.1", "user": "me", "database": "shop"}
    # What each session sets, whatever the login says; a service cannot be named as none, but all
    # that it could say is said.
    sessions = {"application_name", "client_encoding", "connect_timeout"}
    by_environment = {k for k, variable in _known().items() if variable} - {"service"}
    for dsn in _keywords(login):
        assert by_environment - sessions <= set(dsn.keywords())


@pytest.mark.parametrize("option", ["host", "user", "database"])
@pytest.mark.parametrize("connector", ["source", "sink", "catalog"])
def test_only_the_password_may_be_a_reference(
    connector: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user by the name of a secret would be sent as it is, and of any variable."""
    monkeypatch.setenv("PGPASSWORD", MARK)
    with serving(postgres_asking(PLAIN, OK)) as server:
        options = {"host": "127.0.0.1", "port": server.port, "user": "me", "database": "shop"}
        with pytest.raises(TidemarkError) as raised:
            CONNECTORS[connector]({**options, option: "${env:PGPASSWORD}"})
    assert raised.value.code == f"{SIDES[connector]}.bad_option"
    assert not server.connections


# --- the service's own databases -----------------------------------------------------------------


@pytest.fixture
def _own(database: Database) -> Iterator[Database]:
    """The service's database, which it reaches by a role of its own, a superuser."""
    OWN.install(database.dsn, "", are_allowed=False)
    yield database
    OWN.install("", "", are_allowed=True)


@pytest.fixture
def _role(database: Database) -> Iterator[str]:
    """A role without rights."""
    name = f"shopper_{os.getpid()}"
    database.execute(f"CREATE ROLE {name} LOGIN REPLICATION")
    yield name
    database.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def _code(act: Callable[[], object]) -> str:
    try:
        act()
    except TidemarkError as error:
        return error.code
    return ""


def _login(database: Database, name: str, user: str) -> Options:
    return {"host": "127.0.0.1", "port": database.server.port, "user": user, "database": name}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("connector", CONNECTORS)
def test_the_own_database_is_refused_whatever_it_is_called(
    connector: str, host: str, _own: Database, _role: str
) -> None:
    """For a role of its own too: the service trusts what is in that database."""
    _own.execute("CREATE TABLE t (id int PRIMARY KEY)")

    def act(user: str) -> str:
        options = {**_login(_own, _own.name, user), "host": host}
        return _code(lambda: CONNECTORS[connector](options))

    assert act("postgres") == act(_role) == OWN_CODES[SIDES[connector]]
    OWN.install(_own.dsn, "", are_allowed=True)
    assert act("postgres") == ""


def test_a_trigger_of_a_role_does_not_run_as_the_service(_own: Database, _role: str) -> None:
    """A catalog's table that a role has made before, in a database where it may make tables."""
    _own.execute(f"GRANT CREATE ON SCHEMA public TO {_role}")
    name = "iceberg_namespace_properties"
    _own.execute(f"""
        SET ROLE {_role};
        CREATE TABLE iceberg_tables (
            catalog_name text, table_namespace text, table_name text, metadata_location text,
            previous_metadata_location text, iceberg_type text);
        CREATE TABLE {name} (
            catalog_name text, namespace text, property_key text, property_value text);
        CREATE FUNCTION grab() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            EXECUTE 'ALTER ROLE {_role} SUPERUSER'; RETURN NEW; END $$;
        CREATE TRIGGER grab BEFORE INSERT ON {name} FOR EACH ROW EXECUTE FUNCTION grab()""")
    options = IcebergOptions.of(_catalog_options(_login(_own, _own.name, "postgres")), TABLE)
    asked = "SELECT rolsuper FROM pg_roles WHERE rolname = %s"
    assert _code(lambda: IcebergSink(options, TABLE, "i").open()) == "sink.own_database"
    assert _own.rows(asked, (_role,)) == [(False,)]
    # The control: the attack works where the operator permits the database.
    OWN.install(_own.dsn, "", are_allowed=True)
    assert _code(lambda: IcebergSink(options, TABLE, "i").open()) == ""
    assert _own.rows(asked, (_role,)) == [(True,)]


@pytest.mark.parametrize("connector", CONNECTORS)
def test_another_database_of_the_server_needs_a_login_of_its_own(
    connector: str, _own: Database, _role: str
) -> None:
    other = f"{_own.name}_other"
    _own.execute(f"CREATE DATABASE {other} TEMPLATE template0 OWNER {_role}")
    try:
        foreign = Database(_own.server, other)
        foreign.execute(f"CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t OWNER TO {_role}")
        foreign.execute(f"GRANT CREATE ON SCHEMA public TO {_role}")
        act = lambda user: CONNECTORS[connector](_login(_own, other, user))  # noqa: E731
        assert _code(lambda: act(_role)) == ""
        assert _code(lambda: act("postgres")) == OWN_CODES[SIDES[connector]]
        # What leads to the server's machine, or to a superuser, is no login of its own.
        for power in ("pg_execute_server_program", "postgres"):
            _own.execute(f"GRANT {power} TO {_role}")
            assert _code(lambda: act(_role)) == OWN_CODES[SIDES[connector]], power
            _own.execute(f"REVOKE {power} FROM {_role}")
        assert _code(lambda: act(_role)) == ""
        foreign.execute(f"DROP OWNED BY {_role}")
    finally:
        _own.execute(f"DROP DATABASE {other} WITH (FORCE)")


@pytest.mark.whole
def test_the_service_refuses_its_own_database(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    options = {**_login(database, database.name, "postgres"), "tables": ["public.t"]}
    body = {"type": "postgres", "options": options}
    refused: Options = {}
    allowed: Options = {"allow_own_database": True}
    for settings, code in ((refused, "source.own_database"), (allowed, None)):
        with RunningService(database.dsn, tmp_path / str(code), **settings) as service:
            answer = service.call("POST", "/sources/discover", body)
        assert answer.json().get("code") == code
        assert answer.status_code == (403 if code else 200)


def test_another_server_may_have_a_superuser(_own: Database, own_postgres: Any) -> None:
    other = Database(own_postgres, "postgres")
    other.execute("CREATE TABLE t (id int PRIMARY KEY)")
    for act in CONNECTORS.values():
        assert _code(lambda act=act: act(_login(other, "postgres", "postgres"))) == ""
    other.execute("DROP TABLE t")


def test_nothing_is_opened_while_the_own_database_is_unknown(database: Database) -> None:
    OWN.install("host=127.0.0.1 port=1 dbname=gone user=me", "", are_allowed=False)
    try:
        options = _login(database, database.name, "postgres")
        assert _code(lambda: _source(options)) == "source.unreachable"
    finally:
        OWN.install("", "", are_allowed=True)


def test_a_probe_opens_the_checked_address(database: Database) -> None:
    """A call that takes long is checked in a second session, whose name is not resolved again."""
    options = {**_login(database, database.name, "postgres"), "host": "localhost"}
    dsn = _keywords(options)[0]
    with connect(dsn) as session:
        assert session.keywords is not None
        assert session.keywords["hostaddr"] == dsn.keywords()["hostaddr"]
        assert session.keywords["passfile"] == "/nonexistent"
    session.close()


def test_a_secret_is_looked_up_when_it_is_used(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**_login(database, database.name, "postgres"), "password": "${env:SECRET_LATER}"}
    monkeypatch.setenv("SECRET_LATER", "any")
    dsn = _keywords(options)[0]
    assert "${env:SECRET_LATER}" in dsn
    monkeypatch.delenv("SECRET_LATER")
    with pytest.raises(SourceError) as raised:
        connect(dsn)
    assert raised.value.code == "secret.missing"
