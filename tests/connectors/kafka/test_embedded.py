"""Oracle: Apache Kafka itself, by kafka-python, and the process table."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import KafkaTimeoutError, UnknownTopicOrPartitionError

from connectors.kafka import embedded
from connectors.kafka.broker_settings import USERS
from connectors.kafka.embedded import EmbeddedKafka
from dataflow.errors import SourceError
from tests.harness.broker import (
    admin_of,
    drop_topic,
    new_topic,
    producer_of,
    read_all,
    send,
    unique_name,
)
from tests.harness.waiting import wait_until


def values_of(broker: EmbeddedKafka, topic: str) -> list[bytes | None]:
    return [record.value for record in read_all(broker, topic)]


def test_records_come_back_by_partition(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker, 2)
    send(broker, topic, [(0, b"a", b"1"), (1, None, b"2"), (0, b"a", None)])
    found = [(r.partition, r.offset, r.key, r.value) for r in read_all(broker, topic)]
    assert found == [(0, 0, b"a", b"1"), (0, 1, b"a", None), (1, 0, None, b"2")]


def test_aborted_transactions_are_not_seen(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    with producer_of(broker, transactional_id=unique_name("id")) as producer:
        producer.init_transactions()
        for value, ends in ((b"1", True), (b"2", False), (b"3", True)):
            producer.begin_transaction()
            producer.send(topic, value=value)
            producer.flush()
            _ = producer.commit_transaction() if ends else producer.abort_transaction()
    assert values_of(broker, topic) == [b"1", b"3"]
    assert len(read_all(broker, topic, is_committed=False)) == 3


def test_topics_are_not_made_by_use(broker: EmbeddedKafka) -> None:
    name = unique_name()
    with producer_of(broker, max_block_ms=500) as producer, pytest.raises(KafkaTimeoutError):
        producer.send(name, value=b"1")
    with admin_of(broker) as admin:
        assert name not in admin.list_topics()
    topic = new_topic(broker)
    drop_topic(broker, topic)
    with admin_of(broker) as admin, pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics([topic])


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_the_secured_listener_asks_who_it_is(broker: EmbeddedKafka, mechanism: str) -> None:
    name, password = next(iter(USERS.items()))

    def connect(password: str) -> KafkaAdminClient:
        return KafkaAdminClient(
            bootstrap_servers=broker.secured_bootstrap,
            security_protocol="SASL_SSL",
            ssl_cafile=str(broker.ca_file),
            sasl_mechanism=mechanism,
            sasl_plain_username=name,
            sasl_plain_password=password,
            bootstrap_timeout_ms=1500,
        )

    admin = connect(password)
    topic = unique_name()
    admin.create_topics([NewTopic(topic, 1, 1)])
    wait_until(lambda: topic in admin.list_topics())
    admin.close()
    with pytest.raises(Exception, match=r"(?i)auth|bootstrap"):
        connect("wrong").list_topics()


@pytest.mark.whole
def test_restarts_keep_port_and_records(own_broker: EmbeddedKafka) -> None:
    topic, bootstrap = new_topic(own_broker), own_broker.bootstrap
    for again in (own_broker.restart, lambda: (own_broker.kill(), own_broker.start())):
        send(own_broker, topic, [(0, None, b"kept")])
        again()
        assert own_broker.bootstrap == bootstrap
    assert values_of(own_broker, topic) == [b"kept", b"kept"]


@pytest.mark.whole
def test_close_removes_everything(own_broker: EmbeddedKafka) -> None:
    directory, pid = own_broker.directory, own_broker.pid
    own_broker.close()
    assert not directory.exists()
    assert not Path(f"/proc/{pid}").exists()


def test_nothing_is_left_after_kill_9_of_the_parent(broker: EmbeddedKafka) -> None:
    script = (
        "import time; from connectors.kafka.embedded import EmbeddedKafka;"
        "b = EmbeddedKafka().start(); print(b.pid, b.directory, flush=True); time.sleep(600)"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    pid, directory = child.stdout.readline().split()
    assert Path(directory).exists()
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    wait_until(lambda: not Path(directory).exists())
    assert not is_alive(int(pid))


def is_alive(pid: int) -> bool:
    """False also for one that has ended and that nobody has asked about yet."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_missing_jars_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(embedded.JARS_VARIABLE, str(tmp_path))
    with pytest.raises(SourceError, match="no_broker") as caught:
        EmbeddedKafka()
    assert "jars" in caught.value.detail


@pytest.mark.whole
def test_a_broker_that_cannot_start_says_why(broker: EmbeddedKafka) -> None:
    with pytest.raises(SourceError, match="start_failed") as caught:
        EmbeddedKafka({"num.io.threads": "many"}).start()
    assert "num.io.threads" in caught.value.detail
