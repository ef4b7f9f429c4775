"""Logins to servers of others: the one place that says what a client connects with.

Clients complete what they lack: from variables of the environment, files in the user's home, a
service file. Those are the service's own. Invariant: a server of somebody else gets only what the
options of its source or sink say, so everything that a client would find elsewhere is set here, to
nothing if need be. The address that was checked is the one that is opened. Passwords stay
references until a connection is made.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any, ClassVar

from connectors import netguard
from connectors.option_reader import OptionReader
from connectors.outside.address import AddressError, parse_host
from connectors.outside.mysql_plugins import plugins
from connectors.secrets import has_reference, refuse_plain, resolve
from connectors.table_options import Tls, read_tls
from dataflow.errors import SourceError

# A file that does not exist: nothing is read from the service's home.
NO_FILE = "/nonexistent"
# What libpq would otherwise take from PG* variables and ~/.postgresql. Kerberos tickets and SSPI
# are the service's own, so the server may not ask for them.
LIBPQ_DEFAULTS: dict[str, str] = {
    "passfile": NO_FILE,
    "channel_binding": "prefer",
    "options": "",
    "sslmode": "prefer",
    "sslnegotiation": "postgres",
    "sslcompression": "0",
    "sslcert": NO_FILE,
    "sslkey": NO_FILE,
    "sslcertmode": "disable",
    "sslrootcert": NO_FILE,
    "sslcrl": NO_FILE,
    "sslcrldir": NO_FILE,
    "sslsni": "1",
    "requirepeer": "",
    "require_auth": "none,password,md5,scram-sha-256",
    "ssl_min_protocol_version": "TLSv1.2",
    "ssl_max_protocol_version": "",
    "gssencmode": "disable",
    "krbsrvname": "postgres",
    "gsslib": "",
    "gssdelegation": "0",
    "target_session_attrs": "any",
    "load_balance_hosts": "disable",
    "min_protocol_version": "3.0",
    "max_protocol_version": "3.0",
}


@dataclass(frozen=True)
class HostLogin:
    """A server and who logs in. password: a reference, or "" for none. tls: None without it."""

    host: str
    port: int
    user: str
    password: str = field(default="", repr=False)
    tls: Tls | None = None

    def address(self) -> str:
        """Return the address to open. SourceError host.forbidden; TemporaryError host.unknown."""
        return netguard.check_host(self.host, self.port)[0]


@dataclass(frozen=True)
class PostgresLogin(HostLogin):
    """A database of PostgreSQL. without_tls: libpq's sslmode if no TLS is required."""

    database: str = ""
    without_tls: str = "disable"

    def keywords(self) -> dict[str, str]:
        """Return every keyword of libpq that has a default elsewhere, for a connection made now.

        The password is still a reference; the session adds its application's name and time limits.
        SourceError host.forbidden, path.forbidden; TemporaryError host.unknown.
        """
        return {
            **LIBPQ_DEFAULTS,
            "host": self.host,
            "hostaddr": self.address(),
            "port": str(self.port),
            "user": self.user,
            "dbname": self.database,
            "password": self.password,
            "sslmode": self.without_tls,
            **({} if self.tls is None else _libpq_tls(self.tls)),
        }


@dataclass(frozen=True)
class MySqlLogin(HostLogin):
    """A server of MySQL or MariaDB."""

    FIXED: ClassVar[dict[str, Any]] = {
        "read_default_file": None,
        "read_default_group": None,
        "unix_socket": None,
        "bind_address": None,
        "local_infile": False,
        "init_command": None,
        "server_public_key": None,
    }

    def settings(self) -> dict[str, Any]:
        """Return PyMySQL's settings with the secret resolved, for a connection made now.

        SourceError secret.missing, secret.forbidden, host.forbidden, path.forbidden, source.tls;
        TemporaryError host.unknown.
        """
        encryption: dict[str, Any] = {"ssl_disabled": True}
        if self.tls is not None:
            encryption = {"ssl": tls_context(self.tls, self.host)}
        return {
            **self.FIXED,
            "host": self.address(),
            "port": self.port,
            "user": self.user,
            # Bytes: PyMySQL would encode a text as Latin-1; servers know it in UTF-8.
            "password": resolve(self.password).encode(),
            "auth_plugin_map": plugins(has_tls=self.tls is not None),
            **encryption,
        }


@dataclass(frozen=True)
class MongoLogin:
    """user, password: references or "", which is no login; source: the database that knows the
    user.
    """

    user: str = ""
    password: str = field(default="", repr=False)
    source: str = "admin"

    def settings(self, host: str, port: int) -> dict[str, Any]:
        """Return PyMongo's settings for one server, with the secrets resolved.

        That server alone is reached, not those that it names as members of its set. Only SCRAM is
        spoken: no kind of login that takes keys, tickets or certificates from elsewhere.
        SourceError secret.missing, host.forbidden; TemporaryError host.unknown.
        """
        found = {
            "host": netguard.check_host(host, port)[0],
            "port": port,
            "directConnection": True,
            "tls": False,
        }
        if not self.user:
            return found
        login = {"username": resolve(self.user), "password": resolve(self.password)}
        return {**found, **login, "authSource": self.source}


class NamedContext(ssl.SSLContext):
    """Verifies the certificate of a name, whatever address the client has connected to."""

    name: str = ""

    def wrap_socket(self, *arguments: Any, **keywords: Any) -> ssl.SSLSocket:
        """See ssl.SSLContext; the server's name is that of the options."""
        return super().wrap_socket(*arguments, **{**keywords, "server_hostname": self.name})


def tls_context(tls: Tls, name: str) -> ssl.SSLContext:
    """Return what verifies a server of this name. SourceError path.forbidden, source.tls."""
    for path in tls.files:
        netguard.check_certificate(path)
    found = NamedContext(ssl.PROTOCOL_TLS_CLIENT)
    found.name = name
    try:
        if tls.ca_file:
            found.load_verify_locations(tls.ca_file)
        else:
            found.load_default_certs()
        found.check_hostname = tls.verifies_host
        if tls.certificate_file:
            found.load_cert_chain(tls.certificate_file, tls.key_file or None)
    except (OSError, ssl.SSLError) as error:
        what = 'the certificates of option "tls" cannot be read'
        raise SourceError("source.tls", what, detail=str(error), hint="check tls") from None
    return found


def read_host_login(reader: OptionReader, page: str, port: int) -> HostLogin:
    """Read host, port, user, password and tls. port: the default.

    Errors `<side>.bad_option`; SourceError secret.plain, secret.forbidden.
    """
    host, user = read_host(reader, "host"), read_plain(reader, "user")
    chosen = reader.take("port", int, port)
    if not 0 < chosen < 1 << 16:
        raise reader.refused("port", "must be between 1 and 65535", detail=str(chosen))
    password = reader.take("password", str, "")
    if password:
        refuse_plain("password", password)
    tls = read_tls(reader, page)
    if tls is not None and bool(tls.certificate_file) != bool(tls.key_file):
        raise reader.refused("tls.key_file", "and certificate_file require each other")
    return HostLogin(host, chosen, user, password, tls)


def read_postgres_login(reader: OptionReader, page: str, without_tls: str) -> PostgresLogin:
    """Read how to reach a database. Errors as of `read_host_login`."""
    found = read_host_login(reader, page, 5432)
    database = read_plain(reader, "database")
    if found.tls is not None and not found.tls.verifies_host and not found.tls.ca_file:
        # libpq verifies the name whenever it uses the system's authorities.
        raise reader.refused("tls.verify_host", "can be false only with ca_file")
    return PostgresLogin(**vars(found), database=database, without_tls=without_tls)


def read_host(reader: OptionReader, option: str) -> str:
    """Return the name or address of one server. Errors `<side>.bad_option`."""
    found = reader.take(option, str)
    try:
        return parse_host(found)
    except AddressError as error:
        raise reader.refused(option, str(error), detail=found) from None


def read_plain(reader: OptionReader, option: str, default: str | None = None) -> str:
    """Return a name that is no secret. Errors `<side>.bad_option`."""
    found = reader.take(option, str, default)
    if not is_plain(found):
        raise reader.refused(option, "must be a plain name")
    return found


def is_plain(text: str) -> bool:
    """Return True for a name that may be sent as it is: what refers to a secret would be read.

    >>> is_plain("reader"), is_plain("${env:PGPASSWORD}"), is_plain("")
    (True, False, False)
    """
    return bool(text) and "\0" not in text and not has_reference(text)


def _libpq_tls(tls: Tls) -> dict[str, str]:
    """Return libpq's settings. SourceError path.forbidden."""
    for path in tls.files:
        netguard.check_certificate(path)
    found = {
        "sslmode": "verify-full" if tls.verifies_host or not tls.ca_file else "verify-ca",
        "sslrootcert": tls.ca_file or "system",
    }
    if tls.certificate_file:
        client = {"sslcert": tls.certificate_file, "sslkey": tls.key_file, "sslcertmode": "allow"}
        return found | client
    return found
