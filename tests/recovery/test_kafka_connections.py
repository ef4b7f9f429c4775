"""Oracle: a plain-Python model of what was produced; every state of the tables, and of the topics
at every END mark, must be the model's at the prefix which that state itself names."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.kafka.embedded import missing
from tests.conftest import BROKER_SETTINGS
from tests.harness import figures
from tests.harness.broker import new_topic
from tests.harness.postgres import Database
from tests.harness.proxied_broker import ProxiedKafka
from tests.harness.proxy import DOWN, HALF_OPEN, Fault, Proxy
from tests.harness.service import RunningService
from tests.harness.sinks import add_sink
from tests.harness.tiers import count
from tests.recovery.produced import (
    VIEWS,
    Checker,
    Stream,
    halt,
    look_on,
    read_topic,
    shop_topics,
)

RUN = "pytest tests/recovery/test_kafka_connections.py"
FAULTS = count("TIDEMARK_TEST_BROKER", 1, 7)
# A single one is the machine that dies.
FIRST = 1 if FAULTS == 1 else 0
SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "5"))
# By default librdkafka waits for an answer for a minute.
CLIENT = {"socket.timeout.ms": 3000, "reconnect.backoff.max.ms": 500}

TRANSACTION_S = 3
Scene = tuple[RunningService, ProxiedKafka, Proxy]

pytestmark = [
    pytest.mark.timeout(600 + FAULTS * 60),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]


@pytest.fixture
def service(database: Database, tmp_path: Path) -> Iterator[RunningService]:
    with RunningService(database.dsn, tmp_path / "service") as running:
        yield running


def _one_fault(scene: Scene, checker: Checker, number: int, pick: random.Random) -> str:
    """Something befalls the broker, the way to it, or the pipeline; what it was."""
    service, broker, proxy = scene
    held_s = pick.choice((0.2, 1.0, 2.5))
    if number % 7 == 0:
        # The commit is sent, and its answer is lost: whether it was taken nobody tells.
        fault = Fault(HALF_OPEN, (DOWN,), pick.randint(0, 400))
    elif number % 7 == 1:
        # The machine dies: whatever was on its way between them, to tables and topics, is cut.
        service.kill_child("pipeline")
        broker.kill()
        look_on(checker, held_s)
        broker.start()
        return "machine"
    elif number % 7 == 3:
        broker.kill()
        look_on(checker, held_s)
        broker.start()
        return "killed"
    elif number % 7 == 4:
        halt(broker.pid, checker, 2 * held_s)
        return "halted"
    elif number % 7 == 6:
        # Longer than a transaction may last: the broker gives up what was open.
        halt(service.pid_of("pipeline"), checker, TRANSACTION_S + held_s)
        return "asleep"
    else:
        fault = Fault.draw(pick)
    proxy.begin(fault)
    look_on(checker, held_s)
    proxy.heal()
    return fault.kind


def test_faults_between_us_and_the_broker(service: RunningService, database: Database) -> None:
    """Topics in, topics out in transactions, both by the same faulty way."""
    command = f"TIDEMARK_TEST_SEED={SEED} TIDEMARK_TEST_BROKER={FAULTS} {RUN}"
    print(f"repeat: {command}")
    pick = random.Random(SEED)
    with figures.counted("kafka_kills", command) as run:
        with Proxy(0) as proxy, ProxiedKafka(proxy, BROKER_SETTINGS) as broker:
            clicks, prices = new_topic(broker), new_topic(broker)
            stream = Stream(broker, clicks, prices)
            stream.write(50)
            options = {"bootstrap_servers": broker.proxied, "check_ms": 100, "client": CLIENT}
            body = {"name": "shop", "type": "kafka"}
            options["topics"] = shop_topics(clicks, prices)
            answer = service.call("POST", "/sources", {**body, "options": options})
            assert answer.status_code == 201, answer.text
            chosen = {
                "bootstrap_servers": broker.proxied,
                "transaction_timeout_ms": TRANSACTION_S * 1000,
            }
            for name, query in VIEWS.items():
                service.create(name, query, backfill="local")
                add_sink(service, name, topic=name, client=CLIENT, **chosen)
            checker = Checker(database, stream)
            stream.start()
            longest_s, met = 0.0, []
            for number in range(FAULTS):
                met.append(_one_fault((service, broker, proxy), checker, FIRST + number, pick))
                run.count, run.epochs = number + 1, checker.states
                reached, started = checker.check(), time.monotonic()
                service.await_so(lambda seen=reached: checker.check() > seen)
                longest_s = max(longest_s, time.monotonic() - started)
                proxy.terminate_orphan()
            sent = stream.stop()
            service.await_so(lambda: checker.check() == (sent, sent))
            checker.close()
            marks = {name: read_topic(broker, name, name, sent) for name in VIEWS}
        failed = [e for e in service.events() if e["event"] == "sink.failed"]
        assert not failed and min(marks.values()) >= 1, (failed, marks)
        run.epochs = checker.states + sum(marks.values())
        run.told.update(met=met if FAULTS < 20 else len(met), longest_s=round(longest_s, 1))
