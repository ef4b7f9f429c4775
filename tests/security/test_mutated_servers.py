"""Oracle: the contract of sources: whatever a server answers, a source has its rows, or an error
with a code; what is not changed gives the rows that the server has."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from connectors.feed_source import FeedPosition, FeedPositions, Reader, retaining
from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.options import read_options as read_kafka_options
from dataflow.errors import InvariantError, TidemarkError
from dataflow.schema import Relation
from service.ingest.declared_sources import connector
from tests.connectors.kafka.reading import relations_of as relations_of_kafka
from tests.connectors.kafka.reading import topic_options
from tests.connectors.mysql.reading import relations_of as relations_of_mysql
from tests.connectors.postgres_source.reading import options_of
from tests.connectors.postgres_source.reading import relations_of as relations_of_postgres
from tests.harness.broker import new_topic, producer_of
from tests.harness.mariadb import MariaDb
from tests.harness.postgres import Database
from tests.harness.tiers import count
from tests.security.mutating_proxy import MutatingProxy

SEEDS = count("TIDEMARK_TEST_MUTATIONS", 6, 60)
FIRST = count("TIDEMARK_TEST_SEED", 1, 1)
# Of one use, with a server that is busy beside it.
MOST_S = 120.0
POLL_S = 0.5
ROWS = 50

WithPort = Callable[[int], dict[str, Any]]


@pytest.fixture(autouse=True)
def threads_end() -> Iterator[list[BaseException]]:
    """No thread ends by an exception that nobody sees."""
    seen: list[BaseException] = []
    before = threading.excepthook
    threading.excepthook = lambda told: seen.append(told.exc_value or told.exc_type())
    yield seen
    threading.excepthook = before
    assert not seen


class Use:
    """Each step that the service makes with a source, with its outcome by name."""

    def __init__(self, type_name: str, options: Mapping[str, Any], relations: Sequence[Relation]):
        self.outcomes: dict[str, str] = {}
        self.rows = 0
        self._connector = connector(type_name)
        self._options = options
        self._relations = relations
        self._notes: dict[str, bytes] = {}
        self.positions: dict[str, FeedPosition] = {}

    def run(self, positions: FeedPositions, changed: Callable[[], None]) -> None:
        """Discover, check, start, read a snapshot and a feed. changed: what the feed finds."""
        source = self._connector.make("shop", self._options, self._relations)
        own = retaining(source)
        if own is not None:
            own.read_as(Reader("tidemark", "mutated"))
        self.step("discover", lambda: self._connector.discover(self._options))
        self.step("check", source.check)
        found = self.positions = dict(positions)
        for relation in self._relations:
            start = self.step("start", lambda r=relation: source.start_position(r))
            if start is not None:
                found[relation.name.name] = start.position
                self._notes |= start.notes
        if all(relation.name.name in found for relation in self._relations):
            self.step("snapshot", lambda: self._snapshot(source, found))
            changed()
            self.step("feed", lambda: self._feed(source, found))
        if own is not None:
            self.step("release", lambda: own.release(time.monotonic()))

    def step(self, name: str, action: Callable[[], Any]) -> Any:
        try:
            found = action()
        except TidemarkError as error:
            assert not isinstance(error, InvariantError), error
            for text in (error.what, error.detail, error.hint):
                assert "\0" not in text, (error.code, text)
                text.encode()
            self.outcomes[name] = error.code
            return None
        self.outcomes[name] = "ok"
        return found

    def _snapshot(self, source: Any, positions: FeedPositions) -> None:
        opened = source.open_snapshot(self._relations, positions, self._notes)
        try:
            for relation in self._relations:
                columns = range(len(relation.fields))
                for part in opened.parts(relation, columns, 2):
                    self.rows += sum(map(len, part.read()))
                    part.rejected()
        finally:
            opened.close()

    def _feed(self, source: Any, positions: FeedPositions) -> None:
        feed = source.open_feed(self._relations, positions, self._notes, lambda: None)
        try:
            ends = time.monotonic() + POLL_S
            while time.monotonic() < ends:
                batch = feed.poll(1000)
                if batch is None:
                    time.sleep(0.02)
                    continue
                self.rows += sum(len(change) for chunk in batch.chunks() for change in chunk)
                ends = time.monotonic() + POLL_S
        finally:
            feed.close()


def _each_is_answered(
    type_name: str,
    port: int,
    options: WithPort,
    relations: Sequence[Relation],
    changed: Callable[[], None],
    *,
    pass_bytes: int = 20_000,
) -> None:
    with MutatingProxy(port, 0, rate=0.0) as proxy:
        control = Use(type_name, options(proxy.port), relations)
        control.run({}, changed)
        positions = control.positions
    assert set(control.outcomes.values()) == {"ok"} and control.rows >= ROWS, control.outcomes
    seen = set()
    for seed in range(FIRST, FIRST + SEEDS):
        print(f"repeat: TIDEMARK_TEST_SEED={seed} TIDEMARK_TEST_MUTATIONS=1 pytest {__file__}")
        began = time.monotonic()
        with MutatingProxy(port, seed, pass_bytes=pass_bytes) as proxy:
            use = Use(type_name, options(proxy.port), relations)
            use.run(positions, changed)
        print(use.outcomes)
        seen.update(use.outcomes.values())
        assert time.monotonic() - began < MOST_S
    # It was worth the while: some of what was changed was seen.
    assert seen - {"ok"}


def test_mysql(mariadb: MariaDb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.mysql.source.SHARED_S", 0.0)
    for name in ("server.ANSWER_TIMEOUT_S", "server.READ_TIMEOUT_S", "server.CONNECT_TIMEOUT_S"):
        monkeypatch.setattr(f"connectors.mysql.{name}", 2)
    monkeypatch.setattr("connectors.mysql.log.SILENT_S", 3)
    mariadb.execute("CREATE TABLE t (id int PRIMARY KEY, name varchar(40), cost decimal(8,2))")
    for number in range(ROWS):
        mariadb.execute(f"INSERT INTO t VALUES ({number}, 'ä{number}', 1.5)")
    full = connector("mysql").discover(mariadb.options("t"))
    numbers = iter(range(ROWS, 1_000_000))

    def changed() -> None:
        mariadb.execute(f"INSERT INTO t VALUES ({next(numbers)}, 'later', 2.5)")

    _each_is_answered(
        "mysql",
        full["port"],
        lambda port: {**full, "port": port},
        relations_of_mysql(full),
        changed,
    )


def test_postgres(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, name text, cost numeric(8,2), j jsonb)")
    database.execute(
        f"INSERT INTO t SELECT n, 'ä' || n, n / 3.0, '{{}}' FROM generate_series(1, {ROWS}) n"
    )
    full = connector("postgres").discover(options_of(database, "public.t"))
    numbers = iter(range(ROWS + 1, 1_000_000))

    def changed() -> None:
        database.execute(f"INSERT INTO t VALUES ({next(numbers)}, 'later', 2.5, '[1]')")

    _each_is_answered(
        "postgres",
        full["port"],
        lambda port: {**full, "port": port},
        relations_of_postgres(database, full),
        changed,
    )


COLUMNS = {"_headers": "jsonb", "_time": "timestamptz", "id": "int8", "name": "text"}


class Bytes(str):
    """A header's name of any bytes."""

    def encode(self, *_: Any) -> bytes:
        return self.__str__().encode("latin-1")


def test_headers_and_times_of_any_bytes(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    with producer_of(broker) as producer:
        for name in ("plain", "a\0b", Bytes("\xff\xfe"), Bytes("\xed\xa0\x80")):
            producer.send(topic, b'{"id":1,"name":"a"}', headers=[(name, b"\xff"), ("x", b"a\0")])
        for time_ms in (0, 1 << 62, (1 << 63) - 1):
            producer.send(topic, b'{"id":1,"name":"a"}', timestamp_ms=time_ms)
        producer.flush()
    given = {"topics": {"t": topic_options(topic, columns=COLUMNS, on_error="dead_letter")}}
    options = {"bootstrap_servers": broker.bootstrap, "check_ms": 200, **given}
    use = Use("kafka", options, relations_of_kafka(read_kafka_options(options)))
    use.run({}, lambda: None)
    assert set(use.outcomes.values()) == {"ok"}, use.outcomes
