"""Oracle: the numbers that each topic was given, in order: a view over it shows a run of them that
begins where the topic began for it and only grows; what is recreated has other numbers."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kafka import KafkaProducer, TopicPartition

from connectors.kafka.embedded import EmbeddedKafka
from tests.harness import figures
from tests.harness.broker import (
    admin_of,
    drop_topic,
    ends_of,
    new_topic,
    send,
    topic_names,
)
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.harness.waiting import wait_until
from tests.recovery.produced import TIMEOUT_S, declare

RUN = "pytest tests/recovery/test_kafka_topics.py"
SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "5"))
# Of a topic of two partitions, of which the first one is written to.
DELETED, AGAIN, NARROWED = "deleted", "made again", "made again with one partition"
CUT, LOST = "records deleted past the place", "log lost"
CODES = {
    DELETED: {"source.topic_missing"},
    # Whoever looks in between finds none.
    AGAIN: {"source.topic_recreated", "source.topic_missing"},
    NARROWED: {"source.topic_recreated", "source.topic_missing"},
    CUT: {"source.offsets_gone"},
    LOST: {"source.offsets_gone"},
}
WHOLE = "whole"
RUNNING, HALTED, DOWN = "running", "halted", "down"
ROUNDS = max(1, int(os.environ.get("TIDEMARK_TEST_BROKER", "0")) // len(CODES))
QUERY = "SELECT count(*) AS n, min(n) AS least, max(n) AS newest, sum(n) AS total"
GENERATION = 1_000_000
BURST = 200

pytestmark = pytest.mark.timeout(600 + ROUNDS * 120)


class Topic:
    """What was written to it. first, next: the numbers that it keeps; is_open: may be written."""

    def __init__(self, broker: EmbeddedKafka, relation: str) -> None:
        self.relation = relation
        self.name = new_topic(broker, 2)
        self.first = self.next = 0
        self.is_open = True

    def begin_anew(self) -> None:
        """It is empty, and has other numbers from now on."""
        self.first = self.next = (self.next // GENERATION + 1) * GENERATION

    def take(self, count: int) -> list[bytes]:
        """The next numbers' records."""
        first, self.next = self.next, self.next + count
        return [json.dumps({"n": n}).encode() for n in range(first, self.next)]


class Writer:
    """Writes to every open topic until it is closed; pauses within `pause`."""

    def __init__(self, broker: EmbeddedKafka, topics: list[Topic]) -> None:
        self._broker = broker
        self._topics = topics
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._producer: KafkaProducer | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Nothing is on its way; what topics were is forgotten."""
        with self._lock:
            if self._producer is not None:
                self._producer.close(timeout=TIMEOUT_S)
                self._producer = None
            yield

    def close(self) -> None:
        """The end of it."""
        self._is_over.set()
        self._thread.join()
        with self.pause():
            pass
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._is_over.wait(0.03):
                with self._lock:
                    self._write()
        except BaseException as error:
            self._failure = error

    def _write(self) -> None:
        if self._producer is None:
            servers = self._broker.bootstrap
            self._producer = KafkaProducer(bootstrap_servers=servers, acks="all")
        sent = [
            self._producer.send(topic.name, partition=0, value=record)
            for topic in self._topics
            if topic.is_open
            for record in topic.take(10)
        ]
        self._producer.flush(timeout=TIMEOUT_S)
        for future in sent:
            future.get(timeout=TIMEOUT_S)


class Shown:
    """The view over a topic, and what it may show."""

    def __init__(self, database: Database, topic: Topic) -> None:
        self.topic = topic
        self.states = 0
        self._database = database
        self.begin_anew()

    def begin_anew(self) -> None:
        """It is built of what is there."""
        self._first, self._last = self.topic.first, 0
        self._most: int | None = None

    def stop(self) -> None:
        """From now on nothing more comes that it may show."""
        self._most = self.topic.next

    def check(self) -> int:
        """The number after the last that it shows."""
        ((count, least, newest, total),) = self._database.rows(
            f"SELECT n::int, least, newest, total::bigint FROM {self.topic.relation}"
        )
        if not count:
            assert self._last <= self._first, f"{self.topic.relation} has lost everything"
            return self._first
        told = f"{self.topic.relation}: {(count, least, newest, total)}, first {self._first}"
        assert (least, newest) == (self._first, self._first + count - 1), told
        assert total == count * (least + newest) // 2, told
        most = self.topic.next if self._most is None else self._most
        assert self._last <= newest + 1 <= most, f"{told}, {self._last} to {most}"
        self.states += newest + 1 != self._last
        self._last = newest + 1
        return self._last


class Scene:
    """A service whose only source has all the topics, each with its view; one stays whole."""

    def __init__(self, service: RunningService, broker: EmbeddedKafka, database: Database) -> None:
        self.service, self.broker = service, broker
        relations = (WHOLE, *(f"t{n}" for n in range(len(CODES))))
        topics = [Topic(broker, relation) for relation in relations]
        for topic in topics:
            send(broker, topic.name, [(0, None, record) for record in topic.take(50)])
        columns = {"n": "int8"}
        options = {
            t.relation: {"topic": t.name, "format": "json", "columns": columns} for t in topics
        }
        declare(service, broker, "shop", options)
        for one in relations:
            service.create(one, f"{QUERY} FROM shop.{one}", backfill="local")
        self.whole, *self.views = [Shown(database, topic) for topic in topics]
        self.writer = Writer(broker, topics)
        self.cut_at = 0

    def go_on(self) -> None:
        """The view over the whole topic moves on, and so do those that are not failed."""
        for view in (self.whole, *self.views):
            if view.topic.is_open:
                reached = view.check()
                self.service.await_so(lambda v=view, r=reached: v.check() > r)

    def befall(self, view: Shown, what: str) -> None:
        """Something befalls a topic while nobody writes; what was taken away may have been read."""
        topic, broker = view.topic, self.broker
        topic.is_open = False
        # What the service has asked for already may come with the first records.
        for _ in range(2 if what in (CUT, LOST) else 0):
            send(broker, topic.name, [(0, None, record) for record in topic.take(BURST)])
        view.stop()
        if what == CUT:
            topic.first = topic.next - 5
            self.cut_at = ends_of(broker, topic.name, is_committed=True) - 5
            self.delete_records(topic, self.cut_at)
        if what == LOST:
            self.lose_log(topic)
        if what in (DELETED, AGAIN, NARROWED):
            drop_topic(broker, topic.name)
            topic.begin_anew()
        if what in (AGAIN, NARROWED):
            wait_until(lambda: topic.name not in topic_names(broker))
            new_topic(broker, 1 if what == NARROWED else 2, name=topic.name)
            send(broker, topic.name, [(0, None, record) for record in topic.take(4 * BURST)])

    def delete_records(self, topic: Topic, offset: int) -> None:
        """Those of the first partition that lie before it."""
        with admin_of(self.broker) as admin:
            admin.delete_records({TopicPartition(topic.name, 0): offset})

    def lose_log(self, topic: Topic) -> None:
        """The broker's disk has nothing of it any more; it grows past where it was."""
        end = ends_of(self.broker, topic.name, is_committed=True)
        self.broker.kill()
        for folder in (self.broker.directory / "records").glob(f"{topic.name}-*"):
            shutil.rmtree(folder)
        self.broker.start()
        topic.begin_anew()
        send(self.broker, topic.name, [(0, None, record) for record in topic.take(end + BURST)])

    def refused(self, view: Shown, what: str) -> None:
        """The view fails by name, at the last that it may show."""
        relation = view.topic.relation
        found = self.service.await_status(relation, "failed")
        error = found["error"]
        assert error["code"] in CODES[what] and error["hint"], (what, error)
        assert view.topic.name in str(error), (what, error)
        view.check()

    def repair(self, faults: dict[str, Shown]) -> None:
        """The documented way out: make the topic, where it is gone, and rebuild the view."""
        if DELETED in faults:
            new_topic(self.broker, 2, name=faults[DELETED].topic.name)
        if CUT in faults:  # a broker that was killed may have them again
            self.delete_records(faults[CUT].topic, self.cut_at)
        for view in faults.values():
            answer = self.service.call("POST", f"/views/{view.topic.relation}/rebuild?wait_s=60")
            assert answer.status_code == 200, answer.text
            self.service.await_status(view.topic.relation)
            view.begin_anew()
            view.topic.is_open = True


@contextmanager
def _moment(service: RunningService, moment: str) -> Iterator[None]:
    """When something befalls: the service runs, its pipeline is halted, or it is down."""
    pid = service.pid_of("pipeline")
    if moment == DOWN:
        service.stop()
    elif moment == HALTED:
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        if moment == DOWN:
            service.start()
        elif moment == HALTED and pid is not None:
            os.kill(pid, signal.SIGCONT)


def _befall(scene: Scene, faults: dict[str, Shown], moment: str) -> None:
    """These at once, and each is refused."""
    with scene.writer.pause(), _moment(scene.service, moment):
        scene.delete_records(scene.whole.topic, scene.whole.check() // 2)
        # A broker that is killed later may have again what was deleted before.
        for what in sorted(faults, key=lambda what: what != LOST):
            # Who keeps up has read whatever is deleted.
            is_halted = what == CUT and moment == RUNNING
            with _moment(scene.service, HALTED if is_halted else RUNNING):
                scene.befall(faults[what], what)
    for what, view in faults.items():
        scene.refused(view, what)
    scene.go_on()


@pytest.mark.whole
def test_topics_that_change_under_their_views(
    own_broker: EmbeddedKafka, database: Database, tmp_path: Path
) -> None:
    """All kinds, each to another topic of one source: some while the service runs or its pipeline
    is halted, the others while it is down."""
    command = f"TIDEMARK_TEST_SEED={SEED} TIDEMARK_TEST_BROKER={ROUNDS * len(CODES)} {RUN}"
    print(f"repeat: {command}")
    pick, met = random.Random(SEED), Counter[str]()
    case = "topics deleted, made again, cut off, lost"
    with figures.counted("kafka_kills", command, case=case) as run:
        with RunningService(database.dsn, tmp_path / "service") as service:
            scene = Scene(service, own_broker, database)
            for _ in range(ROUNDS):
                scene.go_on()
                kinds = pick.sample(list(CODES), len(CODES))
                faults = dict(zip(kinds, pick.sample(scene.views, len(CODES)), strict=True))
                for moment, some in (
                    (pick.choice((RUNNING, HALTED)), kinds[:3]),
                    (DOWN, kinds[3:]),
                ):
                    _befall(scene, {what: faults[what] for what in some}, moment)
                    met.update(f"{what}, {moment}" for what in some)
                    run.count = met.total()
                with scene.writer.pause():
                    scene.repair(faults)
            scene.go_on()
            scene.writer.close()
            for view in (scene.whole, *scene.views):
                service.await_so(lambda v=view: v.check() == v.topic.next)
        run.epochs = sum(view.states for view in (scene.whole, *scene.views))
        run.told["met"] = dict(met)
