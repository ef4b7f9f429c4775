"""Oracle: a plain-Python model of what was produced; every state of the tables, and of the topics
at every END mark, must be the model's at the prefix which that state itself names."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.kafka.embedded import EmbeddedKafka
from tests.harness.broker import new_topic, unique_name
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.harness.sinks import add_sink
from tests.harness.tiers import count
from tests.recovery.produced import (
    OTHER,
    VIEWS,
    Checker,
    Stream,
    clicked,
    declare,
    look_on,
    read_topic,
    shop_topics,
)

KILLS = count("TIDEMARK_TEST_KILLS", 1, 3)
SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "5"))


@pytest.fixture
def service(database: Database, tmp_path: Path) -> Iterator[RunningService]:
    with RunningService(database.dsn, tmp_path / "service") as running:
        yield running


@pytest.mark.whole
@pytest.mark.timeout(600 + KILLS * 20)
def test_kills_between_topics_in_and_topics_out(
    broker: EmbeddedKafka, service: RunningService, database: Database
) -> None:
    """Half way a view more is begun, and its build killed."""
    print(f"repeat: TIDEMARK_TEST_SEED={SEED} TIDEMARK_TEST_KILLS={KILLS} pytest {__file__}")
    pick, clicks, prices = random.Random(SEED), new_topic(broker), new_topic(broker)
    stream = Stream(broker, clicks, prices)
    stream.write(50)
    declare(service, broker, "shop", shop_topics(clicks, prices))
    topics = {name: unique_name(name) for name in ("sums", "bag", "prices", "late")}
    for name, query in VIEWS.items():
        service.create(name, query, backfill="local")
        chosen = {"bootstrap_servers": broker.bootstrap, "topic": topics[name]}
        if name == "prices":
            chosen |= {"mode": "upsert", "values": "before_after"}
        add_sink(service, name, wait_s=60, **chosen)
    checker = Checker(database, stream)
    stream.start()
    begun: set[str] = set()
    kills = 0
    while kills < KILLS:
        if kills == KILLS // 2 and OTHER.keys() - begun:
            service.create("late", OTHER["late"], wait_s=0, backfill="local")
            begun.add("late")
        reached = checker.check()
        if kills % 4:  # else it may be killed before it has done anything
            service.await_so(lambda seen=reached: checker.check() > seen)
        look_on(checker, pick.uniform(0, 0.8))
        kills += service.kill_child("pipeline")
    service.await_status("late")
    add_sink(service, "late", bootstrap_servers=broker.bootstrap, topic=topics["late"])
    sent = stream.stop()
    service.await_so(lambda: checker.check() == (sent, sent))
    checker.close()
    late = "SELECT kind, n FROM late"
    service.await_so(lambda: Counter(database.rows(late)) == clicked(sent)["late"])
    marks = {
        name: read_topic(broker, topics[name], name, sent, is_upsert=name == "prices")
        for name in topics
    }
    assert checker.states > KILLS and min(marks[name] for name in VIEWS) > KILLS, (checker, marks)
    print(f"{kills} kills, {sent} records a topic, {checker.states} states of the tables, {marks}")
