"""Oracle: what was produced, and docs/SECURITY.md: a broker that aborts its client stops its own
source alone, and the service's processes never load the client's library."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from connectors.kafka.embedded import EmbeddedKafka
from storage.process_title import title_of
from tests.connectors.kafka.reading import topic_options, value
from tests.harness.broker import new_topic, send
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.security.kafka_broker import SNAPPY, TOPIC, HostileBroker, batch
from tests.security.test_hostile_kafka import RECORDS, SNAPPY_BOMB, VALUES

# Far beyond what it takes: several processes are started one after the other.
WITHIN_S = 300.0

pytestmark = pytest.mark.timeout(1800)


def declare(service: RunningService, name: str, servers: str, topic: str) -> None:
    options = {
        "bootstrap_servers": servers,
        "check_ms": 200,
        "topics": {"clicks": topic_options(topic)},
    }
    body = {"name": name, "type": "kafka", "options": options}
    answer = service.call("POST", "/sources", body)
    assert answer.status_code == 201, answer.text


def child_of(service: RunningService) -> int:
    """The pid of a child of the client, once there is one."""
    found: list[int] = []

    def is_found() -> bool:
        for process in service.processes():
            with suppress(psutil.Error):  # it has just ended
                if title_of(process.cmdline()).startswith("kafka "):
                    found.append(process.pid)
        return bool(found)

    service.await_so(is_found, WITHIN_S)
    return found[0]


def problem_of(service: RunningService, name: str) -> str:
    found = service.call("GET", f"/sources/{name}").json()
    return json.dumps(found.get("error") or found.get("problem") or "")


def test_a_hostile_broker_beside_another(
    broker: EmbeddedKafka, database: Database, tmp_path: Path
) -> None:
    topic = new_topic(broker)
    send(broker, topic, [(0, None, value(n)) for n in range(100)])
    with (
        HostileBroker(RECORDS, len(VALUES)) as hostile,
        RunningService(database.dsn, tmp_path / "service") as service,
    ):
        declare(service, "good", broker.bootstrap, topic)
        declare(service, "bad", hostile.bootstrap, TOPIC)
        for name in ("good", "bad"):
            query = f"SELECT count(*) AS n, sum(id) AS total FROM {name}.clicks"
            service.create(f"of_{name}", query, wait_s=0, backfill="local")
            service.await_status(f"of_{name}", timeout_s=WITHIN_S)
        before = service.pid_of("pipeline"), service.pid_of("api")
        # More records, of which the answer aborts the library.
        hostile.records = batch(VALUES, compression=SNAPPY, packed=SNAPPY_BOMB, first=len(VALUES))
        hostile.count = 2 * len(VALUES)
        service.await_so(lambda: "source.process_ended" in problem_of(service, "bad"), WITHIN_S)
        for sent in range(100, 200):
            send(broker, topic, [(0, None, value(sent))])
            if sent % 25 == 0:
                with suppress(ProcessLookupError):
                    os.kill(child_of(service), signal.SIGKILL)
        expected = [(200, sum(range(200)))]
        service.await_so(
            lambda: database.rows("SELECT n, total FROM of_good") == expected, WITHIN_S
        )
        hostile.records = batch(VALUES, first=len(VALUES))
        service.await_so(
            lambda: database.rows("SELECT n, total FROM of_bad") == [(10, 20)], WITHIN_S
        )
        assert before == (service.pid_of("pipeline"), service.pid_of("api"))
        for pid in before:
            assert "rdkafka" not in Path(f"/proc/{pid}/maps").read_text()
        # The positive control: where it is.
        assert "rdkafka" in Path(f"/proc/{child_of(service)}/maps").read_text()
