"""Oracle: what MongoDB's and Kafka's clients are given, and what a server receives of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from connectors import netguard
from connectors.dbapi import source as dbapi
from connectors.kafka.options import read_options as read_kafka
from connectors.mongodb import source as mongodb
from connectors.mongodb.options import read_options
from dataflow.errors import SourceError, TidemarkError
from tests.connectors.mongodb.replica_set import ReplicaSet
from tests.security.login_servers import certificate_of, encrypted

Options = dict[str, Any]
COLUMNS = [{"name": "_id", "type": "bigint"}]


def _mongo(*servers: str, **more: Any) -> Options:
    relations = {"orders": {"columns": COLUMNS}}
    found = {"servers": [*servers], "database": "shop", "relations": relations, **more}
    return {**found, "timeout_ms": 3000}


@pytest.fixture
def _names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Names that only the guard resolves; certificates may lie in the test's folder."""
    real = netguard.check_host
    known = {"db.example": ["127.0.0.1"], "other.example": ["127.0.0.1"]}
    monkeypatch.setattr(netguard, "check_host", lambda h, p=0: known.get(h) or real(h, p))
    before = netguard.installed()
    netguard.install(replace(before, folders=(str(tmp_path),)))
    yield
    netguard.install(before)


@pytest.mark.usefixtures("_names")
def test_mongodb_opens_the_checked_address_also_with_tls(tmp_path: Path) -> None:
    """The certificate is the name's, which no other reader resolves again."""
    certificate, key = certificate_of(tmp_path, "db.example")
    with ReplicaSet().running() as server, encrypted(server.port, certificate, key) as port:
        server.put("orders", {"_id": 1})
        for host, more, is_reached in (
            ("db.example", {"tls": True, "ca": str(certificate)}, True),
            ("other.example", {"tls": True, "ca": str(certificate)}, False),
            ("db.example", {"tls": True}, False),
        ):
            found = read_options(_mongo(f"{host}:{port}", **more))
            if is_reached:
                assert mongodb.read(found, found.relations[0], None, 5) == [b'{"_id":1}']
                continue
            with pytest.raises(TidemarkError) as raised:
                mongodb.read(found, found.relations[0], None, 5)
            assert raised.value.code == "mongodb.unreachable"
        # The control: without TLS, the same name is reached by the same address.
        plain = read_options(_mongo(f"other.example:{server.port}"))
        assert mongodb.read(plain, plain.relations[0], None, 5) == [b'{"_id":1}']


def test_mongodb_learns_nothing_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_EXECUTION_ENV": "AWS_Lambda_python3.11",
        "AWS_LAMBDA_RUNTIME_API": "marker",
        "AWS_REGION": "marker",
        "KUBERNETES_SERVICE_HOST": "marker",
    }.items():
        monkeypatch.setenv(name, value)
    found = read_options(_mongo("127.0.0.1:1"))
    with mongodb._client(found, "127.0.0.1", 1) as client:
        assert "env" not in client.options.pool_options.metadata
        assert client.options.pool_options.metadata["driver"]


@pytest.mark.parametrize(
    "server", ["mongodb+srv://db", "a,b:1", "db/x:1", "u@db", "db:1?x=1", "/tmp/mongodb.sock"]
)
def test_a_server_of_mongodb_is_a_host_and_a_port(server: str) -> None:
    """No URL, which would choose kinds of logins, or have servers looked up."""
    with pytest.raises(SourceError) as raised:
        read_options(_mongo(server))
    assert raised.value.option == "servers"


# Settings of librdkafka that name a file, a program, a library, a login, another host, or print
# secrets; and those that decide what a record means.
FORBIDDEN = (
    *("plugin.library.paths", "ssl.ca.location", "ssl.certificate.location", "ssl.key.location"),
    *("ssl.keystore.location", "ssl.keystore.password", "ssl.crl.location", "ssl.engine.location"),
    *("ssl.providers", "ssl.key.pem", "ssl.certificate.pem", "ssl.ca.pem", "ssl.key.password"),
    *("ssl.ca.certificate.stores", "ssl.endpoint.identification.algorithm", "https.ca.location"),
    *("enable.ssl.certificate.verification", "security.protocol", "bootstrap.servers"),
    *("metadata.broker.list", "sasl.mechanism", "sasl.mechanisms", "sasl.username"),
    *("sasl.password", "sasl.kerberos.service.name", "sasl.kerberos.keytab"),
    *("sasl.kerberos.kinit.cmd", "sasl.kerberos.principal", "sasl.oauthbearer.config"),
    *("sasl.oauthbearer.method", "sasl.oauthbearer.token.endpoint.url"),
    *("sasl.oauthbearer.client.secret", "sasl.oauthbearer.assertion.private.key.file"),
    *("enable.sasl.oauthbearer.unsecure.jwt", "sasl.oauthbearer.metadata.authentication.type"),
    *("client.dns.lookup", "debug", "log_level", "log.queue", "statistics.interval.ms", "opaque"),
    *("error_cb", "oauth_cb", "resolve_cb", "group.id", "group.instance.id", "isolation.level"),
    *("auto.offset.reset", "enable.auto.commit", "allow.auto.create.topics", "interceptors"),
)


@pytest.mark.parametrize("name", FORBIDDEN)
@pytest.mark.parametrize("prefix", ["", "topic.", "{topic}."])
def test_kafkas_options_name_no_file_program_or_login(name: str, prefix: str) -> None:
    options = _kafka({f"{prefix}{name}": "x"})
    with pytest.raises(SourceError) as raised:
        read_kafka(options)
    assert raised.value.code == "source.bad_option"
    assert raised.value.option == f"client.{prefix}{name}"


def test_kafkas_allowed_options_are_those_of_its_client() -> None:
    allowed = {"socket.timeout.ms": 1000, "fetch.min.bytes": 1, "ssl.cipher.suites": "HIGH"}
    config = read_kafka(_kafka(allowed)).connection.config()
    assert {name: config[name] for name in allowed} == {k: str(v) for k, v in allowed.items()}
    Consumer({**config, "group.id": "g"}).close()


def _kafka(client: Options) -> Options:
    columns = [{"name": "a", "type": "int"}]
    topics = {"t": {"topic": "t", "format": "json", "columns": columns}}
    return {"bootstrap_servers": "127.0.0.1:1", "client": client, "topics": topics}


@pytest.mark.parametrize(
    "option",
    [
        *("read_default_file", "option_files", "default_file", "local_infile", "unix_socket"),
        *("service", "servicefile", "passfile", "dsn"),
    ],
)
def test_a_module_is_given_no_file_of_logins(option: str) -> None:
    before = netguard.installed()
    netguard.install(replace(before, modules=("psycopg2",)))
    login = {"host": "h", "user": "u", "dbname": "d"}
    relations = {"t": {"query": "SELECT 1 AS id", "key": ["id"], "columns": COLUMNS}}
    options = {"module": "psycopg2", "relations": relations}
    try:
        dbapi.declare({**options, "connect": login})
        with pytest.raises(SourceError) as raised:
            dbapi.declare({**options, "connect": {**login, option: "x"}})
    finally:
        netguard.install(before)
    assert raised.value.option == f"connect.{option}"
