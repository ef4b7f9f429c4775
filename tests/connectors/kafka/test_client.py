"""Oracle: a real broker's secured listener, and the list of what a client may be told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from connectors.kafka.broker_settings import USERS
from connectors.kafka.client import Client
from connectors.kafka.connection import MECHANISMS, Connection
from connectors.kafka.embedded import EmbeddedKafka
from connectors.loopback import free_port
from connectors.option_reader import OptionReader
from dataflow.errors import SinkError, SourceError, TemporaryError, TidemarkError
from tests.harness.broker import new_topic

NAME, PASSWORD = next(iter(USERS.items()))


def client_of(options: dict[str, Any], side: str = "source") -> Client:
    given = OptionReader(options, side)
    connection = Connection.of(given)
    given.end()
    return Client(connection, side, "clicks")


def topics_of(client: Client, timeout_s: float = 60.0) -> set[str]:
    admin = client.admin()
    try:
        return set(admin.list_topics(timeout=timeout_s).topics)
    except KafkaException as error:
        raise client.refused(error, "listing topics", admin) from None


def secured(broker: EmbeddedKafka, mechanism: str = "PLAIN", **more: Any) -> dict[str, Any]:
    return {
        "bootstrap_servers": broker.secured_bootstrap,
        "tls": {"ca_file": str(broker.ca_file)},
        "sasl": {
            "mechanism": mechanism,
            "username": NAME,
            "password": "${env:KAFKA_PASSWORD}",
        },
        **more,
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_tls_and_sasl(
    broker: EmbeddedKafka, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(broker)
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    client = client_of(secured(broker, mechanism, client={"socket.keepalive.enable": True}))
    assert topic in topics_of(client)


@pytest.mark.parametrize("side, kind", [("source", SourceError), ("sink", SinkError)])
def test_a_wrong_password_is_refused(
    broker: EmbeddedKafka, side: str, kind: type[TidemarkError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "hunter2")
    with pytest.raises(kind, match=f"{side}.login") as caught:
        topics_of(client_of(secured(broker), side), 3)
    error = caught.value
    assert "hunter2" not in f"{error} {error.detail} {error.hint}"


def test_a_partition_without_metadata_is_requested_again(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    client = client_of({"bootstrap_servers": broker.bootstrap}, "sink")
    consumer = client.consumer()
    with pytest.raises(KafkaException) as caught:
        consumer.get_watermark_offsets(TopicPartition(topic, 7), 10)
    assert caught.value.args[0].code() == KafkaError._UNKNOWN_PARTITION
    error = client.refused(caught.value, "reading its marks", consumer)
    consumer.close()
    assert error.is_temporary and error.code == "sink.unreachable"


def test_a_secret_file_is_read_when_it_is_used(broker: EmbeddedKafka, tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("wrong\n")
    options = secured(broker)
    options["sasl"]["password"] = f"${{file:{path}}}"
    client = client_of(options)
    path.write_text(PASSWORD + "\n")
    assert topics_of(client)
    path.unlink()
    with pytest.raises(SourceError, match=r"secret\.missing"):
        client.admin()


def test_an_unknown_certificate_is_refused(
    broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    with pytest.raises(SourceError, match=r"source\.tls"):
        topics_of(client_of(secured(broker, tls=True)), 3)


def test_a_broker_that_is_away_is_worth_another_try() -> None:
    client = client_of({"bootstrap_servers": f"127.0.0.1:{free_port()}"})
    with pytest.raises(TemporaryError, match=r"source\.unreachable"):
        topics_of(client, 1)


@pytest.mark.parametrize(
    "options, named",
    [
        ({}, "bootstrap_servers"),
        ({"bootstrap_servers": "nowhere"}, "bootstrap_servers"),
        ({"bootstrap_servers": "a:1", "ssl": True}, "ssl"),
        ({"bootstrap_servers": "a:1", "tls": {"ca": "x"}}, "tls.ca"),
        ({"bootstrap_servers": "a:1", "sasl": {"mechanism": "GSSAPI"}}, "sasl.mechanism"),
        ({"bootstrap_servers": "a:1", "sasl": {"username": "a"}}, "sasl.password"),
        ({"bootstrap_servers": "a:1", "client": {"isolation.level": "x"}}, "client.isolation"),
        ({"bootstrap_servers": "a:1", "client": {"plugin.library.paths": "x"}}, "client.plugin"),
        ({"bootstrap_servers": "a:1", "client": {"debug": "all"}}, "client.debug"),
        ({"bootstrap_servers": "a:1", "client": {"fetch.wait.max.ms": []}}, "client.fetch"),
    ],
)
def test_client_options_that_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(SourceError, match=r"source\.bad_option") as caught:
        client_of(options)
    assert named in caught.value.what


def test_the_client_itself_refuses_a_bad_value() -> None:
    options = {"bootstrap_servers": "127.0.0.1:1", "client": {"fetch.wait.max.ms": "soon"}}
    with pytest.raises(SourceError, match=r"source\.bad_option") as caught:
        client_of(options).admin()
    assert "fetch.wait.max.ms" in caught.value.detail


def test_the_users_own_options_go_before_ours() -> None:
    options = {"bootstrap_servers": "127.0.0.1:1", "client": {"fetch.wait.max.ms": "soon"}}
    with pytest.raises(SourceError, match=r"source\.bad_option") as caught:
        client_of(options).consumer(fetch_wait_max_ms=20)
    assert "fetch.wait.max.ms" in caught.value.detail


def test_secrets_are_references() -> None:
    sasl = {"username": "alice", "password": "hunter2"}
    with pytest.raises(SourceError, match=r"secret\.plain") as caught:
        client_of({"bootstrap_servers": "a:1", "sasl": sasl})
    assert "hunter2" not in f"{caught.value} {caught.value.detail} {caught.value.hint}"
