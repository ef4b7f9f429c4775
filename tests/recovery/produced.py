"""What two topics were written, and how a state of a view over them names its prefix of that.

One record a number: clicks are counted, prices replace or remove each other by a key, so that each
state of either is that of one number alone. Tables and topics are held to it alike.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from typing import Any

from connectors.kafka.embedded import EmbeddedKafka
from tests.harness.broker import producer_of, send
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.harness.topic_reader import TopicReader

TIMEOUT_S = 60.0
KEYS = 7

VIEWS = {
    "sums": "SELECT 1 AS one, count(*) AS n, max(n) AS newest, sum(n) AS total FROM shop.clicks",
    "bag": "SELECT n % 5 AS kind, n % 2 AS side FROM shop.clicks",
    "prices": "SELECT id, price FROM shop.prices",
}
OTHER = {"late": "SELECT n % 3 AS kind, count(*) AS n FROM shop.clicks GROUP BY 1"}
COLUMNS = {
    "sums": ("n", "newest", "total"),
    "bag": ("kind", "side"),
    "prices": ("id", "price"),
    "late": ("kind", "n"),
}
# The n-th record of a topic: its key and its value.
Record = tuple[bytes | None, bytes | None]
State = Counter[tuple[int, ...]]


def click(n: int) -> Record:
    """Numbers from 0 on: how many there are says which."""
    return None, json.dumps({"n": n}).encode()


def price(n: int) -> Record:
    """A row that the n-th record sets, or, of an older one, takes away."""
    if n % 10 == 9:
        return b"%d" % ((n + 2) % KEYS), None
    return b"%d" % (n % KEYS), json.dumps({"price": n}).encode()


def clicked(count: int) -> dict[str, State]:
    """The views over the clicks after so many of them."""
    seen = range(count)
    return {
        "sums": Counter([(count, count - 1, count * (count - 1) // 2)]),
        "bag": Counter((n % 5, n % 2) for n in seen),
        "late": Counter((kind, len(seen[kind::3])) for kind in range(min(3, count))),
    }


class Prices:
    """The prefix that a state of the prices is."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}
        self._numbers: dict[frozenset[tuple[int, int]], int] = {frozenset(): 0}
        self._count = 0

    def number(self, state: State, known: int) -> int:
        """How many records made it; AssertionError where no prefix of `known` does."""
        assert set(state.values()) <= {1}, state
        while self._count < known:
            key, value = price(self._count)
            assert key is not None
            if value is None:
                self._rows.pop(int(key), None)
            else:
                self._rows[int(key)] = json.loads(value)["price"]
            self._count += 1
            self._numbers.setdefault(frozenset(self._rows.items()), self._count)
        rows = frozenset((row[0], row[1]) for row in state)
        assert rows in self._numbers, f"no prefix of {known} records has the prices {set(rows)}"
        return self._numbers[rows]


class Stream:
    """Writes both topics until it is stopped. sent: records that may be there by now."""

    def __init__(self, broker: EmbeddedKafka, clicks: str, prices: str) -> None:
        self.sent = 0
        self._broker = broker
        self._topics = ((clicks, click), (prices, price))
        self._is_over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="stream", daemon=True)

    def write(self, count: int) -> None:
        """So many records at once, before the start."""
        for topic, record in self._topics:
            send(self._broker, topic, [(0, *record(n)) for n in range(self.sent, count)])
        self.sent = count

    def start(self) -> None:
        """Write on and on."""
        self._thread.start()

    def stop(self) -> int:
        """How many records each topic has."""
        self._is_over.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self.sent

    def _run(self) -> None:
        try:
            settings = {"linger_ms": 2, "enable_idempotence": True, "retries": 1000}
            with producer_of(self._broker, **settings) as producer:
                while not self._is_over.is_set():
                    first, self.sent = self.sent, self.sent + 20
                    for n in range(first, self.sent):
                        for topic, record in self._topics:
                            key, value = record(n)
                            producer.send(topic, partition=0, key=key, value=value)
                    producer.flush(timeout=TIMEOUT_S)
                    self._is_over.wait(0.02)
        except BaseException as error:
            self._failure = error


class Checker:
    """Looks at all tables in one snapshot; what they show never goes back."""

    def __init__(self, database: Database, stream: Stream) -> None:
        self._connection = database.connect(autocommit=False)
        self._stream = stream
        self._prices = Prices()
        self._last = (0, 0)
        self.states = 0

    def check(self) -> tuple[int, int]:
        """(clicks, prices) that the tables show."""
        with self._connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            found = {}
            for name in VIEWS:
                cursor.execute(f"SELECT {', '.join(COLUMNS[name])} FROM {name}")
                found[name] = Counter(tuple(map(int, row)) for row in cursor.fetchall())
        self._connection.rollback()
        count = found["bag"].total()
        assert {k: found[k] for k in ("sums", "bag")} == {
            k: v for k, v in clicked(count).items() if k in VIEWS
        }, f"at {count} of {self._stream.sent}"
        numbers = (count, self._prices.number(found["prices"], self._stream.sent))
        assert all(a >= b for a, b in zip(numbers, self._last, strict=True)), (numbers, self._last)
        self.states += numbers != self._last
        self._last = numbers
        return numbers

    def close(self) -> None:
        """End the session."""
        self._connection.close()


def claimed(view: str, state: State) -> int:
    """How many clicks a state of a view over them says that it has seen."""
    if view == "bag":
        return state.total()
    return sum(row[COLUMNS[view].index("n")] for row in state)


def held(reader: TopicReader, view: str) -> State:
    """The rows that a reader has now, as the tables show them."""
    state: State = Counter()
    for text, n in reader.rows().items():
        row = json.loads(text)
        state[tuple(int(row[column]) for column in COLUMNS[view])] += n
    return state


def read_topic(
    broker: EmbeddedKafka, topic: str, view: str, sent: int, *, is_upsert: bool = False
) -> int:
    """At each END mark the topic holds a prefix, at last everything; how many marks there are."""
    reader = TopicReader(broker, topic, is_upsert=is_upsert)
    prices, numbers = Prices(), [0]
    try:
        for _ in reader.epochs(until=lambda: numbers[-1] == sent):
            state = held(reader, view)
            if view == "prices":
                number = prices.number(state, sent)
            else:
                number = claimed(view, state)
                assert state == clicked(number)[view], f"{topic} at {number} of {sent}"
            assert numbers[-1] <= number <= sent, f"{topic}: {number} after {numbers[-1]}"
            numbers.append(number)
    finally:
        reader.close()
    return len(numbers) - 1


def declare(
    service: RunningService, broker: EmbeddedKafka, name: str, topics: dict[str, Any]
) -> None:
    options = {"bootstrap_servers": broker.bootstrap, "check_ms": 100, "topics": topics}
    answer = service.call("POST", "/sources", {"name": name, "type": "kafka", "options": options})
    assert answer.status_code == 201, answer.text


def shop_topics(clicks: str, prices: str) -> dict[str, Any]:
    columns = [
        {"name": "id", "type": "int8", "in": "key", "path": "$"},
        {"name": "price", "type": "int8"},
    ]
    upsert = {"mode": "upsert", "key": ["id"], "key_format": "json", "columns": columns}
    return {
        "clicks": {"topic": clicks, "format": "json", "columns": {"n": "int8"}},
        "prices": {"topic": prices, "format": "json", **upsert},
    }


def look_on(checker: Checker, seconds: float) -> None:
    """Check again and again for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        checker.check()


def halt(pid: int | None, checker: Checker, seconds: float) -> None:
    """Stop a process in the middle of whatever it does, and let it continue."""
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    look_on(checker, seconds)
    os.kill(pid, signal.SIGCONT)
