"""How to reach a Kafka cluster: servers, TLS, SASL, and client options.

Invariant: stored and shown options hold references to secrets only; they are resolved when a client
is made, and nowhere else. A user cannot set options that make the client read other files, start
programs or lose records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from connectors import netguard
from connectors.option_reader import OptionReader
from connectors.outside.address import AddressError, parse_server
from connectors.secrets import refuse_plain, resolve

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
# Prefixes of the librdkafka settings that users may set under `client`: networks, sizes and times.
# Excluded: settings with a required value (isolation, commits, resets), settings that name a file
# or a program, settings that print secrets, and lookups of names other than those that were
# checked.
ALLOWED = (
    "socket.",
    "reconnect.",
    "retry.backoff.",
    "connections.max.idle.ms",
    "broker.address.",
    "client.id",
    "client.rack",
    "metadata.max.age.ms",
    "topic.metadata.refresh.",
    "metadata.recovery.",
    "receive.message.max.bytes",
    "message.max.bytes",
    "message.copy.max.bytes",
    "max.in.flight",
    "fetch.",
    "max.partition.fetch.bytes",
    "queued.",
    "check.crcs",
    "compression.",
    "linger.ms",
    "batch.",
    "queue.buffering.",
    "sticky.partitioning.linger.ms",
    "request.timeout.ms",
    "message.timeout.ms",
    "delivery.timeout.ms",
    "transaction.timeout.ms",
    "ssl.cipher.suites",
    "ssl.curves.list",
    "ssl.sigalgs.list",
)


@dataclass(frozen=True)
class Tls:
    """TLS options. Files are paths on the service's machine; key_password is a reference."""

    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    key_password: str = ""
    verifies_host: bool = True

    def config(self) -> dict[str, Any]:
        """Return the librdkafka settings."""
        for path in (self.ca_file, self.certificate_file, self.key_file):
            netguard.check_certificate(path)
        files = {
            "ssl.ca.location": self.ca_file,
            "ssl.certificate.location": self.certificate_file,
            "ssl.key.location": self.key_file,
            "ssl.key.password": resolve(self.key_password),
        }
        config: dict[str, Any] = {name: value for name, value in files.items() if value}
        config["ssl.endpoint.identification.algorithm"] = "https" if self.verifies_host else "none"
        return config


@dataclass(frozen=True)
class Sasl:
    """SASL options. mechanism: one of MECHANISMS. password is a reference; username may be one."""

    mechanism: str
    username: str
    password: str

    def config(self) -> dict[str, Any]:
        """Return the librdkafka settings, with secrets resolved."""
        return {
            "sasl.mechanism": self.mechanism,
            "sasl.username": resolve(self.username),
            "sasl.password": resolve(self.password),
        }


@dataclass(frozen=True)
class Connection:
    """Connection options of a cluster; servers are "host:port"."""

    servers: tuple[str, ...]
    tls: Tls | None = None
    sasl: Sasl | None = None
    client: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(reader: OptionReader) -> Connection:
        """Take `bootstrap_servers`, `tls`, `sasl` and `client` out of the options.

        Errors: `<side>.bad_option`, `secret.plain`.
        """
        return Connection(_servers(reader), _tls(reader), _sasl(reader), _client(reader))

    def config(self) -> dict[str, Any]:
        """Return the librdkafka settings with secrets resolved, for a client made now.

        SourceError secret.missing, secret.forbidden, host.forbidden, path.forbidden.
        """
        protocol = ("SASL_" if self.sasl else "") + ("SSL" if self.tls else "PLAINTEXT")
        config: dict[str, Any] = {
            **self.client,
            "bootstrap.servers": ",".join(netguard.check_servers(self.servers)),
            "security.protocol": protocol,
        }
        for part in (self.tls, self.sasl):
            config.update(part.config() if part else {})
        return config


def _servers(reader: OptionReader) -> tuple[str, ...]:
    name = "bootstrap_servers"
    found = reader.raw(name)
    listed = found.split(",") if isinstance(found, str) else found
    if not isinstance(listed, list) or not listed:
        raise reader.refused(name, "must be a list of servers", hint='"host:port,host:port"')
    return tuple(_server(reader, one.strip() if isinstance(one, str) else "") for one in listed)


def _server(reader: OptionReader, text: str) -> str:
    try:
        host, port = parse_server(text)
    except AddressError:
        what = "has an entry that is not host:port"
        raise reader.refused("bootstrap_servers", what, detail=text) from None
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _tls(reader: OptionReader) -> Tls | None:
    found = reader.raw("tls")
    if found is None or found is False:
        return None
    inner = OptionReader({} if found is True else found, reader.side, "tls")
    password = inner.take("key_password", str, "")
    if password:
        refuse_plain("tls.key_password", password)
    texts = [inner.take(n, str, "") for n in ("ca_file", "certificate_file", "key_file")]
    verifies = inner.optional("verify_host", bool)
    inner.end()
    return Tls(*texts, key_password=password, verifies_host=verifies is not False)


def _sasl(reader: OptionReader) -> Sasl | None:
    inner = reader.under("sasl")
    if inner is None:
        return None
    mechanism = inner.choice("mechanism", MECHANISMS, "SCRAM-SHA-512")
    password = refuse_plain("sasl.password", inner.take("password", str))
    username = inner.take("username", str)
    inner.end()
    return Sasl(mechanism, username, password)


def _client(reader: OptionReader) -> dict[str, str]:
    inner = reader.under("client")
    options = {} if inner is None else inner.rest()
    for name, value in options.items():
        if inner is not None and not name.startswith(ALLOWED):
            raise inner.refused(
                name, "cannot be set", hint=f"allowed prefixes: {', '.join(ALLOWED)}"
            )
        if inner is not None and not isinstance(value, str | int | float | bool):
            raise inner.refused(name, "must be a string or a number")
    return {name: _text(value) for name, value in options.items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
