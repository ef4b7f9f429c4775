"""Oracle: a plain-Python model of what was produced; every state of the tables, and of the topics
at every END mark, must be the model's at the prefix which that state itself names."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.admin import NewPartitions

from connectors.kafka.embedded import EmbeddedKafka
from tests.harness.broker import admin_of, new_topic, send
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.harness.sinks import add_sink
from tests.harness.topic_reader import TopicReader
from tests.recovery.produced import (
    OTHER,
    VIEWS,
    Checker,
    Stream,
    click,
    clicked,
    declare,
    halt,
    held,
    look_on,
    read_topic,
    shop_topics,
)

SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "5"))


@pytest.fixture
def service(database: Database, tmp_path: Path) -> Iterator[RunningService]:
    with RunningService(database.dsn, tmp_path / "service") as running:
        yield running


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_a_broker_that_halts_dies_and_grows(
    own_broker: EmbeddedKafka, service: RunningService, database: Database
) -> None:
    """Halted while both sides are at work, for longer than a transaction may last too; killed while
    a view is built; then the topic that is read gets a partition more, amid its records."""
    pick, clicks, prices = random.Random(SEED), new_topic(own_broker), new_topic(own_broker)
    stream = Stream(own_broker, clicks, prices)
    stream.write(50)
    declare(service, own_broker, "shop", shop_topics(clicks, prices))
    chosen = {"bootstrap_servers": own_broker.bootstrap, "transaction_timeout_ms": 2000}
    for name, query in VIEWS.items():
        service.create(name, query, backfill="local")
        add_sink(service, name, topic=name, **chosen)
    checker = Checker(database, stream)
    stream.start()
    for pause_s in (pick.uniform(0, 0.5), 4.0, pick.uniform(0, 0.5)):
        reached = checker.check()
        service.await_so(lambda seen=reached: checker.check() > seen)
        halt(own_broker.pid, checker, pause_s)
    service.create("late", OTHER["late"], wait_s=0, backfill="local")
    look_on(checker, pick.uniform(0, 0.3))
    own_broker.kill()
    look_on(checker, 1.0)
    own_broker.start()
    service.await_status("late")
    with admin_of(own_broker) as admin:
        admin.create_partitions({clicks: NewPartitions(2)})
    reached = checker.check()
    service.await_so(lambda: checker.check() > reached)
    sent = stream.stop()
    service.await_so(lambda: checker.check() == (sent, sent))
    checker.close()
    assert min(read_topic(own_broker, name, name, sent) for name in VIEWS) > 3
    send(own_broker, clicks, [(n % 2, *click(n)) for n in range(sent, sent + 100)])
    total = sent + 100
    sums = "SELECT n::int, newest::int, total::int FROM sums"
    service.await_so(lambda: Counter(database.rows(sums)) == clicked(total)["sums"])
    assert Counter(database.rows("SELECT kind, side FROM bag")) == clicked(total)["bag"]
    late = "SELECT kind, n FROM late"
    service.await_so(lambda: Counter(database.rows(late)) == clicked(total)["late"])
    # Records of two partitions come in any order, so only the last state is known.
    reader, bag = TopicReader(own_broker, "bag"), clicked(total)["bag"]
    for _ in reader.epochs(until=lambda: held(reader, "bag") == bag):
        continue
    reader.close()
    with admin_of(own_broker) as admin:
        assert admin.list_groups() == []
