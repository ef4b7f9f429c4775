"""Oracle: the bytes that a hostile MySQL receives, whatever kind of login it asks for; and a real
MariaDB, which users of each kind log in to."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from pymysql.constants import CLIENT

from connectors import netguard
from connectors.mysql import discover
from connectors.mysql import sink as mysql_sink
from connectors.mysql.server import Server
from connectors.netguard import Guard
from connectors.outside.logins import MySqlLogin
from connectors.outside.mysql_plugins import plugins
from connectors.sink import SinkTable
from connectors.table_options import Tls
from dataflow.errors import TidemarkError
from dataflow.schema import Field
from dataflow.types import INT4
from tests.harness.mariadb import MariaDb, MariaDbServer, missing
from tests.security.login_servers import certificate_of, mysql_asking, serving

PASSWORD = "password-of-the-login"
SALT = b"12345678901234567890\0"
TABLE = SinkTable("public", "v", (Field("id", INT4, False),), (0,))
Options = dict[str, Any]


def _source(options: Options) -> None:
    discover.discover({**options, "tables": ["shop.t"]})


def _sink(options: Options) -> None:
    mysql_sink.check({**options, "database": "shop"}, TABLE, "t")


CONNECTORS: dict[str, Callable[[Options], object]] = {"source": _source, "sink": _sink}


def _public_key() -> bytes:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    kinds = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(*kinds)


def _switch(plugin: bytes, data: bytes = SALT) -> bytes:
    return b"\xfe" + plugin + b"\0" + data


# What a hostile server says, in the greeting and then one by one.
ASKS: dict[str, tuple[bytes, ...]] = {
    "clear": (b"mysql_native_password", _switch(b"mysql_clear_password", b"")),
    "clear at once": (b"mysql_clear_password", _switch(b"mysql_clear_password", b"")),
    "dialog": (b"mysql_native_password", _switch(b"dialog", b"\x02Password: ")),
    "old": (b"mysql_native_password", _switch(b"mysql_old_password")),
    "sha256": (b"sha256_password", b"\x01" + _public_key()),
    "sha256 later": (
        b"mysql_native_password",
        _switch(b"sha256_password"),
        b"\x01" + _public_key(),
    ),
    "caching": (b"caching_sha2_password", b"\x01\x04", b"\x01" + _public_key()),
    "caching later": (
        *(b"mysql_native_password", _switch(b"caching_sha2_password")),
        *(b"\x01\x04", b"\x01" + _public_key()),
    ),
}


@pytest.mark.parametrize("connector", CONNECTORS)
@pytest.mark.parametrize("asks", ASKS)
def test_the_password_does_not_leave_without_tls(
    connector: str, asks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_LOGIN", PASSWORD)
    plugin, *requests = ASKS[asks]
    with serving(mysql_asking(plugin, *requests)) as server:
        options = {"host": "127.0.0.1", "port": server.port, "user": "me"}
        with pytest.raises(TidemarkError) as raised:
            CONNECTORS[connector]({**options, "password": "${env:SECRET_LOGIN}"})
    assert b"me\0" in server.received
    assert raised.value.code == f"{connector}.login"
    assert PASSWORD.encode() not in server.received
    # What is encrypted for a key of 2,048 bits.
    assert len(server.received) < 500


def test_a_plain_client_would_lose_it() -> None:
    plugin, *requests = ASKS["clear"]
    with serving(mysql_asking(plugin, *requests)) as server, pytest.raises(pymysql.Error):
        pymysql.connect(host="127.0.0.1", port=server.port, user="me", password=PASSWORD)
    assert PASSWORD.encode() in server.received


@pytest.mark.parametrize("password", ["", PASSWORD])
def test_a_user_of_caching_sha2_logs_in_by_the_challenge(password: str) -> None:
    """The answers of MySQL to a user that it has in its cache, and to one without a password."""
    passed = (b"\x01\x03",) if password else ()
    ok = b"\x00\x00\x00\x02\x00\x00\x00"
    for talk in (
        mysql_asking(b"caching_sha2_password", *passed[:1]),
        mysql_asking(b"mysql_native_password", _switch(b"caching_sha2_password"), *passed),
    ):
        with serving(_then(talk, ok, has_more=bool(passed))) as server:
            settings = MySqlLogin("127.0.0.1", server.port, "me").settings()
            with pytest.raises(pymysql.Error) as raised:
                pymysql.connect(**{**settings, "password": password})
        # The login is over: the server has ended the connection at the first statement.
        assert raised.value.args[0] in (2006, 2013), raised.value


def _then(talk: Any, ok: bytes, *, has_more: bool) -> Any:
    def both(recorder: Any, client: Any) -> None:
        talk(recorder, _Last(client, ok, has_more=has_more))

    return both


class _Last:
    """A socket that sends the end of the login along with the last answer."""

    def __init__(self, client: Any, ok: bytes, *, has_more: bool) -> None:
        self._client, self._ok, self._has_more = client, ok, has_more

    def sendall(self, content: bytes) -> None:
        if self._has_more and content[4:] == b"\x01\x03":
            number = content[3]
            head = struct.pack("<I", len(self._ok))[:3] + bytes([number + 1])
            content += head + self._ok
        self._client.sendall(content)

    def recv(self, count: int) -> bytes:
        return self._client.recv(count)


@pytest.mark.parametrize("password", [PASSWORD, "pässwörd €1"])
def test_a_real_user_logs_in(
    mariadb: MariaDb, monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    monkeypatch.setenv("SECRET_LOGIN", password)
    user = f"me_{mariadb.name}"
    mariadb.execute(f"CREATE USER {user} IDENTIFIED BY '{password}'")
    try:
        login = MySqlLogin("127.0.0.1", mariadb.server.port, user, "${env:SECRET_LOGIN}")
        with Server(login, "shop") as server:
            assert server.texts("SELECT CURRENT_USER()") == [(f"{user}@%",)]
    finally:
        mariadb.execute(f"DROP USER {user}")


def test_no_option_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".my.cnf").write_text("[client]\npassword=marker\nuser=marker\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MYSQL_PWD", "marker")
    with serving(mysql_asking(b"mysql_native_password")) as server, pytest.raises(TidemarkError):
        _source({"host": "127.0.0.1", "port": server.port, "user": "me"})
    assert b"marker" not in server.received


def test_no_file_is_sent() -> None:
    """A server may answer any statement with a request for a file of the client."""
    settings = MySqlLogin("127.0.0.1", 1, "me").settings()
    assert settings["local_infile"] is False
    flags = pymysql.connections.Connection(**settings, defer_connect=True).client_flag
    assert not flags & CLIENT.LOCAL_FILES


def test_which_kinds_are_refused() -> None:
    assert {"mysql_clear_password", "dialog"} <= plugins(has_tls=False).keys()
    assert "dialog" in plugins(has_tls=True)


@pytest.fixture
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of this machine that no other resolver knows."""
    real = netguard.check_host
    known = {"db.example": ["127.0.0.1"], "other.example": ["127.0.0.1"]}
    check = lambda host, port=0: known.get(host) or real(host, port)  # noqa: E731
    monkeypatch.setattr(netguard, "check_host", check)


@pytest.mark.usefixtures("_names")
@pytest.mark.parametrize("verifies_host", [True, False])
def test_with_tls_the_checked_address_is_opened(
    verifies_host: bool, tls_server: tuple[int, str]
) -> None:
    """And the certificate is the name's: no other reader resolves the name again."""
    port, authority = tls_server
    tls = Tls(ca_file=authority, verifies_host=verifies_host)
    for host, is_reached in (("db.example", True), ("other.example", not verifies_host)):
        login = MySqlLogin(host, port, "root", tls=tls)
        if is_reached:
            with Server(login, "shop") as server:
                assert server.texts("SHOW STATUS LIKE 'Ssl_version'")[0][1].startswith("TLS")
            continue
        with pytest.raises(TidemarkError) as raised:
            Server(login, "shop")
        assert raised.value.code == "source.tls"


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, str]]:
    """The port of a MariaDB with a certificate of db.example, and the file of its authority."""
    if why := missing():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = certificate_of(folder, "db.example")
    files = {"ssl-cert": str(certificate), "ssl-key": str(key)}
    before = netguard.installed()
    netguard.install(Guard(folders=(str(folder),)))
    with MariaDbServer(files) as server:
        yield server.port, str(certificate)
    netguard.install(before)
