"""Settings of the embedded broker: one node, everything on loopback, no replication.

Its users and passwords protect only a broker that lives for a test. Names and meanings of the
settings: Kafka's documentation of brokers in KRaft mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

USERS: Mapping[str, str] = {"alice": "wonderland", "bob": "builder"}
STORE_PASSWORD = "changeit"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_HOST = "127.0.0.1"
_SECURITY = "org.apache.kafka.common.security"


class Ports(NamedTuple):
    """The ports on which the broker listens."""

    plain: int
    controller: int
    secured: int


def settings_of(directory: Path, ports: Ports, is_secured: bool) -> dict[str, object]:
    """Return the settings of a broker that stores its records in `directory`/records."""
    listeners = {"PLAINTEXT": ports.plain}
    if is_secured:
        listeners["SECURED"] = ports.secured
    advertised = ",".join(f"{name}://{_HOST}:{port}" for name, port in listeners.items())
    settings: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.bootstrap.servers": f"{_HOST}:{ports.controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{advertised},CONTROLLER://{_HOST}:{ports.controller}",
        "advertised.listeners": f"{advertised},CONTROLLER://{_HOST}:{ports.controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECURED:SASL_SSL,"
        "CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": directory / "records",
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": 0,
        "num.network.threads": 2,
        "num.io.threads": 4,
        # The default takes a third of our heap.
        "log.cleaner.dedupe.buffer.size": 16 << 20,
        # A killed broker can register again only after its old session has expired.
        "broker.session.timeout.ms": 2000,
        "broker.heartbeat.interval.ms": 500,
    }
    for topic in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
        settings[f"{topic}.replication.factor"] = 1
        settings[f"{topic}.num.partitions"] = 1
    settings["transaction.state.log.min.isr"] = 1
    settings["share.coordinator.state.topic.min.isr"] = 1
    return {**settings, **_secured(directory)} if is_secured else settings


def _secured(directory: Path) -> dict[str, object]:
    users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
    listener = "listener.name.secured"
    return {
        f"{listener}.ssl.keystore.type": "PKCS12",
        f"{listener}.ssl.keystore.location": directory / "keys.p12",
        f"{listener}.ssl.keystore.password": STORE_PASSWORD,
        f"{listener}.ssl.key.password": STORE_PASSWORD,
        f"{listener}.sasl.enabled.mechanisms": ",".join(MECHANISMS),
        f"{listener}.plain.sasl.jaas.config": f"{_SECURITY}.plain.PlainLoginModule required "
        f"{users};",
        **{
            f"{listener}.{name.lower()}.sasl.jaas.config": f"{_SECURITY}.scram.ScramLoginModule "
            "required;"
            for name in MECHANISMS
            if name.startswith("SCRAM")
        },
    }


def scram_records() -> list[str]:
    """Return the arguments for StorageTool's --add-scram, one for each user and mechanism."""
    return [
        f"{mechanism}=[name={name},password={password}]"
        for mechanism in MECHANISMS
        if mechanism.startswith("SCRAM")
        for name, password in USERS.items()
    ]


def text_of(settings: Mapping[str, object]) -> str:
    """Return the text of a Java properties file."""
    return "".join(f"{name}={value}\n" for name, value in settings.items())
